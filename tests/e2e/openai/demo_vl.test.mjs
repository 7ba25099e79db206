// The bundled demo of pictures through OpenAI's client: the answers are those of transformers (tests/oracles/demo_vl.py).
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import OpenAI from 'openai';

const root = new URL('../../../', import.meta.url);
const golden = JSON.parse(readFileSync(new URL('tests/golden/demo-vl/greedy.json', root)));
const client = new OpenAI({ baseURL: process.env.MILLRACE_URL, apiKey: 'unused', maxRetries: 0 });

const partOf = (part) => part.endsWith('.png')
  ? { type: 'image_url', image_url: { url: `data:image/png;base64,${readFileSync(new URL(`examples/pictures/${part}`, root)).toString('base64')}` } }
  : { type: 'text', text: part };
const ask = (parts, more = {}) => client.chat.completions.create(
  { model: 'demo-vl', temperature: 0, messages: [{ role: 'user', content: parts.map(partOf) }], ...more });

test('each answer is that of transformers', async () => {
  assert.ok(golden.length > 20);
  for (const one of golden) {
    const answer = await ask(one.parts);
    assert.equal(answer.choices[0].message.content, one.text, one.parts.join(' '));
    assert.equal(answer.usage.prompt_tokens, one.prompt.length);
  }
});

test('the answers are right about the pictures', () => {
  const asked = golden.filter((one) => one.right !== null);
  assert.ok(asked.filter((one) => one.right).length >= 0.9 * asked.length);
});

test('a stream has the same text', async () => {
  const [one] = golden;
  let text = '';
  for await (const chunk of await ask(one.parts, { stream: true })) text += chunk.choices[0]?.delta?.content ?? '';
  assert.equal(text, one.text);
});
