// Drawings of the Live view. Many like marks are one path, so that a picture of thousands of pages is four elements.
import { html, useLayoutEffect, useRef, useState } from './vendor/htm-preact.js';
import { PAGE_KINDS, bucketsOf, duration, pageRuns, prefixLayout, short } from './live-state.js';

// [ref, width in px] of an element that is as wide as its parent lets it be.
export function useWidth(first = 300) {
  const ref = useRef();
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const seen = new ResizeObserver(() => setWidth(Math.max(40, Math.floor(ref.current?.clientWidth ?? first))));
    seen.observe(ref.current);
    return () => seen.disconnect();
  }, []);
  return [ref, width];
}

// ---- a line of the last two minutes

export function Spark({ values, label }) {
  const top = Math.max(...values, 1e-9);
  const points = values.map((value, i) => `${((i + 1) * 100) / Math.max(2, values.length)} ${(29 - (28 * value) / top).toFixed(2)}`);
  const line = points.length > 1 ? `M${points.join('L')}` : '';
  return html`<svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${line && html`<path class="under" d=${`${line}V30H${points[0].split(' ')[0]}z`} /><path class="line" d=${line} />`}</svg>`;
}

// ---- steps: a column each, prefill rows above decode rows

const STEP = { width: 4, gap: 1.5, height: 148, axis: 8 };

export function Steps({ steps }) {
  const [ref, width] = useWidth();
  const shown = steps.slice(-Math.max(8, Math.floor((width - 34) / (STEP.width + STEP.gap))));
  const top = Math.max(4, ...shown.map(([, prefill, decode]) => prefill + decode));
  // Decodes are few beside a chunk of a prompt, so heights grow with the square root.
  const high = (rows) => (STEP.height * Math.sqrt(rows)) / Math.sqrt(top);
  const right = width - 2;
  const at = (i) => right - (shown.length - i) * (STEP.width + STEP.gap) + STEP.gap;
  const bar = (i, from, to) => (to - from < 0.01 ? '' : `M${at(i)} ${(STEP.height - to).toFixed(1)}h${STEP.width}v${(to - from).toFixed(1)}h-${STEP.width}z`);
  const decode = shown.map(([, , rows], i) => bar(i, 0, high(rows))).join('');
  const prefill = shown.map(([, prefilled, rows], i) => bar(i, high(rows), high(prefilled + rows))).join('');
  const last = shown.at(-1);
  const ticks = [top, Math.round(top / 4)].filter((rows, i, all) => rows > 0 && all.indexOf(rows) === i);
  const text = last ? `The last of ${last[0]} steps: ${last[1]} prefill rows, ${last[2]} decode rows, ${duration(last[4] / 1e6)}` : 'No step yet';
  return html`<div ref=${ref}><svg class="steps" role="img" aria-label=${text} width=${width} height=${STEP.height + STEP.axis}>
    ${ticks.map((rows) => html`<g class="tick"><path d=${`M30 ${(STEP.height - high(rows)).toFixed(1)}H${width}`} /><text x="26" y=${Math.max(9, STEP.height - high(rows) + 4)}>${short(rows)}</text></g>`)}
    <path class="decode" d=${decode} /><path class="prefill" d=${prefill} /><path class="base" d=${`M30 ${STEP.height + 0.5}H${width}`} />
    ${shown.map((step, i) => html`<rect class="touch" x=${at(i)} y="0" width=${STEP.width + STEP.gap} height=${STEP.height}>
      <title>${`step ${step[0]}: ${step[1]} prefill + ${step[2]} decode rows of ${step[3]} requests in ${duration(step[4] / 1e6)}`}</title></rect>`)}
  </svg></div>`;
}

// ---- pages: a cell each

const CELL = { most: 16, least: 3.6, height: 190 };

export function Pages({ pages }) {
  const [ref, width] = useWidth();
  const runs = pageRuns(pages);
  const cells = runs.reduce((all, run) => all + run.count, 0);
  // As large as they may be to be as high as the batches beside them.
  const pitch = Math.min(CELL.most, Math.max(CELL.least, Math.floor(10 * Math.sqrt((width * CELL.height) / Math.max(1, cells))) / 10));
  const gap = pitch > 8 ? 2 : pitch > 5 ? 1.5 : 1;
  const size = (pitch - gap).toFixed(1);
  const columns = Math.max(1, Math.floor((width + gap) / pitch));
  const paths = Object.fromEntries(PAGE_KINDS.map((kind) => [kind, []]));
  let cell = 0;
  for (const { kind, count } of runs) {
    for (const end = cell + count; cell < end; ++cell) {
      paths[kind].push(`M${((cell % columns) * pitch).toFixed(1)} ${(Math.floor(cell / columns) * pitch).toFixed(1)}h${size}v${size}h-${size}z`);
    }
  }
  const height = Math.ceil(cells / columns) * pitch;
  const text = PAGE_KINDS.filter((kind) => kind !== 'importing' || pages.importing > 0).map((kind) => `${pages[kind]} ${kind}`).join(', ');
  return html`<div ref=${ref}><svg class="page-map" role="img" aria-label=${`${pages.total} KV pages: ${text}`} width=${width} height=${height}>
      ${PAGE_KINDS.map((kind) => html`<path class=${`cell ${kind}`} d=${paths[kind].join('')} />`)}</svg>
    ${!pages.map && html`<p class="note">A cell is about ${short(pages.total / cells)} of ${short(pages.total)} pages.</p>`}
    <ul class="legend">${PAGE_KINDS.filter((kind) => kind !== 'importing' || pages.importing > 0).map((kind) => html`<li key=${kind}><i class=${kind}></i>${kind}<b data-pages=${kind}>${pages[kind]}</b></li>`)}
      <li class="sum">of<b data-pages="total">${pages.total}</b>pages of ${pages.size} tokens</li></ul></div>`;
}

// ---- prefixes: the radix tree, from left to right

const ROW = { most: 22, least: 5, height: 260 };

export function Prefixes({ cache }) {
  const [ref, width] = useWidth();
  const { nodes, rows, tokens } = prefixLayout(cache);
  const high = Math.min(ROW.most, Math.max(ROW.least, Math.floor(ROW.height / Math.max(1, rows))));
  const x = (token) => (token * (width - 1)) / tokens;
  const hot = Math.max(1, ...nodes.map((node) => node.hits));
  const hidden = cache.nodes_total - nodes.length;
  if (nodes.length === 0) return html`<div ref=${ref}><p class="empty">Nothing is cached yet. Ask something twice, and the second prompt begins here.</p></div>`;
  return html`<div ref=${ref}><div class="scroll" tabindex="0" role="region" aria-label="Radix tree"><svg class="prefixes" role="img" aria-label=${`${cache.nodes_total} cached prefixes, the longest shown has ${tokens} tokens`} width=${width} height=${rows * high}>
    ${nodes.map((node) => {
      const wide = Math.max(1, x(node.begin + node.tokens) - x(node.begin) - 1), tall = Math.max(3, node.rows * high - 1.5);
      const heat = Math.min(4, Math.ceil((4 * Math.log1p(node.hits)) / Math.log1p(hot)));
      return html`<g key=${node.id} class=${`prefix heat-${heat} ${node.locked ? 'locked' : ''} ${node.on_host ? 'on-host' : ''}`} transform=${`translate(${x(node.begin).toFixed(1)} ${(node.row * high).toFixed(1)})`}>
        <title>${`${node.tokens} tokens from ${node.begin} on, used by ${node.hits} requests${node.locked ? ', in use now' : ''}${node.on_host ? ', in the host tier' : ''}`}</title>
        <rect width=${wide.toFixed(1)} height=${tall.toFixed(1)} rx="2" />
        ${wide > 44 && tall >= 14 && html`<text x="6" y=${tall < 22 ? tall / 2 + 4 : 15}>${short(node.tokens)}${wide > 90 && node.hits > 1 ? ` × ${node.hits}` : ''}</text>`}</g>`;
    })}</svg></div>
    <p class="scale"><span>0</span><span>${short(tokens)} tokens</span></p>
    <ul class="legend"><li><i class="running"></i>in use now</li><li><i class="cached"></i>cached, the stronger the more requests used it</li>
      ${hidden > 0 && html`<li class="sum">${short(hidden)} more that were not used as lately</li>`}</ul></div>`;
}

// ---- latencies

const BARS = 84;

export function Latency({ name, histogram, empty }) {
  const buckets = bucketsOf(histogram);
  const top = Math.max(1, ...buckets.map((bucket) => bucket.count));
  const step = 200 / Math.max(1, buckets.length);
  // Where a latency lies among bars of equal width.
  const at = (value) => {
    const i = buckets.findIndex((bucket) => value <= bucket.to);
    const { from, to } = buckets[i];
    return (i + (Number.isFinite(to) && to > from ? (value - from) / (to - from) : 0.5)) * step;
  };
  const marks = histogram.count > 0 ? ['p50', 'p90', 'p99'] : [];
  return html`<section class="latency" aria-label=${name}><h3>${name}</h3>
    ${buckets.length === 0 ? html`<p class="empty">${empty}</p>` : html`
      <svg role="img" aria-label=${`${histogram.count} measured; median ${duration(histogram.p50)}, 99 % within ${duration(histogram.p99)}`} viewBox=${`0 0 200 ${BARS}`} preserveAspectRatio="none">
        ${buckets.map(({ from, to, count }, i) => html`<g><title>${`${duration(from)} to ${Number.isFinite(to) ? duration(to) : '…'}: ${count}`}</title>
          <rect class="touch" x=${i * step} width=${step} height=${BARS} /><rect class="bar" x=${(i * step + step * 0.1).toFixed(2)} width=${(step * 0.8).toFixed(2)} y=${(BARS - (BARS * count) / top).toFixed(2)} height=${((BARS * count) / top).toFixed(2)} /></g>`)}
        ${marks.map((mark) => html`<path class=${`mark ${mark}`} d=${`M${at(histogram[mark]).toFixed(2)} 0V${BARS}`} />`)}</svg>
      <p class="scale"><span>${duration(buckets[0].from)}</span><span>${Number.isFinite(buckets.at(-1).to) ? duration(buckets.at(-1).to) : 'more'}</span></p>`}
    <dl>${['p50', 'p90', 'p99'].map((mark) => html`<div key=${mark}><dt>${mark}</dt><dd>${histogram.count > 0 ? duration(histogram[mark]) : '–'}</dd></div>`)}
      <div><dt>count</dt><dd>${short(histogram.count)}</dd></div></dl></section>`;
}
