#!/usr/bin/env python3
"""A server that only tells, by the Python package: what server.c does. One line of JSON says what it did.

    server.py cost
    server.py lives MODEL N PAUSE_US [SOCKET]
    server.py patience SOCKET N    N events to a socket; the longest that one call took, and what became of them
    server.py forever SOCKET       events until it is ended; says how many were told, sent and dropped when asked by a line
"""

from __future__ import annotations

import json
import os
import sys
import time
import timeit

from tokengauge_hook import Client, Request, tap


def empty(event: bytearray) -> None:
    """What a call costs at least."""


def cost() -> dict[str, object]:
    """The best of five."""
    request = Request("chatcmpl-0123456789abcdef0123456789abcdef", model="cost")
    event, calls = request._event, 50_000

    def best(statement: str) -> float:
        names = {"empty": empty, "tell": tap.tell, "event": event, "request": request}
        return min(timeit.repeat(statement, globals=names, number=calls, repeat=5)) / calls * 1e9

    return {"way": tap.WAY, "empty_ns": best("empty(event)"), "tell_ns": best("tell(event)"), "told_ns": best("request.tokens(1)")}


def lives(model: str, n: int, pause: float, client: Client | None) -> dict[str, object]:
    """Requests one after the other, and what each interval was by our own clock."""
    queue = prefill = ttft = decode = 0.0
    for i in range(n):
        request = Request(f"life-{os.getpid()}-{i}", model=model, to=client)
        received = time.monotonic()
        request.received(prompt_tokens=20)
        time.sleep(pause)
        scheduled = time.monotonic()
        request.scheduled()
        time.sleep(2 * pause)
        first = last = time.monotonic()
        request.first_token()
        for _ in range(3):
            time.sleep(pause)
            last = time.monotonic()
            request.tokens(2)
        request.finished("length", output_tokens=7)
        queue += scheduled - received
        prefill += first - scheduled
        ttft += first - received
        decode += last - first
    return {"way": tap.WAY, "lives": n, "events": 7 * n, "queue_s": queue, "prefill_s": prefill, "ttft_s": ttft, "decode_s": decode, "steps_s": decode}


def patience(path: str, n: int) -> dict[str, object]:
    """How long one call takes, whatever the agent does."""
    client = Client(path)
    request = Request("patience", model="patience", to=client)
    took = []
    for i in range(n):
        began = time.perf_counter_ns()
        request.tokens(1)
        took.append(time.perf_counter_ns() - began)
        if i % 100 == 99:
            time.sleep(0.001)
    took.sort()
    client.close(20.0)
    quantiles = {"median_ns": took[n // 2], "p99_ns": took[n * 99 // 100], "longest_ns": took[-1]}
    return {"told": n, "sent": client.sent, "dropped": client.dropped, "waiting": len(client._waiting), **quantiles}


def forever(path: str) -> None:
    """Tells a hundred events a second; a line on standard input asks for the counts."""
    import threading

    client = Client(path)
    told = 0
    asked = threading.Event()
    threading.Thread(target=lambda: [asked.set() for _ in sys.stdin], daemon=True).start()
    while True:
        request = Request(f"forever-{os.getpid()}-{told}", model="forever", to=client)
        request.received()
        request.finished("stop", output_tokens=1)
        told += 2
        time.sleep(0.02)
        if asked.is_set():
            asked.clear()
            time.sleep(0.2)
            print(json.dumps({"told": told, "sent": client.sent, "dropped": client.dropped}), flush=True)


def main() -> None:
    """By the words of the command line."""
    what, *rest = sys.argv[1:] or [""]
    if what == "cost":
        said = cost()
    elif what == "lives":
        client = Client(rest[3]) if len(rest) > 3 else None
        said = lives(rest[0], int(rest[1]), int(rest[2]) / 1e6, client)
        if client:
            client.close(5.0)
            said |= {"sent": client.sent, "dropped": client.dropped}
    elif what == "patience":
        said = patience(rest[0], int(rest[1]))
    elif what == "forever":
        return forever(rest[0])
    else:
        raise SystemExit(__doc__)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
