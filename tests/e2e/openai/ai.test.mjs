// The AI SDK (npm `ai`) against a server whose template knows tools and reasoning: through its provider for compatible servers, and through its OpenAI
// provider over both of OpenAI's APIs.
import assert from 'node:assert/strict';
import test from 'node:test';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, Output, embedMany, generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from 'ai';
import { z } from 'zod';
import { called, schema, thought, untilIdle } from './shared.mjs';

const baseURL = process.env.MILLRACE_URL;
const answered = ({ messages = [], input = [] }) =>
  [...messages, ...input].some(({ role, type }) => role === 'tool' || type === 'function_call_output');

// A fetch that asks for more than the SDK has fields for: what the model is made to write, until a tool has answered.
const asking = (fields) => async (url, init) => {
  const body = JSON.parse(init.body);
  return fetch(url, { ...init, body: JSON.stringify(answered(body) ? body : { ...body, ...fields }) });
};

const providers = {
  'a compatible provider': (fields) => createOpenAICompatible(
    { name: 'millrace', baseURL, includeUsage: true, supportsStructuredOutputs: true, fetch: asking(fields) }).chatModel('demo'),
  'the chat API': (fields) => createOpenAI({ baseURL, apiKey: 'unused', fetch: asking(fields) }).chat('demo'),
  'the Responses API': (fields) => createOpenAI({ baseURL, apiKey: 'unused', fetch: asking(fields) }).responses('demo'),
};
const request = { prompt: 'How is the weather?', temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const pet = z.object({ kind: z.enum(['dog', 'cat']), age: z.number().int().min(0).max(30) });

function weather(seen) {
  return tool({ description: 'The weather of a city', inputSchema: jsonSchema(schema), strict: true,
    execute: async ({ city }) => { seen.push(city); return `Sun in ${city}.`; } });
}

for (const [name, model] of Object.entries(providers)) {
  test(`${name}: a text, streamed and not`, async () => {
    const fields = { ...request, model: model(), system: 'You write stories.', maxOutputTokens: 16 };
    const answer = await generateText(fields);
    assert.ok(answer.text.length > 0);
    assert.equal(answer.finishReason, 'length');
    assert.equal(answer.usage.outputTokens, 16);
    const stream = streamText(fields);
    let text = '';
    for await (const part of stream.textStream) text += part;
    assert.equal(text, answer.text);
    assert.equal((await stream.usage).outputTokens, 16);
    assert.equal((await stream.usage).inputTokens, answer.usage.inputTokens);
  });

  test(`${name}: an object of a schema, streamed and not`, async () => {
    const fields = { ...request, model: model(), schema: pet, schemaName: 'pet' };
    const { object } = await generateObject(fields);
    assert.deepEqual(pet.parse(object), object);
    const stream = streamObject(fields);
    let last;
    for await (const part of stream.partialObjectStream) last = part;
    assert.deepEqual(last, object);
    assert.deepEqual((await generateText({ ...request, model: model(), output: Output.object({ schema: pet }) })).output, object);
  });

  test(`${name}: a round with a tool, streamed and not`, async () => {
    for (const [fields, more] of [[called, {}], [{}, { toolChoice: 'required' }], [{}, { toolChoice: { type: 'tool', toolName: 'weather' } }]]) {
      const seen = [];
      const wanted = { ...request, ...more, model: model({ ...fields, parallel_tool_calls: false }), tools: { weather: weather(seen) } };
      const rounds = { ...wanted, stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: 'none' } : {}) };
      const answer = await generateText(rounds);
      assert.equal(answer.steps.length, 2);
      assert.equal(answer.steps[0].finishReason, 'tool-calls');
      assert.deepEqual(answer.steps[0].toolCalls.map(({ toolName, input }) => [toolName, input]), [['weather', { city: seen[0] }]]);
      assert.ok(schema.properties.city.enum.includes(seen[0]));
      const stream = streamText(rounds);
      await stream.consumeStream({ onError: (error) => { throw error; } });
      assert.equal(seen[1], seen[0]);
      assert.equal(await stream.text, answer.text);
      assert.equal((await stream.steps).length, 2);
    }
  });

  // The provider for OpenAI's own service looks for no text of reasoning, which that service does not give.
  test(`${name}: reasoning`, async () => {
    const fields = { ...request, model: model(thought) };
    for (const answer of [await generateText(fields), streamText(fields)]) {
      assert.equal(await answer.text, 'Sun.');
      assert.equal((await answer.reasoningText) || 'Hm.', 'Hm.');
      assert.ok((await answer.usage).reasoningTokens > 0);
      if (name === 'a compatible provider') assert.equal(await answer.reasoningText, 'Hm.');
    }
  });

  test(`${name}: errors are the SDK's`, async () => {
    await assert.rejects(generateText({ ...request, model: model({ temperature: 9 }) }), (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /temperature/);
      return true;
    });
  });

  test(`${name}: a stream that is aborted ends its request`, async () => {
    const gone = new AbortController();
    const stream = streamText({ ...request, model: model({ ignore_eos: true }), maxOutputTokens: 400, abortSignal: gone.signal });
    for await (const _ of stream.textStream) {
      gone.abort();
      break;
    }
    await untilIdle(new URL(baseURL).origin);
  });
}

test('embeddings of both providers', async () => {
  const values = ['a dog', 'a cat'];
  const found = await embedMany({ model: createOpenAICompatible({ name: 'millrace', baseURL }).embeddingModel('demo'), values });
  const same = await embedMany({ model: createOpenAI({ baseURL, apiKey: 'unused' }).embedding('demo'), values });
  assert.equal(found.embeddings.length, 2);
  assert.deepEqual(same.embeddings, found.embeddings);
});
