"""A minimal writer of captures: Ethernet, IPv4, TCP, classic pcap with microseconds. Standard library only.

TCP checksums are left zero: with offload a capture holds none that are right, and an observer must not ask for them.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable
from typing import BinaryIO

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MTU_PAYLOAD = 1448
_RECORD = struct.Struct("<IIII")
_TCP = struct.Struct(">HHIIBBHHH")
_MACS = bytes.fromhex("020000000002020000000001")


def file_header(snaplen: int = 262_144, link_type: int = 1) -> bytes:
    """The first 24 bytes: little-endian, microseconds."""
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snaplen, link_type)


def address(text: str) -> bytes:
    """Dotted IPv4 as bytes."""
    return bytes(int(part) for part in text.split("."))


def ipv4_header(source: bytes, target: bytes, payload_length: int) -> bytes:
    """A header without options, with its checksum; protocol TCP."""
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + payload_length, 0, 0x4000, 64, 6, 0, source, target)
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack(">H", ~total & 0xFFFF) + head[12:]


def record(at_us: int, frame: bytes, claimed: int | None = None) -> bytes:
    """A packet as it stands in the file; `claimed` lies about its length."""
    length = len(frame) if claimed is None else claimed
    return _RECORD.pack(at_us // 1_000_000, at_us % 1_000_000, length, length) + frame


def frame(
    source: tuple[bytes, int], target: tuple[bytes, int], seq: int, ack: int, flags: int, payload: bytes = b""
) -> bytes:
    """An Ethernet frame with one TCP segment."""
    tcp = _TCP.pack(source[1], target[1], seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 5 << 4, flags, 0xFFFF, 0, 0)
    ip = ipv4_header(source[0], target[0], len(tcp) + len(payload))
    return _MACS + b"\x08\x00" + ip + tcp + payload


class Connection:
    """One TCP connection written into a capture, packet by packet, with right sequence numbers."""

    def __init__(self, out: BinaryIO, client: tuple[str, int], server: tuple[str, int], at_us: int) -> None:
        self.out, self.now_us = out, at_us
        self.ends = ((address(client[0]), client[1]), (address(server[0]), server[1]))
        self.seq = [1_000, 5_000_000]
        self._packet(0, SYN)
        self._packet(1, SYN | ACK)
        self.seq = [self.seq[0] + 1, self.seq[1] + 1]
        self._packet(0, ACK)

    def _packet(self, end: int, flags: int, payload: bytes = b"") -> None:
        ack = 0 if flags == SYN else self.seq[1 - end] + (1 if flags & SYN else 0)
        segment = frame(self.ends[end], self.ends[1 - end], self.seq[end], ack, flags, payload)
        self.out.write(record(self.now_us, segment))
        self.now_us += 1

    def send(self, end: int, data: bytes, at_us: int | None = None, size: int = MTU_PAYLOAD) -> None:
        """Data from the client (end 0) or the server (end 1), cut into segments of `size`."""
        self.now_us = self.now_us if at_us is None else at_us
        for start in range(0, len(data), size):
            part = data[start : start + size]
            self._packet(end, ACK | PSH, part)
            self.seq[end] += len(part)

    def close(self, end: int = 0) -> None:
        """FIN from one end, then from the other."""
        for side in (end, 1 - end):
            self._packet(side, FIN | ACK)
            self.seq[side] += 1
        self._packet(end, ACK)


def http_request(body: bytes, path: str = "/v1/chat/completions", extra: str = "") -> bytes:
    """A POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: api.example.test\r\nContent-Type: application/json\r\n{extra}"
    return (head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def http_head(extra: str = "Transfer-Encoding: chunked\r\n", kind: str = "text/event-stream") -> bytes:
    """The head of a 200."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{extra}\r\n".encode()


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def chat_event(response_id: str, text: str) -> bytes:
    """A chat-completions event with generated text."""
    return (
        f'data: {{"id":"{response_id}","object":"chat.completion.chunk","created":1700000000,"model":"test-1",'
        f'"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}\n\n'
    ).encode()


def chat_end(response_id: str, tokens: int) -> bytes:
    """The usage event and the terminator."""
    return (
        f'data: {{"id":"{response_id}","object":"chat.completion.chunk","model":"test-1","choices":[],'
        f'"usage":{{"prompt_tokens":5,"completion_tokens":{tokens},"total_tokens":{tokens + 5}}}}}\n\n'
        "data: [DONE]\n\n"
    ).encode()


CHAT_BODY = b'{"model":"test-1","stream":true,"messages":[{"role":"user","content":"go"}]}'


def healthy_stream(out: BinaryIO, response_id: str, at_us: int, port: int = 39_999, tokens: int = 10) -> int:
    """A whole, ordinary stream on a connection of its own; returns the instant after it."""
    connection = Connection(out, ("10.9.9.9", port), ("10.0.0.1", 8000), at_us)
    connection.send(0, http_request(CHAT_BODY))
    connection.send(1, http_head(), at_us + 50_000)
    for index in range(tokens):
        connection.send(1, chunk(chat_event(response_id, f" t{index}")), at_us + 100_000 + index * 10_000)
    connection.send(1, chunk(chat_end(response_id, tokens)) + b"0\r\n\r\n", at_us + 100_000 + tokens * 10_000)
    connection.close()
    return connection.now_us


def whole_capture(response_id: str, at_us: int) -> bytes:
    """A good capture with one healthy stream."""
    out = io.BytesIO()
    out.write(file_header())
    healthy_stream(out, response_id, at_us)
    return out.getvalue()


def gzip_repeated(before: bytes, block: bytes, times: int, after: bytes) -> Iterable[bytes]:
    """A gzip stream of `before`, `block` x `times` and `after`, in pieces. The block is deflated once: a full flush
    makes it independent of what precedes it."""
    crc, size = zlib.crc32(before), len(before) + len(block) * times + len(after)

    def deflated(data: bytes, end: int) -> bytes:
        machine = zlib.compressobj(9, zlib.DEFLATED, -15)
        return machine.compress(data) + machine.flush(end)

    yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + deflated(before, zlib.Z_FULL_FLUSH)
    piece = deflated(block, zlib.Z_FULL_FLUSH)
    for _ in range(times):
        crc = zlib.crc32(block, crc)
        yield piece
    crc = zlib.crc32(after, crc)
    yield deflated(after, zlib.Z_FINISH) + struct.pack("<II", crc, size & 0xFFFFFFFF)
