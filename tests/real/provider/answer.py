"""What every wire shares: the schedule, the invented texts, and an answer as pieces with the instants they are due.

A wire (`openai_wire.py`, …) turns a request into an `Answer`; `app.py` writes it and notes when it did. Nothing here
knows HTTP. The schedule is absolute: a piece that comes late does not move the ones after it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Seconds after the request was read.
HEAD_AT, FIRST_AT, GAP, STALL, TAIL, PLAIN_AT, ERROR_AT = 0.06, 0.15, 0.025, 0.125, 0.05, 0.30, 0.03
# Outputs of a stream; after how many of them it stalls; outputs of a stream that the client is meant to leave.
OUTPUTS, STALL_AFTER, CANCEL_OUTPUTS = 12, 6, 240
REASONING = 3  # of the outputs, where an API shows reasoning

WORDS = "the harbour keeps its lamps lit until last boat comes home while old clocks argue about noon and rain".split()
TOOL_NAME, TOOL_ARGUMENTS = "look_up_tide", ['{"har', 'bour": "', "Nor", "th", '", "hour', '": 1', "7}"]
CASES = ("warm", "stream", "plain", "tool", "error", "cancel", "fault", "cut", "gzip", "embed")


@dataclass
class Asked:
    """A request, as a wire needs it."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]
    model: str = ""

    @property
    def case(self) -> str:
        """Which answer is wanted: the model's name says it, so that every SDK can ask for every case."""
        return next((case for case in CASES if f"-{case}" in self.model), "plain")

    @property
    def serial(self) -> int:
        """A number that depends on the model's name only: counts and ids are made from it."""
        return zlib.crc32(self.model.encode())

    @property
    def input_tokens(self) -> int:
        """Invented, and no round number."""
        return 21 + self.serial % 70

    @property
    def output_tokens(self) -> int:
        """Invented; never the number of chunks, so that whoever divides by chunks is found out."""
        return 37 + self.serial // 70 % 40

    def outputs(self) -> list[str]:
        """The words of a streamed text, one per output event."""
        count = {"cancel": CANCEL_OUTPUTS, "warm": REASONING + 2}.get(self.case, OUTPUTS)
        return [f"{WORDS[n % len(WORDS)]} " for n in range(count)]

    def identity(self, prefix: str) -> str:
        """A response id."""
        return f"{prefix}{self.serial:08x}rig"


@dataclass
class Piece:
    """Bytes that are written at once, and what they are to whoever measures."""

    data: bytes
    at: float
    output: str | None = None  # text | reasoning | tool
    events: int = 1  # complete events of the API; keep-alives and terminators like [DONE] are none


@dataclass
class Answer:
    """A response and what is true of it. `None` in `truth` means: this wire does not say it."""

    api: str
    content_type: str
    pieces: list[Piece] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    truth: dict[str, Any] = field(default_factory=dict)
    streaming: bool = True


class Script:
    """Lays pieces on the schedule."""

    def __init__(self, answer: Answer, frame: Callable[..., bytes]) -> None:
        self.answer = answer
        self.frame = frame
        self.outputs = 0

    def _add(self, at: float, output: str | None, events: int, message: tuple[Any, ...]) -> None:
        self.answer.pieces.append(Piece(self.frame(*message), at, output, events))

    def head(self, *message: Any, events: int = 1) -> None:
        """A message before any output."""
        self._add(HEAD_AT, None, events, message)

    def output(self, kind: str, *message: Any) -> None:
        """A message with generated output: the next instant of the schedule."""
        at = FIRST_AT + self.outputs * GAP + (STALL - GAP if self.outputs > STALL_AFTER else 0)
        self.outputs += 1
        self._add(at, kind, 1, message)

    def beside(self, *message: Any, events: int = 1) -> None:
        """A message without output, at the instant of the piece before it."""
        self._add(self.answer.pieces[-1].at if self.answer.pieces else HEAD_AT, None, events, message)

    def tail(self, *message: Any, events: int = 1) -> None:
        """A message after the last output."""
        last = FIRST_AT + (self.outputs - 1) * GAP + STALL - GAP
        self._add(last + TAIL, None, events, message)

    def raw(self, data: bytes) -> None:
        """Bytes that are no event, at the instant of the piece before them."""
        self.answer.pieces.append(Piece(data, self.answer.pieces[-1].at, None, 0))


def sse(message: Any, event: str | None = None) -> bytes:
    """A server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(message, separators=(',', ':'))}\n\n".encode()


def line(message: Any) -> bytes:
    """A line of JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def whole(api: str, body: Any, asked: Asked, **truth: Any) -> Answer:
    """An answer in one piece."""
    return Answer(
        api, "application/json", [Piece(json.dumps(body).encode(), PLAIN_AT, None, 0)], streaming=False, truth=truth
    )


def refused(api: str, body: Any, kinds: list[str], status: int = 429, headers: dict[str, str] | None = None) -> Answer:
    """An HTTP error; `kinds` are the provider's own words for it: type, code, class."""
    return Answer(
        api, "application/json", [Piece(json.dumps(body).encode(), ERROR_AT, None, 0)], status=status,
        headers={"retry-after": "7"} | (headers or {}), streaming=False, truth={"error_types": kinds},
    )  # fmt: skip


def fault(script: Script, kinds: list[str], *message: Any) -> Answer:
    """An error inside a 200 after what was sent so far: one more event, and the end of the body."""
    script.beside(*message)
    script.answer.truth |= {"error_types": kinds, "faulty": True, "input_tokens": None, "output_tokens": None, "finish": []}
    return script.answer
