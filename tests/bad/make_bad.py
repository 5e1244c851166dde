#!/usr/bin/env python3
"""Writes captures that no honest network makes, and a manifest of what `tokengauge replay` must make of each.

Where the capture itself is whole, a healthy stream stands behind the bad part: it must still be measured.

Usage: make_bad.py DIR
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))

import pcapgen as pg  # noqa: E402 (the path above comes first)

START_US = 1_700_000_000_000_000
HEALTHY = "chatcmpl-healthy"
MB = 1 << 20
JUMBO = 32_000  # bytes per packet where only the volume matters, as segmentation offload makes them

Writer = Callable[[BinaryIO], None]
CASES: list[tuple[str, dict[str, Any], Writer]] = []


def case(name: str, exit_code: int = 0, **more: Any) -> Callable[[Writer], Writer]:
    """Registers a file. `exit_code` as the record's contract says; `error`: a line that names the file;
    `anomaly`: something is counted in the statistics; `healthy`: the good stream is measured."""
    wanted = {
        "exit": exit_code,
        "error": exit_code == 1,
        "anomaly": False,
        "healthy": exit_code == 0,
        "max_rss_mb": 256,
    }

    def register(write: Writer) -> Writer:
        CASES.append((name, wanted | more | {"why": (write.__doc__ or "").strip()}, write))
        return write

    return register


def dial(out: BinaryIO, port: int = 40_000, at_us: int = START_US) -> pg.Connection:
    """A connection for the bad part."""
    return pg.Connection(out, ("10.0.1.7", port), ("10.0.0.1", 8000), at_us)


def finish(out: BinaryIO, after_us: int) -> None:
    """The healthy stream behind the bad part."""
    pg.healthy_stream(out, HEALTHY, after_us + 1_000_000)


# The file is no capture, or only the beginning of one ---------------------------------------------------------------


@case("empty.pcap", 1)
def _(out: BinaryIO) -> None:
    """No byte at all."""


@case("cut-file-header.pcap", 1)
def _(out: BinaryIO) -> None:
    """Ends inside the file's header."""
    out.write(pg.file_header()[:10])


@case("no-packets.pcap", healthy=False)
def _(out: BinaryIO) -> None:
    """A whole header and no packet: empty, but in order."""
    out.write(pg.file_header())


@case("cut-record-header.pcap", 1, healthy=True)
def _(out: BinaryIO) -> None:
    """A good stream, then half a packet header: what was read is still printed."""
    out.write(pg.whole_capture(HEALTHY, START_US) + bytes(7))


@case("cut-record-body.pcap", 1, healthy=True)
def _(out: BinaryIO) -> None:
    """A good stream, then a packet shorter than it claims."""
    out.write(pg.whole_capture(HEALTHY, START_US) + pg.record(START_US + 9_000_000, bytes(60), claimed=1500))


@case("cut-stream.pcap", 1)
def _(out: BinaryIO) -> None:
    """Cut in the middle of the stream."""
    data = pg.whole_capture(HEALTHY, START_US)
    out.write(data[: len(data) // 2 + 3])


@case("huge-record.pcap", 1, healthy=True)
def _(out: BinaryIO) -> None:
    """A packet that claims four gigabytes."""
    out.write(pg.whole_capture(HEALTHY, START_US) + pg.record(START_US + 9_000_000, bytes(60), claimed=0xFFFFFFF0))


@case("garbage.pcap", 1)
def _(out: BinaryIO) -> None:
    """Random bytes."""
    out.write(random.Random(1).randbytes(MB))


@case("garbage-packets.pcap", 1)
def _(out: BinaryIO) -> None:
    """A right header, then random bytes."""
    out.write(pg.file_header() + b"\xff" * 64 + random.Random(2).randbytes(MB))


@case("image.pcap", 1)
def _(out: BinaryIO) -> None:
    """A PNG under a wrong name."""
    out.write(bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de") + bytes(100))


@case("text.pcap", 1)
def _(out: BinaryIO) -> None:
    """Text under a wrong name."""
    out.write(b"No.     Time        Source                Destination           Protocol Length Info\n" * 20)


@case("cut.pcapng", 1)
def _(out: BinaryIO) -> None:
    """A pcapng whose section header ends early."""
    out.write(struct.pack("<IIIHHq", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1)[:18])


# Whole captures with bad traffic -------------------------------------------------------------------------------------


@case("header-100mb.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """A request whose header never ends: 100 MB."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, b"POST /v1/chat/completions HTTP/1.1\r\nHost: api.example.test\r\nX-Padding: ")
    for _ in range(100):
        bad.send(0, b"a" * MB, size=JUMBO)
    finish(out, bad.now_us)


@case("response-header-100mb.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """A response with a million header lines: 100 MB."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, pg.http_request(pg.CHAT_BODY))
    bad.send(1, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    for _ in range(100):
        bad.send(1, b"".join(b"X-Header-%06d: %s\r\n" % (n, b"b" * 80) for n in range(10_000)), size=JUMBO)
    finish(out, bad.now_us)


@case("line-100mb.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """One event of 100 MB, not compressed."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, pg.http_request(pg.CHAT_BODY))
    head, tail = pg.chat_event("chatcmpl-line", "@").split(b"@")
    bad.send(1, pg.http_head() + pg.chunk(pg.chat_event("chatcmpl-line", " a")) + pg.chunk(head))
    for _ in range(100):
        bad.send(1, pg.chunk(b"c" * MB), size=JUMBO)
    bad.send(1, pg.chunk(tail + pg.chat_end("chatcmpl-line", 2)) + b"0\r\n\r\n")
    finish(out, bad.now_us)


@case("request-body-100mb.pcap")
def _(out: BinaryIO) -> None:
    """A prompt of 100 MB: large, but no crime; nothing of it need be kept."""
    out.write(pg.file_header())
    bad = dial(out)
    head, tail = pg.CHAT_BODY.split(b"go")
    size = len(head) + 100 * MB + len(tail)
    bad.send(0, f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode() + head)
    for _ in range(100):
        bad.send(0, b"d" * MB, size=JUMBO)
    bad.send(0, tail)
    finish(out, bad.now_us)


@case("connections-1m.pcap")
def _(out: BinaryIO) -> None:
    """A million connections, none closed, each with a small exchange that is not of an LLM."""
    out.write(pg.file_header())
    request, reply = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"
    steps = (
        (0, pg.SYN, 1, 0, b""),
        (1, pg.SYN | pg.ACK, 9, 2, b""),
        (0, pg.ACK, 2, 10, request),
        (1, pg.ACK, 10, 2 + len(request), reply),
    )
    ports = [struct.pack(">H", port) for port in range(1024, 1024 + 62_500)]
    server = (pg.address("10.0.0.1"), 8000)
    for host in range(16):
        client = (pg.address(f"10.1.0.{host + 1}"), 0)
        pieces: list[bytes] = []  # the four packets, cut where the client's port stands
        for end, flags, seq, ack, payload in steps:
            source, target = (client, server) if end == 0 else (server, client)
            segment = pg.frame(source, target, seq, ack, flags, payload)
            at = 34 if end == 0 else 36
            pieces += [struct.pack("<II", len(segment), len(segment)) + segment[:at], segment[at + 2 :]]
        a, b, c, d, e, f, g, h = pieces
        rows = []
        for index, port in enumerate(ports):
            at_us = START_US + (host * 62_500 + index) * 40
            time = struct.pack("<II", at_us // 1_000_000, at_us % 1_000_000)
            rows.append(b"".join((time, a, port, b, time, c, port, d, time, e, port, f, time, g, port, h)))
        out.write(b"".join(rows))
    finish(out, START_US + 50_000_000)


def gzip_answer(out: BinaryIO, before: bytes, block: bytes, times: int, after: bytes) -> None:
    """A streaming answer, gzip-coded, that inflates to `block` x `times`."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, pg.http_request(pg.CHAT_BODY, extra="Accept-Encoding: gzip\r\n"))
    bad.send(1, pg.http_head("Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n"))
    for piece in pg.gzip_repeated(before, block, times, after):
        bad.send(1, pg.chunk(piece), size=JUMBO)
    bad.send(1, b"0\r\n\r\n")
    finish(out, bad.now_us)


@case("gzip-bomb-zeros.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """An answer of one megabyte that inflates to a gigabyte of zeros."""
    gzip_answer(out, b"", bytes(16 * MB), 64, b"")


@case("gzip-bomb-line.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """The same inside one well-formed event."""
    head, tail = pg.chat_event("chatcmpl-bomb", "@").split(b"@")
    gzip_answer(out, head, b"e" * (16 * MB), 64, tail + pg.chat_end("chatcmpl-bomb", 1))


@case("gzip-bomb-events.pcap")
def _(out: BinaryIO) -> None:
    """A million and a half honest events that compress well: they count, and need no memory each."""
    block = pg.chat_event("chatcmpl-many", " a") * 50_000
    gzip_answer(out, b"", block, 30, pg.chat_end("chatcmpl-many", 1_500_000))


@case("gzip-broken.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """Says gzip, is not."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, pg.http_request(pg.CHAT_BODY))
    bad.send(1, pg.http_head("Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n"))
    bad.send(1, pg.chunk(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + random.Random(3).randbytes(5000)) + b"0\r\n\r\n")
    finish(out, bad.now_us)


@case("nested-request.pcap")
def _(out: BinaryIO) -> None:
    """A request of half a million opening brackets."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, pg.http_request(b'{"model":"test-1","stream":true,"messages":' + b"[" * 500_000), size=JUMBO)
    bad.send(
        1, pg.http_head() + pg.chunk(pg.chat_event("chatcmpl-n", " a") + pg.chat_end("chatcmpl-n", 1)) + b"0\r\n\r\n"
    )
    finish(out, bad.now_us)


@case("nested-event.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """An event of half a million opening braces."""
    out.write(pg.file_header())
    bad = dial(out)
    bad.send(0, pg.http_request(pg.CHAT_BODY))
    event = b"data: " + b'{"choices":[' * 500_000 + b"\n\n"
    bad.send(1, pg.http_head() + pg.chunk(event) + b"0\r\n\r\n", size=JUMBO)
    finish(out, bad.now_us)


@case("bad-chunk-sizes.pcap", anomaly=True)
def _(out: BinaryIO) -> None:
    """Chunk sizes that are no numbers, negative, too large, or followed by the wrong bytes."""
    out.write(pg.file_header())
    event, now_us = pg.chat_event("chatcmpl-c", " a"), START_US
    for number, size in enumerate([b"zz", b"-5", b"F" * 17, b"FFFFFFFFFFFFFFFF", b"", b" ", b"5;" + b"x" * 100_000]):
        bad = dial(out, 40_000 + number, now_us)
        bad.send(0, pg.http_request(pg.CHAT_BODY))
        bad.send(1, pg.http_head() + pg.chunk(event) + size + b"\r\n" + event + b"\r\n0\r\n\r\n")
        bad.close(1)
        now_us = bad.now_us
    finish(out, now_us)


@case("bad-lengths.pcap")
def _(out: BinaryIO) -> None:
    """Content-Length too large for any integer, negative, twice and different, beside chunked."""
    out.write(pg.file_header())
    kinds = ["99999999999999999999999", "-1", "5\r\nContent-Length: 6", "5\r\nTransfer-Encoding: chunked", "0x10", ""]
    now_us = START_US
    for number, length in enumerate(kinds):
        bad = dial(out, 40_000 + number, now_us)
        bad.send(0, f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode())
        bad.send(0, pg.CHAT_BODY)
        bad.send(1, pg.http_head(f"Content-Length: {length}\r\n") + pg.chat_event("chatcmpl-l", " a"))
        bad.close(1)
        now_us = bad.now_us
    finish(out, now_us)


@case("odd-packets.pcap")
def _(out: BinaryIO) -> None:
    """Frames cut at every length, header lengths that lie, a segment far outside the window, data after RST."""
    out.write(pg.file_header())
    client, server = (pg.address("10.0.1.7"), 40_000), (pg.address("10.0.0.1"), 8000)
    good = pg.frame(client, server, 1, 1, pg.ACK, b"POST / HTTP/1.1\r\n")
    frames = [good[:length] for length in range(len(good))]
    frames += [good[:14] + bytes([first]) + good[15:] for first in (0x40, 0x4F, 0x65, 0x00, 0xFF)]
    frames += [good[:46] + bytes([offset << 4]) + good[47:] for offset in range(16)]
    frames += [good[:16] + struct.pack(">H", length) + good[18:] for length in (0, 19, 21, 65_535)]
    frames += [good[:12] + struct.pack(">H", kind) + good[14:] for kind in (0x8100, 0x88A8, 0x86DD, 0x0806, 0, 0xFFFF)]
    frames += [pg.frame(client, server, 1 << 31, 1, pg.ACK, b"far"), pg.frame(client, server, 0, 0, pg.RST)]
    frames += [pg.frame(client, server, 1, 1, pg.ACK, b"after the reset"), pg.frame(client, server, 1, 1, 0xFF, b"x")]
    for number, one in enumerate(frames):
        out.write(pg.record(START_US + number * 10, one))
    finish(out, START_US + len(frames) * 10)


def main() -> None:
    """Command line."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    manifest = []
    for name, wanted, write in CASES:
        with (folder / name).open("wb", buffering=MB) as out:
            write(out)
        manifest.append({"file": name, **wanted})
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    size = sum((folder / name).stat().st_size for name, *_ in CASES)
    print(f"{len(CASES)} files, {size / MB:.0f} MB in {folder}")


if __name__ == "__main__":
    main()
