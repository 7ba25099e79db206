// What the tests of several clients have in common: a tool, what the model is made to write, and the wait for a server at rest.
import assert from 'node:assert/strict';

export const schema = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['paris', 'rome'] } },
  required: ['city'],
  additionalProperties: false,
};
const call = '<tool_call>\\n{\\"name\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"rome\\"}}\\n</tool_call>';
export const called = { ebnf: `root ::= "<think>\\nHm.\\n</think>\\n\\nLet me see.\\n${call}"` };
export const thought = { ebnf: 'root ::= "<think>\\nHm.\\n</think>\\n\\nSun."' };

// Until no request runs any more, a minute at most.
export async function untilIdle(root) {
  for (let i = 0; i < 1200; ++i) {
    const { stages } = await (await fetch(`${root}/ready`)).json();
    if (stages.every((stage) => stage.running === 0)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail('the request still runs a minute after its client left');
}
