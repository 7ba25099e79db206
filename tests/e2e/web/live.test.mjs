// The modules of the Live view that need no DOM, in node.
import assert from 'node:assert/strict';
import { test } from 'node:test';

const WEB = new URL('../../../web/', import.meta.url);
const load = (name) => import(new URL(name, WEB));
const { HISTORY, MAX_CELLS, addPoint, bucketsOf, duration, furtherOf, pageRuns, prefixLayout, rates, requestsOf, short } = await load('live-state.js');
const { pipelineLayout } = await load('live-pipeline.js');
const { LiveStream } = await load('live-stream.js');
const { Api, ApiError } = await load('api.js');

test('numbers and times are short', () => {
  assert.deepEqual([0, 999, 9999, 12345, 123456, 2.5e6, 3e9].map(short), ['0', '999', '9999', '12.3k', '123k', '2.5M', '3.0G']);
  assert.deepEqual([0, 0.0004, 0.012, 0.25, 1.5, 42, 600, 9000].map(duration), ['0 ms', '0.4 ms', '12 ms', '0.25 s', '1.5 s', '42 s', '10 min', '2.5 h']);
});

const point = (time_ms, generated, more) => ({ time_ms, generated, schedulers: 1, ...more });

test('rates are of the last second and a half, and a restart begins anew', () => {
  let history = [];
  for (let i = 0; i <= 6; ++i) history = addPoint(history, point(500 * i, 10 * i));
  assert.deepEqual(rates(history, 'generated'), [20, 20, 20, 20, 20, 20]);
  history = addPoint(history, point(3500, 160));
  assert.ok(Math.abs(rates(history, 'generated').at(-1) - 120 / 1.5) < 1e-9);
  assert.equal(addPoint(history, point(4000, 3)).length, 1); // the counter fell
  assert.equal(addPoint(history, point(4000, 200, { schedulers: 2 })).length, 1);
  for (let i = 0; i < 2 * HISTORY; ++i) history = addPoint(history, point(4000 + i, 200));
  assert.equal(history.length, HISTORY);
});

test('requests have their names, and those that no scheduler has are there too', () => {
  const event = {
    requests: [{ name: 'batch', ids: [1, 2] }, { name: 'batch_0', ids: [1] }, { name: 'batch_1', ids: [2] }, { name: 'late', ids: [9] }],
    schedulers: [{ stage: 'scheduler', state: { requests: [
      { id: 3, state: 'queued' }, { id: 2, state: 'prefilling', computed: 30, to_compute: 40 }, { id: 1, state: 'decoding', output_tokens: 5, max_tokens: 20 }] } }],
  };
  const rows = requestsOf(event);
  assert.deepEqual(rows.map((row) => [row.id, row.name, row.state, row.done]),
    [[1, 'batch_0', 'decoding', 0.25], [2, 'batch_1', 'prefilling', 0.75], [3, '', 'queued', 0], [9, 'late', 'elsewhere', 0]]);
  assert.equal(requestsOf({ ...event, schedulers: [{ stage: 'scheduler', error: 'did not answer' }] })[0].state, 'unknown');
});

test('each page is a cell, and the parts of a large pool add up', () => {
  const pages = { map: 'ffccrhi', total: 7, free: 2, cached: 2, running: 2, importing: 1 };
  assert.deepEqual(pageRuns(pages), [{ kind: 'free', count: 2 }, { kind: 'cached', count: 2 }, { kind: 'running', count: 2 }, { kind: 'importing', count: 1 }]);
  for (const [free, cached, running, importing] of [[1e6, 1, 0, 0], [3, 1e5, 77777, 5], [0, 0, 123456, 0], [5000, 5000, 5000, 1]]) {
    const runs = pageRuns({ map: '', total: free + cached + running + importing, free, cached, running, importing });
    assert.equal(runs.reduce((all, run) => all + run.count, 0), MAX_CELLS);
    assert.deepEqual(runs.map((run) => run.kind).sort(), Object.entries({ free, cached, running, importing }).filter(([, count]) => count > 0).map(([kind]) => kind).sort());
    assert.ok(runs.every((run) => run.count > 0));
  }
});

test('prefixes stand where their tokens are, a row for each leaf', () => {
  const node = (id, parent, begin, tokens) => ({ id, parent, begin, tokens, hits: 1 });
  const { nodes, rows, tokens } = prefixLayout({ nodes: [
    { id: 0, parent: -1, begin: 0, tokens: 0 }, node(7, 0, 0, 32), node(4, 1, 32, 16), node(9, 1, 32, 64), node(2, 0, 0, 16), { id: 8, parent: -1, begin: 0, tokens: 0 }, node(10, 5, 0, 8)] });
  assert.equal(rows, 4);
  assert.equal(tokens, 96);
  const at = Object.fromEntries(nodes.map((one) => [one.id, [one.row, one.rows, one.begin]]));
  assert.deepEqual(at, { 2: [0, 1, 0], 7: [1, 2, 0], 4: [1, 1, 32], 9: [2, 1, 32], 10: [3, 1, 0] });
  assert.deepEqual(prefixLayout({ nodes: [] }), { nodes: [], rows: 0, tokens: 1 });
});

test('ranges and transfers have names for people', () => {
  assert.deepEqual(furtherOf({ 'range_idle_ratio{range=1}': 0.25, 'range_idle_ratio{range=0}': 2, 'range_compute_seconds_total{range=0}': 5, kv_leases: 3,
    'kv_transfers_total{end=decode,reason=ok}': 51, 'kv_transfers_total{end=decode,reason=lost}': 0, 'kv_transfer_bytes_total{end=decode}': 13e6, kv_transfer_wait_seconds_total: 4.5, kv_transfer_new_thing: 1 }), {
    ranges: [{ range: 0, busy: 0 }, { range: 1, busy: 0.75 }],
    transfers: [{ label: 'transfers, decode, ok', value: 51 }, { label: 'bytes, decode', value: 13e6 }, { label: 'seconds waited', value: 4.5 }, { label: 'new thing', value: 1 }] });
  assert.deepEqual(furtherOf({}), { ranges: [], transfers: [] });
});

test('a histogram shows from its first bucket to its last', () => {
  const buckets = bucketsOf({ bounds: [1, 2, 4, 8, 16], counts: [0, 0, 5, 0, 2, 0] });
  assert.deepEqual(buckets.map((bucket) => [bucket.from, bucket.to, bucket.count]), [[1, 2, 0], [2, 4, 5], [4, 8, 0], [8, 16, 2], [16, Infinity, 0]]);
  assert.deepEqual(bucketsOf({ bounds: [1], counts: [0, 0] }), []);
});

test('stages stand in the order of the edges, whatever these are', () => {
  const stage = (name, replica = 0) => ({ stage: name, replica, state: 'ready', running: 0, waiting: 0 });
  const text = pipelineLayout({ stages: [stage('scheduler-0'), stage('scheduler-1', 1), stage('detokenizer')], links: [{ from: 'scheduler', to: 'detokenizer', kind: 'stream' }] }, 1000);
  assert.ok(text.wide);
  const x = Object.fromEntries(text.boxes.map((box) => [box.stage.stage, box.x]));
  assert.ok(x.server < x['scheduler-0'] && x['scheduler-0'] === x['scheduler-1'] && x['scheduler-1'] < x.detokenizer);
  assert.equal(text.edges.length, 2 + 2 + 1); // to each scheduler, from each, and back
  const narrow = pipelineLayout({ stages: [stage('a'), stage('b')], links: [{ from: 'a', to: 'b', kind: 'payload' }] }, 320);
  assert.ok(!narrow.wide && narrow.width <= 340);
  const cycle = pipelineLayout({ stages: [stage('a'), stage('b')], links: [{ from: 'a', to: 'b', kind: 'payload' }, { from: 'b', to: 'a', kind: 'stream' }] }, 1000);
  assert.equal(cycle.boxes.length, 3);
  // A prefill replica stands beside the edge from the server to the scheduler, not on it.
  const apart = pipelineLayout({ stages: [stage('prefill'), stage('scheduler'), stage('detokenizer')], links: [{ from: 'prefill', to: 'scheduler', kind: 'pages' }, { from: 'scheduler', to: 'detokenizer', kind: 'stream' }] }, 1000);
  const at = Object.fromEntries(apart.boxes.map((box) => [box.stage.stage, box]));
  assert.deepEqual([at.server.y, at.scheduler.y, at.detokenizer.y], [0, 0, 0]);
  assert.ok(at.prefill.y >= 62 && at.prefill.x < at.scheduler.x);
  assert.ok(apart.edges.every(({ from, to, back }) => back || apart.boxes.every((box) => box === from || box === to || box.y !== from.y || box.y !== to.y || box.x <= from.x || box.x >= to.x)));
});

test('a stream that ends is opened again, and one that was stopped is not', async () => {
  const bodies = ['data: {"n":1}\n\ndata: {"n":2}\n\n', 'data: {"n":3}\n\n'];
  let asked = 0;
  const fetch = async () => {
    asked += 1;
    return asked <= bodies.length ? new Response(bodies[asked - 1]) : new Response('{"error":{"message":"full"}}', { status: 429 });
  };
  const seen = [], problems = [];
  let stream;
  await new Promise((done) => {
    stream = new LiveStream({
      open: (signal) => new Api({ fetch }).live(signal), onEvent: (event) => seen.push(event.n), later: (again) => again(),
      onProblem: (problem) => {
        problems.push(problem?.status ?? null);
        if (problem?.status === 429) { stream.stop(); done(); }
      },
    });
    stream.start();
    stream.start(); // twice is once
  });
  assert.deepEqual(seen, [1, 2, 3]);
  assert.deepEqual(problems, [null, null, 0, null, 0, 429]);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(asked, 3);
  assert.ok(!stream.open && problems.length === 6);
  assert.ok(new ApiError('x', 1) instanceof Error);
});
