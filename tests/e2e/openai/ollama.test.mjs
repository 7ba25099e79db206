// Ollama's client against a started server, whose template knows tools and reasoning.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Ollama } from 'ollama';
import { called, schema, thought, untilIdle } from './shared.mjs';

const root = process.env.MILLRACE_URL;
const client = new Ollama({ host: root });
const messages = [{ role: 'user', content: 'How is the weather?' }];
const options = { temperature: 0, num_predict: 200 };
const request = { model: 'demo', messages, options };
const tools = [{ type: 'function', function: { name: 'weather', description: 'The weather of a city', parameters: schema } }];

// Without what differs between two answers: times, and the ids of calls.
function shown({ created_at: created, total_duration: total, load_duration: load, prompt_eval_duration: prompt, eval_duration: text, ...rest }) {
  assert.ok(!Number.isNaN(Date.parse(created)));
  assert.ok(Number.isInteger(total) && total > 0 && load === 0);
  assert.ok(Number.isInteger(prompt) && Number.isInteger(text) && prompt >= 0 && text >= 0 && prompt + text <= total);
  for (const call of rest.message?.tool_calls ?? []) assert.match(call.id, /^call_[0-9a-f]{24}$/), delete call.id;
  return rest;
}

// The answer, which the lines of a stream make too.
async function both(fields) {
  const answer = await client.chat({ ...request, ...fields });
  const message = { role: 'assistant', content: '' };
  let last;
  for await (const line of await client.chat({ ...request, ...fields, stream: true })) {
    assert.equal(line.model, 'demo');
    message.content += line.message.content;
    if (line.message.thinking) message.thinking = (message.thinking ?? '') + line.message.thinking;
    if (line.message.tool_calls) (message.tool_calls ??= []).push(...line.message.tool_calls);
    last = line;
  }
  assert.equal(last.message.content, '');
  const whole = shown(answer);
  assert.deepEqual(shown({ ...last, message }), whole);
  return whole;
}

test('a chat, streamed and not', async () => {
  const answer = await both({ options: { temperature: 0, num_predict: 16 } });
  assert.equal(answer.message.role, 'assistant');
  assert.equal(answer.done_reason, 'length');
  assert.equal(answer.done, true);
  assert.equal(answer.eval_count, 16);
  assert.ok(answer.prompt_eval_count > 5);
});

test('thinking', async () => {
  const answer = await both(thought);
  assert.deepEqual(answer.message, { role: 'assistant', content: 'Sun.', thinking: 'Hm.' });
  const opened = { ebnf: 'root ::= "Hm.\\n</think>\\n\\nSun."' };  // the template writes the tag
  for (const think of [true, 'low']) assert.deepEqual((await both({ ...opened, think })).message, answer.message);
  assert.deepEqual((await both({ ebnf: 'root ::= "Sun."', think: false })).message, { role: 'assistant', content: 'Sun.' });
});

for (const [name, fields] of Object.entries({ 'by itself': called, required: { tool_choice: 'required', parallel_tool_calls: false } })) {
  test(`a round with a call ${name}`, async () => {
    const answer = await both({ ...fields, tools });
    assert.equal(answer.done_reason, 'stop');
    const [call] = answer.message.tool_calls;
    assert.equal(call.function.name, 'weather');
    assert.ok(schema.properties.city.enum.includes(call.function.arguments.city), 'the arguments are an object');
    const result = { role: 'tool', content: `Sun in ${call.function.arguments.city}.`, tool_name: 'weather' };
    const last = await both({ messages: [...messages, answer.message, result], tools, ...thought });
    assert.equal(last.message.content, 'Sun.');
    assert.ok(last.prompt_eval_count > answer.prompt_eval_count);
  });
}

test('format', async () => {
  const { message } = await both({ format: schema });
  assert.ok(schema.properties.city.enum.includes(JSON.parse(message.content).city));
  const any = await both({ format: 'json', options: { ...options, seed: 3, num_predict: 60 } });
  assert.ok(any.message.content.trimStart().startsWith('{'));
});

test('generate: a prompt through the template, the text itself, stops', async () => {
  const ask = { model: 'demo', prompt: 'How is the weather?', options: { temperature: 0, num_predict: 8 } };
  const plain = shown(await client.generate(ask));
  const chat = await both({ options: ask.options });
  assert.equal(plain.response, chat.message.content);
  assert.equal(plain.prompt_eval_count, chat.prompt_eval_count);
  assert.ok(shown(await client.generate({ ...ask, system: 'You write.' })).prompt_eval_count > plain.prompt_eval_count);
  assert.ok(shown(await client.generate({ ...ask, raw: true })).prompt_eval_count < plain.prompt_eval_count);
  let text = '';
  for await (const line of await client.generate({ ...ask, stream: true })) text += line.response;
  assert.equal(text, plain.response);
  const cut = await client.generate({ ...ask, ebnf: 'root ::= "One, two."', options: { stop: [', t'] } });
  assert.equal(cut.response, 'One');
  assert.equal(cut.done_reason, 'stop');
});

test('a seed gives the same text, whichever dialect', async () => {
  const drawn = { temperature: 1, top_k: 20, top_p: 0.9, seed: 42, num_predict: 12, repeat_penalty: 1.1 };
  const answer = await both({ options: drawn });
  const { num_predict: most, repeat_penalty: penalty, ...same } = drawn;
  const body = JSON.stringify({ messages, ...same, max_tokens: most, repetition_penalty: penalty });
  const chat = await fetch(`${root}/v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
  assert.equal(answer.message.content, (await chat.json()).choices[0].message.content);
});

test('the model is listed, shown and loaded', async () => {
  const { models } = await client.list();
  assert.equal(models.length, 1);
  const [model] = models;
  assert.deepEqual([model.name, model.model], ['demo:latest', 'demo:latest']);
  assert.equal(model.details.format, 'safetensors');
  assert.equal(model.details.family, 'qwen3');
  assert.equal(model.details.parameter_size, '5.7M');
  assert.equal(model.details.quantization_level, 'BF16');
  assert.ok(model.size > 1e6);
  assert.match(model.digest, /^[0-9a-f]{64}$/);
  assert.ok(!Number.isNaN(Date.parse(model.modified_at)));
  const { models: [running] } = await client.ps();
  assert.equal(running.digest, model.digest);
  assert.ok(Date.parse(running.expires_at) > Date.now());
  const about = await client.show({ model: 'demo:latest' });
  assert.deepEqual(about.capabilities, ['completion', 'tools', 'thinking']);
  assert.equal(about.model_info['qwen3.context_length'], running.context_length);
  assert.ok(about.model_info['general.parameter_count'] > 5e6);
  assert.equal(about.model_info['qwen3.embedding_length'], 288);
  const [major, minor] = (await client.version()).version.split('.').map(Number);
  assert.ok(major > 0 || minor >= 9);  // of Ollama, which clients compare with the least one that they need
  const empty = await client.generate({ model: 'demo', prompt: '', keep_alive: '5m' });
  assert.deepEqual([empty.response, empty.done, empty.done_reason], ['', true, 'load']);
});

test('embeddings', async () => {
  const { embeddings, model } = await client.embed({ model: 'demo', input: ['a dog', 'a cat'] });
  assert.equal(model, 'demo');
  assert.equal(embeddings.length, 2);
  for (const one of embeddings) assert.ok(Math.abs(Math.hypot(...one) - 1) < 1e-5);
  const { embedding } = await client.embeddings({ model: 'demo', prompt: 'a cat' });
  assert.deepEqual(embedding, embeddings[1]);
});

test('errors become the client\'s errors', async () => {
  for (const [call, status, pattern] of [
    [() => client.chat({ ...request, model: 'nothing' }), 404, /'nothing' does not exist/],
    [() => client.chat({ ...request, options: { temperature: 9 } }), 400, /^options.temperature is 9/],
    [() => client.chat({ ...request, options: { mirostat: 1 } }), 400, /^options.mirostat is not supported/],
    [() => client.chat({ ...request, stream: true, format: 'xml' }), 400, /^format is 'xml'/],
    [() => client.generate({ model: 'demo', prompt: 'a', suffix: 'b' }), 400, /^suffix is not supported/],
    [() => client.generate({ model: 'demo', prompt: 'a', images: ['aGk='] }), 400, /takes no pictures/],
    [() => client.show({ model: 'nothing' }), 404, /'nothing' does not exist/],
    [() => client.pull({ model: 'demo' }), 501, /^\/api\/pull is not served/],
    [() => client.push({ model: 'demo' }), 501, /^\/api\/push is not served/],
    [() => client.create({ model: 'demo', from: 'a' }), 501, /^\/api\/create is not served/],
    [() => client.copy({ source: 'demo', destination: 'a' }), 501, /^\/api\/copy is not served/],
    [() => client.delete({ model: 'demo' }), 501, /^\/api\/delete is not served/],
    [() => client.embed({ model: 'nothing', input: 'a' }), 404, /'nothing' does not exist/],
    [() => client.embed({ model: 'demo', input: '' }), 400, /^input is empty/],
  ]) {
    await assert.rejects(call, (error) => error.status_code === status && pattern.test(error.message));
  }
});

test('an aborted stream ends its request', async () => {
  await assert.rejects(async () => {
    for await (const line of await client.chat({ ...request, ignore_eos: true, options: { num_predict: 900 }, stream: true })) {
      assert.equal(line.done, false);
      client.abort();
    }
  }, { name: 'AbortError' });
  await untilIdle(root);
});
