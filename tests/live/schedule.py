#!/usr/bin/env python3
"""Live accuracy: 1,000 TLS streams whose true instants are known, and what tokengauge measured of them.

Truth is stamped beside the calls that the agent can see: at the server after SSL_read returned the request and before
SSL_write of a chunk, at the client before SSL_write of the request and after SSL_read returned the chunk. Held at each
end by itself: |TTFT error| median <= 0.5 ms and p99 <= 5 ms.

    tests/live/schedule.py [--streams 1000] [--concurrency 20]      # TOKENGAUGE=path of the agent
    tests/live/schedule.py --without-agent                          # the two truths beside each other
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import pair
from rig import Agent, Children, Record, Score, quantile, skip_without_bpf

MEDIAN_S, P99_S = 0.0005, 0.005
CHUNKS = 10


def ttft_s(line: Record) -> float:
    """The true time to first token at one end."""
    return (line["t_first_ns"] - line.get("t_request_ns", line.get("t_send_ns"))) / 1e9


def check_truth(seen: pair.Outcome, streams: int, score: Score) -> None:
    """Both ends tell the same story, in the right order of time."""
    score.check(len(seen.at_server) == len(seen.at_client) == streams, f"{streams} streams at both ends")
    score.check(all(line["complete"] for line in seen.at_client.values()), "all complete")
    ordered = all(
        seen.at_client[name]["t_send_ns"]
        <= server["t_request_ns"]
        < server["t_first_ns"]
        <= seen.at_client[name]["t_first_ns"]
        for name, server in seen.at_server.items()
    )
    score.check(ordered, "sent, read, written, received: in this order in every stream")
    extra = [ttft_s(client) - ttft_s(seen.at_server[name]) for name, client in seen.at_client.items()]
    print(
        f"      the client waits longer than the server took: median {quantile(extra, 0.5) * 1e3:.3f} ms, p99 {quantile(extra, 0.99) * 1e3:.3f} ms"
    )


def compare(vantage: str, truth: dict[str, Record], records: list[Record], score: Score) -> None:
    """All records of one vantage beside that end's truth."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record["vantage"] == vantage and record["tap"] == "tls":
            found[record["response"]["id"]].append(record)
    ttft, tpot, wrong = [], [], []
    for name, line in truth.items():
        here = found.get(name, [])
        if len(here) != 1:
            wrong.append(f"{name}: {len(here)} records")
            continue
        record = here[0]
        timing = record["timing_s"]
        facts = (record["outcome"], record["usage"]["output_tokens"], record["chunks"]["generated"], record["gaps"])
        if facts != ("completed", CHUNKS, CHUNKS, 0) or timing["ttft"] is None or timing["tpot"] is None:
            wrong.append(f"{name}: outcome, tokens, chunks, gaps {facts}, undefined {record['undefined']}")
            continue
        port = (record["client"] or {}).get("port")
        if port != line.get("peer_port", line.get("local_port")):
            wrong.append(f"{name}: client port {port}")
        ttft.append(abs(timing["ttft"] - ttft_s(line)))
        tpot.append(abs(timing["tpot"] - (line["t_last_ns"] - line["t_first_ns"]) / 1e9 / (CHUNKS - 1)))
    score.check(not wrong, f"{vantage}: {len(truth) - len(wrong)} of {len(truth)} streams whole {wrong[:3] or ''}")
    score.check(set(found) <= set(truth), f"{vantage}: no stream that was not there")
    median, p99 = quantile(ttft, 0.5), quantile(ttft, 0.99)
    what = f"median {median * 1e3:.4f} ms, p99 {p99 * 1e3:.4f} ms, worst {max(ttft, default=0) * 1e3:.4f} ms"
    score.check(median <= MEDIAN_S and p99 <= P99_S, f"{vantage}: |TTFT error| {what} of {len(ttft)}")
    print(
        f"      {vantage}: |TPOT error| median {quantile(tpot, 0.5) * 1e6:.1f} us, p99 {quantile(tpot, 0.99) * 1e6:.1f} us"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--without-agent", action="store_true")
    args = parser.parse_args()
    if not args.without_agent:
        skip_without_bpf()
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-live-") as name, Children() as children:
        folder = Path(name)
        pair.build()
        agent = None if args.without_agent else Agent(children, folder)
        flags = {
            "streams": args.concurrency, "requests": args.streams, "chunks": CHUNKS, "first-us": 80_000,
            "gap-us": 15_000, "reconnect": 10,
        }  # fmt: skip
        seen = pair.run(
            children, folder, *(str(word) for flag, value in flags.items() for word in (f"--{flag}", value))
        )
        check_truth(seen, args.streams, score)
        if agent is not None:
            time.sleep(0.5)
            records = agent.stop()
            for vantage in ("server", "client"):
                compare(vantage, seen.truth(vantage), records, score)
            if score.failed:
                print(agent.log()[-3000:])
    score.finish()


if __name__ == "__main__":
    main()
