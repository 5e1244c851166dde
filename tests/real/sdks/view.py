"""What every SDK's calls share: a view (what the SDK made of an answer, with its own stamps), one spelling for
synchronous and asynchronous clients, and the resolver that leads every host to loopback.

A view's line: `model`, `client`, `sdk`, `mode`, `front`, `http` (asked for), `wire`, `case`, `begin_ns`, `outputs_ns` (each event in
which the SDK showed output), `end_ns`, `id`, `finish`, `input_tokens`, `output_tokens`, `status` and `error` (what the SDK
raised).
"""

from __future__ import annotations

import inspect
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

API_KEY = "sk-planted-tokengauge-secret-5c1e"
PROMPT = "planted-prompt-phrase: go on about the harbour and its clocks"
MESSAGES: list[dict[str, str]] = [{"role": "user", "content": PROMPT}]
CANCEL_AFTER = 4
STREAMED = ("warm", "stream", "tool", "cancel", "fault", "cut", "gzip", "error")
# A pause between the two readings makes the difference too small, never too large.
_EPOCH_NS = max(time.time_ns() - time.monotonic_ns() for _ in range(20))


def now_ns() -> int:
    """Nanoseconds since the epoch that never step."""
    return time.monotonic_ns() + _EPOCH_NS


@dataclass
class Link:
    """Where and how to connect."""

    port: int
    front: str
    http2: bool
    asynchronous: bool

    def base(self, host: str) -> str:
        """The URL of a provider's host at the front's port."""
        return f"https://{host}:{self.port}"

    def pick(self, synchronous: Any, asynchronous: Any) -> Any:
        """One of two by the mode."""
        return asynchronous if self.asynchronous else synchronous


class View:
    """One call, as the SDK sees it."""

    def __init__(self, sdk: str, wire: str, case: str, link: Link, prefix: str = "") -> None:
        mode, http = link.pick("sync", "asyncio"), "h2" if link.http2 else "h1"
        client = f"{sdk}.{mode}.{http}.{link.front}"
        self.case = case
        self.model = f"{prefix}{client}.{wire}-{case}"
        self.line: dict[str, Any] = {
            "model": self.model, "client": client, "sdk": sdk, "mode": mode, "front": link.front, "http": http,
            "wire": wire, "case": case, "begin_ns": now_ns(), "outputs_ns": [], "end_ns": None, "id": None, "finish": None,
            "input_tokens": None, "output_tokens": None, "status": 200, "error": None,
        }  # fmt: skip

    @property
    def streaming(self) -> bool:
        """Whether the case asks for a stream."""
        return self.case in STREAMED

    def output(self, shown: Any) -> bool:
        """Notes an event with output, if `shown` is any; true once a client that means to leave has seen enough."""
        if shown:
            self.line["outputs_ns"].append(now_ns())
        return self.case == "cancel" and len(self.line["outputs_ns"]) >= CANCEL_AFTER

    def told(self, identity: Any = None, finish: Any = None, tokens: tuple[Any, Any] | None = None) -> None:
        """What the SDK showed of the answer's metadata; None leaves what was known."""
        self.line["id"] = identity or self.line["id"]
        self.line["finish"] = str(getattr(finish, "value", finish)) if finish else self.line["finish"]
        if tokens is not None and tokens[0] is not None:
            self.line["input_tokens"], self.line["output_tokens"] = tokens

    def raised(self, error: BaseException) -> None:
        """An exception, and the HTTP status that it carries under whatever name."""
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None) or getattr(error, "code", None) or getattr(response, "status_code", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", status)
        self.line["status"] = status if isinstance(status, int) and status > 0 else self.line["status"]
        self.line["error"] = f"{type(error).__name__}: {error}"[:300]

    def write(self, out: Path) -> None:
        """One write, so that lines of clients that run at once do not mix. A warming call has none: an SDK builds its
        models at its first event, and reads the next one late."""
        if self.case == "warm":
            return
        self.line["end_ns"] = now_ns()
        fd = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(self.line) + "\n").encode())
        os.close(fd)


async def got(value: Any) -> Any:
    """A result, awaited if it has to be: so that a call is written once for both kinds of client."""
    return await value if inspect.isawaitable(value) else value


async def each(stream: Any) -> AsyncIterator[Any]:
    """The events of either kind of stream."""
    if hasattr(stream, "__aiter__"):
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


async def close(thing: Any) -> None:
    """Ends a stream or a client, however it calls that."""
    for name in ("aclose", "close"):
        end = getattr(thing, name, None)
        if callable(end):
            await got(end())
            return


def lead_home() -> None:
    """Resolves every name to loopback, in this process only: so that the Host header is a provider's own."""
    real: Callable[..., Any] = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        return real("127.0.0.1", port, *args, **kwargs)

    socket.getaddrinfo = resolve
