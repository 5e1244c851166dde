#!/usr/bin/env bash
# The dashboards against Grafana's own types: each JSON becomes a TypeScript constant of @grafana/schema's `Dashboard`, its time series' options and
# field settings constants of their types, and the compiler says what is wrong. Node's packages go into ${TOKENGAUGE_CACHE:-target/real}/grafana-types.
#
#     tests/stack/types.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${TOKENGAUGE_CACHE:-$here/../../target/real}
schema=13.2.3 typescript=5.9.3
mkdir -p "$cache/grafana-types"
dir=$(cd "$cache/grafana-types" && pwd)
python3 "$here/../../helm/dashboards/make.py" --check
[ "$(cat "$dir/version" 2>/dev/null)" = "$schema $typescript" ] || {
    command -v npm >/dev/null || { echo "types: npm is missing" >&2; exit 1; }
    # A package.json of its own: without one npm goes up until it finds somebody else's packages.
    echo '{"private": true}' >"$dir/package.json"
    (cd "$dir" && npm install --silent --no-audit --no-fund "@grafana/schema@$schema" "typescript@$typescript")
    echo "$schema $typescript" >"$dir/version"
}
rm -rf "$dir/src"
mkdir "$dir/src"
cat >"$dir/src/plain.ts" <<'TS'
import type { Dashboard, GraphFieldConfig, OptionsWithLegend, OptionsWithTooltip, ReduceDataOptions } from "@grafana/schema";
// JSON has the values of enumerations, which TypeScript does not take for the enumerations themselves.
export type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
export type Whole = Plain<Dashboard>;
export type SeriesField = Plain<GraphFieldConfig>;
export type SeriesOptions = Plain<OptionsWithLegend & OptionsWithTooltip>;
export type Reduced = { reduceOptions: Plain<ReduceDataOptions> } & Record<string, unknown>;
TS
python3 - "$here/../../helm/tokengauge/dashboards" "$dir/src" <<'PY'
import json, sys
from pathlib import Path
for path in Path(sys.argv[1]).glob("*.json"):
    text = path.read_text()
    out = ['import type { Reduced, SeriesField, SeriesOptions, Whole } from "./plain";', f"export const whole: Whole = {text};"]
    for panel in json.loads(text)["panels"]:
        if panel["type"] == "timeseries":
            out.append(f"export const field{panel['id']}: SeriesField = {json.dumps(panel['fieldConfig']['defaults']['custom'])};")
            out.append(f"export const options{panel['id']}: SeriesOptions = {json.dumps(panel['options'])};")
        elif panel["type"] in ("stat", "bargauge"):
            out.append(f"export const options{panel['id']}: Reduced = {json.dumps(panel['options'])};")
    (Path(sys.argv[2]) / f"{path.stem}.ts").write_text("\n".join(out))
PY
compile() { "$dir/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext --target es2022 "$@"; }
count=$(find "$dir/src" -name '*.ts' ! -name plain.ts ! -name wrong.ts | wc -l)
if compile "$dir"/src/*.ts; then echo "$count passed, 0 failed"; else echo "0 passed, $count failed"; exit 1; fi
# The check itself: a wrong word must be found.
sed 's/"palette-classic-by-name"/"palette-classy"/' "$dir/src/fleet.ts" >"$dir/src/wrong.ts"
if compile "$dir/src/wrong.ts" >/dev/null 2>&1; then echo "0 passed, 1 failed: a wrong word went unnoticed"; exit 1; else echo "1 passed, 0 failed"; fi
