// One measure of node-llama-cpp (llama.cpp inside Node.js, from its prebuilt binary), for bench/compare.py:
//
//   node bench/compare_node.mjs DIR MODEL.gguf --threads 2 --prompt 512                       prefill of one prompt
//   ... --tokens 64 [--depth 2048] [--clients 16]                                             greedy decode of sequences together
//   ... --requests 64 --clients 16 --prompt 64 --tokens 64 [--groups 4 --prefix 1024]         requests of a closed loop
//
// DIR is where `npm install node-llama-cpp` ran. Everything goes through the package's public interface, with flash attention and the
// processor's own backend; nothing is built or fetched. The first run of each kind warms up. One JSON object on standard output.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const number = (value) => ({ type: "string", default: String(value) });
const { values, positionals } = parseArgs({ allowPositionals: true, options: {
  threads: number(2), prompt: number(0), tokens: number(0), depth: number(1), clients: number(1), requests: number(0), groups: number(0),
  prefix: number(0), rows: number(512), vocabulary: number(30000) } });
const o = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)]));
const greedy = { temperature: 0, yieldEogToken: true };  // an answer has its whole length, as with ignore_eos

async function open(folder, file) {
  // The package has no entry for require(), so its place is asked for and imported.
  const entry = createRequire(`${folder}/`).resolve.paths("x").map((path) => pathToFileURL(`${path}/node-llama-cpp/dist/index.js`));
  const { getLlama, LlamaLogLevel } = await import(entry[0]);
  // maxThreads 0: contexts take the threads they are told, whatever the library counts as cores.
  const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, maxThreads: 0, logLevel: LlamaLogLevel.error });
  if (llama.buildType !== "prebuilt") throw new Error(`the binary is ${llama.buildType}; wanted the prebuilt one`);
  const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 });
  const context = await model.createContext({ threads: o.threads, flashAttention: true, batchSize: o.rows, sequences: o.clients,
    contextSize: Math.max(o.depth, o.prefix) + o.prompt + 2 * o.tokens + 16 });
  const features = [...llama.systemInfo.matchAll(/(\w+) = 1/g)].map((one) => one[1]);
  return { context, build: `llama.cpp ${llama.llamaCppRelease.release}, ${features.join(" ")}` };
}

// `count` ids; equal seeds begin alike.
const ids = (count, seed) => Array.from({ length: count }, (_, i) => 10 + ((7919 * i + 104729 * seed) % (o.vocabulary - 10)));
const seconds = () => performance.now() / 1e3;  // since the process began

async function prefill(context) {
  const sequence = context.getSequence();
  let took = 0;
  for (let round = 0; round < 2; ++round) {
    await sequence.clearHistory();
    const begin = seconds();
    // The last token's logits count as well: the first token of the answer is waited for.
    for await (const _ of sequence.evaluate(ids(o.prompt, 1), greedy)) break;
    took = seconds() - begin;
  }
  return { tokens_per_s: o.prompt / took };
}

// All sequences stand at `depth` before the clock runs; then each waits for the others, so that every step has one token of each.
async function decode(context) {
  const answers = [];
  for (let s = 0; s < o.clients; ++s) {
    const answer = context.getSequence().evaluate(ids(o.depth, s + 1), greedy);
    await answer.next();
    answers.push(answer);
  }
  const step = async (count) => { for (let i = 0; i < count; ++i) await Promise.all(answers.map((answer) => answer.next())); };
  await step(Math.min(o.tokens, 8));
  const begin = seconds();
  await step(o.tokens);
  return { tokens_per_s: o.clients * o.tokens / (seconds() - begin) };
}

// Each client keeps its sequence and one group's prefix in it, which is the best use of this cache; it was asked once before.
async function serve(context) {
  const ready = seconds(), firsts = [];
  let asked = 0;
  const request = async (sequence, client, seed, firsts) => {
    const prompt = [...(o.groups > 0 ? ids(o.prefix, 1000 + client % o.groups) : []), ...ids(o.prompt, seed)];
    const begin = seconds();
    // What is equal at the begin stays; the last token must be computed.
    await sequence.adaptStateToTokens(prompt.slice(0, -1), false);
    let count = 0;
    for await (const _ of sequence.evaluate(prompt.slice(sequence.nextTokenIndex), greedy)) {
      if (++count === 1) firsts.push(1e3 * (seconds() - begin));
      if (count === o.tokens) break;
    }
  };
  const sequences = Array.from({ length: o.clients }, () => context.getSequence());
  await Promise.all(sequences.map((sequence, client) => request(sequence, client, 5000 + client, [])));
  const begin = seconds();
  await Promise.all(sequences.map(async (sequence, client) => {
    while (asked < o.requests) await request(sequence, client, ++asked, firsts);
  }));
  const took = seconds() - begin;
  firsts.sort((a, b) => a - b);
  return { requests_per_s: o.requests / took, tokens_per_s: o.requests * o.tokens / took, ttft_p50_ms: firsts[firsts.length >> 1], ready_s: ready };
}

const { context, build } = await open(positionals[0], positionals[1]);
const measure = o.requests > 0 ? serve : o.tokens > 0 ? decode : prefill;
console.log(JSON.stringify({ build, ...(await measure(context)) }));
process.exit(0);  // the model's memory goes with the process
