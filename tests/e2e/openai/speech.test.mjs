// Speech through the official client, against a model that speaks: chats, their stream, an earlier turn, text to speech.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';
import { untilIdle } from './shared.mjs';

const client = new OpenAI({ baseURL: process.env.MILLRACE_URL, apiKey: 'unused', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'user', content: 'Good morning!' }];
const spoken = { model, messages, modalities: ['text', 'audio'], temperature: 0, max_tokens: 12, seed: 5, talker_max_new_tokens: 24 };

// The samples of a WAV as it is answered complete, or as it is sent while it is made (both sizes unknown).
function samples(wav) {
  assert.equal(wav.subarray(0, 4).toString(), 'RIFF');
  assert.equal(wav.subarray(36, 40).toString(), 'data');
  return wav.subarray(44);
}

async function voices() {
  const wrong = client.audio.speech.create({ model, input: 'a', voice: 'no such voice' });
  const error = await wrong.then(() => assert.fail('wanted an error'), (found) => found);
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, 'voice');
  return /wanted one of (.*)/.exec(error.message)[1].split(', ');
}
const [voice] = await voices();

async function complete(format, more = {}) {
  const answer = await client.chat.completions.create({ ...spoken, audio: { voice, format }, ...more });
  const { audio } = answer.choices[0].message;
  return { answer, audio, bytes: Buffer.from(audio.data, 'base64') };
}

test('a chat has text and speech', async () => {
  const { answer, audio, bytes } = await complete('wav');
  const { message, finish_reason } = answer.choices[0];
  assert.ok(['stop', 'length'].includes(finish_reason));
  assert.equal(message.content, audio.transcript);
  assert.ok(audio.expires_at > Date.now() / 1000);
  const tokens = answer.usage.completion_tokens_details.audio_tokens;
  assert.ok(tokens > 0 && tokens <= 24, `${tokens} frames`);
  assert.ok(samples(bytes).length > 0);
  assert.equal(bytes.readUInt32LE(40), samples(bytes).length);
});

test('audio alone has no content, and the same speech', async () => {
  const both = await complete('pcm16');
  const { answer, audio, bytes } = await complete('pcm16', { modalities: ['audio'] });
  assert.equal(answer.choices[0].message.content, null);
  assert.equal(audio.transcript, both.audio.transcript);
  assert.ok(bytes.equals(both.bytes));
});

test('compressed formats are files of their kind', async () => {
  for (const [format, magic] of [['flac', 'fLaC'], ['opus', 'OggS']]) {
    assert.equal((await complete(format)).bytes.subarray(0, 4).toString(), magic);
  }
  const { bytes } = await complete('mp3');
  assert.equal(bytes.readUInt16BE(0) & 0xffe0, 0xffe0);
});

// What the chunks of a stream have in sum; the last chunk with a choice has the finish.
async function collect(stream) {
  const found = { content: '', transcript: '', chunks: [], reasons: [] };
  for await (const chunk of stream) {
    found.usage = chunk.usage ?? found.usage;
    for (const { delta, finish_reason } of chunk.choices) {
      found.content += delta.content ?? '';
      found.transcript += delta.audio?.transcript ?? '';
      found.id ??= delta.audio?.id;
      found.expires = delta.audio?.expires_at ?? found.expires;
      if (delta.audio?.data) found.chunks.push(Buffer.from(delta.audio.data, 'base64'));
      found.reasons.push(finish_reason);
    }
  }
  return found;
}

test('a stream has the samples and the text of the complete answer', async () => {
  const whole = await complete('pcm16');
  const found = await collect(await client.chat.completions.create({
    ...spoken, audio: { voice, format: 'pcm16' }, stream: true, stream_options: { include_usage: true } }));
  assert.match(found.id, /^audio_[0-9a-f]{32}$/);
  assert.ok(found.expires > Date.now() / 1000);
  assert.equal(found.content, whole.audio.transcript);
  assert.equal(found.transcript, found.content);
  assert.equal(found.reasons.pop(), whole.answer.choices[0].finish_reason);
  assert.ok(found.reasons.every((reason) => reason === null));
  assert.ok(Buffer.concat(found.chunks).equals(whole.bytes));
  assert.deepEqual(found.usage.completion_tokens_details, whole.answer.usage.completion_tokens_details);
});

test('an earlier turn by its id is the turn by its text', async () => {
  const { audio } = await complete('wav');
  const ask = async (turn) => {
    const turns = [...messages, { role: 'assistant', ...turn }, { role: 'user', content: 'And?' }];
    const answer = await client.chat.completions.create({ model, messages: turns, temperature: 0, max_tokens: 8 });
    return [answer.choices[0].message.content, answer.usage.prompt_tokens];
  };
  assert.deepEqual(await ask({ audio: { id: audio.id } }), await ask({ content: audio.transcript }));
  await assert.rejects(ask({ audio: { id: 'audio_of_another_server' } }), /messages\[1\]\.audio\.id/);
});

const speech = { model, input: 'Good morning.', voice, seed: 5, talker_max_new_tokens: 24 };

test('text to speech is a file in every format', async () => {
  const bytes = async (more) => Buffer.from(await (await client.audio.speech.create({ ...speech, ...more })).arrayBuffer());
  const pcm = await bytes({ response_format: 'pcm' });
  assert.ok(pcm.length > 0 && pcm.length % 2 === 0);
  assert.ok(samples(await bytes({ response_format: 'wav' })).equals(pcm));
  assert.equal((await bytes({ response_format: 'flac' })).subarray(0, 4).toString(), 'fLaC');
  assert.equal((await bytes({ response_format: 'opus' })).subarray(0, 4).toString(), 'OggS');
  assert.equal((await bytes({})).readUInt16BE(0) & 0xffe0, 0xffe0);
  const upper = await bytes({ response_format: 'pcm', voice: { id: voice.toUpperCase() } });
  assert.ok(upper.equals(pcm));
  const answer = await client.audio.speech.create({ ...speech, response_format: 'wav' });
  assert.equal(answer.headers.get('content-type'), 'audio/wav');
  await answer.arrayBuffer();
});

test('text to speech as events', async () => {
  const file = Buffer.from(await (await client.audio.speech.create({ ...speech, response_format: 'pcm' })).arrayBuffer());
  const answer = await client.audio.speech.create({ ...speech, response_format: 'pcm', stream_format: 'sse' });
  assert.match(answer.headers.get('content-type'), /^text\/event-stream/);
  const events = (await answer.text()).split('\n').filter((line) => line.startsWith('data: ')).map((line) => JSON.parse(line.slice(6)));
  const done = events.pop();
  assert.equal(done.type, 'speech.audio.done');
  assert.equal(done.usage.total_tokens, done.usage.input_tokens + done.usage.output_tokens);
  assert.ok(done.usage.output_tokens > 0);
  assert.ok(events.every(({ type }) => type === 'speech.audio.delta'));
  assert.ok(Buffer.concat(events.map(({ audio }) => Buffer.from(audio, 'base64'))).equals(file));
});

test('what is not served becomes the client\'s typed error', async () => {
  for (const [field, wrong] of Object.entries({ speed: 2, response_format: 'aac', input: '', stream_format: 'x' })) {
    await assert.rejects(client.audio.speech.create({ ...speech, [field]: wrong }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, field);
      return true;
    });
  }
  for (const more of [{ modalities: ['video'] }, { n: 2 }, { stream: true, audio: { voice, format: 'wav' } }, { audio: { voice: 'none' } }]) {
    await assert.rejects(client.chat.completions.create({ ...spoken, ...more }), OpenAI.BadRequestError);
  }
});

test('a client that hangs up ends its request', async () => {
  const stream = await client.chat.completions.create({
    ...spoken, audio: { voice, format: 'pcm16' }, stream: true, ignore_eos: true, max_tokens: 400, talker_max_new_tokens: 400 });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.audio?.data) break;
  }
  await untilIdle(new URL(process.env.MILLRACE_URL).origin);
});
