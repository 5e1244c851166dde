"""The demo's clients: a few threads that ask the demo's provider for answers at a modest rate, and stamp what they get.

Python's standard library only. Appends to --truth one JSON line per request, times in nanoseconds since the epoch:
`t_send_ns` directly before the request was written (the connection stands already), `chunks_ns` when each chunk with
text had been read. The model `cancel-1` is left in the middle.

Usage: client.py --port N --truth FILE [--cert PEM] [--count N] [--seconds S] [--rate 3] [--threads 8]
       [--plain] [--gate]
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import queue
import signal
import ssl
import sys
import threading
import time

EPOCH_NS = time.time_ns() - time.monotonic_ns()
# The mix, in a fixed order: most requests are ordinary, each trouble comes regularly.
MIX = [
    "swift-1",
    "claude-demo",
    "stall-1",
    "swift-1",
    "error-1",
    "slow-1",
    "swift-1",
    "cancel-1",
    "claude-demo",
    "swift-1",
]
CANCEL_AFTER = 15
API_KEY = "sk-demo-key-that-no-report-may-show"


def now_ns() -> int:
    """Nanoseconds since the epoch, from the monotonic clock."""
    return time.monotonic_ns() + EPOCH_NS


class Client:
    """One thread with one kept-alive connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None, truth_fd: int) -> None:
        if context:
            self.connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
        else:
            self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.truth_fd = truth_fd

    def ask(self, model: str) -> None:
        """One request, to its end or to the point where this client leaves; then its line of truth."""
        anthropic = model.startswith("claude")
        body = {"model": model, "stream": True, "max_tokens": 400, "messages": [{"role": "user", "content": "go on"}]}
        if not anthropic:
            body["stream_options"] = {"include_usage": True}
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        headers |= {"x-api-key": API_KEY} if anthropic else {"Authorization": f"Bearer {API_KEY}"}
        if self.connection.sock is None:
            self.connection.connect()
        truth: dict[str, object] = {
            "view": "client", "id": None, "model": model, "t_send_ns": now_ns(), "t_first_chunk_ns": None,
            "chunks_ns": [], "output_tokens": None, "outcome": "failed", "client_port": self.connection.sock.getsockname()[1],
        }  # fmt: skip
        chunks_ns: list[int] = []
        self.connection.request(
            "POST", "/v1/messages" if anthropic else "/v1/chat/completions", json.dumps(body), headers
        )
        response = self.connection.getresponse()
        while line := response.readline():
            stamp = now_ns()
            if not line.startswith(b"data: {"):
                if line.startswith(b"data: [DONE]"):
                    truth["outcome"] = "completed"
                continue
            event = json.loads(line[6:])
            truth["id"] = truth["id"] or event.get("id") or event.get("message", {}).get("id")
            if text_of(event):
                chunks_ns.append(stamp)
            if event.get("usage"):
                usage = event["usage"]
                truth["output_tokens"] = usage.get("completion_tokens", usage.get("output_tokens"))
            if event.get("type") == "message_stop":
                truth["outcome"] = "completed"
            if model == "cancel-1" and len(chunks_ns) >= CANCEL_AFTER:
                truth["outcome"] = "cancelled"
                response.close()
                self.connection.close()
                break
        truth |= {"chunks_ns": chunks_ns, "t_first_chunk_ns": chunks_ns[0] if chunks_ns else None}
        os.write(self.truth_fd, (json.dumps(truth) + "\n").encode())


def text_of(event: dict[str, object]) -> bool:
    """Whether an event of either API has generated text."""
    if event.get("type") == "content_block_delta":
        return bool(event["delta"].get("text"))  # type: ignore[attr-defined]
    choices = event.get("choices") or []
    return any(choice["delta"].get("content") for choice in choices)  # type: ignore[attr-defined]


def work(client: Client, jobs: queue.Queue[str | None], failures: list[str]) -> None:
    """A thread's life: jobs until there is none."""
    while (model := jobs.get()) is not None:
        try:
            client.ask(model)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            failures.append(f"{model}: {problem!r}")
            client.connection.close()


def end_with_parent() -> None:
    """SIGTERM and the parent's end both become a plain exit."""
    parent = os.getppid()
    # At once: threads in the middle of an answer are not waited for, and every line of truth is written whole.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="the demo's clients")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--truth", required=True)
    parser.add_argument("--cert", help="the provider's certificate; without it the peer is not verified")
    parser.add_argument("--count", type=int, default=0, help="end after so many requests; 0: no limit")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="start no request after so many seconds; 0: no limit"
    )
    parser.add_argument("--rate", type=float, default=3.0, help="requests per second")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--plain", action="store_true", help="HTTP without TLS")
    parser.add_argument("--gate", action="store_true", help="wait for a line on standard input before the first request")
    args = parser.parse_args()
    end_with_parent()
    sys.setswitchinterval(0.0002)
    context = None if args.plain else ssl.create_default_context(cafile=args.cert)
    if context and args.cert is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    truth_fd = os.open(args.truth, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    jobs: queue.Queue[str | None] = queue.Queue()
    failures: list[str] = []
    threads = [
        threading.Thread(target=work, args=(Client(args.port, context, truth_fd), jobs, failures), daemon=True)
        for _ in range(args.threads)
    ]
    for thread in threads:
        thread.start()
    if args.gate:
        sys.stdin.readline()
    start, number = time.monotonic(), 0
    while (not args.count or number < args.count) and (not args.seconds or time.monotonic() - start < args.seconds):
        jobs.put(MIX[number % len(MIX)])
        number += 1
        time.sleep(max(0.0, start + number / args.rate - time.monotonic()))
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
