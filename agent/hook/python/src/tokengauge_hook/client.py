"""The Unix socket: events go into a bounded queue, a thread sends them. Nobody who tells an event ever waits for the agent.

When the agent is away the oldest events are dropped and counted, and the agent is told how many with the next batch.
"""
import collections
import os
import socket
import struct
import threading
import time
import weakref

VERSION = 1
QUEUE = 8192
BATCH = 128  # below the agent's bound for messages (64 KiB), even when each event has texts of full length
GATHER = 0.005  # seconds that events are gathered before they are sent
WRITE_WITHIN = 0.5
AGAIN = (0.1, 5.0)  # seconds until it connects again, at first and at most

_FIXED = struct.Struct("=6H11I")
_LENGTH = struct.Struct("<I")
# Where the numbers of the structure go: field of the message by bit of `present`, in the structure's order.
_FIELDS = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14)

_clients = weakref.WeakSet()


def _varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(field, value):
    return _varint(field << 3) + _varint(value)


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def message(events, sent_at, dropped):
    """A batch as tokengauge_hook.proto has it, with its length in front. `events`: pairs of an instant and a structure."""
    body = [_integer(1, VERSION), _integer(2, sent_at), _integer(3, dropped)]
    for at, event in events:
        _, _, kind, present, request, model, *numbers = _FIXED.unpack_from(event)
        parts = [_integer(1, at), _integer(2, kind), _bytes(3, event[80 : 80 + request])]
        if model:
            parts.append(_bytes(4, event[80 + request : 80 + request + model]))
        parts += [_integer(field, numbers[i]) for i, field in enumerate(_FIELDS) if present >> i & 1]
        if any(event[56:72]):
            parts += [_bytes(15, event[56:72]), _bytes(16, event[72:80])]
        body.append(_bytes(4, b"".join(parts)))
    whole = b"".join(body)
    return _LENGTH.pack(len(whole)) + whole


class Client:
    """The way to the agent's socket. Give it to requests: Request(id, to=client)."""

    def __init__(self, path="/run/tokengauge/hook.sock", queue=QUEUE):
        self._path, self._most = path, queue
        self.sent = 0
        self._begin()
        _clients.add(self)

    def _begin(self):
        self._waiting = collections.deque()
        self.dropped = 0
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._ended = False
        self._thread = None

    def tell(self, event):
        """Takes the structure as it is now. Returns at once."""
        told = (time.monotonic_ns(), bytes(event))
        with self._lock:  # held for no longer than it takes to move a few events
            waiting = self._waiting
            if len(waiting) >= self._most:
                waiting.popleft()
                self.dropped += 1
            waiting.append(told)
            wake = len(waiting) == 1
            start = self._thread is None and not self._ended
            if start:
                self._thread = threading.Thread(target=self._run, name="tokengauge-hook", daemon=True)
        if start:
            self._thread.start()
        if wake:
            self._more.set()

    def close(self, within=1.0):
        """Sends what waits, if that is possible, and ends."""
        self._ended = True
        self._more.set()
        if self._thread is not None:
            self._thread.join(within)

    def _take(self):
        with self._lock:
            n = min(len(self._waiting), BATCH)
            batch = [self._waiting.popleft() for _ in range(n)]
            if not self._waiting:
                self._more.clear()
            return batch, self.dropped

    def _run(self):
        stream, pause = None, AGAIN[0]
        while True:
            if not self._waiting:
                if self._ended:
                    return
                self._more.wait()
                if not self._waiting:
                    # Only close() wakes it with nothing to do.
                    if not self._ended:
                        self._more.clear()
                    continue
            if stream is None:
                try:
                    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    stream.settimeout(WRITE_WITHIN)
                    stream.connect(self._path)
                    pause = AGAIN[0]
                except OSError:
                    stream.close()
                    stream = None
                    if self._ended:
                        return
                    time.sleep(pause)
                    pause = min(pause * 2, AGAIN[1])
                    continue
            if len(self._waiting) < BATCH and not self._ended:
                time.sleep(GATHER)
            batch, dropped = self._take()
            try:
                stream.sendall(message(batch, time.monotonic_ns(), dropped))
                self.sent += len(batch)
            except OSError:
                # The agent is gone, or it did not read in time: what of the batch arrived is not known.
                stream.close()
                stream = None
                with self._lock:
                    self.dropped += len(batch)


def _after_fork():
    # The child has no thread, and what waits is its parent's.
    for client in list(_clients):
        client._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
