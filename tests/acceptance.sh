#!/bin/sh
# The shared acceptance tools on the shared recordings: captures with known instants, replayed and scored. Argument: the shared folder.
# Every API, every framing, over HTTP/1.1, HTTP/2 and WebSocket, in every coding, with every fault that the tools can make.
set -u
shared=$1
tools=$shared/tools/acceptance
agent=${TOKENGAUGE:-target/release/tokengauge}
# The encoders of br and zstd are none of Python's own library.
venv=${XDG_CACHE_HOME:-$HOME/.cache}/tokengauge/acceptance
needs="hpack h2 brotli zstandard"
# shellcheck disable=SC2086 # names are words
"$venv/bin/python" -c 'import brotli, zstandard, hpack, h2' 2>/dev/null || { python3 -m venv "$venv" && "$venv/bin/pip" install -q $needs; }
PATH=$venv/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        tail -n 25 "$work/log"
    fi
}
replay() { "$agent" replay "$1" --format jsonl >"$2" 2>"$work/stats" || true; }
captures() { # NAME OPTIONS...
    name=$1
    shift
    python3 "$tools/fixtures_pcap.py" "$shared/fixtures/wire" "$work/$name" "$@" >/dev/null || echo "cannot make $name"
    replay "$work/$name/all.pcap" "$work/$name.jsonl"
}
for options in "" "--coding gzip" "--coding deflate" "--coding br" "--coding zstd" "--coding br --pieces 7" "--coding zstd --pieces 7" \
    "--pieces 7" "--pieces 60" "--keepalive 6" "--pipeline" "--pieces 60 --faults reorder" "--pieces 60 --faults retransmit" \
    "--pieces 60 --faults midstream" "--h2" "--h2-split" "--h2 --coding gzip" "--h2 --coding zstd" "--h2-split --pieces 7" \
    "--h2 --pieces 60" "--h2 --pieces 60 --faults reorder" "--h2 --pieces 60 --faults retransmit" "--ws-hard" "--ws-hard --ws-deflate" \
    "--ws-hard --ws-deflate --pieces 7"; do
    name=c$(echo "$options" | tr -cd 'a-z0-9')
    # shellcheck disable=SC2086 # options are words
    captures "$name" $options
    check "recordings ${options:-plain}" python3 "$tools/score.py" "$work/$name.jsonl" "$work/$name/truth.json"
done
for protocol in "" h2; do
    for fault in reorder retransmit; do
        check "$fault changes nothing${protocol:+ on $protocol}" \
            python3 "$tools/score.py" "$work/c${protocol}pieces60faults$fault.jsonl" --same "$work/c${protocol}pieces60.jsonl"
    done
done
captures closs --pieces 60 --faults loss
check "a loss invents nothing" python3 "$tools/score.py" "$work/closs.jsonl" "$work/closs/truth.json" --lossy
captures ch2loss --h2 --pieces 60 --faults loss
check "a loss invents nothing on h2" python3 "$tools/score.py" "$work/ch2loss.jsonl" "$work/ch2loss/truth.json" --lossy
captures ch2mid --h2 --pieces 60 --faults midstream
check "joined in its middle, h2 invents nothing" python3 "$tools/score.py" "$work/ch2mid.jsonl" "$work/ch2mid/truth.json" --lossy
python3 "$tools/genload.py" "$work/load.pcap" 300 400
replay "$work/load.pcap" "$work/load.jsonl"
check "generated load" python3 "$tools/score_load.py" "$work/load.jsonl" "$work/load.pcap.truth.jsonl"
for options in --h2 --gzip "--h2 --gzip"; do
    # shellcheck disable=SC2086 # options are words
    python3 "$tools/genload.py" "$work/load.pcap" 100 200 $options
    replay "$work/load.pcap" "$work/load.jsonl"
    check "generated load $options" python3 "$tools/score_load.py" "$work/load.jsonl" "$work/load.pcap.truth.jsonl"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
