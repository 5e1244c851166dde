"""An OTLP/HTTP receiver that answers as it is told and counts what it took. Standard library only: Protobuf is walked by hand."""

from __future__ import annotations

import gzip
import http.server
import itertools
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a message."""
    data, at = memoryview(data), 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<I", data, at)[0], at + 4
        elif tag & 7 == 2:
            length, at = varint(data, at)
            if at + length > len(data):
                raise ValueError("a field leads out of its message")
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, value


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A variable-length integer, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def each(message: bytes | memoryview, *path: int) -> Iterator[memoryview]:
    """Every message at this path of field numbers."""
    if not path:
        yield memoryview(message)
        return
    for number, value in fields(message):
        if number == path[0] and isinstance(value, memoryview):
            yield from each(value, *path[1:])


def span_ids(request: bytes) -> list[bytes]:
    """`span_id` of every span: ResourceSpans 1, ScopeSpans 2, Span 2, span_id 2."""
    return [next(bytes(v) for n, v in fields(span) if n == 2 and isinstance(v, memoryview)) for span in each(request, 1, 2, 2)]


def sums(request: bytes, metric: str) -> list[tuple[int, int]]:
    """(time, value) of every integer point of a sum: Metric 2 of ScopeMetrics, name 1, Sum 7, data_points 1; time 3, as_int 6."""
    found = []
    for message in each(request, 1, 2, 2):
        parts = list(fields(message))
        if (1, metric.encode()) not in [(n, bytes(v)) for n, v in parts if n == 1 and isinstance(v, memoryview)]:
            continue
        for number, value in parts:
            if number == 7 and isinstance(value, memoryview):
                for point in each(value, 1):
                    values = {n: v for n, v in fields(point) if isinstance(v, int)}
                    found.append((values[3], values.get(6, 0)))
    return found


@dataclass
class Answer:
    """How one request is answered."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    rejected: int = 0
    delay: float = 0.0


def partial(rejected: int) -> bytes:
    """Export…ServiceResponse { partial_success { rejected = 1, error_message = 2 } }; fewer than 128 are rejected here."""
    inner = bytes([0x08, rejected, 0x12, 3]) + b"old"
    return bytes([0x0A, len(inner)]) + inner


class Receiver:
    """Listens on `port` between `up()` and `down()`; keeps its counts over both."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers: Iterator[Answer] = itertools.repeat(Answer())
        self.spans: Counter[bytes] = Counter()
        self.requests: list[tuple[float, str, int]] = []
        self.readings: dict[int, int] = {}
        self.order: list[int] = []
        self.refused = self.rejected = 0
        self._lock = threading.Lock()
        self._server: socketserver.TCPServer | None = None
        self._open: set[socket.socket] = set()

    def up(self) -> None:
        """Begins to listen."""
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._open.add(self.connection)

            def finish(self) -> None:
                receiver._open.discard(self.connection)
                try:
                    super().finish()
                except OSError:
                    pass

            def do_POST(self) -> None:  # noqa: N802 (the name that http.server asks for)
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                status, headers, answer = receiver.take(self.path, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Ends, as a killed process does: connections break."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def take(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request: what is answered."""
        with self._lock:
            answer = next(self.answers)
            ids = span_ids(body) if path.endswith("/traces") else []
            self.requests.append((time.monotonic(), path, len(ids)))
            if answer.status == 200:
                # Which of them are rejected is the receiver's choice: the first.
                rejected = min(answer.rejected, len(ids))
                self.spans.update(ids[rejected:])
                self.rejected += rejected
                for at, value in sums(body, "tokengauge.requests") if path.endswith("/metrics") else []:
                    if at not in self.readings:
                        self.order.append(at)
                    self.readings[at] = self.readings.get(at, 0) + value
            elif answer.status == 500:
                self.refused += len(ids)
        if answer.delay:
            time.sleep(answer.delay)
        return answer.status, answer.headers, partial(rejected) if answer.status == 200 and ids and answer.rejected else b""

    def doubles(self) -> int:
        """Spans that came more than once."""
        return sum(n - 1 for n in self.spans.values())
