"""What the Python clients share: the cases they run, and a line of truth per request with the client's own stamps.

A line of truth: `client`, `case` (stream | cancel | plain | error), `model` (unique: by it records are found), `id`,
`status`, `outcome`, `local` (own [address, port], or null), `t_send_ns` (directly before the request was written),
`outputs_ns` (each event with text, when the client had it), `end_ns`, `input_tokens`, `output_tokens`,
`server_ms_per_token` and `server_prompt_ms` (llama.cpp's own `timings`, where the API carries them).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

API_KEY = "sk-planted-tokengauge-secret-5c1e"
PROMPT = "planted-prompt-phrase: go on about the time and the other people"
TOKENS, CANCEL_AFTER, CANCEL_TOKENS, PLAIN_TOKENS = 64, 10, 600, 24
STREAMS = 3
# llama.cpp's own parameters: random weights may draw the end token, and its timings must ride in the stream.
LLAMA = {"ignore_eos": True, "timings_per_token": True}

_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Nanoseconds since the epoch that never step: monotonic, plus an offset read once."""
    return time.monotonic_ns() + _EPOCH_NS


class Truth:
    """One request, as the client saw it."""

    def __init__(self, client: str, case: str, number: int = 0) -> None:
        self.line: dict[str, Any] = {
            "client": client,
            "case": case,
            "model": f"{client}-{case}-{number}",
            "id": None,
            "status": None,
            "outcome": {"cancel": "cancelled", "error": "failed"}.get(case, "completed"),
            "local": None,
            "t_send_ns": None,
            "outputs_ns": [],
            "end_ns": None,
            "input_tokens": None,
            "output_tokens": None,
            "server_ms_per_token": None,
            "server_prompt_ms": None,
        }

    @property
    def model(self) -> str:
        """The request's model name: unique, and passed through by llama.cpp."""
        return self.line["model"]

    @property
    def outputs(self) -> int:
        """How many events with text have come."""
        return len(self.line["outputs_ns"])

    def sent(self) -> None:
        """The request is about to be written."""
        self.line["t_send_ns"] = now_ns()

    def output(self) -> None:
        """An event with text has come."""
        self.line["outputs_ns"].append(now_ns())

    def usage(self, input_tokens: int | None, output_tokens: int | None) -> None:
        """Totals as the provider told the client; None leaves what was known."""
        if input_tokens is not None:
            self.line["input_tokens"] = input_tokens
        if output_tokens is not None:
            self.line["output_tokens"] = output_tokens

    def timings(self, timings: dict[str, float] | None) -> None:
        """llama.cpp's own figures; the last ones count."""
        if timings:
            self.line["server_ms_per_token"] = timings["predicted_per_token_ms"]
            self.line["server_prompt_ms"] = timings["prompt_ms"]

    def response(self, status: int, response_id: str | None = None) -> None:
        """Status and, once known, the id."""
        self.line["status"] = status
        self.line["id"] = response_id or self.line["id"]

    def local(self, response: Any) -> None:
        """The socket's own end, from httpx's network stream."""
        stream = response.extensions.get("network_stream")
        address = stream.get_extra_info("client_addr") if stream is not None else None
        if address:
            self.line["local"] = [address[0], address[1]]

    def write(self, out: Path) -> None:
        """Appends the line: one write, so that clients running at once do not mix theirs. The case `warm` has none:
        an SDK's first stream builds its models and would stamp its first event tens of milliseconds late."""
        if self.line["case"] == "warm":
            return
        self.line["end_ns"] = self.line["end_ns"] or now_ns()
        fd = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(self.line) + "\n").encode())
        os.close(fd)


class SendStamp:
    """An httpx event hook that stamps the instant before the request line is written: after connecting, so that it is
    what an observer of the TLS library can see too."""

    def __init__(self) -> None:
        self.truth: dict[str, Truth] = {}

    def expect(self, truth: Truth) -> dict[str, str]:
        """Registers a request; returns the header that finds it again."""
        self.truth[truth.model] = truth
        return {"x-rig-request": truth.model}

    def hook(self, request: Any) -> None:
        """For `httpx.Client(event_hooks={"request": [...]})`."""
        truth = self.truth.get(request.headers.get("x-rig-request", ""))
        if truth is not None:
            request.extensions["trace"] = lambda name, _: truth.sent() if _is_send(name) else None

    async def hook_async(self, request: Any) -> None:
        """The same for `httpx.AsyncClient`."""
        truth = self.truth.get(request.headers.get("x-rig-request", ""))
        if truth is None:
            return

        async def trace(name: str, _: Any) -> None:
            if _is_send(name):
                truth.sent()

        request.extensions["trace"] = trace


def _is_send(name: str) -> bool:
    return name.endswith("send_request_headers.started")


def arguments(description: str | None) -> argparse.Namespace:
    """The command line that all clients share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base", required=True, help="https://localhost:PORT")
    parser.add_argument("--out", required=True, type=Path, help="file to append truth to")
    parser.add_argument("--asyncio", action="store_true", help="the SDK's asynchronous client (memory BIOs)")
    parser.add_argument("--http2", action="store_true", help="HTTP/2")
    return parser.parse_args()
