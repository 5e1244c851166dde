#!/bin/sh
# The journal of objectives under kill -9 and on a full disk.
#
#   tests/slo/kill.sh [KILLS]        220 by default
#
# 1. A process that counts and appends is killed again and again; each successor must remember all that was said before.
# 2. The same on a file system of 64 KiB that is filled while it runs (as root): counting goes on, the agent says so, and what
#    stands in the journal is whole.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
kills=${1:-220}
work=$(mktemp -d)
trap 'umount "$work/small" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$root"
cargo build --quiet --workspace --example slo_kill # as `make test` builds it
rig=${CARGO_TARGET_DIR:-$root/target}/debug/examples/slo_kill
"$rig" "$work/journal" "$kills"
if [ "$(id -u)" = 0 ] && mkdir "$work/small" && mount -t tmpfs -o size=64k none "$work/small" 2>/dev/null; then
    "$rig" life "$work/small/journal" > "$work/said" & life=$!
    sleep 1
    # A full disk ends this life (it says only what it has kept); the journal must hold the last thing that it said, or more.
    dd if=/dev/zero of="$work/small/fill" bs=1k count=64 2>/dev/null || true
    wait "$life" && { echo "a full disk went unnoticed"; exit 1; } || true
    rm "$work/small/fill"
    said=$(tail -n 1 "$work/said")
    "$rig" life "$work/small/journal" > "$work/again" & life=$!
    sleep 1
    kill -9 "$life"; wait "$life" 2>/dev/null || true
    remembered=$(head -n 1 "$work/again" | cut -d' ' -f1)
    echo "full disk: $said said, $remembered remembered"
    [ "$remembered" -ge "$said" ]
else
    echo "full disk: not tried (needs root and tmpfs)"
fi
