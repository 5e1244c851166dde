"""A real llama.cpp server (xllamacpp) on a free loopback port; prints {"port": N} once it is listening.

Two computing threads on a busy two-core machine make inter-token times a hundred times worse, hence one.

Usage: server.py MODEL.gguf [--parallel 4]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import socket
import threading

import xllamacpp as xlc


def die_with_parent() -> None:
    """Asks Linux to end this process when the one that started it ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG


def free_port() -> int:
    """A port that was free a moment ago: llama.cpp cannot say which one it chose itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--parallel", type=int, default=4)
    args = parser.parse_args()
    die_with_parent()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    params = xlc.CommonParams()
    params.model.path = args.model
    params.model_alias = {"tokengauge-random"}
    params.hostnames = ["127.0.0.1"]
    params.port = free_port()
    params.n_ctx = 4096 * args.parallel
    params.n_parallel = args.parallel
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.endpoint_metrics = True
    server = xlc.Server(params)
    print(json.dumps({"port": params.port}), flush=True)
    stop.wait()
    del server


if __name__ == "__main__":
    main()
