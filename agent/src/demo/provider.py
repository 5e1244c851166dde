"""The demo's provider: a small TLS server that streams like OpenAI and Anthropic, on a schedule it writes down.

Python's standard library only; the certificate comes from the `openssl` command. One thread per connection, and each
chunk is written by the thread that noted the time, so that the truth stands beside the call that tokengauge sees.

Prints {"port": N, "cert": PATH} once it listens. Appends to --truth one JSON line per answer, times in nanoseconds
since the epoch (of a clock that never steps): `t_request_ns` directly after the request's first bytes were read,
`chunks_ns` directly before each chunk with text was written.

With --plain it speaks HTTP without TLS: for a packet capture, which cannot read TLS.

Usage: provider.py --truth FILE [--plain] [--dir DIR] [--port 0] [--seed 1] [--pace 1.0]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

WORDS = "a stream is a promise kept one token at a time and the gaps between them are what a reader feels".split()
EPOCH_NS = time.time_ns() - time.monotonic_ns()


@dataclass(frozen=True)
class Model:
    """How a model answers. Seconds are means; the seed moves each by up to a fifth."""

    ttft_s: float
    gap_s: float
    chunks: int
    tokens_per_chunk: int = 1
    stall_s: float = 0.0
    fails_after: int | None = None


MODELS = {
    "swift-1": Model(ttft_s=0.060, gap_s=0.012, chunks=60),
    "slow-1": Model(ttft_s=0.900, gap_s=0.060, chunks=40),
    "stall-1": Model(ttft_s=0.120, gap_s=0.020, chunks=50, stall_s=1.2),
    "cancel-1": Model(ttft_s=0.100, gap_s=0.030, chunks=300),
    "error-1": Model(ttft_s=0.080, gap_s=0.020, chunks=40, fails_after=12),
    "claude-demo": Model(ttft_s=0.250, gap_s=0.030, chunks=40, tokens_per_chunk=3),
}


def now_ns() -> int:
    """Nanoseconds since the epoch, from the monotonic clock."""
    return time.monotonic_ns() + EPOCH_NS


def sleep_until(when_ns: int) -> None:
    """Sleeps to an instant of `now_ns`."""
    while (rest := when_ns - now_ns()) > 0:
        time.sleep(rest / 1e9)


class ClientGone(Exception):
    """The client closed the connection."""


class Provider:
    """The schedule, the ids and the truth; shared by all connections."""

    def __init__(self, truth: str, seed: int, pace: float) -> None:
        self.truth_fd = os.open(truth, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.seed, self.pace = seed, pace
        self.lock = threading.Lock()
        self.numbers: dict[str, int] = {}

    def schedule(self, name: str) -> tuple[int, list[int]]:
        """The number of this answer of the model, and when each of its chunks is due, in ns after the request. The
        n-th answer of a model is the same in every run with the same seed."""
        model = MODELS[name]
        with self.lock:
            number = self.numbers[name] = self.numbers.get(name, 0) + 1
        dice = random.Random(f"{self.seed} {name} {number}")
        due, chunks = model.ttft_s * dice.uniform(0.8, 1.2), []
        for index in range(model.chunks):
            chunks.append(int(due * self.pace * 1e9))
            due += model.gap_s * dice.uniform(0.8, 1.2)
            if index == model.chunks // 2:
                due += model.stall_s
        return number, chunks

    def write_truth(self, line: dict[str, object]) -> None:
        """One line, in one write."""
        os.write(self.truth_fd, (json.dumps(line) + "\n").encode())


class Connection:
    """One client on one thread: reads requests, writes answers, until either side has enough."""

    def __init__(self, provider: Provider, stream: ssl.SSLSocket, peer: tuple[str, int]) -> None:
        self.provider, self.stream, self.peer = provider, stream, peer
        self.t_request_ns = 0

    def serve(self) -> None:
        """Requests in turn on a kept-alive connection."""
        try:
            if isinstance(self.stream, ssl.SSLSocket):
                self.stream.do_handshake()
            while (request := self.read_request()) is not None:
                self.answer(*request)
        except (ClientGone, OSError, ValueError):
            pass
        finally:
            self.stream.close()

    def read_request(self) -> tuple[str, dict[str, object]] | None:
        """Path and JSON body of the next request; None at the end of the connection."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.stream.recv(65536)
            if not data:
                self.t_request_ns = now_ns()
            if not part or len(data) > 65536:
                return None
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        while len(body) < int(headers.get("content-length", 0)):
            part = self.stream.recv(65536)
            if not part:
                return None
            body += part
        return lines[0].split(" ")[1], json.loads(body or b"{}")

    def send(self, data: bytes) -> int:
        """Writes; returns the instant directly before. A connection that is gone is the client's doing."""
        stamp = now_ns()
        try:
            self.stream.sendall(data)
        except OSError as gone:
            raise ClientGone from gone
        return stamp

    def answer(self, path: str, request: dict[str, object]) -> None:
        """One answer, and its line of truth however it ends."""
        name = str(request.get("model"))
        if name not in MODELS or path not in ("/v1/chat/completions", "/v1/messages"):
            body = json.dumps(
                {"error": {"message": "no such model", "type": "not_found_error", "code": "model_not_found"}}
            )
            head = f"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self.send((head + body).encode())
            return
        model = MODELS[name]
        number, due = self.provider.schedule(name)
        anthropic = path == "/v1/messages"
        dialect = Anthropic if anthropic else OpenAI
        voice = dialect(name, f"{'msg_' if anthropic else 'chatcmpl-'}{name}-{os.getpid():x}-{number}")
        truth: dict[str, object] = {
            "view": "provider", "id": voice.id, "model": name, "t_request_ns": self.t_request_ns,
            "t_first_chunk_ns": None, "chunks_ns": [], "output_tokens": None, "outcome": "cancelled",
            "client_port": self.peer[1],
        }  # fmt: skip
        chunks_ns: list[int] = []
        try:
            head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.send(head.encode() + chunked(voice.opening()))
            for index, offset in enumerate(due):
                sleep_until(self.t_request_ns + offset)
                if model.fails_after == index:
                    self.send(chunked(voice.failure()) + b"0\r\n\r\n")
                    truth["outcome"] = "failed"
                    return
                words = [WORDS[(index + more) % len(WORDS)] for more in range(model.tokens_per_chunk)]
                chunks_ns.append(self.send(chunked(voice.text(" ".join(words) + " "))))
            tokens = len(due) * model.tokens_per_chunk
            self.send(chunked(voice.closing(tokens)) + b"0\r\n\r\n")
            truth |= {"outcome": "completed", "output_tokens": tokens}
        finally:
            truth |= {"chunks_ns": chunks_ns, "t_first_chunk_ns": chunks_ns[0] if chunks_ns else None}
            self.provider.write_truth(truth)


def chunked(data: bytes) -> bytes:
    """One chunk of HTTP's chunked coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class OpenAI:
    """Chat completions. The first event names only the role: it is not the first token."""

    def __init__(self, model: str, response_id: str) -> None:
        self.model, self.id = model, response_id

    def event(self, choices: list[object], **more: object) -> bytes:
        """One event with the fields that all share."""
        shared = {"id": self.id, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": self.model}
        return b"data: " + json.dumps({**shared, "choices": choices, **more}).encode() + b"\n\n"

    def delta(self, delta: dict[str, object], finish: str | None = None) -> bytes:
        """An event with a delta."""
        return self.event([{"index": 0, "delta": delta, "finish_reason": finish}], usage=None)

    def opening(self) -> bytes:
        """Sent at once."""
        return self.delta({"role": "assistant", "content": ""})

    def text(self, text: str) -> bytes:
        """Generated output."""
        return self.delta({"content": text})

    def failure(self) -> bytes:
        """An error inside a 200."""
        return b'data: {"error":{"message":"the engine gave up","type":"server_error","code":"engine_error"}}\n\n'

    def closing(self, tokens: int) -> bytes:
        """Finish, usage, terminator."""
        usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}
        return self.delta({}, "stop") + self.event([], usage=usage) + b"data: [DONE]\n\n"


class Anthropic:
    """Messages."""

    def __init__(self, model: str, response_id: str) -> None:
        self.model, self.id = model, response_id

    @staticmethod
    def event(kind: str, **fields: object) -> bytes:
        """A named event."""
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    def opening(self) -> bytes:
        """Sent at once."""
        message: dict[str, object] = {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 12, "output_tokens": 1},
        }  # fmt: skip
        block = {"type": "text", "text": ""}
        start = self.event("message_start", message=message)
        return start + self.event("content_block_start", index=0, content_block=block) + self.event("ping")

    def text(self, text: str) -> bytes:
        """Generated output."""
        return self.event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def failure(self) -> bytes:
        """An error inside a 200."""
        return self.event("error", error={"type": "overloaded_error", "message": "the engine gave up"})

    def closing(self, tokens: int) -> bytes:
        """Stop, usage, terminator."""
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        stop = self.event("content_block_stop", index=0)
        return (
            stop
            + self.event("message_delta", delta=delta, usage={"output_tokens": tokens})
            + self.event("message_stop")
        )


def make_certificate(folder: str) -> tuple[str, str]:
    """A self-signed certificate for localhost, and its key."""
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def end_with_parent() -> None:
    """SIGTERM and the parent's end both become a plain exit, so that `finally` runs."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="the demo's provider")
    parser.add_argument("--truth", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dir", help="folder for certificate and key; without it a temporary one")
    parser.add_argument("--plain", action="store_true", help="HTTP without TLS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="stretches every schedule")
    args = parser.parse_args()
    end_with_parent()
    sys.setswitchinterval(0.0002)  # threads that wake for their chunk get the interpreter soon
    folder = args.dir or tempfile.mkdtemp(prefix="tokengauge-demo-")
    try:
        context, cert = None, None
        if not args.plain:
            cert, key = make_certificate(folder)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
        provider = Provider(args.truth, args.seed, args.pace)
        with socket.create_server(("127.0.0.1", args.port), backlog=64) as listener:
            print(json.dumps({"port": listener.getsockname()[1], "cert": cert}), flush=True)
            while True:
                plain, peer = listener.accept()
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) if context else plain
                threading.Thread(target=Connection(provider, stream, peer).serve, daemon=True).start()
    finally:
        if args.dir is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
