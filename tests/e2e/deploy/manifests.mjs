// Kubernetes objects against the types of its API, as kubernetes-types has them: the TypeScript compiler finds fields that do not
// exist, values of another type and required fields that are missing, at any depth. It knows no allowed values of strings, patterns or
// defaults, and of custom resources those of leaderworkerset.d.ts alone.
//
// Standard input: a JSON array of objects. Standard output: a JSON array of {index, kind, name, problem}; an index of -1 is none of the objects.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const FOLDER = dirname(fileURLToPath(import.meta.url));
const TYPES = dirname(createRequire(import.meta.url).resolve('kubernetes-types/package.json'));
const FILE = join(FOLDER, 'manifests.ts'); // never written: the compiler gets it from memory

// Of custom resources, those that are described here.
const OWN = { 'leaderworkerset.x-k8s.io/v1': './leaderworkerset.js' };
// "apps/v1" is a module of that name, "v1" is core/v1.
const moduleOf = (version) => OWN[version] ?? `kubernetes-types/${version.includes('/') ? version.replace(/\.k8s\.io\//, '/') : `core/${version}`}`;

const objects = JSON.parse(readFileSync(0, 'utf8'));
const lines = objects.map((object, i) =>
  `import type { ${object.kind} as Kind${i} } from '${moduleOf(object.apiVersion)}'; export const object${i}: Kind${i} = ${JSON.stringify(object)};`);
const source = lines.join('\n');

const options = { strict: true, noEmit: true, skipLibCheck: true, types: [], module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler, target: ts.ScriptTarget.ES2022, lib: ['lib.es2022.d.ts'] };
const host = ts.createCompilerHost(options);
const read = host.getSourceFile.bind(host);
host.getSourceFile = (name, ...more) => (name === FILE ? ts.createSourceFile(name, source, ts.ScriptTarget.ES2022) : read(name, ...more));
const exists = host.fileExists.bind(host);
host.fileExists = (name) => name === FILE || exists(name);
host.getCurrentDirectory = () => FOLDER;
if (!exists(join(TYPES, 'package.json'))) throw new Error('kubernetes-types is missing');

const program = ts.createProgram([FILE], options, host);
const problems = ts.getPreEmitDiagnostics(program).map((one) => {
  const line = one.file?.fileName === FILE ? one.file.getLineAndCharacterOfPosition(one.start).line : -1;
  const object = objects[line] ?? { kind: '?', metadata: {} };
  return { index: line, kind: object.kind, name: object.metadata.name, problem: ts.flattenDiagnosticMessageText(one.messageText, ' ') };
});
console.log(JSON.stringify(problems));
