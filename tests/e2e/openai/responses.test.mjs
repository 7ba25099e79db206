// The Responses API through OpenAI's official client, against a server whose template knows tools and reasoning.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';
import { called, schema, thought, untilIdle } from './shared.mjs';

const client = new OpenAI({ maxRetries: 0 });  // OPENAI_BASE_URL and OPENAI_API_KEY are set
const root = new URL(process.env.OPENAI_BASE_URL).origin;
const input = [{ role: 'user', content: 'How is the weather?' }];
const request = { model: 'demo', input, temperature: 0, max_output_tokens: 200 };
const tools = [{ type: 'function', name: 'weather', description: 'The weather of a city', parameters: schema, strict: true }];
const reasoning = { type: 'reasoning', summary: [], status: 'completed', content: [{ type: 'reasoning_text', text: 'Hm.' }] };

// Without what differs between two answers: ids, times, how much of the prompt was cached, and what the helpers add.
function shown({ id, created_at: created, completed_at: completed, usage, output, output_parsed: parsed, ...rest }) {
  assert.match(id, /^resp_[0-9a-f]{32}$/);
  assert.ok(Number.isInteger(created) && (completed === null || completed >= created));
  const items = output.map(({ id: name, call_id: made, parsed_arguments: document, ...item }) => {
    assert.match(name, /^(msg|rs|fc)_[0-9a-f]{24}$/);
    if (item.type !== 'message') return item;
    return { ...item, content: item.content.map(({ parsed: value, ...part }) => part) };
  });
  return { ...rest, output: items, usage: [usage.input_tokens, usage.output_tokens] };
}

// The answer, which that of the stream helper equals.
async function both(fields) {
  const answer = await client.responses.create({ ...request, ...fields });
  const streamed = await client.responses.stream({ ...request, ...fields }).finalResponse();
  assert.deepEqual(shown(streamed), shown(answer));
  return answer;
}

const kinds = (answer) => answer.output.map((item) => item.type);

test('a text, streamed and not', async () => {
  const answer = await both({ instructions: 'You write stories.', input: 'A story about a dog.', max_output_tokens: 16 });
  assert.equal(answer.object, 'response');
  assert.equal(answer.model, 'demo');
  assert.equal(answer.status, 'incomplete');
  assert.deepEqual(answer.incomplete_details, { reason: 'max_output_tokens' });
  assert.equal(answer.usage.output_tokens, 16);
  assert.equal(answer.usage.total_tokens, answer.usage.input_tokens + 16);
  assert.ok(answer.output_text.length > 0);
  assert.equal(answer.store, true);
});

test('the events of a stream', async () => {
  const types = [];
  let text = '';
  for await (const event of await client.responses.create({ ...request, max_output_tokens: 12, stream: true })) {
    assert.equal(event.sequence_number, types.length);
    types.push(event.type);
    if (event.type === 'response.output_text.delta') text += event.delta;
  }
  assert.deepEqual(types.slice(0, 4).map((type) => type.replace('response.', '')),
    ['created', 'in_progress', 'output_item.added', 'content_part.added']);
  assert.deepEqual(types.slice(-4).map((type) => type.replace('response.', '')),
    ['output_text.done', 'content_part.done', 'output_item.done', 'incomplete']);
  assert.equal(text, (await client.responses.create({ ...request, max_output_tokens: 12 })).output_text);
});

test('reasoning', async () => {
  const answer = await both(thought);
  assert.deepEqual(shown(answer).output[0], reasoning);
  assert.equal(answer.output_text, 'Sun.');
  assert.ok(answer.usage.output_tokens_details.reasoning_tokens > 0);
  const off = await both({ ebnf: 'root ::= "Sun."', reasoning: { effort: 'none' } });
  assert.deepEqual(kinds(off), ['message']);
});

for (const [name, fields] of Object.entries({
  'by itself': called,
  'as required': { tool_choice: 'required', parallel_tool_calls: false },
  'by name': { tool_choice: { type: 'function', name: 'weather' } },
})) {
  test(`a round with a call ${name}`, async () => {
    const answer = await both({ ...fields, tools });
    assert.equal(answer.status, 'completed');
    const made = answer.output.at(-1);
    assert.equal(made.type, 'function_call');
    assert.equal(made.name, 'weather');
    const { city } = JSON.parse(made.arguments);
    assert.ok(schema.properties.city.enum.includes(city));
    const result = { type: 'function_call_output', call_id: made.call_id, output: `Sun in ${city}.` };
    const last = await both({ input: [...input, ...answer.output, result], tools, ...thought });
    assert.deepEqual(kinds(last), ['reasoning', 'message']);
    assert.equal(last.output_text, 'Sun.');
    assert.ok(last.usage.input_tokens > answer.usage.input_tokens);
  });
}

test('parse() reads the document of a schema', async () => {
  const text = { format: { type: 'json_schema', name: 'place', schema, strict: true } };
  const answer = await client.responses.parse({ ...request, text });
  assert.ok(schema.properties.city.enum.includes(JSON.parse(answer.output_text).city));
  assert.deepEqual(JSON.parse((await both({ text })).output_text), JSON.parse(answer.output_text));
});

test('errors become the client\'s typed errors', async () => {
  const image = [{ role: 'user', content: [{ type: 'input_image', image_url: 'http://127.0.0.1/x.png', detail: 'auto' }] }];
  for (const [fields, kind, pattern] of [
    [{ temperature: 9 }, OpenAI.BadRequestError, /temperature is 9/],
    [{ input: image }, OpenAI.BadRequestError, /type is 'input_image'/],
    [{ tools: [{ type: 'web_search' }] }, OpenAI.BadRequestError, /web_search/],
    [{ previous_response_id: 'resp_1' }, OpenAI.BadRequestError, /no such response is stored/],
    [{ model: 'nothing' }, OpenAI.NotFoundError, /'nothing'/],
  ]) {
    for (const stream of [false, true]) {
      await assert.rejects(client.responses.create({ ...request, ...fields, stream }), (error) => {
        assert.ok(error instanceof kind);
        assert.match(error.message, pattern);
        return true;
      });
    }
  }
  for (const ask of [() => client.responses.retrieve('resp_1'), () => client.responses.delete('resp_1'), () => client.responses.cancel('resp_1')]) {
    await assert.rejects(ask(), (error) => error instanceof OpenAI.NotFoundError && /it was not stored/.test(error.message));
  }
});

test('a conversation by ids', async () => {
  const first = await client.responses.create({ ...request, ...called, tools });
  assert.deepEqual(await client.responses.retrieve(first.id), first);
  const result = { type: 'function_call_output', call_id: first.output.at(-1).call_id, output: 'Sun.' };
  const last = await client.responses.create({ ...request, ...thought, input: [result], tools, previous_response_id: first.id });
  assert.equal(last.output_text, 'Sun.');
  assert.equal(last.previous_response_id, first.id);
  const items = [];
  for await (const item of client.responses.inputItems.list(last.id, { order: 'asc', limit: 2 })) items.push(item.type);
  assert.deepEqual(items, ['message', ...first.output.map((item) => item.type), 'function_call_output']);
  const asked = { model: request.model, input: [result], tools, previous_response_id: first.id };
  const counted = { object: 'response.input_tokens', input_tokens: last.usage.input_tokens };
  assert.deepEqual(await client.responses.inputTokens.count(asked), counted);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.inputTokens.count(asked), /was deleted/);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
  await assert.rejects(client.responses.cancel(last.id), OpenAI.BadRequestError);
});

test('an answer in the background is polled, and cancelled', async () => {
  const settled = async (id) => {
    for (;;) {
      const answer = await client.responses.retrieve(id);
      if (answer.status !== 'in_progress') return answer;
    }
  };
  const begun = await client.responses.create({ ...request, ...called, tools, background: true });
  assert.equal(begun.status, 'in_progress');
  assert.equal(begun.background, true);
  const answer = await settled(begun.id);
  assert.equal(answer.status, 'completed');
  assert.deepEqual(shown(answer), { ...shown(await client.responses.create({ ...request, ...called, tools })), background: true });
  const { output_text: words, ...stored } = answer;  // the client adds it to what it retrieves
  assert.equal(words, 'Let me see.');
  assert.deepEqual(await client.responses.cancel(begun.id), stored);
  let long, cancelled;
  for (let tries = 0; cancelled?.status !== 'cancelled' && tries < 50; ++tries) {  // it may be through before
    long = await client.responses.create({ ...request, max_output_tokens: 30000, ignore_eos: true, background: true });
    cancelled = await client.responses.cancel(long.id);
  }
  assert.equal(cancelled.status, 'cancelled');
  assert.equal((await settled(long.id)).status, 'cancelled');
  await untilIdle(root);
  const deleted = await client.responses.create({ ...request, max_output_tokens: 30000, ignore_eos: true, background: true });
  await client.responses.delete(deleted.id);
  await untilIdle(root);
  await assert.rejects(client.responses.retrieve(deleted.id), OpenAI.NotFoundError);
  await assert.rejects(client.responses.create({ ...request, background: true, stream: true }), /background is true, and so is stream/);
});

test('aborting a stream ends it and frees the request', async () => {
  const stream = client.responses.stream({ ...request, max_output_tokens: 30000, ignore_eos: true });
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') break;
  }
  stream.abort();
  await untilIdle(root);
});

test('many at once', async () => {
  const one = (seed) => client.responses.create({ ...request, max_output_tokens: 24, temperature: 1, seed });
  const answers = await Promise.all(Array.from({ length: 24 }, (_, i) => one(i)));
  assert.ok(new Set(answers.map((answer) => answer.output_text)).size > 1);
});
