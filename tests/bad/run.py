#!/usr/bin/env python3
"""Bad input: `tokengauge replay` on every file of make_bad.py, held to the manifest.

Of each file: the exit code, no panic, peak memory, a line that names the file where it could not be read, something
counted where the traffic was bad, and the healthy stream behind the bad part still measured.

    tests/bad/run.py [--dir DIR] [--only NAME]        # TOKENGAUGE=path of the agent; without --dir a temporary folder
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, Record, Score  # noqa: E402

PANIC = re.compile(r"panicked at|RUST_BACKTRACE|stack overflow|SIGABRT|memory allocation of")
HANG_SECONDS = 300  # not a measurement: whatever takes so long will not end
HEALTHY = "chatcmpl-healthy"


def replay(path: Path, folder: Path) -> tuple[int, float, str, str, Record]:
    """One run: exit code (negative: a signal), peak megabytes, output, errors, statistics."""
    out, err, stats = folder / "out.jsonl", folder / "err.txt", folder / "stats.json"
    stats.unlink(missing_ok=True)
    with out.open("wb") as stdout, err.open("wb") as stderr:
        command = [AGENT, "replay", path, "--format", "jsonl", "--stats", stats]
        child = subprocess.Popen([str(word) for word in command], stdout=stdout, stderr=stderr)
        guard = threading.Timer(HANG_SECONDS, child.kill)
        guard.start()
        _, status, usage = os.wait4(child.pid, 0)
        guard.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    told = json.loads(stats.read_text()) if stats.exists() and stats.stat().st_size else {}
    return child.returncode, usage.ru_maxrss / 1024, out.read_text(), err.read_text(errors="replace"), told


def anomalies(stats: Any) -> float:
    """The sum of all that stands under a name with `anomal` in it."""
    if not isinstance(stats, dict):
        return 0
    return sum(total(value) if "anomal" in name else anomalies(value) for name, value in stats.items())


def total(value: Any) -> float:
    """The sum of all numbers inside."""
    if isinstance(value, dict):
        return sum(total(inner) for inner in value.values())
    if isinstance(value, list):
        return sum(total(inner) for inner in value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def check(path: Path, wanted: Record, folder: Path, score: Score) -> None:
    """One file."""
    exit_code, peak_mb, out, err, stats = replay(path, folder)
    name = path.name
    score.check(
        exit_code == wanted["exit"], f"{name}: exit code {exit_code}, wanted {wanted['exit']} ({wanted['why']})"
    )
    score.check(not PANIC.search(err), f"{name}: no panic")
    score.check(peak_mb <= wanted["max_rss_mb"], f"{name}: peak {peak_mb:.0f} MB of {wanted['max_rss_mb']}")
    try:
        records = [json.loads(line) for line in out.splitlines()]
    except json.JSONDecodeError as problem:
        score.check(False, f"{name}: every line of output is JSON ({problem})")
        records = []
    if wanted["error"]:
        naming = [line for line in err.splitlines() if name in line and not line.startswith("{")]
        score.check(bool(naming), f"{name}: says what is wrong: {naming[0] if naming else err[-200:]!r}")
    if wanted["anomaly"]:
        score.check(anomalies(stats) > 0, f"{name}: counts {json.dumps(stats.get('anomalies'))[:100]}")
    if wanted["healthy"]:
        good = [record for record in records if record["response"]["id"] == HEALTHY]
        right = len(good) == 1 and good[0]["outcome"] == "completed" and good[0]["usage"]["output_tokens"] == 10
        right = right and abs((good[0]["timing_s"]["ttft"] or 0) - 0.1) < 0.001
        score.check(right, f"{name}: the healthy stream is measured")
    if score.failed and err:
        print("      " + err[-500:].replace("\n", "\n      "))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="keep the files here, and use those that are there")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    args = parser.parse_args()
    if not AGENT.exists():
        raise SystemExit(f"no agent at {AGENT}: build it, or set TOKENGAUGE")
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-bad-") as name:
        folder: Path = args.dir or Path(name)
        if not (folder / "manifest.json").exists():
            subprocess.run([sys.executable, str(HERE / "make_bad.py"), str(folder)], check=True)
        for wanted in json.loads((folder / "manifest.json").read_text()):
            if args.only in wanted["file"]:
                check(folder / wanted["file"], wanted, Path(name), score)
        if not args.only:
            for path, why in ((folder / "missing.pcap", "there is no such file"), (folder, "a folder")):
                wanted = {"exit": 1, "error": True, "anomaly": False, "healthy": False, "max_rss_mb": 256, "why": why}
                check(path, wanted, Path(name), score)
    score.finish()


if __name__ == "__main__":
    main()
