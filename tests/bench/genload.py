#!/usr/bin/env python3
"""Writes a large capture for the bench: many chat-completions streams at once, interleaved packet by packet.

Each of STREAMS requests is answered with CHUNKS events of generated text, one about every 20 ms, one packet each. On HTTP/1.1 each has
a connection of its own; with --h2 (prior knowledge) 50 share one, one DATA frame an event; with --gzip bodies are compressed, flushed
after each event. Beside OUT.pcap stands OUT.pcap.truth.jsonl: a line per stream with its id, its counts and its instants in
microseconds, which are exactly those of the packets.

With --open the answers begin and go on beyond the end of the capture: the head, two events, and when all have got that far a third.

Usage: genload.py OUT.pcap [--streams 1500] [--chunks 400] [--h2] [--gzip] [--open] [--seed 7]
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))

import pcapgen as pg  # noqa: E402 (the path above comes first)

START_US = 1_700_000_000_000_000
SERVER = (pg.address("10.0.0.1"), 8000)
PER_CONNECTION = 50
WORDS = ["the", " model", " streams", " tokens", " over", " a", " wire", ",", " and", " we", " watch", "."]
_RECORD, _TCP = struct.Struct("<IIII"), struct.Struct(">HHIIBBHHH")

# What an end (0: client, 1: server) sends at an instant.
Message = tuple[int, int, bytes]
Packet = tuple[int, int, int, bytes]


def event(name: str, delta: dict[str, str], finish: str | None = None) -> bytes:
    """A server-sent event with the fields and the length of OpenAI's."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    shared = {"id": name, "object": "chat.completion.chunk", "created": 1700000000, "model": "gpt-4o-mini-2024-07-18"}
    more = {"service_tier": "default", "system_fingerprint": "fp_0123456789", "choices": [choice], "usage": None}
    return b"data: " + json.dumps(shared | more).encode() + b"\n\n"


class Stream:
    """One request and the events of its answer, with their instants."""

    def __init__(self, number: int, chunks: int, dice: random.Random, start_us: int, longest: int) -> None:
        self.name, self.number = f"chatcmpl-{number:08x}", number
        self.start_us = start_us
        prompt = "x" * dice.randint(100, longest)
        body = {"model": "gpt-4o-mini", "stream": True, "stream_options": {"include_usage": True}}
        self.body = json.dumps(body | {"messages": [{"role": "user", "content": prompt}]}).encode()
        self.chunks, self.dice = chunks, dice
        self.truth: dict[str, object] = {"id": self.name, "output_tokens": chunks}

    def events(self, opened: bool) -> Iterator[tuple[int, bytes, bool]]:
        """Instant, event, and whether it is the last one."""
        at = self.start_us + int(self.dice.lognormvariate(-1.5, 0.5) * 1e6)
        yield at - 1000, event(self.name, {"role": "assistant", "content": ""}), False
        said = [event(self.name, {"content": word}) for word in WORDS]
        self.truth |= {"t_request_us": self.start_us, "t_first_us": at}
        for n in range(self.chunks):
            self.truth["t_last_us"] = at
            yield at, self.dice.choice(said), False
            at += 1 + (3_000_000 if opened and n == 1 else int(self.dice.lognormvariate(-4, 0.4) * 1e6))
        if opened:
            return
        counts = {"prompt_tokens": 50, "completion_tokens": self.chunks, "total_tokens": 50 + self.chunks}
        usage = {"id": self.name, "object": "chat.completion.chunk", "model": "gpt-4o-mini", "choices": [], "usage": counts}
        yield at, event(self.name, {}, "stop"), False
        yield at + 100, b"data: " + json.dumps(usage).encode() + b"\n\n", False
        yield at + 200, b"data: [DONE]\n\n", True


def coder(gzip: bool) -> Callable[[bytes, bool], bytes]:
    """Compresses one event after the other; the last one ends the body."""
    if not gzip:
        return lambda data, last: data
    machine = zlib.compressobj(1, zlib.DEFLATED, 31)
    return lambda data, last: machine.compress(data) + machine.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def http1(stream: Stream, gzip: bool, opened: bool) -> Iterator[Message]:
    """A connection with one stream."""
    code = coder(gzip)
    yield stream.start_us, 0, pg.http_request(stream.body)
    begin = pg.http_head(("Content-Encoding: gzip\r\n" if gzip else "") + "Transfer-Encoding: chunked\r\n")
    for at, data, last in stream.events(opened):
        yield at, 1, begin + pg.chunk(code(data, last)) + (b"0\r\n\r\n" if last else b"")
        begin = b""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113 section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def fields(*pairs: tuple[str, str]) -> bytes:
    """A header block of literals that enter no table (RFC 7541 section 6.2.2)."""
    text = b""
    for name, value in pairs:
        text += b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
    return text


def http2(streams: list[Stream], gzip: bool, opened: bool) -> Iterator[Message]:
    """A connection whose streams are all under way at once."""
    begun = streams[0].start_us
    yield begun - 300, 0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    yield begun - 200, 1, frame(4, 0, 0, b"") + frame(4, 1, 0, b"")

    def one(number: int, stream: Stream) -> Iterator[Message]:
        code = coder(gzip)
        asked = [(":method", "POST"), (":scheme", "http"), (":authority", "api.example.test"), (":path", "/v1/chat/completions")]
        head = frame(1, 4, number, fields(*asked, ("content-type", "application/json")))
        yield stream.start_us, 0, head + frame(0, 1, number, stream.body)
        said = [("content-type", "text/event-stream")] + ([("content-encoding", "gzip")] if gzip else [])
        begin = frame(1, 4, number, b"\x88" + fields(*said))
        for at, data, last in stream.events(opened):
            yield at, 1, begin + frame(0, int(last), number, code(data, last))
            begin = b""

    yield from heapq.merge(*(one(2 * n + 1, stream) for n, stream in enumerate(streams)), key=lambda message: message[0])


def packets(client: tuple[bytes, int], messages: Iterator[Message], opened: bool) -> Iterator[Packet]:
    """A connection's packets: instant, sending end, flags, payload."""
    first = next(messages)
    at = first[0] - 500
    for end, flags in ((0, pg.SYN), (1, pg.SYN | pg.ACK), (0, pg.ACK)):
        yield at, end, flags, b""
        at += 50
    for at_us, end, data in (message for part in ([first], messages) for message in part):
        for begin in range(0, len(data), pg.MTU_PAYLOAD):
            at = max(at, at_us)
            yield at, end, pg.ACK | pg.PSH, data[begin : begin + pg.MTU_PAYLOAD]
    if not opened:
        for end, flags in ((0, pg.FIN | pg.ACK), (1, pg.FIN | pg.ACK), (0, pg.ACK)):
            at += 50
            yield at, end, flags, b""


def records(number: int, messages: Iterator[Message], dice: random.Random, opened: bool) -> Iterator[tuple[int, bytes]]:
    """A connection's records of the file, with their instants."""
    client = (pg.address(f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"), 30_000 + number % 30_000)
    seq, ends = [dice.getrandbits(32), dice.getrandbits(32)], (client, SERVER)
    heads: dict[tuple[int, int], bytes] = {}
    for at, end, flags, payload in packets(client, messages, opened):
        key = (end, len(payload))
        if key not in heads:
            heads[key] = pg.frame(ends[end], ends[1 - end], 0, 0, 0, payload)[:34]
        ack = seq[1 - end] if flags & pg.ACK else 0
        tcp = _TCP.pack(ends[end][1], ends[1 - end][1], seq[end], ack, 0x50, flags, 0xFFFF, 0, 0)
        size = 54 + len(payload)
        yield at, _RECORD.pack(at // 1_000_000, at % 1_000_000, size, size) + heads[key] + tcp + payload
        seq[end] = seq[end] + len(payload) + (1 if flags & (pg.SYN | pg.FIN) else 0) & 0xFFFFFFFF


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--streams", type=int, default=1500)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--h2", action="store_true")
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    # Open streams begin one after the other, closely; others within 20 s.
    starts = [START_US + (n * 20 if args.open else dice.randrange(20_000_000)) for n in range(args.streams)]
    chunks, longest = (3, 1000) if args.open else (args.chunks, 4000)
    streams = [Stream(n, chunks, random.Random(args.seed + n), start, longest) for n, start in enumerate(starts)]
    if args.h2:
        groups = [sorted(streams[n : n + PER_CONNECTION], key=lambda s: s.start_us) for n in range(0, len(streams), PER_CONNECTION)]
        connections = [http2(group, args.gzip, args.open) for group in groups]
    else:
        connections = [http1(stream, args.gzip, args.open) for stream in streams]
    written = 24
    with args.out.open("wb", buffering=1 << 20) as out:
        out.write(pg.file_header())
        every = (records(n, messages, dice, args.open) for n, messages in enumerate(connections))
        for _, record in heapq.merge(*every, key=lambda record: record[0]):
            written += out.write(record)
    lines = (json.dumps(stream.truth) + "\n" for stream in streams)
    args.out.with_name(args.out.name + ".truth.jsonl").write_text("".join(lines))
    print(json.dumps({"file": str(args.out), "bytes": written, "streams": len(streams)}))


if __name__ == "__main__":
    main()
