// The official clients of Anthropic and OpenAI send pictures to a started server; the answers are those of transformers.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const golden = process.env.MILLRACE_GOLDEN;
const { system, conversations } = JSON.parse(readFileSync(`${golden}/dense/served.json`));
const { parts, prompt, text } = conversations[0];
const types = { png: 'image/png', jpg: 'image/jpeg', webp: 'image/webp' };
const data = (name) => readFileSync(`${golden}/pictures/${name}`).toString('base64');
const kind = (part) => types[part.split('.').pop()];

test('a picture in a message of Anthropic', async () => {
  const client = new Anthropic({ maxRetries: 0 });
  const content = parts.map((part) => (kind(part)
    ? { type: 'image', source: { type: 'base64', media_type: kind(part), data: data(part) } } : { type: 'text', text: part }));
  const body = { model: 'vl', system, messages: [{ role: 'user', content }] };
  const answer = await client.messages.create({ ...body, max_tokens: 16, temperature: 0, ignore_eos: true });
  assert.equal(answer.content[0].text, text);
  assert.deepEqual(await client.messages.countTokens(body), { input_tokens: prompt.length });
});

test('a picture in the input of a response', async () => {
  const client = new OpenAI({ maxRetries: 0 });
  const content = parts.map((part) => (kind(part)
    ? { type: 'input_image', detail: 'auto', image_url: `data:${kind(part)};base64,${data(part)}` } : { type: 'input_text', text: part }));
  const answer = await client.responses.create({ model: 'vl', instructions: system, input: [{ role: 'user', content }],
    max_output_tokens: 16, temperature: 0, ignore_eos: true });
  assert.equal(answer.output_text, text);
  assert.equal(answer.usage.input_tokens, prompt.length);
});
