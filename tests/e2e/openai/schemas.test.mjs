// Every schema of the JSON Schema test suite, as response_format: refused by name, or answered with documents that ajv finds valid.
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import test from "node:test";
import Ajv from "ajv";
import addFormats from "ajv-formats";

const url = process.env.MILLRACE_URL;
const suite = path.join(import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname), "node_modules", "json-schema-test-suite", "tests", "draft4");
const files = fs.readdirSync(suite, {recursive: true}).filter((name) => name.endsWith(".json") && !name.startsWith("refRemote"));
const groups = files.flatMap((file) => JSON.parse(fs.readFileSync(path.join(suite, file), "utf8")).map((group) => ({file, ...group})));

// The spellings of draft 4 that ajv does not know, in those that it does.
function modern(schema) {
  if (Array.isArray(schema)) return schema.map(modern);
  if (schema === null || typeof schema !== "object") return schema;
  const out = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, modern(value)]));
  for (const [flag, limit] of [["exclusiveMinimum", "minimum"], ["exclusiveMaximum", "maximum"]]) {
    if (typeof out[flag] !== "boolean") continue;
    if (out[flag]) {
      out[flag] = out[limit];
      delete out[limit];
    } else {
      delete out[flag];
    }
  }
  return out;
}

async function ask(schema, seed) {
  const response = await fetch(`${url}/chat/completions`, {
    method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({messages: [{role: "user", content: "A document, please."}], seed, temperature: 1, max_tokens: 120, n: 2,
                          response_format: {type: "json_schema", json_schema: {name: "x", schema}}}),
  });
  return [response.status, await response.json()];
}

function validator(schema) {
  const ajv = new Ajv({strict: false, logger: false});
  addFormats(ajv);
  try {
    return ajv.compile(modern(schema));
  } catch {
    return null;  // of draft 4 alone
  }
}

test("texts of the suite's schemas are valid for ajv", {timeout: 600_000}, async () => {
  let refused = 0, documents = 0, cut = 0;
  for (const {file, description, schema, tests} of groups) {
    const valid = validator(schema);
    if (!valid) continue;
    const [status, answer] = await ask(schema, documents);
    const where = `${file}: ${description}: ${JSON.stringify(schema)}`;
    if (status !== 200) {
      assert.equal(status, 400, where);
      assert.match(answer.error.message, /response_format\.json_schema\.schema/, where);
      ++refused;
      continue;
    }
    for (const choice of answer.choices) {
      if (choice.finish_reason === "length") {
        ++cut;
        continue;
      }
      const document = JSON.parse(choice.message.content);
      assert.ok(valid(document), `${where}: ${choice.message.content}: ${JSON.stringify(valid.errors)}`);
      ++documents;
    }
    assert.ok(tests.length > 0);
  }
  console.log(`${groups.length} schemas: ${refused} refused, ${documents} valid documents, ${cut} cut by max_tokens`);
  assert.ok(groups.length > 80 && documents > 60 && refused < groups.length / 2, `${documents} documents, ${refused} refused`);
});
