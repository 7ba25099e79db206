// LangChain (npm `langchain`, `@langchain/openai`) against a server whose template knows tools and reasoning, over both of OpenAI's APIs.
import assert from 'node:assert/strict';
import test from 'node:test';
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { createAgent } from 'langchain';
import { z } from 'zod';
import { called, schema, untilIdle } from './shared.mjs';

const baseURL = process.env.MILLRACE_URL;
const configuration = { baseURL };
const chat = (more = {}) => new ChatOpenAI({ model: 'demo', apiKey: 'unused', configuration, temperature: 0, maxTokens: 200, maxRetries: 0, ...more });
const messages = [new SystemMessage('You write stories.'), new HumanMessage('How is the weather?')];
const pet = z.object({ kind: z.enum(['dog', 'cat']), age: z.number().int().min(0).max(30) });

function weather(seen = []) {
  return tool(async ({ city }) => { seen.push(city); return `Sun in ${city}.`; },
    { name: 'weather', description: 'The weather of a city', schema });
}

// The model is made to write a call, until a tool has answered.
async function untilAnswered(url, init) {
  const body = JSON.parse(init.body);
  const answered = [...(body.messages ?? []), ...(body.input ?? [])].some(({ role, type }) => role === 'tool' || type === 'function_call_output');
  return fetch(url, { ...init, body: JSON.stringify(answered ? body : { ...body, ...called }) });
}

for (const [name, api] of Object.entries({ 'the chat API': {}, 'the Responses API': { useResponsesApi: true } })) {
  test(`${name}: a text, streamed and not`, async () => {
    const model = chat({ ...api, maxTokens: 16 });
    const answer = await model.invoke(messages);
    assert.ok(AIMessage.isInstance(answer) && answer.text.length > 0);
    assert.equal(answer.usage_metadata.output_tokens, 16);
    let all;
    for await (const chunk of await model.stream(messages)) all = all ? all.concat(chunk) : chunk;
    assert.equal(all.text, answer.text);
    assert.equal(all.usage_metadata.output_tokens, 16);
    assert.equal(all.usage_metadata.input_tokens, answer.usage_metadata.input_tokens);
    const several = await model.batch([messages, [new HumanMessage('A dog.')]]);
    assert.equal(several[0].text, answer.text);
  });

  test(`${name}: a round with a tool, streamed and not`, async () => {
    const seen = [];
    const function_ = weather(seen);
    // Over the Responses API this client leaves a tool_choice out that is a word.
    const ways = { by_itself: [{ modelKwargs: called }, {}], named: [{}, { tool_choice: 'weather' }], ...(api.useResponsesApi ? {} : { any: [{}, { tool_choice: 'any' }] }) };
    for (const [how, [kwargs, choice]] of Object.entries(ways)) {
      const model = chat({ ...api, ...kwargs }).bindTools([function_], { ...choice, parallel_tool_calls: false, strict: true });
      const answer = await model.invoke(messages);
      assert.equal(answer.tool_calls.length, 1, how);
      const [made] = answer.tool_calls;
      assert.equal(made.name, 'weather');
      assert.ok(schema.properties.city.enum.includes(made.args.city));
      let all;
      for await (const chunk of await model.stream(messages)) all = all ? all.concat(chunk) : chunk;
      assert.deepEqual(all.tool_calls.map(({ name: called_, args }) => [called_, args]), [['weather', made.args]]);
      const result = await function_.invoke(made);
      assert.ok(ToolMessage.isInstance(result) && result.tool_call_id === made.id);
      assert.equal(seen.at(-1), made.args.city);
      for (const told of [answer, all]) {
        const last = await chat({ ...api, maxTokens: 12 }).bindTools([function_], { tool_choice: 'none' }).invoke([...messages, told, result]);
        assert.equal(last.tool_calls.length, 0);
        assert.ok(last.text.length > 0);
      }
    }
  });

  for (const method of ['jsonSchema', 'functionCalling']) {
    test(`${name}: an object of a schema by ${method}`, async () => {
      const model = chat(api).withStructuredOutput(pet, { name: 'pet', method, includeRaw: true });
      const { parsed, raw } = await model.invoke([new HumanMessage('A pet as JSON.')]);
      assert.deepEqual(pet.parse(parsed), parsed);
      assert.equal(raw.tool_calls.length, method === 'functionCalling' ? 1 : 0);
    });
  }

  test(`${name}: an agent calls its tool and answers`, async () => {
    const seen = [];
    const model = chat({ ...api, configuration: { baseURL, fetch: untilAnswered } });
    const agent = createAgent({ model, tools: [weather(seen)], systemPrompt: 'You write stories.' });
    const { messages: all } = await agent.invoke({ messages: [{ role: 'user', content: 'How is the weather?' }] });
    assert.deepEqual(seen, ['rome']);
    assert.deepEqual(all.map((message) => message.getType()), ['human', 'ai', 'tool', 'ai']);
    assert.equal(all[2].content, 'Sun in rome.');
  });

  test(`${name}: errors are the client's`, async () => {
    await assert.rejects(chat({ ...api, temperature: 9 }).invoke(messages), (error) => error.status === 400 && /temperature/.test(error.message));
  });

  test(`${name}: a stream that is aborted ends its request`, async () => {
    const gone = new AbortController();
    const stream = await chat({ ...api, maxTokens: 400, modelKwargs: { ignore_eos: true } }).stream(messages, { signal: gone.signal });
    await assert.rejects(async () => { for await (const _ of stream) gone.abort(); });
    await untilIdle(new URL(baseURL).origin);
  });
}

test('embeddings', async () => {
  const model = new OpenAIEmbeddings({ model: 'demo', apiKey: 'unused', configuration, maxRetries: 0 });
  const [dog, cat] = await model.embedDocuments(['a dog', 'a cat']);
  assert.equal(dog.length, cat.length);
  const same = await model.embedQuery('a dog');
  assert.ok(same.every((value, i) => Math.abs(value - dog[i]) < 1e-6));
});
