#!/bin/sh
# Ratios against floors measured in the same run. Absolute figures are this machine's, today.
set -eu
cd "$(dirname "$0")/../.."
agent=${TOKENGAUGE:-target/release/tokengauge}
cache=${TOKENGAUGE_CACHE:-target/real}
mkdir -p "$cache"
capture=$cache/bench.pcap
[ -s "$capture" ] || python3 tests/bench/genload.py "$capture" --mb 200
echo "== replay of a generated capture, beside the bare read of the same file"
python3 tests/bench/replay.py "$agent" "$capture"
echo
echo "== one tapped SSL_write + SSL_read of 250 bytes"
cargo run --quiet --release --locked -p tokengauge --example tls_cost
echo
echo "== a provider under load, untapped and tapped"
python3 tests/live/load.py --overhead
