// The Live view: what the engine does now. It listens to /live/events while it is shown and the page is visible.
import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/htm-preact.js';
import { IconButton } from './icons.js';
import { Latency, Pages, Prefixes, Spark, Steps, useWidth } from './live-charts.js';
import { Pipeline } from './live-pipeline.js';
import { LiveStream } from './live-stream.js';
import { addPoint, duration, furtherOf, pointOf, rates, requestsOf, short, statesOf, timeOf } from './live-state.js';

const MAX_ROWS = 60; // of the list of requests
const NEAR_END_PX = 24; // closer to its end than this, the log follows

// {event, history, problem}; nothing is asked for while the page is hidden, or a key is wanted.
function useLive(session) {
  const [live, setLive] = useState({ event: null, history: [], problem: null });
  useEffect(() => {
    if (session.needKey) return;
    const stream = new LiveStream({
      open: (signal) => session.api.live(signal, session.routed),
      onEvent: (event) => setLive((old) => ({ event, history: addPoint(old.history, pointOf(event)), problem: null })),
      onProblem: (problem) => {
        if (problem?.status === 401) session.wantKey();
        setLive((old) => (old.problem === problem ? old : { ...old, problem }));
      },
    });
    const follow = () => (document.hidden ? stream.stop() : stream.start());
    follow();
    document.addEventListener('visibilitychange', follow);
    return () => { document.removeEventListener('visibilitychange', follow); stream.stop(); };
  }, [session.needKey, session.routed]);
  return live;
}

function Tile({ label, value, unit, values, name }) {
  return html`<div class="tile" data-tile=${name}><span>${label}</span><b>${value}<small>${unit}</small></b>
    ${values && html`<${Spark} values=${values} label=${`${label}, the last two minutes`} />`}</div>`;
}

function Tiles({ event, history }) {
  const now = history.at(-1);
  const generated = rates(history, 'generated'), prefilled = rates(history, 'prefilled');
  const states = statesOf(event);
  const prompt = states.reduce((all, state) => all + state.prompt_tokens_total, 0), cached = states.reduce((all, state) => all + state.cached_tokens_total, 0);
  return html`<div class="tiles">
    <${Tile} name="generated" label="Generated" value=${short(generated.at(-1) ?? 0)} unit=" tok/s" values=${generated} />
    <${Tile} name="prefilled" label="Prompts" value=${short(prefilled.at(-1) ?? 0)} unit=" tok/s" values=${prefilled} />
    <${Tile} name="requests" label="Run + wait" value=${now.running} unit=${` + ${now.waiting}`} values=${history.map((point) => point.running + point.waiting)} />
    <${Tile} name="memory" label="KV pages in use" value=${Math.round(100 * now.used)} unit=" %" values=${history.map((point) => point.used)} />
    <${Tile} name="cached" label="Cached prompts" value=${prompt > 0 ? Math.round((100 * cached) / prompt) : '–'} unit=${prompt > 0 ? ' %' : ''} />
    <${Weights} event=${event} states=${states} /></div>`;
}

function Weights({ event, states }) {
  const { weights } = event;
  const label = weights?.weight_version || [...new Set(states.map((state) => state.weight_version))].join(', ') || '–';
  const updates = (weights?.updates_completed ?? 0) + (weights?.updates_failed ?? 0);
  const state = weights?.paused ? 'paused' : weights && weights.state !== 'idle' ? weights.state : updates > 0 ? `${weights.updates_completed} of ${updates} updates` : 'as started';
  return html`<div class="tile" data-tile="weights"><span>Weights</span><b>${label}<small> ${state}</small></b>
    ${weights?.buckets > 0 && html`<progress aria-label="Weights received" max=${weights.buckets} value=${weights.buckets_received}></progress>`}</div>`;
}

const STATES = { queued: 'queued', prefilling: 'prefill', decoding: 'decode', grammar: 'grammar', media: 'media', transfer: 'transfer', elsewhere: 'server', unknown: 'unknown' };

function Request({ row, abort }) {
  const of = row.state === 'prefilling' ? `${short(row.computed)} of ${short(row.to_compute)}` : '';
  return html`<li class=${`request ${row.state}`} data-request=${row.name || row.id}>
    <span class="chip" title=${row.state === 'elsewhere' ? 'the tokenizer, the detokenizer or the client has it' : ''}>${STATES[row.state] ?? row.state}</span>
    <code title=${row.name}>${row.name || `#${row.id}`}${row.prompt && html`<q>${row.prompt}</q>`}</code>
    <span class="meter" aria-hidden="true"><svg viewBox="0 0 100 4" preserveAspectRatio="none"><rect width=${(100 * (row.done || 0)).toFixed(1)} height="4" /></svg></span>
    <span class="counts">${of && html`<em>${of}</em>`}${row.prompt_tokens !== undefined && html`<span>${short(row.prompt_tokens)} in</span>`}${row.cached_tokens > 0 && html`<span>${short(row.cached_tokens)} cached</span>`}
      ${row.output_tokens !== undefined && html`<span>${short(row.output_tokens)} out</span>`}${row.retractions > 0 && html`<span>retracted ${row.retractions}×</span>`}${row.age_s !== undefined && html`<span>${duration(row.age_s)}</span>`}</span>
    ${row.name ? html`<${IconButton} icon="close" label=${`Abort ${row.name}`} onClick=${() => abort(row.name)} />` : html`<i></i>`}</li>`;
}

function Requests({ event, session }) {
  const rows = requestsOf(event);
  const abort = (name) => session.api.abort(name, session.routed).catch((problem) => session.notify(problem.message));
  return html`<section class="panel requests" aria-label="Requests"><h2>Requests <small>${rows.length === 0 ? 'none now' : rows.length}</small></h2>
    ${rows.length === 0 && html`<p class="empty">No request runs right now. Open a second window and chat: it shows here.</p>`}
    <ul tabindex="0" aria-label="Requests">${rows.slice(0, MAX_ROWS).map((row) => html`<${Request} key=${row.id} row=${row} abort=${abort} />`)}</ul>
    ${rows.length > MAX_ROWS && html`<p class="note">and ${rows.length - MAX_ROWS} more</p>`}</section>`;
}

// Of clients that the server trusts: the last lines of its log, the newest at the end, where the view stays.
function Log({ lines }) {
  const box = useRef();
  const follow = useRef(true);
  useLayoutEffect(() => { if (follow.current) box.current.scrollTop = box.current.scrollHeight; }, [lines.at(-1)?.stage, lines.at(-1)?.number]);
  const scrolled = () => { follow.current = box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < NEAR_END_PX; };
  return html`<section class="panel wide" aria-label="Log"><h2>Log <small>of the server and its stages, since this view opened</small></h2>
    ${lines.length === 0 && html`<p class="empty">No line yet. Each request makes one.</p>`}
    <ol class="log" tabindex="0" aria-label="Lines of the log" ref=${box} onScroll=${scrolled}>${lines.map((line) => html`<li key=${`${line.stage} ${line.number}`} class=${line.level}>
      <time datetime=${new Date(line.time_ms).toISOString()}>${timeOf(line.time_ms)}</time><b>${line.level}</b><i title=${line.stage}>${line.stage}</i><span>${line.text}</span></li>`)}</ol></section>`;
}

function Scheduler({ stage, state, many }) {
  const name = many ? ` of ${stage}` : '';
  return html`
    <section class="panel" aria-label=${`Batches${name}`}><h2>Batches${name} <small>step ${short(state.steps_total)}</small></h2><${Steps} steps=${state.steps} />
      <ul class="legend"><li><i class="prefill"></i>prefill rows</li><li><i class="decode"></i>decode rows</li>
        ${state.retractions_total > 0 && html`<li class="sum"><b>${short(state.retractions_total)}</b>retractions</li>`}</ul></section>
    <section class="panel" aria-label=${`KV pages${name}`}><h2>KV pages${name}</h2><${Pages} pages=${state.pages} /></section>
    <section class="panel wide" aria-label=${`Cached prefixes${name}`}><h2>Cached prefixes${name} <small>${state.cache.nodes_total} in the radix tree</small></h2><${Prefixes} cache=${state.cache} /></section>`;
}

function Range({ range, busy }) {
  const percent = Math.round(100 * busy);
  return html`<li><span>range ${range}</span><svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${`range ${range} is busy ${percent} % of the time`}><rect class="under" width="100" height="10" /><rect width=${percent} height="10" /></svg><b>${percent} % busy, ${100 - percent} % idle</b></li>`;
}

// Transfers of pages and ranges of layers, where there are some.
function Further({ stages }) {
  const shown = stages.map((stage) => ({ stage, ...furtherOf(stage.metrics) })).filter(({ ranges, transfers }) => ranges.length + transfers.length > 0);
  return shown.map(({ stage, ranges, transfers }) => html`
    ${ranges.length > 0 && html`<section class="panel wide" aria-label="Layer ranges"><h2>Layer ranges <small>of ${stage.stage}</small></h2><ul class="ranges">${ranges.map((one) => html`<${Range} key=${one.range} ...${one} />`)}</ul></section>`}
    ${transfers.length > 0 && html`<section class="panel wide" aria-label="Transfers"><h2>KV transfers <small>of ${stage.stage}</small></h2>
      <dl class="numbers">${transfers.map(({ label, value }) => html`<div key=${label}><dt>${label}</dt><dd>${Number.isInteger(value) ? short(value) : value.toFixed(1)}</dd></div>`)}</dl></section>`}`);
}

function Picture({ event }) {
  const [ref, width] = useWidth(700);
  return html`<section class="panel wide" aria-label="Pipeline"><h2>Pipeline</h2><div class="scroll" tabindex="0" role="region" aria-label="Picture of the pipeline" ref=${ref}><${Pipeline} event=${event} width=${width - 6} /></div></section>`;
}

export function Live({ session }) {
  const { event, history, problem } = useLive(session);
  const waits = problem && html`<div class="notice" role="alert">${problem.message}${problem.status === 429 ? ' It is asked again every two seconds.' : ''}</div>`;
  if (!event) return html`<div class="live-view">${waits || html`<p class="empty" role="status">Waiting for the first event…</p>`}</div>`;
  return html`<div class=${`live-view ${problem ? 'stale' : ''}`} tabindex="0" role="region" aria-label="Live">${waits}
    <${Tiles} event=${event} history=${history} />
    <div class="panels"><${Picture} event=${event} />
      <${Requests} event=${event} session=${session} />
      <section class="panel" aria-label="Latencies"><h2>Latencies <small>since the start</small></h2><div class="latencies">
        <${Latency} name="First token" histogram=${event.latency.time_to_first_token} empty="No stream yet." />
        <${Latency} name="Between tokens" histogram=${event.latency.inter_token} empty="No stream yet." />
        <${Latency} name="Answer" histogram=${event.latency.end_to_end} empty="No answer yet." />
        <${Latency} name="In the queue" histogram=${event.latency.queue} empty="No answer yet." /></div></section>
      ${event.schedulers.map(({ stage, state, error }) => (state ? html`<${Scheduler} key=${stage} stage=${stage} state=${state} many=${event.schedulers.length > 1} />`
        : html`<section class="panel wide" key=${stage}><h2>${stage}</h2><p class="problem">${error}</p></section>`))}
      <${Further} stages=${event.stages} />
      ${event.log && html`<${Log} lines=${event.log} />`}</div></div>`;
}
