"""What the test rigs share: child processes that cannot outlive them, the agent under test, and the score.

Standard library only. Every rig prints one line per check and ends with `N passed, N failed`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("TOKENGAUGE_CACHE", ROOT / "target" / "real"))
AGENT = Path(os.environ.get("TOKENGAUGE", ROOT / "target" / "release" / "tokengauge"))
_LIBC = ctypes.CDLL(None, use_errno=True)

Record = dict[str, Any]


# Checks ------------------------------------------------------------------------------------------------------------


class Score:
    """Counts checks and prints each failure where it happens."""

    def __init__(self, verbose: bool = True) -> None:
        self.passed = 0
        self.failed = 0
        self.verbose = verbose

    def check(self, holds: bool, what: str) -> bool:
        """One check; returns what it was given, so that dependent checks can be left out."""
        if holds:
            self.passed += 1
        else:
            self.failed += 1
        if self.verbose or not holds:
            print(f"{'ok  ' if holds else 'FAIL'}  {what}", flush=True)
        return holds

    def finish(self) -> NoReturn:
        """The last line and the exit code."""
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)


def quantile(values: Iterable[float], q: float) -> float:
    """Quantile by linear interpolation; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def read_jsonl(path: Path) -> list[Record]:
    """All whole lines of a JSON-lines file; a missing file is an empty one."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


# Children ----------------------------------------------------------------------------------------------------------


def _die_with_parent() -> None:
    _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG


class Children:
    """Child processes, each in its own process group; leaving the `with` block ends them all."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Children:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._running):
            self.stop(child)

    def start(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a child that the kernel ends if this process dies."""
        child = subprocess.Popen(
            [str(word) for word in command], start_new_session=True, preexec_fn=_die_with_parent, **options
        )
        self._running.append(child)
        return child

    def stop(self, child: subprocess.Popen[bytes], grace: float = 10.0) -> int:
        """SIGTERM, then SIGKILL to the whole group; returns the exit code."""
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(grace)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if child in self._running:
            self._running.remove(child)
        return child.wait()


def first_json_line(child: subprocess.Popen[bytes], seconds: float = 20.0) -> Record:
    """The line of JSON with which a server says where it listens."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    line = child.stdout.readline() if ready else b""
    if not line:
        raise RuntimeError(f"{child.args!r}: said nothing on standard output")
    return json.loads(line)


def free_port() -> int:
    """A loopback port that was free a moment ago, for servers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port: int, child: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    """Returns once something accepts on the port; fails when the child ends first."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"{child.args!r}: ended with {child.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{child.args!r}: not listening on {port} after {seconds} s")


def make_certificate(folder: Path, names: Sequence[str] = ()) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and further names; returns certificate and key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=" + ",".join(["IP:127.0.0.1", *(f"DNS:{name}" for name in ("localhost", *names))])]
        + ["-out", str(cert), "-keyout", str(key)],
        check=True,
        capture_output=True,
    )
    return cert, key


# The agent under test ------------------------------------------------------------------------------------------------


def bpf_refusal() -> str | None:
    """Why this kernel will not give us BPF, or None: asked by creating a one-entry array map."""
    if sys.platform != "linux":
        return "not Linux"
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
    if number is None:
        return f"no bpf(2) number known for {os.uname().machine}"
    attributes = (ctypes.c_uint32 * 32)(2, 4, 8, 1)  # BPF_MAP_TYPE_ARRAY, key size, value size, entries
    fd = _LIBC.syscall(number, 0, attributes, ctypes.sizeof(attributes))  # 0 = BPF_MAP_CREATE
    if fd < 0:
        return f"bpf(2): {errno.errorcode.get(ctypes.get_errno(), '?').lower()}"
    os.close(fd)
    return None


def skip_without_bpf() -> None:
    """Ends the rig with the reason when BPF is refused; a failure where TOKENGAUGE_REQUIRE_BPF=1."""
    reason = bpf_refusal()
    if reason is None:
        return
    required = os.environ.get("TOKENGAUGE_REQUIRE_BPF") == "1"
    print(f"{'FAIL' if required else 'skipped'}: BPF is refused here: {reason}")
    print(f"0 passed, {int(required)} failed")
    sys.exit(int(required))


class Agent:
    """`tokengauge run` as a child: its records, its stats and what it said."""

    def __init__(self, children: Children, folder: Path, *flags: str) -> None:
        if not AGENT.exists():
            raise SystemExit(f"no agent at {AGENT}: build it, or set TOKENGAUGE")
        self._children = children
        self.records_path = folder / "records.jsonl"
        self.stats_path = folder / "stats.json"
        self.log_path = folder / "agent.log"
        if b"--stats" in subprocess.run([AGENT, "run", "--help"], capture_output=True).stdout:
            flags = (*flags, "--stats", str(self.stats_path))
        with self.log_path.open("wb") as log:
            self.child = children.start(
                [AGENT, "run", "--jsonl", self.records_path, *flags], stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_until_tapping()

    def _wait_until_tapping(self, seconds: float = 15.0, fallback: float = 3.0) -> None:
        """Until its log has a line with `tapping`; an agent that never says so is given `fallback` seconds."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if b"tapping" in self.log_path.read_bytes():
                return
            if self.child.poll() is not None:
                raise SystemExit(f"the agent ended with {self.child.returncode}:\n{self.log()}")
            if time.monotonic() - start > fallback and not self.log_path.stat().st_size:
                return
            time.sleep(0.05)

    def log(self) -> str:
        """What the agent wrote to its standard output and error."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> list[Record]:
        """Ends the agent and returns its records."""
        self.exit_code = self._children.stop(self.child)
        return read_jsonl(self.records_path)

    def stats(self) -> Record:
        """The agent's final counters: the file of `--stats`, else the last JSON object of its log, else nothing."""
        if self.stats_path.exists():
            return json.loads(self.stats_path.read_text())
        for line in reversed(self.log().splitlines()):
            if line.startswith("{"):
                try:
                    return json.loads(line)
                except json.JSONDecodeError:
                    continue
        return {}


def cpu_seconds(pid: int) -> float:
    """User and system seconds that a living process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
