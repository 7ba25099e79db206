// The Realtime API through the official client, as it is now and in its beta, over TLS that ends in front of the server.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import tls from 'node:tls';
import test, { after, before } from 'node:test';
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { OpenAIRealtimeWS as BetaRealtimeWS } from 'openai/beta/realtime/ws';
import { untilIdle } from './shared.mjs';

const upstream = new URL(process.env.MILLRACE_URL);
const folder = process.env.MILLRACE_TLS;
const cert = readFileSync(`${folder}/cert.pem`);
const model = (await new OpenAI({ baseURL: upstream.href, apiKey: 'unused' }).models.list()).data[0].id;
const options = { ca: cert, servername: 'localhost' };
const greedy = { temperature: 0, talker_do_sample: false, talker_max_new_tokens: 12, max_output_tokens: 8 };
let proxy, client;

before(async () => {
  proxy = tls.createServer({ key: readFileSync(`${folder}/key.pem`), cert }, (near) => {
    const far = net.connect(Number(upstream.port), upstream.hostname);
    near.pipe(far).pipe(near);
    near.on('error', () => far.destroy());
    far.on('error', () => near.destroy());
  });
  await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  client = new OpenAI({ baseURL: `https://localhost:${proxy.address().port}/v1`, apiKey: 'unused' });
});
after(() => proxy.close());

// A connection with its events in a queue.
function open(Socket = OpenAIRealtimeWS) {
  const rt = new Socket({ model, options: { ...options, lookup: (_, more, done) => done(null, more.all ? [{ address: '127.0.0.1', family: 4 }] : '127.0.0.1', 4) } }, client);
  const events = [], waiting = [], errors = [];
  rt.on('event', (event) => { events.push(event); waiting.splice(0).forEach((resolve) => resolve()); });
  rt.on('error', (error) => { errors.push(error); waiting.splice(0).forEach((resolve) => resolve()); });
  const until = async (type) => {
    const found = [];
    for (;;) {
      while (events.length) {
        found.push(events.shift());
        if (found.at(-1).type === type) return found;
      }
      if (errors.length && type !== 'error') assert.fail(String(errors[0]));
      await new Promise((resolve) => waiting.push(resolve));
    }
  };
  return { rt, until, errors };
}
const said = (text) => ({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content: [{ type: 'input_text', text }] } });
const join = (events, type) => events.filter((event) => event.type === type).map(({ delta }) => delta);

test('a conversation of text', async () => {
  const { rt, until } = open();
  const [created] = await until('session.created');
  assert.equal(created.session.model, model);
  rt.send({ type: 'session.update', session: { type: 'realtime', output_modalities: ['text'], instructions: 'Be brief.', ...greedy } });
  const [updated] = (await until('session.updated')).slice(-1);
  assert.equal(updated.session.instructions, 'Be brief.');
  for (const text of ['Good morning!', 'And then?']) {
    rt.send(said(text));
    rt.send({ type: 'response.create' });
    const events = await until('response.done');
    const { response } = events.at(-1);
    assert.equal(response.output[0].content[0].text, join(events, 'response.output_text.delta').join(''));
    assert.ok(response.usage.total_tokens > 0);
  }
  rt.close();
});

test('speech in, speech out', async () => {
  const { rt, until } = open();
  await until('session.created');
  rt.send({ type: 'session.update', session: { type: 'realtime', ...greedy, audio: { input: { format: { type: 'audio/pcm', rate: 24000 }, turn_detection: null }, output: { voice: 'ethan' } } } });
  await until('session.updated');
  const pcm = Buffer.alloc(24000);
  for (let i = 0; i < pcm.length / 2; ++i) pcm.writeInt16LE(Math.round(8000 * Math.sin(i / 10)), 2 * i);
  rt.send({ type: 'input_audio_buffer.append', audio: pcm.toString('base64') });
  rt.send({ type: 'input_audio_buffer.commit' });
  rt.send({ type: 'response.create' });
  const events = await until('response.done');
  const sound = Buffer.concat(join(events, 'response.output_audio.delta').map((delta) => Buffer.from(delta, 'base64')));
  const { output, usage } = events.at(-1).response;
  assert.equal(sound.length, usage.output_token_details.audio_tokens * 3840 - 1110);
  assert.equal(output[0].content[0].transcript, join(events, 'response.output_audio_transcript.delta').join(''));
  assert.ok(usage.input_token_details.audio_tokens > 0);
  rt.close();
});

test('the beta has its own names', async () => {
  const { rt, until } = open(BetaRealtimeWS);
  const [created] = await until('session.created');
  assert.deepEqual(created.session.modalities, ['text', 'audio']);
  rt.send({ type: 'session.update', session: { modalities: ['text'], temperature: 0, max_response_output_tokens: 6, turn_detection: null } });
  await until('session.updated');
  rt.send(said('Good morning!'));
  rt.send({ type: 'response.create' });
  const events = await until('response.done');
  assert.ok(events.some(({ type }) => type === 'conversation.item.created'));
  assert.equal(events.at(-1).response.output[0].content[0].text, join(events, 'response.text.delta').join(''));
  rt.close();
});

test('an error is the client\'s error, with the event and the field', async () => {
  const { rt, until, errors } = open();
  await until('session.created');
  rt.send({ type: 'session.update', event_id: 'mine', session: { type: 'realtime', tools: [{ type: 'function', name: 'f' }] } });
  const { error } = (await until('error')).at(-1);
  assert.equal(error.param, 'session.tools');
  assert.equal(error.event_id, 'mine');
  assert.match(errors[0].message, /session\.tools/);
  rt.close();
});

test('a client that hangs up ends its response', async () => {
  const { rt, until } = open();
  await until('session.created');
  rt.send({ type: 'session.update', session: { type: 'realtime', temperature: 0, seed: 2, ignore_eos: true, max_output_tokens: 400, talker_max_new_tokens: 400 } });
  rt.send(said('Good morning!'));
  rt.send({ type: 'response.create' });
  await until('response.output_audio.delta');
  rt.socket.terminate();
  await untilIdle(upstream.origin);
});
