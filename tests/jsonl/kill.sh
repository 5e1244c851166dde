#!/bin/sh
# The file of records under kill -9, on a full disk, and under logrotate's signals.
#
#   tests/jsonl/kill.sh [KILLS]        60 by default
#
# 1. A process that writes numbered records as fast as it can, and rotates each MiB, is killed again and again. Every line of every file must be a whole record,
#    every number must be there once, and everything that was said to be written must be there.
# 2. The same on a file system of 2 MiB that is filled while it runs and freed again (as root): the process lives on, what it wrote is whole, and written
#    plus given up is all that there was.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
kills=${1:-60}
work=$(mktemp -d)
trap 'umount "$work/small" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$root"
cargo build --quiet --workspace --example jsonl_life # as `make test` builds it
rig=${CARGO_TARGET_DIR:-$root/target}/debug/examples/jsonl_life
python3 - "$rig" "$work" "$kills" <<'PY'
import json, os, random, signal, subprocess, sys, time
rig, work, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(7)

def numbers(folder):
    """Every number in every file, oldest first; fails on a line that is no record. The tail behind the last line end, if any, comes apart."""
    found, torn = [], 0
    names = sorted(n for n in os.listdir(folder) if n.startswith("r-")) + ["r.jsonl"]
    for name in names:
        data = open(os.path.join(folder, name), "rb").read() if os.path.exists(os.path.join(folder, name)) else b""
        *lines, tail = data.split(b"\n")
        torn += bool(tail)
        assert not tail or name == "r.jsonl", f"{name}: a torn end in a file that was rotated out"
        found += [int(json.loads(line)["request"]["model"][1:]) for line in lines]
    return found, torn

passed = torn_ends = 0
folder = os.path.join(work, "lives"); os.mkdir(folder)
path = os.path.join(folder, "r.jsonl")
for life in range(kills):
    child = subprocess.Popen([rig, path], stdout=subprocess.PIPE)
    said = child.stdout.readline()
    time.sleep(random.uniform(0.0, 0.15))
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split(b"\n")
    child.wait()
    last = [line for line in [said.strip()] + rest[:-1] if line][-1]
    first, written = map(int, last.split()[:2])
    found, torn = numbers(folder)
    torn_ends += torn
    assert found == list(range(len(found))), f"life {life}: a number is missing or there twice"
    assert len(found) >= first + written, f"life {life}: {first + written} were said to be written, {len(found)} are there"
    passed += 1
print(f"kill -9: {passed} lives, {len(found)} records, each there once and whole; {torn_ends} torn ends, each taken out by the next life")

failed = 0
small = os.path.join(work, "small"); os.mkdir(small)
if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", small]).returncode == 0:
    path = os.path.join(small, "r.jsonl")
    child = subprocess.Popen([rig, path, "4"], stdout=subprocess.PIPE)
    time.sleep(1.5)
    assert child.poll() is None, "a full disk ended it"
    found, torn = numbers(small)
    assert torn == 0 and found == list(range(len(found))), "the full disk holds half a record"
    # Room again: the oldest go, as an operator would do it.
    gone = []
    while child.poll() is None:
        for name in sorted(n for n in os.listdir(small) if n.startswith("r-")):
            try:
                data = open(os.path.join(small, name), "rb").read()
                os.unlink(os.path.join(small, name))
            except FileNotFoundError:
                continue
            assert data.endswith(b"\n"), name
            gone += [int(json.loads(line)["request"]["model"][1:]) for line in data.splitlines()]
        time.sleep(0.05)
    lines = child.stdout.read().decode().split("\n")
    first, written, dropped, failures = map(int, [l for l in lines if l][-1].split())
    left, torn = numbers(small)
    have = gone + left
    assert failures > 0 and torn == 0, (failures, torn)
    assert have == sorted(set(have)), "a record is there twice or out of order"
    assert len(have) >= written and dropped >= 0, (len(have), written, dropped)
    missing = have[-1] + 1 - len(have)
    assert missing <= dropped, f"{missing} are missing, {dropped} were said to be given up"
    print(f"full disk: {failures} failed writes, {len(have)} records whole, {missing} missing of {dropped} given up and counted")
    passed += 1
else:
    print("full disk: not tried (needs root and tmpfs)")
print(f"{passed} passed, {failed} failed")
PY
