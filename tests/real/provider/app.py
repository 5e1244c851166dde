"""The ASGI application: routes a request to its wire, writes the answer when it is due, and a line of truth per answer.

A line of truth: `model`, `api`, `case`, `provider` (by the Host header), `protocol` (as it arrived here: behind a front
that is the front's choice), `streaming`, `status`, `received_ns`, `events` and `outputs` (of what was written; kind and
instant of each output), `end_ns`, `left` (the client went first), and what the wires put into `Answer.truth`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from . import anthropic_wire, bedrock_wire, cohere_wire, gemini_wire, ollama_wire, openai_wire, realtime_wire
from .answer import Answer, Asked

# A pause between the two readings makes the difference too small, never too large.
_EPOCH_NS = max(time.time_ns() - time.monotonic_ns() for _ in range(20))
Wire = Callable[[Asked], Answer]
ROUTES: list[tuple[str, Wire]] = [
    (r"/v1(beta)?/models/(?P<model>[^/:]+):(streamGenerateContent|generateContent)", gemini_wire.generate),
    (r"/model/(?P<model>[^/]+)/converse(-stream)?", bedrock_wire.converse),
    (r"/model/(?P<model>[^/]+)/invoke(-with-response-stream)?", bedrock_wire.invoke),
    (r"/openai/deployments/(?P<model>[^/]+)/chat/completions", openai_wire.chat),
    (r"/v1/chat/completions", openai_wire.chat),
    (r"/v1/completions", openai_wire.completions),
    (r"/v1/embeddings", openai_wire.embeddings),
    (r"/v1/responses", openai_wire.responses),
    (r"/v1/messages", anthropic_wire.messages),
    (r"/v2/chat", cohere_wire.chat_v2),
    (r"/v1/chat", cohere_wire.chat_v1),
    (r"/v2/embed", cohere_wire.embed),
    (r"/api/chat", ollama_wire.chat),
    (r"/api/generate", ollama_wire.generate),
    (r"/api/embed", ollama_wire.embed),
]


def now_ns() -> int:
    """Nanoseconds since the epoch that never step."""
    return time.monotonic_ns() + _EPOCH_NS


class Provider:
    """The application; `truth` is the file of lines."""

    def __init__(self, truth: Path) -> None:
        self.truth = truth

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self.http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self.websocket(scope, receive, send)
        else:
            await lifespan(receive, send)

    def write(self, line: dict[str, Any]) -> None:
        """One write, so that lines do not mix."""
        fd = os.open(self.truth, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(line) + "\n").encode())
        os.close(fd)

    async def http(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        received = now_ns()
        asked, wire = route(scope, body)
        if wire is None:
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        answer = wire(asked)
        if asked.case == "cut":
            cut_short(answer)
        coded = asked.case == "gzip" and "gzip" in asked.headers.get("accept-encoding", "")
        headers = {"content-type": answer.content_type} | answer.headers
        if coded:
            headers["content-encoding"] = "gzip"
        elif not answer.streaming:
            headers["content-length"] = str(sum(len(piece.data) for piece in answer.pieces))
        start = {"type": "http.response.start", "status": answer.status}
        start["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
        deflate = zlib.compressobj(wbits=31) if coded else None

        async def put(data: bytes) -> None:
            nonlocal start
            if deflate:
                data = deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)
            if start:
                start, first = {}, start
                await send(first)
            await send({"type": "http.response.body", "body": data, "more_body": True})

        line = begin(scope, asked, answer, received)
        gone = asyncio.create_task(disconnected(receive))
        await play(answer, line, put, gone)
        if not line["left"] and asked.case != "cut":
            if deflate:
                await send({"type": "http.response.body", "body": deflate.flush(zlib.Z_FINISH), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        gone.cancel()
        self.write(line)
        if asked.case == "cut":
            raise ConnectionAbortedError("cut on purpose: the server closes the connection, or resets the stream")

    async def websocket(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """A connection: the session, then a turn for each `response.create`."""
        await receive()  # websocket.connect
        asked, _ = route(scope, b"")
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": realtime_wire.session(asked).decode()})
        number = 0
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                return
            received = now_ns()
            if json.loads(message.get("text") or "{}").get("type") != "response.create":
                continue
            answer = realtime_wire.turn(asked, number)
            line = begin(scope, asked, answer, received) | {"turn": number}
            number += 1
            await play(answer, line, lambda data: send({"type": "websocket.send", "text": data.decode()}), None)
            self.write(line)


def route(scope: dict[str, Any], body: bytes) -> tuple[Asked, Wire | None]:
    """The request and the wire that answers it."""
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    query = dict(parse_qsl(scope["query_string"].decode()))
    try:
        told = json.loads(body or b"{}")
    except ValueError:
        told = {}
    raw = scope.get("raw_path", b"").decode().partition("?")[0] or scope["path"]
    asked = Asked(raw, query, headers, told, told.get("model") or query.get("model", ""))
    for pattern, wire in ROUTES:
        match = re.fullmatch(pattern, raw)
        if match:
            asked.model = asked.model or unquote(match.groupdict().get("model") or "")
            return asked, wire
    return asked, None


def cut_short(answer: Answer) -> None:
    """Nothing comes after the last output."""
    last = max(number for number, piece in enumerate(answer.pieces) if piece.output)
    del answer.pieces[last + 1 :]
    answer.truth |= {"error_types": ["closed_early", "connection_reset"], "finish": [], "input_tokens": None, "output_tokens": None}


def begin(scope: dict[str, Any], asked: Asked, answer: Answer, received: int) -> dict[str, Any]:
    """A line of truth before anything was written."""
    return {
        "model": asked.model, "api": answer.api, "case": asked.case, "host": asked.headers.get("host", ""),
        "protocol": scope.get("http_version", "?"), "streaming": answer.streaming, "status": answer.status,
        "received_ns": received, "events": 0, "outputs": [], "end_ns": None, "left": False,
    } | answer.truth  # fmt: skip


async def play(
    answer: Answer, line: dict[str, Any], put: Callable[[bytes], Awaitable[None]], gone: asyncio.Task[None] | None
) -> None:
    """Writes the pieces when they are due and notes it; ends early when the client has gone."""
    began = time.monotonic()
    for piece in answer.pieces:
        wait = began + piece.at - time.monotonic()
        if gone is not None:
            await asyncio.wait([gone], timeout=max(wait, 0))
            if gone.done():
                line["left"] = True
                break
        elif wait > 0:
            await asyncio.sleep(wait)
        if piece.output:
            line["outputs"].append([piece.output, now_ns()])
        line["events"] += piece.events
        await put(piece.data)
    line["end_ns"] = now_ns()


async def disconnected(receive: Any) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def lifespan(receive: Any, send: Any) -> None:
    """The server's start and stop: nothing to do."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
