#!/bin/sh
# Ratios against floors measured in the same run. Absolute figures are this machine's, today.
set -eu
cd "$(dirname "$0")/../.."
agent=${TOKENGAUGE:-target/release/tokengauge}
cache=${TOKENGAUGE_CACHE:-target/real}
mkdir -p "$cache"
cargo build --quiet --release --locked -p tokengauge --example straight_floor
straight=${CARGO_TARGET_DIR:-target}/release/examples/straight_floor
echo "== replay of generated captures, beside bare readings of the same files"
# shellcheck disable=SC2086 # options are words
python3 tests/bench/replay.py "$agent" "$cache" --straight "$straight" ${BENCH_OPTIONS:-}
echo
echo "== one tapped SSL_write + SSL_read of 250 bytes"
cargo run --quiet --release --locked -p tokengauge --example tls_cost
echo
echo "== a provider under load, untapped and tapped"
python3 tests/live/load.py --overhead
