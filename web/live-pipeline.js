// The picture of the pipeline: the server, then its stages in the order of the edges, colored by their state.
import { html } from './vendor/htm-preact.js';

const BOX = { width: 158, height: 62, gap_x: 54, gap_y: 16 };
const SERVER = 'server';

const baseOf = (stage) => (stage.stage.endsWith(`-${stage.replica}`) ? stage.stage.slice(0, -`-${stage.replica}`.length) : stage.stage);

// {boxes: [{stage, x, y}], edges: [{from, to, kind, busy}], width, height}; `wide`: from left to right, else from top to bottom.
export function pipelineLayout({ stages, links }, width) {
  const known = new Set(links.flatMap((link) => [link.from, link.to]));
  const nodes = stages.map((stage) => ({ ...stage, base: known.has(stage.stage) ? stage.stage : baseOf(stage) }));
  const bases = [...new Set(nodes.map((node) => node.base))];
  const inner = links.filter((link) => bases.includes(link.from) && bases.includes(link.to) && link.from !== link.to);
  // A stage's column is one behind the last of those that send to it; a cycle ends after so many rounds.
  const column = new Map(bases.map((base) => [base, 1]));
  for (let round = 0; round < bases.length; ++round) {
    for (const { from, to } of inner) if (column.get(to) <= column.get(from) && column.get(from) < bases.length) column.set(to, column.get(from) + 1);
  }
  const entries = bases.filter((base) => !inner.some((link) => (['pages', 'features'].includes(link.kind) ? link.from : link.to) === base));
  const exits = bases.filter((base) => !inner.some((link) => link.from === base && link.kind !== 'layers'));
  const all = [{ stage: SERVER, base: SERVER, state: 'ready' }, ...nodes];
  column.set(SERVER, 0);
  const columns = Math.max(...column.values()) + 1;
  const wide = columns * (BOX.width + BOX.gap_x) - BOX.gap_x <= width;
  const gap_x = wide ? Math.min(260, Math.floor((width - columns * BOX.width) / Math.max(1, columns - 1))) : 0;
  const taken = new Array(columns).fill(0);
  // A stage that only helps another one, and gets nothing from the server, stands below the edge between these two.
  const helps = (base) => wide && base !== SERVER && !entries.includes(base) && !inner.some((link) => link.to === base);
  const boxes = all.map((stage) => {
    const at = column.get(stage.base), nth = Math.max(taken[at], helps(stage.base) ? 1 : 0);
    taken[at] = nth + 1;
    return { stage, x: (wide ? at : nth) * (BOX.width + (wide ? gap_x : BOX.gap_y)), y: (wide ? nth : at) * (BOX.height + (wide ? BOX.gap_y : 34)) };
  });
  const of = (base) => boxes.filter((box) => box.stage.base === base);
  const pairs = [...entries.map((to) => ({ from: SERVER, to, kind: 'payload' })), ...inner, ...exits.map((from) => ({ from, to: SERVER, kind: 'stream', back: true }))];
  const edges = pairs.flatMap((link) => of(link.from).flatMap((from) => of(link.to).map((to) => ({ ...link, from, to, busy: ((link.back ? from : to).stage.running ?? 0) > 0 }))));
  return { boxes, edges, wide, width: Math.max(...boxes.map((box) => box.x)) + BOX.width, height: Math.max(...boxes.map((box) => box.y)) + BOX.height + (edges.some((edge) => edge.back) && wide ? 22 : 0) };
}

// The way back to the server runs below the boxes, or beside them.
function pathOf({ from, to, back }, wide, height) {
  if (back && wide) {
    const bottom = height - 4, x = from.x + BOX.width / 2, end = to.x + BOX.width / 2;
    return `M${x} ${from.y + BOX.height}C${x} ${bottom + 4} ${x} ${bottom} ${x - 24} ${bottom}H${end + 24}C${end} ${bottom} ${end} ${bottom + 4} ${end} ${to.y + BOX.height + 5}`;
  }
  if (back) return '';
  if (wide) {
    const x = from.x + BOX.width, y = from.y + BOX.height / 2, end = to.x - 6, low = to.y + BOX.height / 2;
    return `M${x} ${y}C${(x + end) / 2} ${y} ${(x + end) / 2} ${low} ${end} ${low}`;
  }
  const x = from.x + BOX.width / 2, y = from.y + BOX.height, low = to.y - 6, end = to.x + BOX.width / 2;
  return `M${x} ${y}C${x} ${y + 16} ${end} ${low - 16} ${end} ${low}`;
}

function Box({ box, model }) {
  const { stage, x, y } = box;
  const server = stage.base === SERVER;
  const state = stage.state === 'loading' && stage.progress > 0 ? `loading ${Math.round(100 * stage.progress)} %` : stage.state;
  const second = server ? 'HTTP, tokenizer' : state === 'ready' ? `${stage.running} running, ${stage.waiting} waiting` : state;
  return html`<g class=${`stage ${stage.state}`} transform=${`translate(${x} ${y})`} data-stage=${stage.stage} data-state=${stage.state}>
    <title>${server ? model : `${stage.stage}: ${state}. ${stage.message ?? ''}`}</title>
    <rect width=${BOX.width} height=${BOX.height} rx="10" />
    <circle cx="18" cy="23" r="4.500" />
    <text class="stage-name" x="31" y="28">${stage.stage.length > 16 ? `${stage.stage.slice(0, 15)}…` : stage.stage}</text>
    <text class="stage-more" x="18" y="48">${second}</text></g>`;
}

export function Pipeline({ event, width }) {
  const layout = pipelineLayout(event, width);
  const text = event.stages.map((stage) => `${stage.stage} ${stage.state}`).join(', ');
  return html`<svg class="pipeline" role="img" aria-label=${`Pipeline: ${text}`} viewBox=${`0 0 ${layout.width} ${layout.height}`} width=${layout.width} height=${layout.height}>
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
    ${layout.edges.map((edge) => html`<path class=${`edge ${edge.kind} ${edge.busy ? 'busy' : ''}`} d=${pathOf(edge, layout.wide, layout.height)} marker-end="url(#arrow)" />`)}
    ${layout.boxes.map((box) => html`<${Box} key=${box.stage.stage} box=${box} model=${event.model} />`)}</svg>`;
}
