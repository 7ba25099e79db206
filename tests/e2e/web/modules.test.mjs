// The modules of the page that need no DOM, in node: parsing, state, storage, and the first of the barriers against hostile text.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

const WEB = new URL('../../../web/', import.meta.url);
const load = (name) => import(new URL(name, WEB));
const { SseParser, events } = await load('sse.js');
const { addChunk, endAnswer, newAnswer, requestMessages, statsOf } = await load('answer.js');
const { MAX_PICTURE_CHARS, MAX_SOUND_CHARS, Store, fromFile, titleOf, toFile } = await load('store.js');
const { Session } = await load('session.js');
const { Api, ApiError } = await load('api.js');
const { toHtml } = await load('markdown.js');
const wav = await load('wav.js');
const { Speaker } = await load('speaker.js');
const { stateText } = await load('header.js');

const MAX_LINES = 300;

class MemoryStorage {
  #map = new Map();
  get length() { return this.#map.size; }
  key(i) { return [...this.#map.keys()][i]; }
  getItem(name) { return this.#map.get(name) ?? null; }
  setItem(name, value) { this.#map.set(name, value); }
  removeItem(name) { this.#map.delete(name); }
}

test('a module stays readable, and the page names no outside address', () => {
  for (const name of readdirSync(WEB).filter((file) => /\.(js|css|html)$/.test(file))) {
    const text = readFileSync(new URL(name, WEB), 'utf8');
    assert.ok(text.split('\n').length <= MAX_LINES, `${name} is over ${MAX_LINES} lines`);
    assert.doesNotMatch(text.replaceAll('http://www.w3.org', ''), /https?:\/\/\w/, name);
  }
});

test('events come out complete however the stream is cut', () => {
  const text = ': note\r\ndata: {"a":1}\r\n\r\ndata: one\ndata:two\n\nevent: x\ndata: é\r\rid: 4\n\ndata: cut';
  for (let size = 1; size <= text.length; ++size) {
    const parser = new SseParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(found, ['{"a":1}', 'one\ntwo', 'é'], `cut every ${size}`);
  }
});

test('bytes of one character may come in two reads', async () => {
  const bytes = new TextEncoder().encode('data: dé🎈\n\n');
  const body = new ReadableStream({ start(c) { for (const byte of bytes) c.enqueue(Uint8Array.of(byte)); c.close(); } });
  const found = [];
  for await (const data of events(body)) found.push(data);
  assert.deepEqual(found, ['dé🎈']);
});

const chunk = (delta, more = {}) => ({ choices: [{ delta, finish_reason: null }], ...more });

test('an answer grows, with its costs', () => {
  let answer = newAnswer(1000);
  answer = addChunk(answer, chunk({ role: 'assistant', content: '' }), 1050);
  assert.equal(answer.stats.first_ms, undefined); // no token yet
  const usage = (tokens) => ({ usage: { prompt_tokens: 20, completion_tokens: tokens, prompt_tokens_details: { cached_tokens: 16 } } });
  answer = addChunk(answer, chunk({ reasoning_content: 'Hm.' }, usage(1)), 1100);
  answer = addChunk(answer, chunk({ content: 'A' }), 1200);
  answer = addChunk(answer, chunk({ tool_calls: [{ index: 0, function: { name: 'f', arguments: '{' } }] }), 1300);
  answer = addChunk(answer, chunk({ tool_calls: [{ index: 0, function: { arguments: '}' } }] }, usage(11)), 2100);
  answer = addChunk(answer, { choices: [{ delta: {}, finish_reason: 'tool_calls' }] }, 2200);
  answer = endAnswer(answer, 'stop');
  assert.equal(answer.reasoning + answer.content, 'Hm.A');
  assert.deepEqual(answer.tool_calls, [{ name: 'f', arguments: '{}' }]);
  assert.equal(answer.finish, 'tool_calls');
  const shown = Object.fromEntries(statsOf(answer, 100).map((one) => [one.label, one.value]));
  assert.deepEqual(shown, { in: '20', cached: '16', out: '11', 'first token': '100 ms', 'tokens/s': '10', context: '31 %' });
});

test('tokens that come at once have no rate', () => {
  let answer = newAnswer(0);
  for (let n = 1; n <= 100; ++n) answer = addChunk(answer, chunk({ content: 'x' }, { usage: { prompt_tokens: 1, completion_tokens: n } }), 300 + Math.floor(n / 60));
  assert.deepEqual(statsOf(answer, 0).map((one) => one.label), ['in', 'cached', 'out', 'first token']);
});

test('thinking and failed answers do not go back to the model', () => {
  const messages = [{ role: 'user', content: 'q' }, { role: 'assistant', content: '', reasoning: 'x', error: 'broken' }, { role: 'user', content: 'again' }];
  assert.deepEqual(requestMessages({ system: 'be kind', messages }), [
    { role: 'system', content: 'be kind' }, { role: 'user', content: 'q' }, { role: 'user', content: 'again' }]);
});

test('conversations survive the storage and a file; a hostile file is refused or cleaned', () => {
  const store = new Store(new MemoryStorage());
  const one = { id: 'ab1', title: '', created: 1, updated: 2, system: 's', sampling: { temperature: 0.5 }, voice: 'ann', messages: [{ role: 'user', content: 'q' }] };
  store.save(one);
  store.save({ ...one, id: 'ab2', updated: 3 });
  assert.deepEqual(store.load().map((each) => each.id), ['ab2', 'ab1']);
  assert.deepEqual(store.load()[1], one);
  assert.deepEqual(fromFile(toFile([one])), [one]);
  assert.notEqual(fromFile(toFile([one]), new Set(['ab1']))[0].id, 'ab1');
  assert.throws(() => fromFile('{"format": "other"}'), /millrace-chats/);
  assert.throws(() => fromFile('{"format": "millrace-chats", "version": 2, "conversations": []}'), /version 2; wanted 1/);
  const [cleaned] = fromFile(JSON.stringify({ format: 'millrace-chats', version: 1, conversations: [
    { id: '__proto__', title: 7, sampling: { temperature: 'hot', tools: 1 }, messages: [{ role: 'system', content: { a: 1 } }, { role: 'assistant', content: 'x', stats: { first_ms: '<b>' } }] }] }));
  assert.match(cleaned.id, /^[0-9a-f]+$/);
  assert.deepEqual(cleaned.sampling, {});
  assert.deepEqual(cleaned.messages[0], { role: 'user', content: '' });
  assert.deepEqual(cleaned.messages[1].stats, {});
});

const picture = { url: 'data:image/png;base64,iVBORw0KGgo=', width: 4, height: 3 };

test('pictures stand before the text, and only data: URLs of pictures are kept', async () => {
  assert.deepEqual(requestMessages({ system: '', messages: [{ role: 'user', content: 'what?', pictures: [picture] }, { role: 'user', content: ' ', pictures: [picture, picture] }] }), [
    { role: 'user', content: [{ type: 'image_url', image_url: { url: picture.url } }, { type: 'text', text: 'what?' }] },
    { role: 'user', content: [picture, picture].map(({ url }) => ({ type: 'image_url', image_url: { url } })) }]);
  const hostile = ['http://203.0.113.9/a.png', 'javascript:alert(1)', 'data:text/html;base64,AAAA', 'data:image/svg+xml;base64,AAAA', 'data:image/png;base64,A"onload=', 5, null, `data:image/png;base64,${'A'.repeat(MAX_PICTURE_CHARS)}`];
  const file = (pictures) => JSON.stringify({ format: 'millrace-chats', version: 1, conversations: [{ id: 'ab1', messages: [{ role: 'user', content: 'q', pictures }] }] });
  assert.deepEqual(fromFile(file(hostile.map((url) => ({ url }))))[0].messages[0], { role: 'user', content: 'q' });
  assert.deepEqual(fromFile(file([...hostile, picture, { ...picture, width: 'x' }, picture, picture, picture, picture]))[0].messages[0].pictures.map((one) => one.width), [4, 0, 4, 4]);
  assert.deepEqual(fromFile(file('none'))[0].messages[0], { role: 'user', content: 'q' });
  assert.equal(titleOf({ title: '', messages: [{ role: 'user', content: '', pictures: [picture] }] }), 'A picture');

  const { made, asked, storage } = session((n) => [`answer ${n}`]);
  await made.connect();
  assert.deepEqual(made.takes, { pictures: true, sounds: true, voices: ['ann', 'bob'] });
  await made.send('', [picture]);
  await made.edit(0, 'and in words');
  assert.deepEqual(asked[1].messages[0].content.map((part) => part.type), ['image_url', 'text']);
  assert.deepEqual(new Session({ api: {}, store: new Store(storage) }).conversation.messages[0], { role: 'user', content: 'and in words', pictures: [picture] });
  assert.equal(await made.send('  ', []), undefined);
  assert.equal(asked.length, 2);
});

const base64 = (...bytes) => Buffer.from(bytes).toString('base64');
const sound = { data: Buffer.from(wav.wavOf(Uint8Array.of(1, 0, 255, 127), 16000)).toString('base64'), seconds: 2 };
const spoken = (...bytes) => ({ choices: [{ delta: { audio: { id: 'a', data: base64(...bytes) } } }] });

test('samples, bytes, base64 and a file of sound become each other', () => {
  const pcm = Uint8Array.from([0, 0, 1, 0, 255, 255, 255, 127, 0, 128]);
  assert.deepEqual([...wav.samplesOf(pcm)].map((value) => value * 32768), [0, 1, -1, 32767, -32768]);
  assert.deepEqual(wav.pcmOf(wav.samplesOf(pcm)), pcm);
  assert.deepEqual([...wav.samplesOf(wav.pcmOf([2, -2]))].map((value) => value * 32768), [32767, -32768]); // clipped
  const long = Uint8Array.from({ length: 100_001 }, (_, i) => i % 251);
  assert.equal(wav.toBase64(long), Buffer.from(long).toString('base64'));
  assert.deepEqual(wav.fromBase64(wav.toBase64(long)), long);
  const file = Buffer.from(wav.wavOf(pcm, 24000));
  assert.deepEqual([file.toString('latin1', 0, 4), file.readUInt32LE(4), file.toString('latin1', 8, 16), file.readUInt16LE(20), file.readUInt16LE(22), file.readUInt32LE(24), file.readUInt32LE(28), file.readUInt16LE(34), file.readUInt32LE(40)],
    ['RIFF', file.length - 8, 'WAVEfmt ', 1, 1, 24000, 48000, 16, pcm.length]);
  assert.deepEqual(wav.pcmOf(wav.wavSamples(wav.wavOf(pcm, 24000))), pcm);
});

test('sounds go before the text; what is no WAV file is not kept', () => {
  assert.deepEqual(requestMessages({ system: '', messages: [{ role: 'user', content: 'who?', sounds: [sound], pictures: [picture] }] })[0].content.map((part) => part.type), ['image_url', 'input_audio', 'text']);
  assert.deepEqual(requestMessages({ system: '', messages: [{ role: 'user', content: '', sounds: [sound] }] })[0].content, [{ type: 'input_audio', input_audio: { data: sound.data, format: 'wav' } }]);
  const file = (sounds) => JSON.stringify({ format: 'millrace-chats', version: 1, conversations: [{ id: 'ab1', messages: [{ role: 'user', content: 'q', sounds }] }] });
  assert.deepEqual(fromFile(file([{ data: 'javascript:1' }, null, { data: 7 }, { data: `UklGR${'A'.repeat(MAX_SOUND_CHARS)}` }]))[0].messages[0], { role: 'user', content: 'q' });
  assert.deepEqual(fromFile(file([sound, { ...sound, seconds: 'x' }, sound]))[0].messages[0].sounds.map((one) => one.seconds), [2, 0]);
  assert.equal(titleOf({ title: '', messages: [{ role: 'user', content: '', sounds: [sound] }] }), 'A sound');
});

// The part of an AudioContext that a Speaker uses; time stands still until a test moves it.
class Sink {
  currentTime = 1;
  made = [];
  createBuffer(channels, length, rate) { return { channels, length, rate, samples: new Float32Array(length), copyToChannel(from) { this.samples.set(from); } }; }
  createBufferSource() {
    const source = { connect() {}, start(at) { source.at = at; }, stop() { source.stopped = true; } };
    this.made.push(source);
    return source;
  }
}

test('samples are played one behind the other, and what is stopped is quiet', () => {
  let sink;
  const speaker = new Speaker({ Context: function Made() { return (sink = new Sink()); } });
  speaker.begin('a', 10);
  speaker.add('a', new Float32Array(5));
  speaker.add('b', new Float32Array(5)); // of a sound that is over
  speaker.add('a', new Float32Array(10));
  const near = (seen, wanted) => assert.ok(Math.abs(seen - wanted) < 1e-9, `${seen}, wanted ${wanted}`);
  assert.equal(sink.made.length, 2);
  near(sink.made[1].at - sink.made[0].at, 0.5);
  sink.currentTime = 9; // the stream was late: what comes then begins now
  speaker.add('a', new Float32Array(1));
  assert.ok(sink.made[2].at >= 9);
  speaker.end('a');
  assert.equal(speaker.owner, 'a'); // it still plays
  for (const source of sink.made) source.onended();
  assert.equal(speaker.owner, '');
  speaker.play('b', 10, new Float32Array(5));
  speaker.begin('c', 10);
  assert.ok(sink.made[3].stopped && !sink.made[2].stopped);
  speaker.stop();
  assert.equal(speaker.owner, '');
});

test('a spoken answer is played as it comes, kept while the page is open, and not stored', async () => {
  const { made, asked, storage } = session(() => [spoken(1, 0), spoken(255, 255, 0, 128), 'Hello']);
  const heard = [];
  made.speaker = { owner: '', begin: (owner, rate) => { made.speaker.owner = owner; heard.push(rate); }, add: (owner, samples) => heard.push(...[...samples].map((value) => value * 32768)), end: () => heard.push('end') };
  await made.connect();
  await made.send('one');
  assert.deepEqual(heard, []);
  assert.equal(asked[0].modalities, undefined);
  made.change(made.current, { voice: 'bob' });
  await made.send('two');
  assert.deepEqual(asked[1].modalities, ['text', 'audio']);
  assert.deepEqual(asked[1].audio, { voice: 'bob', format: 'pcm16' });
  assert.deepEqual(heard, [24000, 1, -1, -32768, 'end']);
  const { sound: kept } = made.conversation.messages.at(-1);
  assert.deepEqual(kept, { chunks: [base64(1, 0), base64(255, 255, 0, 128)], bytes: 6 });
  assert.equal(new Session({ api: {}, store: new Store(storage) }).conversation.messages.at(-1).sound, undefined);
  assert.doesNotMatch(toFile(made.conversations), /"sound"/);
  made.change(made.current, { voice: 'gone' }); // another model's
  assert.equal(made.voiceOf(), 'ann');
});

test('models that are loaded on demand: their states, and what the chosen one takes', async () => {
  const states = { one: 'unloaded', two: 'unloaded' };
  const calls = [];
  const api = {
    ready: async () => ({ ready: true, reason: '' }),
    models: async () => Object.keys(states).map((id) => ({ id, context: 64, state: states[id], progress: states[id] === 'loading' ? 0.4 : 0, error: '' })),
    abilities: async (model) => { calls.push(`abilities ${model}`); return { pictures: model === 'two', sounds: false, voices: [] }; },
    load: async (model) => { calls.push(`load ${model}`); states[model] = 'loaded'; },
    unload: async (model) => { if (states[model] !== 'loaded') throw new ApiError('not loaded', 409); states[model] = 'unloaded'; },
    async *chat({ model }) { states[model] = 'loading'; yield chunk({ content: 'x' }); states[model] = 'loaded'; },
  };
  const made = new Session({ api, store: new Store(new MemoryStorage()) });
  await made.connect();
  assert.deepEqual([made.model, made.loadsModels, made.routed, made.modelsMove, calls.length], ['one', true, 'one', false, 0]);
  const answer = made.send('q');
  assert.equal(made.modelsMove, true); // it waits for the model
  await answer;
  assert.deepEqual([made.chosen.state, made.modelsMove, calls], ['loaded', false, ['abilities one']]);
  await made.choose('two');
  assert.deepEqual(made.takes, { pictures: false, sounds: false, voices: [] });
  await made.load();
  assert.equal(made.takes.pictures, true);
  await made.unload();
  assert.deepEqual([made.chosen.state, made.takes.pictures], ['unloaded', false]);
  await made.unload();
  assert.equal(made.notice, 'not loaded');
  states.two = 'loading';
  await made.refresh();
  assert.deepEqual([made.modelsMove, stateText(made.chosen)], [true, 'loading 40 %']);
});

test('a list of models that comes late does not hide a newer one', async () => {
  const answers = [];
  const list = (state) => [{ id: 'one', context: 64, state, progress: 0, error: '' }];
  const api = { ready: async () => ({ ready: true, reason: '' }), models: () => new Promise((resolve) => answers.push(resolve)), abilities: async () => ({ pictures: false, sounds: false, voices: [] }) };
  const made = new Session({ api, store: new Store(new MemoryStorage()) });
  const first = made.refresh(), second = made.refresh();
  answers[1](list('unloading'));
  await second;
  answers[0](list('loaded'));
  await first;
  assert.equal(made.chosen.state, 'unloading');
  // And one that comes is shown, whatever has been asked since: else a slow server's would never be.
  const third = made.refresh(), fourth = made.refresh();
  answers[2](list('unloaded'));
  await third;
  assert.equal(made.chosen.state, 'unloaded');
  answers[3](list('unloaded'));
  await fourth;
});

test('a title is how the first question begins', () => {
  assert.equal(titleOf({ title: '', messages: [] }), 'New chat');
  assert.equal(titleOf({ title: '', messages: [{ role: 'user', content: ' a\n b ' }] }), 'a b');
  assert.equal(titleOf({ title: '', messages: [{ role: 'user', content: 'x'.repeat(99) }] }).length, 60);
  assert.equal(titleOf({ title: 'mine', messages: [] }), 'mine');
});

// A session over a server that answers with `script`, a list of chunks and errors.
function session(script, storage = new MemoryStorage()) {
  const asked = [];
  const api = { models: async () => [{ id: 'm', context: 64, state: '' }], ready: async () => ({ ready: true, reason: '' }), abilities: async () => ({ pictures: true, sounds: true, voices: ['ann', 'bob'] }),
    async *chat(body, signal) {
      asked.push(body);
      for (const step of script(asked.length, signal)) {
        await null;
        signal.throwIfAborted();
        if (step instanceof Error) throw step;
        yield typeof step === 'string' ? chunk({ content: step }) : step;
      }
    } };
  return { asked, storage, made: new Session({ api, store: new Store(storage), now: () => 5 }) };
}

test('send, retry and edit ask with the right history', async () => {
  const { made, asked, storage } = session((n) => [`answer ${n}`]);
  assert.equal(await made.connect(), true);
  await made.send('one');
  await made.send('two');
  await made.retry();
  assert.deepEqual(asked[2].messages, asked[1].messages);
  assert.deepEqual(asked[2].messages.map((m) => m.content), ['one', 'answer 1', 'two']);
  await made.edit(0, 'other');
  assert.deepEqual(asked[3].messages, [{ role: 'user', content: 'other' }]);
  assert.deepEqual(made.conversation.messages.map((m) => m.content), ['other', 'answer 4']);
  assert.equal(asked[3].model, 'm');
  assert.equal(new Session({ api: {}, store: new Store(storage) }).conversation.messages[1].content, 'answer 4');
});

test('settings that change faster than they are drawn are all kept', async () => {
  const { made, asked } = session((n) => [`answer ${n}`]);
  const id = made.current;
  made.setSampling(id, 'temperature', 0.25);
  made.setSampling(id, 'max_tokens', 7);
  made.setSampling(id, 'seed', 3);
  made.setSampling(id, 'seed', undefined);
  made.setSampling('gone', 'seed', 3);
  assert.deepEqual(made.conversation.sampling, { temperature: 0.25, max_tokens: 7 });
  await made.send('Hello');
  assert.equal(asked[0].max_tokens, 7);
});

test('an answer that fails because the page is left was interrupted', async () => {
  const leaving = session(function* () { yield 'part'; leaving.made.leave(); yield new TypeError('network error'); });
  await leaving.made.send('q');
  const kept = new Session({ api: {}, store: new Store(leaving.storage) }).conversation.messages[1];
  assert.deepEqual([kept.content, kept.finish, kept.error], ['part', 'interrupted', '']);
  leaving.made.comeBack();
  await leaving.made.retry();
  assert.equal(leaving.made.conversation.messages[1].finish, 'interrupted'); // it leaves again
});

test('a stopped answer keeps what it has; a failed one says why; the key is asked for', async () => {
  const stopping = session(function* () { yield 'part'; stopping.made.stop(); yield 'never'; });
  await stopping.made.send('q');
  const stopped = stopping.made.conversation.messages[1];
  assert.deepEqual([stopped.content, stopped.finish, stopped.error], ['part', 'stopped', '']);

  const failing = session((n) => (n === 1 ? [new ApiError('missing API key', 401)] : ['good']));
  await failing.made.send('q');
  assert.equal(failing.made.needKey, true);
  assert.equal(failing.made.conversation.messages[1].error, 'missing API key');
  await failing.made.useKey('k');
  while (failing.made.streams()) await new Promise(setImmediate);
  assert.equal(failing.made.conversation.messages[1].content, 'good'); // the question was asked again
});

test('a server that comes back with another model is asked for that one', async () => {
  for (const status of [0, 404, 503]) {
    const restarted = session((n) => (n === 1 ? [new ApiError('gone', status)] : ['good']));
    await restarted.made.connect();
    restarted.made.api.models = async () => [{ id: 'new', context: 64, state: '' }];
    await restarted.made.connect();
    assert.equal(restarted.made.model, 'm'); // while it serves, its models are not asked for again
    await restarted.made.send('q');
    assert.equal(restarted.made.status.ready, false);
    await restarted.made.connect();
    assert.equal(restarted.made.model, 'new', status);
    await restarted.made.retry();
    assert.deepEqual(restarted.asked.map((body) => body.model), ['m', 'new']);
  }
});

test('errors of the server are read, before and inside a stream', async () => {
  const api = (status, text) => new Api({ fetch: async () => new Response(text, { status }) });
  const all = async (one) => { for await (const _ of one.chat({})); };
  await assert.rejects(all(api(400, '{"error":{"message":"top_p is 2"}}')), { message: 'top_p is 2', status: 400 });
  await assert.rejects(all(api(502, '<html>')), { status: 502 });
  await assert.rejects(all(api(200, 'data: {"error":{"message":"gone","code":503}}\n\n')), { message: 'gone', status: 503 });
  await assert.rejects(all(api(200, 'data: {}\n\n')), /ended before/);
  await all(api(200, 'data: {}\n\ndata: [DONE]\n\n'));
  await assert.rejects(all(new Api({ fetch: async () => { throw new TypeError('refused'); } })), { status: 0 });
});

test('Markdown makes no raw HTML, image or script address', () => {
  const html = toHtml('<img src=x onerror=alert(1)>\n\n<script>alert(1)</script>\n\n![p](http://evil.test/a.png) [x](javascript:alert(1)) [y](data:text/html,1)\n\n```"><b>\n<i>\n```');
  assert.doesNotMatch(html, /<(img|script|i|b)[ >]/);
  assert.doesNotMatch(html, /href="(?!http)/);
  assert.match(html, /&#60;script&#62;/);
  assert.match(toHtml('**a** `b`\n\n|x|\n|-|\n|1|'), /<strong>a<\/strong> <code>b<\/code>[^]*<td>1<\/td>/);
});
