// Anthropic's official client against a started server, whose template knows tools and reasoning.
import assert from 'node:assert/strict';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { jsonSchemaOutputFormat } from '@anthropic-ai/sdk/helpers/json-schema';
import { called, schema, thought, untilIdle } from './shared.mjs';

const client = new Anthropic({ maxRetries: 0 });  // ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY are set
const root = process.env.ANTHROPIC_BASE_URL;
const messages = [{ role: 'user', content: 'How is the weather?' }];
const request = { model: 'demo', messages, temperature: 0, max_tokens: 200 };
const tools = [{ name: 'weather', description: 'The weather of a city', input_schema: schema }];
const prompt = (usage) => usage.input_tokens + usage.cache_read_input_tokens;

// Without what differs between two answers: the ids, how much of the prompt was cached, and what the stream helper adds.
function shown({ id, usage, content, parsed_output: parsed, ...rest }) {
  assert.match(id, /^msg_[0-9a-f]{24}$/);
  const blocks = content.map((block) => {
    const { id: name, parsed_output: document, ...others } = block;
    if (block.type === 'tool_use') assert.match(name, /^toolu_[0-9a-f]{24}$/);
    return others;
  });
  return { ...rest, content: blocks, usage: [prompt(usage), usage.output_tokens] };
}

// The answer, which that of the stream helper equals.
async function both(fields) {
  const answer = await client.messages.create({ ...request, ...fields });
  const streamed = await client.messages.stream({ ...request, ...fields }).finalMessage();
  assert.deepEqual(shown(streamed), shown(answer));
  return answer;
}

test('a text, streamed and not', async () => {
  const answer = await both({ system: 'You write stories.', max_tokens: 16 });
  assert.equal(answer.type, 'message');
  assert.equal(answer.role, 'assistant');
  assert.equal(answer.model, 'demo');
  assert.equal(answer.stop_reason, 'max_tokens');
  assert.equal(answer.usage.output_tokens, 16);
  assert.ok(answer._request_id.startsWith('req-'));
});

test('the models are listed and retrieved', async () => {
  const listed = [];
  for await (const model of client.models.list()) listed.push(model);
  assert.deepEqual(listed.map(({ id, type, display_name: name }) => [id, type, name]), [['demo', 'model', 'demo']]);
  assert.ok(Date.parse(listed[0].created_at) > 0);
  assert.equal((await client.models.retrieve('demo')).created_at, listed[0].created_at);
});

test('the events of a stream', async () => {
  const types = [];
  let text = '';
  for await (const event of await client.messages.create({ ...request, max_tokens: 12, stream: true })) {
    types.push(event.type);
    if (event.type === 'content_block_delta') text += event.delta.text;
  }
  assert.equal(types[0], 'message_start');
  assert.deepEqual(types.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
  const answer = await client.messages.create({ ...request, max_tokens: 12 });
  assert.equal(text, answer.content[0].text);
});

test('stop sequences', async () => {
  const answer = await both({ ebnf: 'root ::= "One, two, three."', stop_sequences: ['four', ', t'] });
  assert.equal(answer.content[0].text, 'One');
  assert.equal(answer.stop_reason, 'stop_sequence');
  assert.equal(answer.stop_sequence, ', t');
});

test('thinking', async () => {
  const answer = await both(thought);
  assert.deepEqual(answer.content, [{ type: 'thinking', thinking: 'Hm.', signature: '' }, { type: 'text', citations: [], text: 'Sun.' }]);
  const opened = { ebnf: 'root ::= "Hm.\\n</think>\\n\\nSun."' };  // the template writes the tag
  for (const thinking of [{ type: 'adaptive' }, { type: 'enabled', budget_tokens: 1999 }]) {
    assert.deepEqual((await both({ ...opened, thinking, max_tokens: 2000 })).content, answer.content);
  }
  const off = await both({ ebnf: 'root ::= "Sun."', thinking: { type: 'disabled' } });
  assert.deepEqual(off.content, [{ type: 'text', citations: [], text: 'Sun.' }]);
});

for (const [name, fields] of Object.entries({
  'by itself': called,
  'as any': { tool_choice: { type: 'any', disable_parallel_tool_use: true } },
  'by name': { tool_choice: { type: 'tool', name: 'weather' } },
})) {
  test(`a round with a call ${name}`, async () => {
    const answer = await both({ ...fields, tools });
    assert.equal(answer.stop_reason, 'tool_use');
    const use = answer.content.at(-1);
    assert.equal(use.type, 'tool_use');
    assert.equal(use.name, 'weather');
    assert.ok(schema.properties.city.enum.includes(use.input.city));
    const result = { type: 'tool_result', tool_use_id: use.id, content: [{ type: 'text', text: `Sun in ${use.input.city}.` }] };
    const turns = [...messages, { role: 'assistant', content: answer.content }, { role: 'user', content: [result] }];
    const last = await both({ messages: turns, tools, ...thought });
    assert.equal(last.content.at(-1).text, 'Sun.');
    assert.equal(last.stop_reason, 'end_turn');
    assert.ok(prompt(last.usage) > prompt(answer.usage));
  });
}

test('toolRunner calls the function and sends its result', async () => {
  const seen = [];
  const weather = betaTool({ name: 'weather', description: 'The weather of a city', inputSchema: schema,
    run: ({ city }) => { seen.push(city); return `Sun in ${city}.`; } });
  const runner = client.beta.messages.toolRunner({ ...request, ...called, tools: [weather], max_iterations: 2 });
  const turns = [];
  for await (const message of runner) turns.push(message);
  assert.equal(turns.length, 2);
  assert.equal(seen[0], 'rome');
  assert.ok(prompt(turns[1].usage) > prompt(turns[0].usage));
  const sent = runner.params.messages.find((message) => Array.isArray(message.content) && message.content[0].type === 'tool_result');
  assert.equal(sent.content[0].content, 'Sun in rome.');
});

test('parse() reads the document of a schema', async () => {
  const answer = await client.messages.parse({ ...request, output_config: { format: jsonSchemaOutputFormat(schema) } });
  assert.ok(schema.properties.city.enum.includes(answer.parsed_output.city));
});

test('the tokens of a request are counted', async () => {
  const { temperature, max_tokens, ...counted } = request;
  for (const fields of [{}, { system: 'You write stories.' }, { tools }, { thinking: { type: 'adaptive' } }]) {
    const answer = await client.messages.create({ ...request, ...fields, max_tokens: 1 });
    assert.equal((await client.messages.countTokens({ ...counted, ...fields })).input_tokens, prompt(answer.usage));
  }
});

test('errors become the client\'s typed errors', async () => {
  const image = { type: 'image', source: { type: 'url', url: 'http://127.0.0.1/x.png' } };
  for (const [fields, kind, type, pattern] of [
    [{ temperature: 9 }, Anthropic.BadRequestError, 'invalid_request_error', /temperature is 9/],
    [{ messages: [{ role: 'user', content: [image] }] }, Anthropic.BadRequestError, 'invalid_request_error', /type is 'image'/],
    [{ tools: [{ type: 'web_search_20250305', name: 'web_search' }] }, Anthropic.BadRequestError, 'invalid_request_error', /web_search_20250305/],
    [{ model: 'nothing' }, Anthropic.NotFoundError, 'not_found_error', /'nothing'/],
  ]) {
    for (const stream of [false, true]) {
      await assert.rejects(client.messages.create({ ...request, ...fields, stream }), (error) => {
        assert.ok(error instanceof kind);
        assert.equal(error.error.type, 'error');
        assert.equal(error.type, type);
        assert.match(error.message, pattern);
        assert.equal(error.requestID, error.error.request_id);
        return true;
      });
    }
  }
});

test('aborting a stream ends it and frees the request', async () => {
  const stream = client.messages.stream({ ...request, max_tokens: 30000, ignore_eos: true });
  for await (const event of stream) {
    if (event.type === 'content_block_delta') break;
  }
  stream.abort();
  await untilIdle(root);
});

test('many at once', async () => {
  const one = (seed) => client.messages.create({ ...request, max_tokens: 24, temperature: 1, seed });
  const answers = await Promise.all(Array.from({ length: 24 }, (_, i) => one(i)));
  assert.ok(new Set(answers.map((answer) => answer.content[0].text)).size > 1);
});
