#!/usr/bin/env python3
"""replay.py TOKENGAUGE CACHE: `replay` on generated captures, beside floors measured in the same run, as a Markdown table.

Best of five (`--runs`), each process's own user + system time by wait4, so that a busy neighbour matters less; memory is
anonymous memory (RssAnon), looked at every 3 ms. Floors: `tcpdump -w /dev/null` (libpcap reads the file and does nothing) and
examples/straight_floor.rs (a straight reading of a map that looks for one field and follows no connection).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Cost(NamedTuple):
    """The best of some runs."""

    cpu: float
    wall: float
    anonymous: float


def once(command: list[str]) -> Cost:
    """One run: CPU and wall seconds, peak anonymous memory in MB."""
    begun, peak = time.monotonic(), 0.0
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        done, status, usage = os.wait4(child.pid, os.WNOHANG)
        if done:
            child.returncode = os.waitstatus_to_exitcode(status)
            break
        try:
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            peak = max([peak] + [int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon")])
        except (OSError, ValueError):
            pass
        time.sleep(0.003)
    if status:
        sys.exit(f"{command[0]} failed with status {status}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - begun, peak)


def cost(command: list[str], runs: int) -> Cost:
    """The least CPU and wall time of some runs, and the most memory."""
    all_runs = [once(command) for _ in range(runs)]
    return Cost(min(r.cpu for r in all_runs), min(r.wall for r in all_runs), max(r.anonymous for r in all_runs))


def capture(cache: Path, name: str, *options: str) -> Path:
    """A generated capture, made once."""
    path = cache / f"{name}.pcap"
    if not path.exists():
        subprocess.run([sys.executable, HERE / "genload.py", path, *options], check=True, stdout=subprocess.DEVNULL)
    return path


def events(agent: str, path: Path) -> int:
    """Events that the agent sees in a capture."""
    with tempfile.NamedTemporaryFile() as stats:
        command = [agent, "replay", str(path), "--format", "jsonl", "--stats", stats.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return int(json.load(stats)["events"])


def machine() -> str:
    """The processor and the kernel."""
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent")
    parser.add_argument("cache", type=Path)
    parser.add_argument("--straight", help="the built example straight_floor")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--h2", type=Path, help="a capture over HTTP/2, e.g. of genload.py --h2 of the acceptance tools")
    parser.add_argument("--gzip", type=Path, help="a capture with gzip")
    args = parser.parse_args()
    load = capture(args.cache, "load", "--mb", "236", "--connections", "500")
    many = capture(args.cache, "open", "--open", "100000")
    print(f"{machine()}; best of {args.runs}\n")
    print("| Capture | What | MB per CPU-s | M events per CPU-s | x libpcap's time | wall s | MB anonymous |\n|---|---|---|---|---|---|---|")
    captures = [("HTTP/1.1", load, True)] + [(n, p, True) for n, p in (("HTTP/2", args.h2), ("gzip", args.gzip)) if p]
    for name, path, threads in captures + [("100,000 open streams", many, False)]:
        megabytes, seen = path.stat().st_size / 1e6, events(args.agent, path) / 1e6
        rows = [("replay", [args.agent, "replay", str(path), "--format", "jsonl"])]
        if threads:
            rows.append(("replay, 2 threads", [*rows[0][1], "--threads", "2"]))
        if shutil.which("tcpdump"):
            rows.insert(0, ("floor: libpcap reads", ["tcpdump", "-r", str(path), "-w", "/dev/null"]))
        if args.straight and path == load:
            rows.insert(1, ("floor: straight reading", [args.straight, str(path)]))
        floor = None
        for what, command in rows:
            best = cost(command, args.runs)
            floor = floor or best.cpu
            print(
                f"| {name} | {what} | {megabytes / best.cpu:.0f} | {seen / best.cpu:.2f} | {best.cpu / floor:.2f} "
                f"| {best.wall:.3f} | {best.anonymous:.0f} |"
            )


if __name__ == "__main__":
    main()
