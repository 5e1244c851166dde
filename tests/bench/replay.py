#!/usr/bin/env python3
"""replay.py TOKENGAUGE CAPTURE: MB and events per CPU-second of `replay`, and its peak memory, beside the bare read of the same file.

Best of five, each process's own user + system time by wait4, so that a busy neighbour matters little. The floor is `dd` with the
reader's block size: the kernel's copy alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile


def cost(command: list[str]) -> tuple[float, int]:
    """Best CPU seconds of five runs, and the largest resident set in bytes."""
    best, peak = float("inf"), 0
    for _ in range(5):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            sys.exit(f"{command[0]} failed with status {status}")
        best = min(best, usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss * 1024)
    return best, peak


def main() -> None:
    """Command line."""
    agent, capture = sys.argv[1:3]
    megabytes = os.path.getsize(capture) / 1e6
    with tempfile.NamedTemporaryFile() as stats:
        ours, peak = cost([agent, "replay", capture, "--format", "jsonl", "--stats", stats.name])
        events = json.load(open(stats.name))["events"]
    floor, _ = cost(["dd", f"if={capture}", "of=/dev/null", "bs=256k"])
    print(f"bare read  {megabytes / floor:8.0f} MB/CPU-s")
    print(f"replay     {megabytes / ours:8.0f} MB/CPU-s = {ours / floor:.2f} x the bare read's time")
    print(f"           {events / ours / 1e6:8.2f} million events/CPU-s, peak {peak / 1e6:.0f} MB resident")


if __name__ == "__main__":
    main()
