#!/usr/bin/env python3
"""A server whose engine is a library that tells: library.py LIBRARY lives MODEL N PAUSE_US. One line of JSON, as server.c."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

RECEIVED, SCHEDULED, FIRST_TOKEN, TOKENS, FINISHED = 1, 3, 4, 5, 6


def main() -> None:
    """Requests one after the other."""
    library, _, model, n, pause_us = sys.argv[1:]
    tells, pause, name = ctypes.CDLL(library).tells, int(pause_us) / 1e6, model.encode()
    queue = prefill = ttft = decode = 0.0
    for i in range(int(n)):
        request = f"life-{os.getpid()}-{i}".encode()
        received = time.monotonic()
        tells(request, name, RECEIVED, 0)
        time.sleep(pause)
        scheduled = time.monotonic()
        tells(request, name, SCHEDULED, 0)
        time.sleep(2 * pause)
        first = last = time.monotonic()
        tells(request, name, FIRST_TOKEN, 0)
        for _ in range(3):
            time.sleep(pause)
            last = time.monotonic()
            tells(request, name, TOKENS, 2)
        tells(request, name, FINISHED, 7)
        queue += scheduled - received
        prefill += first - scheduled
        ttft += first - received
        decode += last - first
    said = {"lives": int(n), "events": 7 * int(n), "queue_s": queue, "prefill_s": prefill, "ttft_s": ttft, "decode_s": decode, "steps_s": decode}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
