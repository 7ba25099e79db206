// The official OpenAI client against a started server: what most users' programs will do.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';
import { untilIdle } from './shared.mjs';

const client = new OpenAI({ baseURL: process.env.MILLRACE_URL, apiKey: 'unused', maxRetries: 0 });
const messages = [{ role: 'user', content: 'Tell me a short story about a dog.' }];
const model = (await client.models.list()).data[0].id;

test('models: list and retrieve', async () => {
  const found = await client.models.retrieve(model);
  assert.equal(found.id, model);
  await assert.rejects(client.models.retrieve('nothing'), OpenAI.NotFoundError);
});

test('chat completion', async () => {
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 16, temperature: 0 });
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.equal(answer.usage.completion_tokens, 16);
});

test('chat stream equals the whole answer', async () => {
  const request = { model, messages, max_tokens: 24, temperature: 0 };
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  let text = '';
  let usage = null;
  let finish = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, 'length');
  assert.equal(usage.completion_tokens, 24);
});

test('the stream helper assembles the final message', async () => {
  const runner = client.chat.completions.stream({ model, messages, max_tokens: 12, temperature: 0 });
  const final = await runner.finalChatCompletion();
  assert.ok(final.choices[0].message.content.length > 0);
});

test('completions, streamed and not', async () => {
  const request = { model, prompt: 'Once upon a time', max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create(request);
  let text = '';
  for await (const chunk of await client.completions.create({ ...request, stream: true })) text += chunk.choices[0]?.text ?? '';
  assert.equal(text, whole.choices[0].text);
});

test('embeddings, as the client decodes them and as numbers', async () => {
  const input = ['a dog', 'a cat'];
  const decoded = await client.embeddings.create({ model, input });  // asks for base64
  const numbers = await client.embeddings.create({ model, input, encoding_format: 'float' });
  assert.equal(decoded.usage.prompt_tokens, numbers.usage.total_tokens);
  decoded.data.forEach((one, i) => {
    assert.deepEqual(new Float32Array(one.embedding), new Float32Array(numbers.data[i].embedding));
    assert.ok(Math.abs(Math.hypot(...one.embedding) - 1) < 1e-5);
  });
});

test('errors become the client\'s typed errors', async () => {
  const bad = { model, messages, temperature: 9 };
  await assert.rejects(client.chat.completions.create(bad), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.match(error.message, /temperature/);
    assert.equal(error.param, 'temperature');
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...bad, stream: true }), OpenAI.BadRequestError);
  await assert.rejects(client.chat.completions.create({ model: 'nothing', messages }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, 'model_not_found');
    return true;
  });
});

test('aborting a stream ends it and frees the request', async () => {
  const stream = await client.chat.completions.create({ model, messages, stream: true, ignore_eos: true });
  for await (const _ of stream) {
    stream.controller.abort();
    break;
  }
  await untilIdle(new URL(process.env.MILLRACE_URL).origin);
});

test('many at once', async () => {
  const one = (i) => client.chat.completions.create({ model, messages, max_tokens: 24, temperature: 1, seed: i });
  const answers = await Promise.all(Array.from({ length: 24 }, (_, i) => one(i)));
  assert.equal(answers.length, 24);
  assert.ok(new Set(answers.map((answer) => answer.choices[0].message.content)).size > 1);
});

test('logprobs of a chat completion, streamed and not', async () => {
  const request = { model, messages, max_tokens: 6, temperature: 0, logprobs: true, top_logprobs: 2 };
  const whole = (await client.chat.completions.create(request)).choices[0].logprobs.content;
  assert.equal(whole.length, 6);
  for (const { logprob, top_logprobs } of whole) {
    assert.equal(top_logprobs.length, 2);
    assert.equal(top_logprobs[0].logprob, logprob);
    assert.ok(top_logprobs[0].logprob >= top_logprobs[1].logprob);
  }
  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    streamed.push(...(chunk.choices[0].logprobs?.content ?? []));
  }
  assert.deepEqual(streamed, whole);
});

test('several choices, streamed and not', async () => {
  const request = { model, messages, max_tokens: 12, seed: 4, n: 3 };
  const whole = await client.chat.completions.create(request);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.equal(whole.usage.completion_tokens <= 36, true);
  const texts = ['', '', ''];
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? '';
  }
  assert.deepEqual(texts, whole.choices.map((choice) => choice.message.content));
  const alone = await client.chat.completions.create({ ...request, n: 1 });
  assert.equal(alone.choices[0].message.content, texts[0]);
});

test('completions with logprobs, echo and best_of', async () => {
  const request = { model, prompt: 'Once upon a time', max_tokens: 6, temperature: 0, logprobs: 2, echo: true };
  const [choice] = (await client.completions.create(request)).choices;
  assert.ok(choice.text.startsWith('Once upon a time'));
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
  assert.equal(token_logprobs[0], null);
  for (const list of [token_logprobs, top_logprobs, text_offset]) assert.equal(list.length, tokens.length);
  const best = await client.completions.create({ model, prompt: 'A cat', max_tokens: 6, n: 2, best_of: 4, seed: 1 });
  assert.equal(best.choices.length, 2);
});

test('penalties, biases and their ranges', async () => {
  const request = { model, messages, max_tokens: 5, temperature: 0, frequency_penalty: 1, presence_penalty: -1 };
  assert.equal((await client.chat.completions.create({ ...request, logit_bias: { 40: -100 } })).choices.length, 1);
  for (const [field, value] of [['frequency_penalty', 2.5], ['n', 200], ['logit_bias', { 40: 101 }], ['top_logprobs', 3]]) {
    await assert.rejects(client.chat.completions.create({ ...request, [field]: value }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, field);
      return true;
    });
  }
});

test('a schema is kept, and parse() reads the document', async () => {
  const schema = {
    type: 'object', additionalProperties: false, required: ['kind', 'age'],
    properties: { kind: { enum: ['dog', 'cat'] }, age: { type: 'integer', minimum: 0, maximum: 30 } },
  };
  const answer = await client.chat.completions.parse({
    model, messages, max_tokens: 100, response_format: { type: 'json_schema', json_schema: { name: 'pet', strict: true, schema } },
  });
  const pet = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(pet), ['kind', 'age']);
  assert.ok(['dog', 'cat'].includes(pet.kind) && pet.age >= 0 && pet.age <= 30);
  await assert.rejects(client.chat.completions.create({
    model, messages, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { not: {} } } },
  }), OpenAI.BadRequestError);
});
