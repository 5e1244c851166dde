#!/usr/bin/env bash
# Builds the real Go programs that tests/real/collector.py and tests/real/helm.py run, from the Go module proxy, into
# ${TOKENGAUGE_CACHE:-target/real}/bin. Nothing is installed system-wide. A program that is already there in the pinned
# version is not built again, so a second run takes a second; a first one takes minutes per program.
#
#     tests/real/setup-go.sh [helm] [kubeconform] [schemas] [operator] [collector] [prometheus] [alertmanager] [jaeger]      # all of them without a word
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${TOKENGAUGE_CACHE:-$here/../../target/real}
mkdir -p "$cache/bin"
cache=$(cd "$cache" && pwd)

# Pinned: the module proxy does not have every version, and the goldens and checks are of these.
helm=v3.22.0 kubeconform=v0.8.0 collector=v0.159.0 prometheus=v0.315.0 alertmanager=v0.31.1 jaeger=v1.76.0
schemas=1.37.0 kubernetes="1.29.0 1.34.0"
operator="@kubernetes-models/prometheus-operator@6.0.0 typescript@5.9.3 yaml@2.8.1"

# cached NAME STAMP: whether bin/NAME is there and of that version.
cached() { [ "$(cat "$cache/bin/$1.version" 2>/dev/null)" = "$2" ] && [ -e "$cache/bin/$1" ]; }
built() { echo "$2" >"$cache/bin/$1.version"; echo "setup-go: $1 ${2%% *} in $cache/bin, $SECONDS s"; }
need() { command -v "$1" >/dev/null || { echo "setup-go: $1 is missing: $2" >&2; exit 1; }; }
# A Go tool of our own would only confuse the builds: no workspace, no vendoring, the Go version that is installed.
export GOFLAGS=-mod=mod GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0

setup_helm() {
    cached helm "$helm" && return
    need go "install Go 1.24 or later"
    GOBIN=$cache/bin go install -trimpath -ldflags="-s -w" "helm.sh/helm/v3/cmd/helm@$helm"
    built helm "$helm"
}

setup_kubeconform() {
    cached kubeconform "$kubeconform" && return
    need go "install Go 1.24 or later"
    GOBIN=$cache/bin go install -trimpath -ldflags="-s -w" "github.com/yannh/kubeconform/cmd/kubeconform@$kubeconform"
    built kubeconform "$kubeconform"
}

# Kubernetes' own schemas, from the wheel of PyPI's kubernetes-validate: kubeconform would else ask the network each time.
setup_schemas() {
    local stamp="$schemas $kubernetes" wheel
    [ "$(cat "$cache/schemas/version" 2>/dev/null)" = "$stamp" ] && return
    wheel=$(mktemp -d)
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$wheel" "kubernetes-validate==$schemas"
    python3 -m zipfile -e "$wheel"/*.whl "$wheel/out"
    rm -rf "$cache/schemas"
    # shellcheck disable=SC2086 # a list of versions on purpose
    python3 "$here/kubernetes_schemas.py" "$wheel/out/kubernetes_validate/kubernetes-json-schema" "$cache/schemas" $kubernetes
    rm -rf "$wheel"
    echo "$stamp" >"$cache/schemas/version"
    echo "setup-go: schemas of Kubernetes $kubernetes in $cache/schemas, $SECONDS s"
}

# The types of the Prometheus operator's objects, and what checks against them, from npm.
setup_operator() {
    local stamp="$operator"
    [ "$(cat "$cache/operator/version" 2>/dev/null)" = "$stamp" ] && return
    need npm "install Node 20 or later"
    rm -rf "$cache/operator"
    mkdir -p "$cache/operator"
    echo '{"private": true, "type": "module"}' >"$cache/operator/package.json"
    # shellcheck disable=SC2086 # a list of packages on purpose
    (cd "$cache/operator" && npm install --silent --no-fund --no-audit $operator)
    echo "$stamp" >"$cache/operator/version"
    echo "setup-go: the operator's types in $cache/operator, $SECONDS s"
}

setup_collector() {
    local stamp work
    stamp="$collector $(sha256sum <"$here/collector-manifest.yaml" | cut -c1-16)"
    cached otelcol "$stamp" && return
    need go "install Go 1.24 or later"
    work=$(mktemp -d)
    GOBIN=$work go install "go.opentelemetry.io/collector/cmd/builder@$collector"
    cp "$here/collector-manifest.yaml" "$work/manifest.yaml"
    (cd "$work" && sed -i 's|^dist:|&\n  output_path: ./build|' manifest.yaml && ./builder --config manifest.yaml --ldflags="-s -w")
    mv "$work"/build/otelcol-* "$cache/bin/otelcol"
    rm -rf "$work"
    built otelcol "$stamp"
}

# tool NAME PACKAGE@VERSION [FLAGS]: a program whose module replaces others, which `go install` refuses.
tool() {
    local name=$1 package=$2 work
    shift 2
    cached "$name" "$package" && return
    need go "install Go 1.24 or later"
    work=$(mktemp -d)
    (cd "$work" && go mod init rig.test/tool 2>/dev/null && go get -tool "$package" 2>/dev/null && go build -trimpath "$@" -ldflags="-s -w" -o "$cache/bin/$name" "${package%@*}")
    rm -rf "$work"
    built "$name" "$package"
}

# Prometheus 3 with its OTLP receiver; no service discovery beside files is needed.
setup_prometheus() {
    tool prometheus "github.com/prometheus/prometheus/cmd/prometheus@$prometheus" -tags remove_all_sd
    tool promtool "github.com/prometheus/prometheus/cmd/promtool@$prometheus" -tags remove_all_sd
}

# Jaeger keeps traces in memory and answers /api/traces. Its module replaces others, so it is built inside a copy of itself.
setup_jaeger() {
    local work
    cached jaeger "$jaeger" && return
    need go "install Go 1.24 or later"
    work=$(mktemp -d)
    (cd "$work" && go mod init rig.test/jaeger 2>/dev/null && go mod download -json "github.com/jaegertracing/jaeger@$jaeger" >where.json)
    cp -r "$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' "$work/where.json")" "$work/jaeger"
    chmod -R u+w "$work/jaeger"
    (cd "$work/jaeger" && go build -trimpath -ldflags="-s -w" -o "$cache/bin/jaeger" ./cmd/jaeger)
    rm -rf "$work"
    built jaeger "$jaeger"
}

setup_alertmanager() { tool alertmanager "github.com/prometheus/alertmanager/cmd/alertmanager@$alertmanager"; }

[ $# -gt 0 ] || set -- helm kubeconform schemas operator collector prometheus alertmanager jaeger
for part in "$@"; do
    case $part in
        helm | kubeconform | schemas | operator | collector | prometheus | alertmanager | jaeger) "setup_$part" ;;
        *) echo "setup-go: there is no \`$part\`" >&2; exit 2 ;;
    esac
done
echo "setup-go: ready in $cache"
