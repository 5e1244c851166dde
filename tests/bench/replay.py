#!/usr/bin/env python3
"""replay.py TOKENGAUGE CACHE FLOORS [--doc FILE]: `replay` on generated captures, beside floors measured in the same run, as a
Markdown table. FLOORS is the directory with the built examples straight_floor and inflate_floor.

Best of five (`--runs`), each process's own user + system time by wait4, so that a busy neighbour matters less; memory is
anonymous memory (RssAnon), looked at every 3 ms. Before anything is timed, what the agent says of each capture is compared
with the capture's truth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
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


class Capture(NamedTuple):
    """A generated capture: its name in the table, its file's, and how it is made."""

    name: str
    file: str
    options: list[str]


CAPTURES = [
    Capture("HTTP/1.1", "load", []),
    Capture("HTTP/2", "load-h2", ["--h2"]),
    Capture("HTTP/1.1, gzip", "load-gzip", ["--gzip"]),
    Capture("100,000 open streams", "open", ["--open", "--streams", "100000"]),
]
PREFACE = """# Bench

Written by `make bench` (tests/bench/replay.py). Best of {runs} runs, CPU seconds are user + system of the process. Ratios are of one run on
one machine; absolute figures are that machine's, on that day.

Machine: {machine}. Load average before the run: {load}.

The captures are those of tests/bench/genload.py: 1,500 interleaved chat-completions streams of 400 chunks each, about 320 bytes an event,
one packet each. Before the timing each record was compared with the capture's truth: time to first token to the microsecond, and tokens.

Floors: *libpcap* is `tcpdump -w /dev/null`, which reads the file and does nothing; *straight* maps it, looks for one field in each event and
follows no connection (agent/examples/straight_floor.rs); *inflate* decompresses the same bodies, one after the other, each in the pieces in which it came, with the same
library, and does nothing with them (agent/examples/inflate_floor.rs; its time is that of the inflating alone).
"""


def checked(agent: str, path: Path) -> float:
    """Compares the agent's records with the capture's truth. Returns millions of events."""
    command = [agent, "replay", str(path), "--format", "jsonl", "--stats", "/dev/stderr"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    records = {r["response"]["id"]: r for r in map(json.loads, done.stdout.splitlines())}
    truth = [json.loads(line) for line in Path(f"{path}.truth.jsonl").read_text().splitlines()]
    for line in truth:
        record = records[line["id"]]
        want = (line["t_first_us"] - line["t_request_us"]) / 1e6
        if abs(record["timing_s"]["ttft"] - want) > 1e-6:
            sys.exit(f"{path}: {line['id']} has a TTFT of {record['timing_s']['ttft']}, not {want}")
        if record["chunks"]["generated"] != line["output_tokens"]:
            sys.exit(f"{path}: {line['id']} has {record['chunks']['generated']} chunks, not {line['output_tokens']}")
    if len(records) != len(truth):
        sys.exit(f"{path}: {len(records)} records of {len(truth)} streams")
    return json.loads(done.stderr.splitlines()[-1])["events"] / 1e6


def machine() -> str:
    """The processor and the kernel."""
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} virtual cores, Linux {platform.release()}"


def inflating(command: list[str], runs: int) -> float:
    """The least CPU time that inflate_floor took."""
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]) for _ in range(runs))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent")
    parser.add_argument("cache", type=Path)
    parser.add_argument("floors", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--doc", type=Path, help="the table is written to this file as well")
    args = parser.parse_args()
    lines = [PREFACE.format(runs=args.runs, machine=machine(), load=", ".join(f"{n:.1f}" for n in os.getloadavg()))]

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    print(lines[0])
    say("| capture | what | CPU s | MB per CPU-s | M events per CPU-s | wall s | MB anonymous | target |\n|---|---|---|---|---|---|---|---|")
    summary: list[str] = []
    for name, file, options in CAPTURES:
        path = args.cache / f"{file}.pcap"
        if not path.exists():
            print(f"making {path}", file=sys.stderr)
            subprocess.run([sys.executable, HERE / "genload.py", path, *options], check=True, stdout=subprocess.DEVNULL)
        megabytes, events = path.stat().st_size / 1e6, checked(args.agent, path)

        def row(what: str, best: Cost, target: str = "") -> None:
            anonymous = f"{best.anonymous:.0f}" if best.anonymous else ""
            wall = f"{best.wall:.3f}" if best.wall else ""
            figures = f"{best.cpu:.3f} | {megabytes / best.cpu:.0f} | {events / best.cpu:.2f} | {wall} | {anonymous}"
            say(f"| {name} | {what} | {figures} | {target} |")

        replay = [args.agent, "replay", str(path), "--format", "jsonl"]
        # Floors and replays take turns, so that all of them meet the same neighbours.
        floors = {"floor: libpcap": ["tcpdump", "-r", str(path), "-w", "/dev/null"]} if shutil.which("tcpdump") else {}
        if file == "load":
            floors["floor: straight"] = [str(args.floors / "straight_floor"), str(path)]
        costs = {what: cost(command, args.runs) for what, command in floors.items()}
        for what, best in costs.items():
            row(what, best)
        one = cost(replay, args.runs)
        if file == "open":
            row("replay", one, "250 MB anonymous")
            summary.append(f"| 100,000 open streams | {one.anonymous:.0f} MB | at most 250 MB |")
            continue
        target = {"load": "2,000 MB and 5 M events per CPU-s, 60 MB anonymous", "load-h2": "1,200 MB per CPU-s"}.get(file, "")
        row("replay", one, target)
        two = cost([*replay, "--threads", "2"], args.runs)
        row("replay, 2 threads", two)
        if file == "load-gzip":
            floor = inflating([str(args.floors / "inflate_floor"), str(path)], args.runs)
            row("floor: inflate", Cost(floor, 0, 0))
            summary.append(f"| gzip: speed over bare inflate | {floor / one.cpu:.2f} | at least 0.7 |")
            continue
        summary.append(f"| {name} | {megabytes / one.cpu:.0f} MB per CPU-s | at least {2000 if file == 'load' else 1200:,} |")
        for what, best in costs.items():
            summary.append(f"| {name}: CPU time over {what.removeprefix('floor: ')}'s | {one.cpu / best.cpu:.2f} | |")
        if file == "load":
            summary.append(f"| HTTP/1.1 | {events / one.cpu:.2f} M events per CPU-s | at least 5 |")
            summary.append(f"| HTTP/1.1: anonymous memory | {one.anonymous:.0f} MB | at most 60 MB |")
            summary.append(f"| HTTP/1.1: one thread's wall time over two threads' | {one.wall / two.wall:.2f} | at least 1.7 |")
            summary.append(f"| the same by CPU time, as on two cores of one's own | {2 * one.cpu / two.cpu:.2f} | |")
    say("\n| figure | measured | target |\n|---|---|---|\n" + "\n".join(summary))
    if args.doc:
        args.doc.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
