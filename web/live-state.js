// What the Live view shows, made of the events of /live/events. Pure functions, no DOM.

export const HISTORY = 240; // points of the small charts: two minutes
const RATE_MS = 1500; // rates are of so long, so that they do not jump with each event

// ---- numbers for people

export function short(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)}k`;
  return `${Math.round(value)}`;
}
export function duration(seconds) {
  if (seconds === 0) return '0 ms';
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(seconds < 0.995 ? 2 : 1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
// 14:03:07 of the reader's clock
export const timeOf = (ms) => new Date(ms).toTimeString().slice(0, 8);
const sum = (list, value) => list.reduce((all, one) => all + value(one), 0);

// ---- over all schedulers

export const statesOf = (event) => event.schedulers.filter((one) => one.state).map((one) => one.state);

// {time_ms, generated, prefilled, running, waiting, used}: a point of the history.
export function pointOf(event) {
  const states = statesOf(event);
  const total = sum(states, (state) => state.pages.total);
  return {
    time_ms: event.time_ms,
    generated: sum(states, (state) => state.generated_tokens_total),
    prefilled: sum(states, (state) => state.prefill_rows_total),
    running: sum(states, (state) => state.running),
    waiting: sum(states, (state) => state.waiting + state.preparing),
    used: total === 0 ? 0 : sum(states, (state) => state.pages.running + state.pages.importing) / total,
    schedulers: states.length,
  };
}

// The history with one more point. A scheduler that comes or goes changes the totals, so the history begins anew.
export function addPoint(history, point) {
  const last = history.at(-1);
  const whole = !last || (last.schedulers === point.schedulers && point.generated >= last.generated && point.time_ms > last.time_ms);
  return [...(whole ? history : []), point].slice(-HISTORY);
}

// Of a total that only grows, how much a second, for each point but the first.
export function rates(history, name) {
  return history.slice(1).map((point, i) => {
    let from = i;
    while (from > 0 && point.time_ms - history[from].time_ms < RATE_MS) from -= 1;
    return ((point[name] - history[from][name]) * 1000) / (point.time_ms - history[from].time_ms);
  });
}

// ---- requests

const ORDER = ['decoding', 'prefilling', 'queued'];

// Each request of a scheduler with its name, and those that no scheduler has. A name of several requests is on each of them,
// unless one of them has a name of its own.
export function requestsOf(event) {
  const names = new Map();
  for (const { name, ids } of event.requests) {
    for (const id of ids) if (!names.has(id) || names.get(id).count > ids.length) names.set(id, { name, count: ids.length });
  }
  const rows = event.schedulers.flatMap(({ stage, state }) =>
    (state?.requests ?? []).map((request) => ({ ...request, stage, name: names.get(request.id)?.name ?? '', done: doneOf(request) })));
  const known = new Set(rows.map((row) => row.id));
  const others = [...names].filter(([id]) => !known.has(id));
  for (const [id, { name }] of others) rows.push({ id, name, stage: '', state: event.schedulers.some((one) => one.error) ? 'unknown' : 'elsewhere', done: 0 });
  for (const row of rows) row.prompt = event.prompts?.[row.name] ?? '';
  const rank = (row) => (ORDER.includes(row.state) ? ORDER.indexOf(row.state) : ORDER.length);
  return rows.sort((a, b) => rank(a) - rank(b) || a.id - b.id);
}
function doneOf(request) {
  if (request.state === 'prefilling') return request.computed / request.to_compute;
  return request.state === 'decoding' ? Math.min(1, request.output_tokens / Math.max(1, request.max_tokens)) : 0;
}

// ---- pages

export const PAGE_KINDS = ['running', 'cached', 'importing', 'free'];
const LETTERS = { r: 'running', h: 'running', c: 'cached', i: 'importing', f: 'free' };
export const MAX_CELLS = 2048; // of a pool whose pages are not given one by one

// [{kind, count}] in the order of the cells: runs of pages, or of equal parts of a large pool, with the counts of the totals.
export function pageRuns(pages) {
  if (pages.map) {
    const runs = [];
    for (const letter of pages.map) {
      const kind = LETTERS[letter];
      if (runs.at(-1)?.kind === kind) runs.at(-1).count += 1;
      else runs.push({ kind, count: 1 });
    }
    return runs;
  }
  // Rounded so that the cells are MAX_CELLS, and no kind that there is gets none: the rarest first, the last gets what is left.
  let left = MAX_CELLS, pages_left = pages.total;
  const counts = {};
  for (const kind of PAGE_KINDS.filter((one) => pages[one] > 0).sort((a, b) => pages[a] - pages[b])) {
    counts[kind] = Math.max(1, Math.round((left * pages[kind]) / pages_left));
    left -= counts[kind];
    pages_left -= pages[kind];
  }
  return PAGE_KINDS.filter((kind) => counts[kind]).map((kind) => ({ kind, count: counts[kind] }));
}

// ---- prefixes: the tree as bars from their first token to their last, a row for each leaf

// {nodes: [{...node, row, rows}], rows, tokens}
export function prefixLayout(cache) {
  const children = cache.nodes.map(() => []);
  const roots = [];
  cache.nodes.forEach((node, number) => (node.parent < 0 ? roots : children[node.parent]).push(number));
  const byId = (a, b) => cache.nodes[a].id - cache.nodes[b].id; // so that bars stay where they are
  const out = [];
  let next = 0;
  const open = roots.sort(byId).reverse().map((number) => ({ number, at: 0 }));
  const placed = new Map();
  // Depth first without recursion: a node is placed when all its children are.
  while (open.length > 0) {
    const top = open.at(-1);
    const below = children[top.number];
    if (top.at === 0) {
      below.sort(byId);
      placed.set(top.number, next);
    }
    if (top.at < below.length) {
      open.push({ number: below[top.at], at: 0 });
      top.at += 1;
      continue;
    }
    open.pop();
    const node = cache.nodes[top.number];
    if (below.length === 0 && node.parent >= 0) next += 1;
    const row = placed.get(top.number);
    if (node.parent >= 0) out.push({ ...node, row, rows: next - row });
  }
  return { nodes: out, rows: next, tokens: Math.max(1, ...out.map((node) => node.begin + node.tokens)) };
}

// ---- transfers and ranges

const RANGE = /^range_idle_ratio\{range=(\d+)\}$/;
const TRANSFER = /^kv_transfer(\w*?)(_total)?(?:\{(.*)\})?$/;
const WHAT = { s: 'transfers', s_open: 'open transfers', s_early: 'early offers', s_not_asked: 'not asked', _bytes: 'bytes', _parts: 'parts', _wait_seconds: 'seconds waited' };

// {ranges: [{range, busy}], transfers: [{label, value}]} of a stage's metrics; what is 0 is left out.
export function furtherOf(metrics) {
  const ranges = [], transfers = [];
  for (const [name, value] of Object.entries(metrics)) {
    const range = name.match(RANGE), transfer = name.match(TRANSFER);
    if (range) ranges.push({ range: Number(range[1]), busy: Math.min(1, Math.max(0, 1 - value)) });
    else if (transfer && value > 0) {
      const details = (transfer[3] ?? '').split(',').filter(Boolean).map((label) => label.slice(label.indexOf('=') + 1));
      transfers.push({ label: [WHAT[transfer[1]] ?? transfer[1].replaceAll('_', ' ').trim(), ...details].join(', '), value });
    }
  }
  return { ranges: ranges.sort((a, b) => a.range - b.range), transfers };
}

// ---- latencies

// [{from, to, count}]: from the first bucket that has some to the last, with one empty one at each end.
export function bucketsOf(histogram) {
  const { bounds, counts } = histogram;
  const first = counts.findIndex((count) => count > 0);
  if (first < 0) return [];
  const last = counts.findLastIndex((count) => count > 0);
  const out = [];
  for (let i = Math.max(0, first - 1); i <= Math.min(counts.length - 1, last + 1); ++i) out.push({ from: i === 0 ? 0 : bounds[i - 1], to: bounds[i] ?? Infinity, count: counts[i] });
  return out;
}
