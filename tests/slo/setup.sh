#!/usr/bin/env bash
# Builds the second opinion of tests/slo/compare.py (see oracle/main.go) from the Go module proxy, into ${TOKENGAUGE_CACHE:-target/real}/bin.
# A second run takes a second.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${TOKENGAUGE_CACHE:-$here/../../target/real}
mkdir -p "$cache/bin"
cache=$(cd "$cache" && pwd)
command -v go >/dev/null || { echo "setup: go is missing: install Go 1.24 or later" >&2; exit 1; }
stamp=$(cat "$here"/oracle/* | sha256sum | cut -c1-16)
if [ "$(cat "$cache/bin/openslo-oracle.version" 2>/dev/null)" != "$stamp" ]; then
    export GOFLAGS=-mod=mod GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp "$here"/oracle/* "$work"
    (cd "$work" && go build -trimpath -ldflags="-s -w" -o "$cache/bin/openslo-oracle" .)
    echo "$stamp" >"$cache/bin/openslo-oracle.version"
fi
# A real validator of JSON Schemas, and YAML 1.1, for compare.py alone.
python="jsonschema==4.25.1 pyyaml==6.0.2"
if [ "$(cat "$cache/slo-python/version" 2>/dev/null)" != "$python" ]; then
    rm -rf "$cache/slo-python"
    # shellcheck disable=SC2086 # a list of packages on purpose
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$cache/slo-python" $python
    echo "$python" >"$cache/slo-python/version"
fi
echo "setup: ready in $cache, $SECONDS s"
