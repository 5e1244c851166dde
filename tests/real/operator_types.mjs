// operator_types.mjs MODULES < rendered.yaml: the Prometheus operator's objects in it, against the operator's own types.
//
// The API server drops fields that a custom resource does not know, without an error. TypeScript does not: each object becomes a literal of the
// type that is generated from the operator's definitions, so that a misspelt field does not compile. MODULES is the folder with node_modules
// (tests/real/setup-go.sh operator). Prints how many objects were checked; exit code 1 when something is wrong with one.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const folder = process.argv[2];
const require = createRequire(join(folder, "package.json"));
const { parseAllDocuments } = require("yaml");
const ts = require("typescript");

const objects = parseAllDocuments(readFileSync(0, "utf8"))
  .map((document) => document.toJS())
  .filter((object) => object?.apiVersion === "monitoring.coreos.com/v1");
const source = objects.map(
  (object, i) =>
    `import type { I${object.kind} as T${i} } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/${object.kind}";\n` +
    `export const object${i}: T${i} = ${JSON.stringify(object, null, 1)};\n`,
);
const file = join(folder, `check-${process.pid}.ts`);
writeFileSync(file, source.join(""));
const program = ts.createProgram([file], {
  noEmit: true,
  strict: true,
  skipLibCheck: true,
  types: [],
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
});
const wrong = ts.getPreEmitDiagnostics(program);
require("node:fs").unlinkSync(file);
for (const diagnostic of wrong) console.error(ts.flattenDiagnosticMessageText(diagnostic.messageText, "\n"));
console.log(`${objects.length} objects, ${wrong.length} problems`);
process.exit(wrong.length ? 1 : 0);
