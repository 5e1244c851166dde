#!/bin/sh
# The shared acceptance tools on the shared recordings: captures with known instants, replayed and scored. Argument: the shared folder.
# Only the APIs that are understood so far are scored.
set -u
shared=$1
tools=$shared/tools/acceptance
agent=${TOKENGAUGE:-target/release/tokengauge}
# The encoders of br and zstd are none of Python's own library.
venv=${XDG_CACHE_HOME:-$HOME/.cache}/tokengauge/acceptance
"$venv/bin/python" -c 'import brotli, zstandard' 2>/dev/null || { python3 -m venv "$venv" && "$venv/bin/pip" install -q brotli zstandard; }
PATH=$venv/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apis='^(openai\.(chat|compl|emb)|anthropic)'
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
for options in "" "--coding gzip" "--coding deflate" "--coding br" "--coding zstd" "--coding br --pieces 7" "--coding zstd --pieces 7" "--pieces 7" "--pieces 60" "--keepalive 6" "--pipeline" "--pieces 60 --faults reorder" \
    "--pieces 60 --faults retransmit" "--pieces 60 --faults midstream"; do
    name=c$(echo "$options" | tr -cd 'a-z0-9')
    # shellcheck disable=SC2086 # options are words
    captures "$name" $options
    check "recordings ${options:-plain}" python3 "$tools/score.py" "$work/$name.jsonl" "$work/$name/truth.json" --api "$apis"
done
for fault in reorder retransmit; do
    check "$fault changes nothing" python3 "$tools/score.py" "$work/cpieces60faults$fault.jsonl" --same "$work/cpieces60.jsonl"
done
captures closs --pieces 60 --faults loss
check "a loss invents nothing" python3 "$tools/score.py" "$work/closs.jsonl" "$work/closs/truth.json" --lossy --api "$apis"
python3 "$tools/genload.py" "$work/load.pcap" 300 400
replay "$work/load.pcap" "$work/load.jsonl"
check "generated load" python3 "$tools/score_load.py" "$work/load.jsonl" "$work/load.pcap.truth.jsonl"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
