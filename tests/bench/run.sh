#!/bin/sh
# Ratios against floors measured in the same run; the first table is written to tests/bench/BENCH.md. Absolute figures are this machine's, today.
# With BENCH=replay nothing but that is measured.
set -eu
cd "$(dirname "$0")/../.."
agent=${TOKENGAUGE:-target/release/tokengauge}
cache=${TOKENGAUGE_CACHE:-target/real}
mkdir -p "$cache"
cargo build --quiet --release --locked -p tokengauge --example straight_floor --example inflate_floor
floors=${CARGO_TARGET_DIR:-target}/release/examples
echo "== replay of generated captures, beside bare readings of the same files"
# shellcheck disable=SC2086 # options are words
python3 tests/bench/replay.py "$agent" "$cache" "$floors" --doc tests/bench/BENCH.md ${BENCH_OPTIONS:-}
[ "${BENCH:-}" != replay ] || exit 0
echo
echo "== metrics: processor time of an inference, 10,000 series encoded, memory"
cargo run --quiet --release --locked -p tokengauge --example metrics_cost
echo
echo "== one tapped SSL_write + SSL_read of 250 bytes"
cargo run --quiet --release --locked -p tokengauge --example tls_cost
echo
echo "== a provider under load, untapped and tapped"
python3 tests/live/load.py --overhead
