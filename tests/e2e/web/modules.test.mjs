// The modules of the page that need no DOM, in node: parsing, state, storage, and the first of the barriers against hostile text.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

const WEB = new URL('../../../web/', import.meta.url);
const load = (name) => import(new URL(name, WEB));
const { SseParser, events } = await load('sse.js');
const { addChunk, endAnswer, newAnswer, requestMessages, statsOf } = await load('answer.js');
const { MAX_PICTURE_CHARS, Store, fromFile, titleOf, toFile } = await load('store.js');
const { Session } = await load('session.js');
const { Api, ApiError } = await load('api.js');
const { toHtml } = await load('markdown.js');

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
  const one = { id: 'ab1', title: '', created: 1, updated: 2, system: 's', sampling: { temperature: 0.5 }, messages: [{ role: 'user', content: 'q' }] };
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
  assert.equal(made.takesPictures, true);
  await made.send('', [picture]);
  await made.edit(0, 'and in words');
  assert.deepEqual(asked[1].messages[0].content.map((part) => part.type), ['image_url', 'text']);
  assert.deepEqual(new Session({ api: {}, store: new Store(storage) }).conversation.messages[0], { role: 'user', content: 'and in words', pictures: [picture] });
  assert.equal(await made.send('  ', []), undefined);
  assert.equal(asked.length, 2);
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
  const api = { models: async () => [{ id: 'm', context: 64 }], ready: async () => ({ ready: true, reason: '' }), takesPictures: async () => true,
    async *chat(body, signal) {
      asked.push(body);
      for (const step of script(asked.length, signal)) {
        await null;
        signal.throwIfAborted();
        if (step instanceof Error) throw step;
        yield chunk({ content: step });
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
