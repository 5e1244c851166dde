"""A plain HTTP server that streams like OpenAI, and TLS relays before it: the same exchange travels encrypted and plain.

Prints {"plain": PORT, "tls12": PORT, "tls13": PORT, "retry": PORT} once it listens. The model's name is its schedule: `s5x20` streams
5 chunks, one every 20 ms; `big` answers at once with 200 KB.

Usage: server.py CERT KEY [CERT KEY…]
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import sys
import threading
import time
from typing import Callable

WORDS = "a record is whole or it is lost and what is lost is said so that nothing else is".split()


def listen() -> socket.socket:
    """A listening loopback socket."""
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def serve(server: socket.socket, handle: Callable[[socket.socket], None]) -> None:
    """One thread per connection."""

    def guarded(peer: socket.socket) -> None:
        try:
            handle(peer)
        except OSError as error:
            print(f"connection: {error}", file=sys.stderr)
        finally:
            peer.close()

    while True:
        peer, _ = server.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=guarded, args=(peer,), daemon=True).start()


def answer(peer: socket.socket) -> None:
    """HTTP/1.1 with keep-alive."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            more = peer.recv(65536)
            if not more:
                return
            buffer += more
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        length = int({k.lower(): v for k, v in fields.items()}["content-length"])
        while len(buffer) < length:
            buffer += peer.recv(65536)
        request, buffer = json.loads(buffer[:length]), buffer[length:]
        stream(peer, request["model"], request["user"])


def stream(peer: socket.socket, model: str, name: str) -> None:
    """An answer as the model's name says."""
    common = {"id": f"chatcmpl-{name}", "created": 1, "model": model}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    if model == "big":
        message = {"role": "assistant", "content": " ".join(WORDS * 2500)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({**common, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        peer.sendall(head.encode() + body)
        return
    chunks, _, pace = model[1:].partition("x")

    def event(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        text = json.dumps({**common, "object": "chat.completion.chunk", "choices": choices, **more})
        data = f"data: {text}\n\n".encode()
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for n in range(int(chunks)):
        time.sleep(int(pace) / 1000)
        peer.sendall(event({"content": WORDS[n % len(WORDS)] + " "}))
    peer.sendall(event({}, "stop", usage={**usage, "completion_tokens": int(chunks)}))
    peer.sendall(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def relay(context: ssl.SSLContext, plain_port: int, peer: socket.socket) -> None:
    """Takes TLS off one connection. One thread: an SSL object is not for two."""
    tls = context.wrap_socket(peer, server_side=True)
    back = socket.create_connection(("127.0.0.1", plain_port))
    back.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls.settimeout(10)
    try:
        while True:
            ready = [tls] if tls.pending() else select.select([tls, back], [], [])[0]
            if tls in ready:
                tls.setblocking(False)
                try:
                    data = tls.recv(1 << 16)
                except ssl.SSLWantReadError:
                    continue  # a key update, or a part of a record
                finally:
                    tls.settimeout(10)
                if not data:
                    return
                back.sendall(data)
            if back in ready:
                data = back.recv(1 << 18)
                if not data:
                    tls.unwrap()
                    return
                tls.sendall(data)
    finally:
        back.close()
        tls.close()


def main() -> None:
    """Starts everything."""
    plain = listen()
    plain_port = plain.getsockname()[1]
    threading.Thread(target=serve, args=(plain, answer), daemon=True).start()
    ports = {"plain": plain_port}
    versions = {"tls12": ssl.TLSVersion.TLSv1_2, "tls13": ssl.TLSVersion.TLSv1_3, "retry": ssl.TLSVersion.TLSv1_3}
    for name, version in versions.items():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for cert, key in zip(sys.argv[1::2], sys.argv[2::2]):
            context.load_cert_chain(cert, key)
        context.minimum_version = context.maximum_version = version
        if version == ssl.TLSVersion.TLSv1_2:
            context.set_ciphers("ALL:@SECLEVEL=0")
        if name == "retry":
            context.set_ecdh_curve("secp384r1")  # no client offers a share of it at first
        server = listen()
        ports[name] = server.getsockname()[1]
        handle = lambda peer, context=context: relay(context, plain_port, peer)  # noqa: E731
        threading.Thread(target=serve, args=(server, handle), daemon=True).start()
    print(json.dumps(ports), flush=True)
    threading.Event().wait()


main()
