// An answer as it grows: chunks of a stream become one message, with what it cost. Pure functions, no DOM.

const MIN_RATE_MS = 50; // tokens that arrive within it come from buffers: their rate would be the network's

// `sound`: of one that is spoken, as it came: {chunks: [base64 of 16-bit samples], bytes}. It is not stored with the text; `spoken`, when
// it has ended, is {key, bytes} of where it is kept (sound-store.js).
// finish: null while it streams, else "stop", "length", "tool_calls", ... as the server names it, or "stopped" (by the
// user), "error", "interrupted" (the page was closed).
export function newAnswer(nowMs) {
  return { role: 'assistant', content: '', reasoning: '', tool_calls: [], finish: null, error: '', started_ms: nowMs, stats: {} };
}

function addToolCalls(calls, deltas) {
  const out = calls.map((call) => ({ ...call }));
  for (const delta of deltas) {
    const at = delta.index ?? out.length;
    out[at] ??= { name: '', arguments: '' };
    out[at].name += delta.function?.name ?? '';
    out[at].arguments += delta.function?.arguments ?? '';
  }
  return out.filter(Boolean);
}

const bytesOf = (base64) => (base64.length / 4) * 3 - (base64.endsWith('==') ? 2 : base64.endsWith('=') ? 1 : 0);

export function addChunk(answer, chunk, nowMs) {
  const out = { ...answer, stats: { ...answer.stats } };
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.content || delta.reasoning_content || delta.tool_calls) {
    out.content += delta.content ?? '';
    out.reasoning += delta.reasoning_content ?? '';
    if (delta.tool_calls) out.tool_calls = addToolCalls(out.tool_calls, delta.tool_calls);
    out.stats.first_ms ??= nowMs - answer.started_ms;
    out.stats.last_ms = nowMs - answer.started_ms;
  }
  if (delta.audio?.data) {
    const { chunks, bytes } = answer.sound ?? { chunks: [], bytes: 0 };
    out.sound = { chunks: [...chunks, delta.audio.data], bytes: bytes + bytesOf(delta.audio.data) };
    out.stats.first_sound_ms ??= nowMs - answer.started_ms;
  }
  if (choice?.finish_reason) out.finish = choice.finish_reason;
  if (chunk.usage) {
    out.stats.prompt = chunk.usage.prompt_tokens;
    out.stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    out.stats.output = chunk.usage.completion_tokens;
    // Tokens that came with the first one do not count for the rate.
    if (out.stats.last_ms === out.stats.first_ms) out.stats.first_output = out.stats.output;
  }
  return out;
}

export function endAnswer(answer, finish, error = '') {
  return { ...answer, finish: answer.finish ?? finish, error };
}

// Pictures and sounds stand before the text, as models are trained.
const partsOf = ({ content, pictures = [], sounds = [] }) => [
  ...pictures.map(({ url }) => ({ type: 'image_url', image_url: { url } })),
  ...sounds.map(({ data }) => ({ type: 'input_audio', input_audio: { data, format: 'wav' } })),
  ...(content.trim() ? [{ type: 'text', text: content }] : []),
];

// What goes back to the model: no thinking, no answer that failed before its first word.
export function requestMessages(conversation) {
  const out = conversation.system ? [{ role: 'system', content: conversation.system }] : [];
  for (const message of conversation.messages) {
    if (message.role === 'assistant' && !message.content) continue;
    out.push({ role: message.role, content: message.pictures || message.sounds ? partsOf(message) : message.content });
  }
  return out;
}

const ms = (value) => (value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`);

// [{label, value, title}] of what is known. `context`: the model's length in tokens, 0 where unknown.
export function statsOf(answer, context) {
  const s = answer.stats ?? {};
  const out = [];
  const add = (label, value, title) => out.push({ label, value, title });
  if (s.prompt !== undefined) {
    add('in', `${s.prompt}`, 'tokens of the prompt');
    add('cached', `${s.cached}`, 'of those, tokens that the prefix cache had');
  }
  if (s.output !== undefined) add('out', `${s.output}`, 'tokens of the answer');
  if (s.first_ms !== undefined) add('first token', ms(s.first_ms), 'from sending to the first token, seen from this page');
  if (s.first_sound_ms !== undefined) add('first sound', ms(s.first_sound_ms), 'from sending to the first sound, seen from this page');
  if (s.output > s.first_output && s.last_ms - s.first_ms >= MIN_RATE_MS) {
    const rate = ((s.output - s.first_output) * 1000) / (s.last_ms - s.first_ms);
    add('tokens/s', rate < 10 ? rate.toFixed(1) : `${Math.round(rate)}`, 'after the first token, seen from this page');
  }
  if (context > 0 && s.prompt !== undefined) {
    const used = s.prompt + (s.output ?? 0);
    add('context', `${Math.round((100 * used) / context)} %`, `${used} of ${context} tokens`);
  }
  return out;
}

const ENDS = {
  length: 'Cut off: the longest answer or the context is reached.',
  stopped: 'Stopped.',
  interrupted: 'Interrupted: the page was closed while the answer was streaming.',
};
export const endNote = (answer) => answer.error || (ENDS[answer.finish] ?? '');
