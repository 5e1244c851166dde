#!/usr/bin/env python3
"""Writes a large capture for the bench: many chat-completions streams at once, interleaved packet by packet.

Beside OUT.pcap stands OUT.pcap.truth.jsonl: one line per stream with its id, its counts and its true instants in
microseconds, which are exactly those of the packets.

With --open N there are N connections instead, each with one answer that has begun and goes on beyond the end of the capture.

Usage: genload.py OUT.pcap [--mb 200] [--connections 200] [--seed 1] [--open N]
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import struct
import sys
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))

import pcapgen as pg  # noqa: E402 (the path above comes first)

START_US = 1_700_000_000_000_000
SERVER = (pg.address("10.0.0.1"), 8000)
PADDING = "abcdefghijklmnopqrstuvwx"
_RECORD, _TCP = struct.Struct("<IIII"), struct.Struct(">HHIIBBHHH")


class Stream:
    """One kept-alive connection with one request after another; `step` writes its next packet."""

    def __init__(self, index: int, dice: random.Random, at_us: int) -> None:
        self.client = (pg.address(f"10.{1 + (index >> 16)}.{index >> 8 & 255}.{index & 255}"), 30_000 + index % 30_000)
        self.index, self.dice, self.next_us = index, dice, at_us
        self.seq = [dice.getrandbits(32), dice.getrandbits(32)]
        self.heads: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.requests, self.sent, self.length = 0, -1, 0
        self.prefix = self.suffix = b""
        self.truth: dict[str, object] = {}
        self.handshake = 0
        self.opening = b""

    def packet(self, out: BinaryIO, at_us: int, end: int, flags: int, payload: bytes) -> int:
        """Writes one packet; returns its size in the file."""
        key = (end, len(payload))
        if key not in self.heads:
            source, target = (self.client, SERVER) if end == 0 else (SERVER, self.client)
            self.heads[key] = (pg.frame(source, target, 0, 0, 0, payload)[:34], 54 + len(payload))
        head, size = self.heads[key]
        ports = (self.client[1], SERVER[1]) if end == 0 else (SERVER[1], self.client[1])
        tcp = _TCP.pack(*ports, self.seq[end], self.seq[1 - end] if flags != pg.SYN else 0, 0x50, flags, 0xFFFF, 0, 0)
        out.write(_RECORD.pack(at_us // 1_000_000, at_us % 1_000_000, size, size) + head + tcp + payload)
        self.seq[end] = self.seq[end] + len(payload) + (1 if flags & (pg.SYN | pg.FIN) else 0) & 0xFFFFFFFF
        return 16 + size

    def open(self, out: BinaryIO) -> int:
        """The next packet of the handshake, so that the file stays in order of time."""
        end, flags = ((0, pg.SYN), (1, pg.SYN | pg.ACK), (0, pg.ACK))[self.handshake]
        self.handshake += 1
        written = self.packet(out, self.next_us, end, flags, b"")
        self.next_us += 20
        return written

    def begin(self, out: BinaryIO) -> int:
        """The next request, and the answer's head with the role-only event."""
        now, dice = self.next_us, self.dice
        name = f"chatcmpl-{self.index:05d}-{self.requests:04d}"
        self.requests += 1
        self.length, self.sent = dice.randint(40, 400), 0
        shared = f'data: {{"id":"{name}","object":"chat.completion.chunk","created":1700000000,"model":"bench-1",'
        shared += '"service_tier":"default","system_fingerprint":"fp_0123456789",'
        self.prefix = (shared + '"choices":[{"index":0,"delta":{"content":" t').encode()
        self.suffix = f'"}},"logprobs":null,"finish_reason":null}}],"obfuscation":"{PADDING}"}}\n\n'.encode()
        role = shared + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
        self.truth = {"id": name, "t_request_us": now, "output_tokens": self.length}
        prompt = "x" * dice.randint(20, 900)
        body = f'{{"model":"bench-1","stream":true,"messages":[{{"role":"user","content":"{prompt}"}}]}}'.encode()
        written = self.packet(out, now, 0, pg.ACK | pg.PSH, pg.http_request(body))
        self.next_us = now + dice.randint(50_000, 600_000)
        # The head leaves with the first token's iteration; it is written in the same packet as the role-only event.
        self.opening = pg.http_head() + pg.chunk(role.encode())
        return written

    def step(self, out: BinaryIO, truth: list[str]) -> int:
        """Writes what is due at `next_us` and sets the next instant; returns the bytes written."""
        if self.handshake < 3:
            return self.open(out)
        if self.sent < 0:
            return self.begin(out)
        now = self.next_us
        if self.sent < self.length:
            data = pg.chunk(b"%s%05d%s" % (self.prefix, self.sent, self.suffix))
            if self.sent == 0:
                self.truth["t_first_us"] = now
                data = self.opening + data
            written = self.packet(out, now, 1, pg.ACK | pg.PSH, data)
            if self.sent % 2:
                written += self.packet(out, now, 0, pg.ACK, b"")
            self.truth["t_last_us"] = now
            self.sent += 1
            self.next_us = now + self.dice.randint(5_000, 40_000)
            return written
        end = pg.chunk(pg.chat_end(str(self.truth["id"]), self.length)) + b"0\r\n\r\n"
        self.truth["t_done_us"] = now
        truth.append(json.dumps(self.truth))
        self.sent = -1
        self.next_us = now + self.dice.randint(1_000, 200_000)
        return self.packet(out, now, 1, pg.ACK | pg.PSH, end)

    def finish(self, out: BinaryIO, truth: list[str]) -> int:
        """No further request; what is under way is played to its end."""
        return self.step(out, truth) if self.sent >= 0 else 0


def write(path: Path, size: int, connections: int, seed: int) -> tuple[int, int]:
    """Writes the capture and its truth; returns bytes and streams."""
    dice = random.Random(seed)
    starts = [START_US + dice.randint(0, 500_000) for _ in range(connections)]
    streams = [Stream(index, random.Random(f"{seed} {index}"), at_us) for index, at_us in enumerate(starts)]
    queue = [(stream.next_us, stream.index) for stream in streams]
    heapq.heapify(queue)
    truth: list[str] = []
    with path.open("wb", buffering=1 << 20) as out:
        out.write(pg.file_header())
        written = 24
        while queue:
            stream = streams[queue[0][1]]
            wrote = stream.step(out, truth) if written < size else stream.finish(out, truth)
            written += wrote
            if wrote:
                heapq.heapreplace(queue, (stream.next_us, stream.index))
            else:
                heapq.heappop(queue)
    path.with_name(path.name + ".truth.jsonl").write_text("\n".join(truth) + "\n")
    return written, len(truth)


def write_open(path: Path, connections: int, seed: int) -> int:
    """Writes the beginnings of so many answers: the request, the head, two chunks, connection after connection, then a third one each."""
    dice = random.Random(seed)
    streams = [Stream(index, dice, START_US + index * 100) for index in range(connections)]
    written = 24
    with path.open("wb", buffering=1 << 20) as out:
        out.write(pg.file_header())
        for stream in streams:
            stream.length = 1 << 30
            for _ in range(3):
                written += stream.open(out)
            written += stream.begin(out)
            stream.length = 1 << 30
            stream.next_us = START_US + stream.index * 100 + 5_000
            for _ in range(2):
                written += stream.step(out, [])
                stream.next_us = START_US + stream.index * 100 + 6_000
        for stream in streams:
            stream.next_us = START_US + connections * 100 + 10_000 + stream.index
            written += stream.step(out, [])
    return written


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--open", type=int, metavar="N")
    args = parser.parse_args()
    if args.open:
        print(json.dumps({"file": str(args.out), "bytes": write_open(args.out, args.open, args.seed), "streams": args.open}))
        return
    written, streams = write(args.out, args.mb << 20, args.connections, args.seed)
    print(json.dumps({"file": str(args.out), "bytes": written, "streams": streams}))


if __name__ == "__main__":
    main()
