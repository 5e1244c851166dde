"""An event as the structure behind the tap symbol: a bytearray that is kept as long as the request lives and told again and again."""
import struct

from . import tap

VERSION = 1
FIXED = 80
NAME = 160

KINDS = {"received": 1, "queued": 2, "scheduled": 3, "first_token": 4, "tokens": 5, "finished": 6, "preempted": 7, "cancelled": 8}
FINISH = {"stop": 1, "length": 2, "error": 3, "other": 4}

# Bits of `present`, and where the number is.
NEW, PROMPT, CACHED, OUTPUT, CHUNK, ENGINE, WHY, DRAFTED, ACCEPTED, BATCH = ((1 << i) for i in range(10))
_ONCE = NEW | CHUNK | DRAFTED | ACCEPTED

_HEAD = struct.Struct("=6H")
_WHAT = struct.Struct("=2H")  # kind and present
_U32 = struct.Struct("=I")
_MAX = 0xFFFFFFFF


def _name(text):
    """At most NAME bytes, up to a character's end."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= NAME else raw[:NAME].decode("utf-8", "ignore").encode()


class Request:
    """One request of the engine. Of one thread at a time, as the request is."""

    __slots__ = ("_event", "_tell", "_present")

    def __init__(self, request, *, model=None, traceparent=None, engine=None, to=None):
        """`request`: its id, as clients see it where they do. `to`: where events go; the tap symbol, or a Client."""
        rid, name = _name(request), _name(model) if model else b""
        event = bytearray(FIXED) + rid + name
        _HEAD.pack_into(event, 0, FIXED, VERSION, 0, 0, len(rid), len(name))
        self._event, self._present = event, 0
        self._tell = (tap if to is None else to).tell
        if engine is not None:
            self._number(ENGINE, 32, engine)
        if traceparent:
            parts = traceparent.split("-")
            try:
                trace, span = bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
            except (IndexError, ValueError):
                trace = span = b""
            if len(trace) == 16 and len(span) == 8:
                event[56:72], event[72:80] = trace, span

    def _number(self, bit, at, value):
        _U32.pack_into(self._event, at, min(max(int(value), 0), _MAX))
        self._present |= bit

    def tell(self, kind, *, new_tokens=None, prompt_tokens=None, cached_tokens=None, output_tokens=None, chunk_bytes=None, batch=None, drafted=None, accepted=None, finish=None):
        """Tells that this happened, with what numbers there are; kind is a key of KINDS. Prompt, cached and output tokens and the batch are
        told again with every later event."""
        if new_tokens is not None:
            self._number(NEW, 12, new_tokens)
        if prompt_tokens is not None:
            self._number(PROMPT, 16, prompt_tokens)
        if cached_tokens is not None:
            self._number(CACHED, 20, cached_tokens)
        if output_tokens is not None:
            self._number(OUTPUT, 24, output_tokens)
        if chunk_bytes is not None:
            self._number(CHUNK, 28, chunk_bytes)
        if finish is not None:
            self._number(WHY, 36, FINISH.get(finish, FINISH["other"]))
        if drafted is not None:
            self._number(DRAFTED, 40, drafted)
        if accepted is not None:
            self._number(ACCEPTED, 44, accepted)
        if batch is not None:
            self._number(BATCH, 48, batch)
        _WHAT.pack_into(self._event, 4, KINDS[kind], self._present)
        self._tell(self._event)
        self._present &= ~_ONCE

    def received(self, **numbers):
        """The server has the request (before its tokeniser)."""
        self.tell("received", **numbers)

    def queued(self, **numbers):
        """It waits for the engine."""
        self.tell("queued", **numbers)

    def scheduled(self, **numbers):
        """The engine began to work on it (again, after a preemption)."""
        self.tell("scheduled", **numbers)

    def first_token(self, **numbers):
        """Its first token is there; new_tokens says when there are more."""
        self.tell("first_token", **numbers)

    def tokens(self, n):
        """So many tokens more. The short way of tell("tokens", new_tokens=n)."""
        event = self._event
        _U32.pack_into(event, 12, n)
        _WHAT.pack_into(event, 4, 5, self._present | NEW)
        self._tell(event)

    def finished(self, finish="stop", **numbers):
        """It ended by itself; finish is a key of FINISH."""
        self.tell("finished", finish=finish, **numbers)

    def preempted(self):
        """It had to give up its place for others and waits again."""
        self.tell("preempted")

    def cancelled(self):
        """Its client did not want it any more."""
        self.tell("cancelled")
