// A Containerfile's instructions, arguments and flags. Standard input: the file. Standard output: a JSON array of problems.
import { readFileSync } from 'node:fs';
import { validate } from 'dockerfile-utils';

console.log(JSON.stringify(validate(readFileSync(0, 'utf8')).map((one) => `${one.range.start.line + 1}: ${one.message}`)));
