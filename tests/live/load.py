#!/usr/bin/env python3
"""Load: what tokengauge sees of 10,000 chunks/s, and what being watched costs the watched.

    load.py [--seconds 60]            200 TLS streams x 50 chunks/s; sent = seen + counted as dropped, at each end
    load.py --overhead [--seconds 10] 100 streams x 100 chunks/s, and as fast as it goes: untapped beside tapped

The agent by TOKENGAUGE; `--without-agent` runs only the load.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pair
from rig import Agent, Children, Record, Score, cpu_seconds, quantile, skip_without_bpf

GAP_US = 19_500  # a stream of 250 chunks and its first 100 ms make 50 chunks/s
DROP_WORDS = re.compile(r"drop|lost|gap|evict|overflow")


def flags(**values: int) -> list[str]:
    """Keyword arguments as the client's flags."""
    return [str(word) for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]


def drops(stats: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every counter of the agent's final statistics whose name speaks of loss, with its path."""
    if isinstance(stats, dict):
        for name, value in stats.items():
            yield from drops(value, f"{path}.{name}" if path else name)
    elif isinstance(stats, (int, float)) and not isinstance(stats, bool) and stats and DROP_WORDS.search(path):
        yield path, stats


def account(
    vantage: str, truth: dict[str, Record], records: list[Record], counted: dict[str, float], score: Score
) -> None:
    """`sent = seen + counted` at one end: a stream that was not seen whole must say so, or be missing while the agent
    counts drops. Anything else is a silent loss."""
    found: dict[str | None, list[Record]] = defaultdict(list)
    for record in records:
        if record["vantage"] == vantage:
            found[record["response"]["id"]].append(record)
    sent = seen = admitted = silent = twice = admitting = 0
    for name, line in truth.items():
        here = found.get(name, [])
        generated = sum(record["chunks"]["generated"] for record in here)
        missing = line["generated"] - generated
        sent += line["generated"]
        seen += generated
        twice += max(0, -missing)
        if missing > 0:
            says_so = any(record["gaps"] or record["outcome"] in ("lost", "truncated") for record in here)
            if says_so or (not here and counted):
                admitted, admitting = admitted + missing, admitting + 1
            else:
                silent += missing
    print(
        f"      {vantage}: {sent} sent = {seen} seen + {admitted} in {admitting} streams that admit a gap + {silent} silent"
    )
    score.check(sent > 0 and silent == 0, f"{vantage}: every chunk was seen or its loss counted")
    score.check(twice == 0, f"{vantage}: no chunk was seen twice ({twice})")


def load(children: Children, folder: Path, seconds: int, with_agent: bool, score: Score) -> None:
    """Point 4 of the targets."""
    agent = Agent(children, folder) if with_agent else None
    cpu_before = cpu_seconds(agent.child.pid) if agent else 0.0
    # Streams of five seconds, renewed until the time is up, each tenth on a new connection.
    seen = pair.run(
        children, folder, *flags(streams=200, seconds=max(seconds - 5, 1), chunks=250, first_us=100_000, gap_us=GAP_US)
    )
    print(
        f"      {seen.client['streams']} streams, {seen.client['chunks']} chunks, {seen.chunk_rate:.0f}/s over {seen.client['wall_s']:.0f} s"
    )
    score.check(seen.client["broken"] == 0 and seen.server["broken"] == 0, "no stream broke under the tap")
    lateness = [
        (line["t_last_ns"] - line["t_first_ns"]) / 1e9 - (line["generated"] - 1) * GAP_US / 1e6
        for line in seen.at_server.values()
        if line["complete"]
    ]
    print(f"      the schedule slipped by a median of {quantile(lateness, 0.5) * 1e3:.2f} ms per stream")
    if agent is None:
        return
    time.sleep(1)
    used = cpu_seconds(agent.child.pid) - cpu_before
    status = Path(f"/proc/{agent.child.pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    print(f"      the agent used {used:.1f} CPU-s ({used / seen.client['wall_s']:.0%} of a core), peak {peak:.0f} MB")
    records = agent.stop()
    counted = dict(drops(agent.stats()))
    print(f"      counted by the agent: {counted or 'nothing'}")
    for vantage in ("server", "client"):
        account(vantage, seen.truth(vantage), records, counted, score)
    if score.failed:
        print(agent.log()[-3000:])


def overhead(children: Children, folder: Path, seconds: int, with_agent: bool, score: Score) -> None:
    """Point 7: the same load untapped and tapped, twice in turn, so that a machine that slows down shows."""
    kinds = {
        "paced, 100 x 100/s": (flags(streams=100, seconds=seconds, chunks=200, first_us=50_000, gap_us=9_700), True),
        "unpaced, 100 streams": (flags(streams=100, seconds=seconds, chunks=2000, gap_us=0, first_us=0), False),
    }
    print(f"{'':24}{'':>10} {'chunks/s':>10} {'CPU us/chunk':>13} {'agent CPU us/chunk':>19}")
    for kind, (words, paced) in kinds.items():
        rates: dict[bool, list[float]] = {False: [], True: []}
        costs: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(2):
            for tapped in (False, True) if with_agent else (False,):
                agent = Agent(children, folder) if tapped else None
                before = cpu_seconds(agent.child.pid) if agent else 0.0
                seen = pair.run(children, folder, *words, paced=paced)
                own = (cpu_seconds(agent.child.pid) - before) * 1e6 / seen.client["chunks"] if agent else 0.0
                if agent:
                    agent.stop()
                score.check(seen.client["chunks"] > 0 and not seen.client["broken"], f"{kind}: no stream broke")
                rates[tapped].append(seen.chunk_rate)
                costs[tapped].append(seen.cpu_us_per_chunk)
                name = "tapped" if tapped else "untapped"
                print(f"{kind:24}{name:>10} {seen.chunk_rate:10.0f} {seen.cpu_us_per_chunk:13.1f} {own:19.1f}")
        if with_agent:
            rate = quantile(rates[True], 0.5) / quantile(rates[False], 0.5)
            cost = quantile(costs[True], 0.5) - quantile(costs[False], 0.5)
            print(f"{kind:24}{'ratio':>10} {rate:10.3f} {cost:+13.1f}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--without-agent", action="store_true")
    args = parser.parse_args()
    if not args.without_agent:
        skip_without_bpf()
    score = Score(verbose=not args.overhead)
    with tempfile.TemporaryDirectory(prefix="tokengauge-load-") as name, Children() as children:
        pair.build()
        mode, default = (overhead, 10) if args.overhead else (load, 60)
        mode(children, Path(name), args.seconds or default, not args.without_agent, score)
    score.finish()


if __name__ == "__main__":
    main()
