// Tool calls and reasoning through the official client: a complete round, streamed and not.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.env.MILLRACE_URL, apiKey: 'unused', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'user', content: 'How is the weather?' }];
const parameters = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['paris', 'rome'] } },
  required: ['city'],
  additionalProperties: false,
};
const tools = [{ type: 'function', function: { name: 'weather', description: 'The weather of a city', parameters, strict: true } }];
const request = { model, messages, tools, temperature: 0, max_tokens: 200 };
// What the model is made to write.
const call = '<tool_call>\\n{\\"name\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"rome\\"}}\\n</tool_call>';
const wished = { ebnf: `root ::= "<think>\\nHm.\\n</think>\\n\\n${call}"` };

function results(message) {
  return message.tool_calls.map((made) => {
    assert.equal(made.type, 'function');
    assert.equal(made.function.name, 'weather');
    const { city } = JSON.parse(made.function.arguments);
    assert.ok(parameters.properties.city.enum.includes(city));
    return { role: 'tool', tool_call_id: made.id, content: `Sun in ${city}.` };
  });
}

for (const [name, fields] of Object.entries({
  'by itself': wished,
  required: { tool_choice: 'required', parallel_tool_calls: false },
  named: { tool_choice: { type: 'function', function: { name: 'weather' } } },
})) {
  test(`a round with a call ${name}`, async () => {
    const answer = await client.chat.completions.create({ ...request, ...fields });
    const { message, finish_reason } = answer.choices[0];
    assert.equal(finish_reason, 'tool_calls');
    assert.equal(message.content, null);
    assert.match(message.tool_calls[0].id, /^call_[0-9a-f]{24}$/);
    const last = await client.chat.completions.create({ ...request, messages: [...messages, message, ...results(message)], max_tokens: 12 });
    assert.equal(typeof last.choices[0].message.content, 'string');
  });

  test(`the stream helper assembles a call ${name}`, async () => {
    const runner = client.chat.completions.stream({ ...request, ...fields });
    let fragments = '';
    runner.on('tool_calls.function.arguments.delta', ({ arguments_delta }) => { fragments += arguments_delta; });
    const { message, finish_reason } = (await runner.finalChatCompletion()).choices[0];
    assert.equal(finish_reason, 'tool_calls');
    assert.equal(message.tool_calls.length, 1);
    assert.equal(message.tool_calls[0].function.arguments, fragments);
    assert.equal(results(message).length, 1);
  });
}

test('reasoning beside the answer', async () => {
  const answer = await client.chat.completions.create({ ...request, tools: undefined, ebnf: 'root ::= "<think>\\nHm.\\n</think>\\n\\nSun."' });
  assert.equal(answer.choices[0].message.content, 'Sun.');
  assert.equal(answer.choices[0].message.reasoning_content, 'Hm.');
  assert.ok(answer.usage.completion_tokens_details.reasoning_tokens > 0);
});

test('runTools calls the function and comes back with the answer', async () => {
  const seen = [];
  const runner = client.chat.completions.runTools({
    model, messages, temperature: 0, max_tokens: 200, ...wished,
    tools: [{ type: 'function', function: { name: 'weather', parameters, parse: JSON.parse,
      function: ({ city }) => { seen.push(city); return `Sun in ${city}.`; } } }],
  }, { maxChatCompletions: 2 });
  await runner.done();
  assert.equal(seen[0], 'rome');
  assert.ok(runner.messages.some((message) => message.role === 'tool' && message.content === 'Sun in rome.'));
});
