// What XGrammar (npm @mlc-ai/web-xgrammar, its WebAssembly) allows at each token of texts, over the vocabulary of a real
// tokenizer: tests/golden/grammar/VOCABULARY.json, for src/stages/grammar_masks_peer_test.cc.
//
//   npm install @mlc-ai/web-xgrammar@0.1.27      # in any folder
//   node grammar_masks.mjs FOLDER/node_modules/@mlc-ai/web-xgrammar TOKENIZER_DIR ../golden/grammar/cases.json OUT.json
//        [--walks N] [--steps N] [--masks FILE] [--only NAME]
//
// Each text of a case is walked in the longest tokens that spell it, and in tokens of one byte; then come --walks random
// walks (2) of up to --steps tokens (16) through what XGrammar allows. Of each mask the file holds a digest; --masks
// writes the masks too, one after another, for a comparison that names the tokens.
//
// Where the two engines' languages differ by choice or by XGrammar's errors (docs/structured-output.md, "Compared with
// XGrammar") they are made equal: rewritten() replaces lexical rules in what XGrammar makes of a JSON Schema, a case's
// `peer` is its language in EBNF, written from the standard, added tokens are left out of the vocabulary, and bytes that
// are no UTF-8 are left out of the masks.
import { createHash } from "node:crypto";
import { closeSync, openSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

// ---- the engine ----------------------------------------------------------------------------------------------------

// Its package says that it is an ES module, but its code is a script.
function load_engine(folder) {
  const file = `${folder}/lib/index.js`;
  const exports = {};
  const run = new Function("exports", "module", "require", "__filename", "__dirname", readFileSync(file, "utf8"));
  run(exports, { exports }, createRequire(import.meta.url), file, folder);
  return exports;
}

// JSON's lexical rules as Millrace has them (docs/structured-output.md). White space is written out wherever it stands: as
// a rule of its own, which may be empty, XGrammar takes "[00" for a beginning of ("[" space "0" space "]") | "[" space "]".
const kHex = "[0-9A-Fa-f]";
const kSpace = `("" | " " | [\\n]{1,2} [ \\t]{0,20})`;
const kEscape =
  `["\\\\/bfnrt] | "u" ([0-9A-CEFa-cef] ${kHex}{3} | [dD] [0-7] ${kHex}{2} | ` +
  `[dD] [89ABab] ${kHex}{2} "\\\\u" [dD] [C-Fc-f] ${kHex}{2})`;

function rewritten(ebnf) {
  const rules = ebnf.split("\n").map((line) =>
    line
      .replace(/^(basic_escape|escape) ::= .*/, `$1 ::= ${kEscape}`)
      .replace(/^basic_integer ::= .*/, `basic_integer ::= "-"? ("0" | [1-9] [0-9]*)`) // -0 too
      .replace(/ \(=.*$/, "") // what may follow: a hint for speed
      .replaceAll(`[^"\\\\\\r\\n]{`, `([^"\\\\\\0-\\x1f] | "\\\\" basic_escape){`) // of minLength and maxLength
      .replaceAll("[ \\n\\t]*", kSpace),
  );
  return rules.join("\n");
}

// Its classes do not work with ranges beyond ASCII ([а-я] refuses п): as alternatives they do. `ebnf` is as toString()
// writes it.
function without_wide_classes(ebnf) {
  const escaped = "\\\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))";
  const single = new RegExp(`${escaped}|([^\\\\])`, "uy");
  const literal = (c) => `"\\U${c.toString(16).padStart(8, "0")}"`;
  return ebnf.replace(/"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]/gu, (token) => {
    if (token[0] === '"' || token[1] === "^") return token;
    const items = [];
    for (single.lastIndex = 1; single.lastIndex < token.length - 1; ) {
      const [, x, u, U, named, plain] = single.exec(token);
      const hex = x ?? u ?? U;
      items.push({ c: hex ? parseInt(hex, 16) : ({ n: "\n", t: "\t", r: "\r", f: "\f", v: "\v", 0: "\0" }[named] ?? named ?? plain).codePointAt(0), plain });
    }
    const out = [];
    for (let i = 0; i < items.length; ++i) {
      const range = i + 2 < items.length && items[i + 1].plain === "-";
      for (let c = items[i].c; c <= items[range ? i + 2 : i].c; ++c) out.push(c);
      if (range) i += 2;
    }
    return out.every((c) => c < 0x80) ? token : `(${out.map(literal).join(" | ")})`;
  });
}

async function grammar_of({ Grammar, Testings }, { kind, source, peer }) {
  const again = async (grammar) => {
    const ebnf = grammar.toString();
    const without = without_wide_classes(ebnf);
    return without === ebnf ? grammar : Grammar.fromEBNF(without);
  };
  if (peer !== undefined) return Grammar.fromEBNF(rewritten(peer));
  if (kind === "ebnf") return again(await Grammar.fromEBNF(source));
  if (kind === "regex")
    return again(await Grammar.fromStructuralTag({ type: "structural_tag", format: { type: "regex", pattern: source } }));
  if (kind === "json_schema") {
    const ebnf = await Testings._jsonSchemaToEBNF(JSON.stringify(source), true, undefined, undefined, false);
    return Grammar.fromEBNF(rewritten(ebnf));
  }
  if (kind === "json_object") {
    const ebnf = (await Grammar.builtinJSONGrammar()).toString();
    return Grammar.fromEBNF(rewritten(ebnf.replace(/^root ::= .*/m, `root ::= "{" [ \\n\\t]* members_and_embrace`)));
  }
  throw new Error(`the kind '${kind}'; wanted ebnf, regex, json_schema or json_object`);
}

// ---- the vocabulary ------------------------------------------------------------------------------------------------

// The byte that each character of a byte-level vocabulary stands for: itself where it is printable, else one of those
// from U+0100 on, counted.
function bytes_by_character() {
  const printable = (b) => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  const out = new Map();
  let next = 0x100;
  for (let b = 0; b < 256; ++b) out.set(String.fromCodePoint(printable(b) ? b : next++), b);
  return out;
}

// `written` as the file has them, which is what XGrammar reads; `bytes` as strings of bytes; an added token is empty.
function read_vocabulary(folder) {
  const { model, added_tokens } = JSON.parse(readFileSync(`${folder}/tokenizer.json`, "utf8"));
  const added = new Set((added_tokens ?? []).map(({ id }) => id));
  const size = [...Object.values(model.vocab), ...added].reduce((most, id) => Math.max(most, id), 0) + 1;
  const written = new Array(size).fill("");
  for (const [token, id] of Object.entries(model.vocab)) if (!added.has(id)) written[id] = token;
  const table = bytes_by_character();
  const byte = (c) => {
    if (!table.has(c)) throw new Error(`${folder}: a token with '${c}'; wanted a byte-level vocabulary`);
    return table.get(c);
  };
  const bytes = written.map((token) => String.fromCharCode(...Array.from(token, byte)));
  const by_bytes = new Map(bytes.map((one, id) => [one, id]).filter(([one]) => one !== ""));
  return { written, bytes, by_bytes, longest: bytes.reduce((most, one) => Math.max(most, one.length), 0), end: Math.min(...added) };
}

// ---- UTF-8 ---------------------------------------------------------------------------------------------------------

// The unfinished character at the end of `bytes`, and whether what stands before it is UTF-8 (RFC 3629).
function utf8_tail(bytes) {
  for (let at = 0; at < bytes.length; ) {
    const lead = bytes.charCodeAt(at);
    const length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length === 0) return undefined;
    const low = { 0xe0: 0xa0, 0xf0: 0x90 }[lead] ?? 0x80;
    const high = { 0xed: 0x9f, 0xf4: 0x8f }[lead] ?? 0xbf;
    for (let i = 1; i < length && at + i < bytes.length; ++i) {
      const byte = bytes.charCodeAt(at + i);
      if (byte < (i === 1 ? low : 0x80) || byte > (i === 1 ? high : 0xbf)) return undefined;
    }
    if (at + length > bytes.length) return bytes.slice(at);
    at += length;
  }
  return "";
}

// ---- walks ---------------------------------------------------------------------------------------------------------

function longest_tokens({ by_bytes, longest }, bytes) {
  const out = [];
  for (let at = 0; at < bytes.length; ) {
    let length = Math.min(longest, bytes.length - at);
    while (!by_bytes.has(bytes.substr(at, length))) --length;
    out.push(by_bytes.get(bytes.substr(at, length)));
    at += length;
  }
  return out;
}

// Marsaglia's xorshift, "Xorshift RNGs", 2003.
function random(seed) {
  let state = seed >>> 0 || 1;
  return (bound) => {
    state ^= state << 13, state ^= state >>> 17, state ^= state << 5;
    return (state >>> 0) % bound;
  };
}

const has = (mask, id) => ((mask[id >> 5] >>> (id & 31)) & 1) !== 0;

class Walker {
  constructor(engine, vocabulary, out_masks) {
    this.engine = engine;
    this.vocabulary = vocabulary;
    this.out_masks = out_masks;
    this.positions = this.cleared = 0;
    this.utf8 = new Int32Array(Math.ceil(vocabulary.bytes.length / 32)); // at the beginning of a character
    vocabulary.bytes.forEach((one, id) => {
      if (utf8_tail(one) !== undefined) this.utf8[id >> 5] |= 1 << (id & 31);
    });
  }

  // Without the bits of no token, and without what is no UTF-8 behind `tail`.
  clean(mask, tail) {
    const { bytes, end } = this.vocabulary;
    const allowed = tail === "" ? this.utf8 : undefined;
    for (let word = 0; word < mask.length; ++word) {
      let bits = allowed === undefined ? mask[word] : mask[word] & ~allowed[word];
      for (; bits !== 0; bits &= bits - 1) {
        const id = word * 32 + 31 - Math.clz32(bits & -bits);
        if (id === end || (id < bytes.length && utf8_tail(tail + bytes[id]) !== undefined)) continue;
        mask[word] &= ~(1 << (id & 31));
        ++this.cleared;
      }
    }
    return mask;
  }

  // `next(mask, step)`: the token to take, undefined at the end of the walk.
  async walk(compiled, next) {
    const matcher = await this.engine.GrammarMatcher.createGrammarMatcher(compiled);
    const out = { ids: [], masks: [] };
    let tail = "";
    for (let step = 0; ; ++step) {
      const mask = this.clean(await matcher.getNextTokenBitmask(), tail);
      const bytes = Buffer.from(mask.buffer, 0, Math.ceil(this.vocabulary.bytes.length / 32) * 4);
      out.masks.push(createHash("sha256").update(bytes).digest("hex").slice(0, 8));
      if (this.out_masks !== undefined) writeSync(this.out_masks, bytes);
      ++this.positions;
      const id = next(mask, step);
      if (id === undefined) break;
      if (!has(mask, id) || !matcher.acceptToken(id)) {
        out.refused = id;
        break;
      }
      out.ids.push(id);
      tail = utf8_tail(tail + this.vocabulary.bytes[id]);
    }
    matcher.dispose();
    return out;
  }

  // Half of the draws among short tokens, so that a walk comes out of a string.
  random_walk(compiled, seed, steps) {
    const draw = random(seed);
    const { bytes, end } = this.vocabulary;
    return this.walk(compiled, (mask, step) => {
      if (step === steps) return undefined;
      const allowed = [], short = [];
      for (let id = 0; id < bytes.length; ++id) {
        if (mask[id >> 5] === 0) id |= 31;
        else if (id !== end && has(mask, id)) (bytes[id].length <= 2 && short.push(id), allowed.push(id));
      }
      const among = short.length > 0 && draw(2) === 0 ? short : allowed;
      return among[draw(among.length || 1)];
    });
  }
}

// ---- the program ---------------------------------------------------------------------------------------------------

// All walks of a case: each text twice, then the random ones.
async function walks_of(walker, compiled, { name, texts }, seed, count, steps) {
  const { by_bytes } = walker.vocabulary;
  const out = [];
  for (const text of texts) {
    const bytes = Buffer.from(text, "utf8").toString("latin1");
    for (const ids of [longest_tokens(walker.vocabulary, bytes), Array.from(bytes, (c) => by_bytes.get(c))]) {
      out.push(await walker.walk(compiled, (mask, step) => ids[step]));
      if (out.at(-1).refused !== undefined) console.log(`${name}: '${text}' is refused behind ${out.at(-1).ids.length} tokens`);
    }
  }
  for (let i = 1; i <= count; ++i) out.push(await walker.random_walk(compiled, seed + i, steps));
  return out;
}

async function main([engine_folder, tokenizer_folder, cases_file, out_file, ...rest]) {
  const option = (name, otherwise) => (rest.includes(name) ? rest[rest.indexOf(name) + 1] : otherwise);
  const engine = load_engine(engine_folder);
  const vocabulary = read_vocabulary(tokenizer_folder);
  const size = vocabulary.bytes.length;
  const info = await engine.TokenizerInfo.createTokenizerInfo(vocabulary.written, "byte_level", false, size, [vocabulary.end]);
  const compiler = await engine.GrammarCompiler.createGrammarCompiler(info, false);
  const masks_file = option("--masks");
  const walker = new Walker(engine, vocabulary, masks_file && openSync(masks_file, "w"));
  const lines = [];
  for (const [number, one] of JSON.parse(readFileSync(cases_file, "utf8")).entries()) {
    if (!one.name.includes(option("--only", ""))) continue;
    const grammar = await grammar_of(engine, one);
    const compiled = await compiler.compileGrammar(grammar);
    const walks = await walks_of(walker, compiled, one, number * 1000, Number(option("--walks", 2)), Number(option("--steps", 16)));
    const source = typeof one.source === "object" ? JSON.stringify(one.source) : one.source;
    lines.push(JSON.stringify({ name: one.name, kind: one.kind, source, walks }));
    compiled.dispose();
    grammar.dispose();
  }
  if (walker.out_masks !== undefined) closeSync(walker.out_masks);
  writeFileSync(out_file, `{"vocab_size":${size},"end_id":${vocabulary.end},"cases":[\n${lines.join(",\n")}\n]}\n`);
  console.log(`${out_file}: ${lines.length} grammars, ${walker.positions} masks, ${walker.cleared} bits of no UTF-8 cleared`);
}

await main(process.argv.slice(2));
