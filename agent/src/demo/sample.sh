#!/bin/sh
# Makes sample.pcap and sample.truth.jsonl anew: one round of the demo's pair over plain HTTP, captured on loopback. Needs tcpdump.
set -eu
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'kill $provider $dump 2>/dev/null || true; rm -rf "$dir"' EXIT
mkfifo "$dir/hello"
python3 provider.py --plain --truth "$dir/truth" --dir "$dir" >"$dir/hello" &
provider=$!
read -r hello <"$dir/hello"
port=$(echo "$hello" | sed -E 's/.*"port": ([0-9]+).*/\1/')
tcpdump -i lo -B 16384 -s 262144 --time-stamp-precision=nano -w "$dir/pcap" "tcp port $port" 2>/dev/null &
dump=$!
sleep 1
python3 client.py --plain --port "$port" --truth "$dir/truth" --count 20
sleep 1
kill -INT $dump
wait $dump || true
cat "$dir/pcap" >sample.pcap
mv "$dir/truth" sample.truth.jsonl
ls -l sample.pcap sample.truth.jsonl
