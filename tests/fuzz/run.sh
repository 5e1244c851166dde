#!/bin/sh
# Runs every fuzz target for SECONDS (default 60), two at a time, on the stable compiler. Safe to run again.
#
#   tests/fuzz/run.sh [SECONDS] [TARGET…]
#
# cargo-fuzz comes from crates.io into the cache; what was found to be new stays in tests/fuzz/corpus (not committed); an input
# that breaks a target stands in tests/fuzz/artifacts/TARGET/, and `cargo fuzz run TARGET FILE` shows it again.
# With FUZZ_LOG=1 a row for each run is added to tests/fuzz/LOG.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-60}
[ $# -gt 0 ] && shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tokengauge/cargo-fuzz
PATH=$cache/bin:$PATH
command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked --root "$cache" >&2
cd "$here"
# libFuzzer's instrumentation is a compiler flag that stable keeps behind RUSTC_BOOTSTRAP; no sanitizer: the core has no unsafe code.
export RUSTC_BOOTSTRAP=1
target=${CARGO_TARGET_DIR:-$here/../../target}/fuzz
export CARGO_TARGET_DIR=$target
if [ $# -gt 0 ]; then
    for name in "$@"; do cargo fuzz build --fuzz-dir . --sanitizer none "$name" >&2; done
else
    cargo fuzz build --fuzz-dir . --sanitizer none >&2
fi
host=$(rustc -vV | sed -n 's/^host: //p')
logs=$target/logs
mkdir -p "$logs"
rm -f "$logs"/*

one() {
    mkdir -p "corpus/$1" "artifacts/$1" "seeds/$1"
    found=none
    if "$target/$host/release/$1" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="artifacts/$1/" "corpus/$1" "seeds/$1" >"$logs/$1.log" 2>&1; then
        printf '%-10s ok      %s\n' "$1" "$(grep -h 'number_of_executed_units' "$logs/$1.log" | tr -s ' ' | cut -d' ' -f2) runs"
        touch "$logs/$1.passed"
    else
        printf '%-10s FAILED\n' "$1"
        grep -v '^#' "$logs/$1.log" | tail -n 30
        touch "$logs/$1.failed"
        found="an input that breaks it"
    fi
    [ "${FUZZ_LOG:-}" != 1 ] || printf '| %s | %s | %s | %s | %s | %s |\n' "$(date -u +%F)" "$(git rev-parse --short HEAD)" "$1" \
        "$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$logs/$1.log")" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$1.log")" "$found" >>LOG.md
}

[ $# -gt 0 ] || set -- $(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)
while [ $# -gt 0 ]; do
    one "$1" &
    [ $# -gt 1 ] && { one "$2" & shift; }
    shift
    wait
done
passed=$(find "$logs" -name '*.passed' | wc -l)
failed=$(find "$logs" -name '*.failed' | wc -l)
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
