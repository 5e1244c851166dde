#!/usr/bin/env python3
"""The hook with a real agent: servers in C, Rust and Python tell of their requests by the tap symbol and by the Unix socket.

Every event is accounted for (taken, or counted as lost), intervals are compared with the servers' own clocks, hostile and dying servers are
counted and hold nobody up, and the cost of a call is printed beside an empty call and beside an empty probe: ratios, no times are asserted.

    sudo tests/hook/run.py [--seconds 5] [--rate 50000]        # TOKENGAUGE=path of the agent; needs gcc, cargo and BPF
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, ROOT, Agent, Children, Score, free_port, skip_without_bpf  # noqa: E402
from stack import get, until  # noqa: E402

HOOK = ROOT / "agent" / "hook"
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
NOBODY = 65534

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


# What is built --------------------------------------------------------------------------------------------------------


def build(folder: Path) -> dict[str, list[str]]:
    """Servers in each language, and how each is started."""
    flags = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HOOK}/include"]
    source = str(HERE / "server.c")
    run = lambda command: subprocess.run(command, check=True)  # noqa: E731
    run([*flags, source, "-o", folder / "server", "-lpthread"])
    # Without any symbol: only the note is left to find it by.
    run([*flags, "-s", "-flto", "-Wl,--gc-sections", "-ffunction-sections", source, "-o", folder / "stripped", "-lpthread"])
    # A debug build, as C++, in a library with hidden symbols that another program loads.
    run(["g++", "-x", "c++", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{HOOK}/include", "-Wall", "-Werror", "-o", folder / "libtells.so", HERE / "library.cc"])
    run(["cargo", "build", "--quiet", "--release", "--locked", "-p", "tokengauge-tap", "--example", "server", "--manifest-path", ROOT / "Cargo.toml"])
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # The Python package as its setup.py builds it, without setuptools: the two native pieces beside the modules.
    package = folder / "python" / "tokengauge_hook"
    shutil.copytree(HOOK / "python" / "src" / "tokengauge_hook", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    include = sysconfig.get_paths()["include"]
    native = [*flags, "-fPIC", "-shared"]
    run([*native, "-DPy_LIMITED_API=0x03080000", f"-I{include}", package / "_tap.c", "-o", package / "_tap.abi3.so"])
    run([*native, package / "library.c", "-o", package / "libtokengauge_tap.so"])
    return {
        "c": [str(folder / "server")],
        "c-stripped": [str(folder / "stripped")],
        "c++-library": [sys.executable, str(HERE / "library.py"), str(folder / "libtells.so")],
        "rust": [str(target / "release" / "examples" / "server")],
        "python": [sys.executable, str(HERE / "server.py")],
        "python-ctypes": ["env", "TOKENGAUGE_HOOK=ctypes", sys.executable, str(HERE / "server.py")],
    }


# What the agent says --------------------------------------------------------------------------------------------------


class Page:
    """The agent's metrics."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/metrics"

    def read(self) -> Series:
        """Every series."""
        series: Series = {}
        for line in get(self.url)[1].splitlines():
            if found := LINE.match(line):
                name, labels, value = found.groups()
                kept = sorted((k, v) for k, v in LABEL.findall(labels or "") if not k.startswith("otel_scope") and k not in ("job", "instance"))
                series[name, tuple(kept)] = float(value)
        return series

    def sum(self, name: str, **labels: str) -> float:
        """The series of that name with these labels, added up."""
        return sum(v for (n, have), v in self.read().items() if n == name and set(labels.items()) <= set(have))

    def events(self, via: str, result: str) -> int:
        """Events by way and result."""
        return int(self.sum("tokengauge_hook_events_total", tokengauge_hook_via=via, tokengauge_result=result))

    def results(self, via: str) -> dict[str, int]:
        """All results of a way."""
        found = {}
        for (name, labels), value in self.read().items():
            of = dict(labels)
            if name == "tokengauge_hook_events_total" and of.get("tokengauge_hook_via") == via:
                found[of["tokengauge_result"]] = int(value)
        return found

    def settled(self) -> dict[str, int]:
        """The results of the tap once nothing is under way any more: the ring is read and the kernel's counters are told again."""
        before: dict[str, int] = {}
        while (now := self.results("tap")) != before:
            before = now
            time.sleep(1.3)
        return now

    def taken(self, via: str) -> int:
        """Events taken by a way, once nothing more comes of what was told before."""
        while True:
            before = self.events(via, "taken")
            time.sleep(0.25)
            if self.events(via, "taken") == before:
                return before

    def connections(self, result: str) -> int:
        """Connections by result."""
        return int(self.sum("tokengauge_hook_connections_total", tokengauge_result=result))

    def requests(self, result: str) -> int:
        """Requests by how they ended."""
        return int(self.sum("tokengauge_hook_requests_total", tokengauge_result=result))

    def histogram(self, quantity: str, model: str) -> tuple[int, float]:
        """Count and sum of a histogram of the engine's."""
        name, model_label = f"tokengauge_engine_{quantity}_seconds", {"gen_ai_response_model": model}
        return int(self.sum(f"{name}_count", **model_label)), self.sum(f"{name}_sum", **model_label)


def told(command: list[str], *words: object, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs a server to its end; what it said."""
    done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=120, env=environment or os.environ)
    if done.returncode != 0:
        raise SystemExit(f"{command} {words}: {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


# An empty probe -------------------------------------------------------------------------------------------------------


class Probe:
    """A probe that only counts, in all processes: the kernel's own handler of perf's uprobes, at an offset of a file."""

    def __init__(self, file: Path, offset: int) -> None:
        kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
        self._path = ctypes.create_string_buffer(str(file).encode())
        attributes = struct.pack("<IIQQQQQIIQQ", kind, 72, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(self._path), offset)
        self._attributes = ctypes.create_string_buffer(attributes, 128)
        libc = ctypes.CDLL(None, use_errno=True)
        number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
        self.fds = [libc.syscall(number, self._attributes, -1, cpu, -1, 0) for cpu in sorted(os.sched_getaffinity(0))]
        if min(self.fds) < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")

    def close(self) -> int:
        """Takes it out; how often it was hit."""
        hits = sum(struct.unpack("<Q", os.read(fd, 8))[0] for fd in self.fds)
        for fd in self.fds:
            os.close(fd)
        return hits


def place(file: Path) -> int:
    """The offset of the tap symbol's first nop in a file, by its note, as another tool reads it."""
    notes = subprocess.run(["readelf", "--wide", "-n", file], capture_output=True, text=True, check=True).stdout
    address = int(re.search(r"Provider: tokengauge\s+Name: tap_v1\s+Location: (0x[0-9a-f]+)", notes)[1], 16)
    segments = subprocess.run(["readelf", "--wide", "-l", file], capture_output=True, text=True, check=True).stdout
    for line in segments.splitlines():
        words = line.split()
        if words[:1] == ["LOAD"]:
            offset, virtual, _, size = (int(w, 16) for w in words[1:5])
            if virtual <= address < virtual + size:
                return address - virtual + offset
    raise SystemExit(f"{file}: no segment has {address:#x}")


# Steps ----------------------------------------------------------------------------------------------------------------


def cost_of_an_empty_probe(server: list[str], nops: int) -> float | None:
    """ns of a call with a probe that only counts on the nop of that size."""
    skip = {1: 0, 5: 1, 10: 6}.get(nops, 0) if os.uname().machine == "x86_64" else 0
    try:
        probe = Probe(Path(server[0]), place(Path(server[0])) + skip)
    except OSError as why:
        print(f"      no empty probe here: {why}")
        return None
    each, hits = told(server, "cost", 3)["told_ns"], probe.close()
    if not hits:
        print(f"      a probe on the nop of {nops} bytes is never hit here")
    return each if hits else None


def lives(score: Score, page: Page, servers: dict[str, list[str]], path: Path) -> None:
    """Whole lives by every way: all events arrive, and the intervals are the server's own."""
    ways = [(name, command, []) for name, command in servers.items()] + [("python-socket", servers["python"], [path])]
    for name, command, more in ways:
        via = "socket" if more else "tap"
        before = page.taken(via)
        # Processes are looked for once a second; a server that begins after that has told of its first requests unseen.
        with_warm_up = told(command, "lives", f"{name}-warm", 700 if via == "tap" else 1, 300, *more)
        begun = page.taken(via)
        warm = begun - before
        n, pause = 60, 1000
        said = told(command, "lives", name, n, pause, *more)
        until(3, lambda name=name: page.histogram("request_time", name)[0] == n)
        taken = page.taken(via) - begun
        score.check(taken == said["events"] and warm <= with_warm_up["events"], f"{name}: {taken} of {said['events']} events taken")
        for quantity, key, count in [("queue_time", "queue_s", n), ("prefill_time", "prefill_s", n), ("time_to_first_token", "ttft_s", n), ("decode_time", "decode_s", n), ("inter_token_latency", "steps_s", 3 * n)]:
            counted, total = page.histogram(quantity, name)
            off = abs(total - said[key]) / n
            # The server's clock is read beside the call, not within it: a thread that loses its processor between the two is off.
            score.check(counted == count and off < 0.0005, f"{name}: {quantity} is the server's own to {off * 1e6:.1f} µs ({counted} of {count})")


def accounted(score: Score, page: Page, server: list[str], rate: int, seconds: int) -> None:
    """Sent = taken + counted as lost."""
    before = page.settled()
    finished = page.requests("finished")
    said = told(server, "rate", "rate", rate, seconds, 2)
    now: dict[str, int] = {}

    def all_there() -> bool:
        now.update({k: v - before.get(k, 0) for k, v in page.results("tap").items()})
        return sum(now.values()) >= said["events"]

    until(15, all_there)
    lost = now["ring_full"] + now["unreadable"]
    reached = said["events"] / said["seconds"]
    print(f"      {said['events']} events at {reached:.0f}/s: {now['taken']} taken, {lost} lost and counted")
    score.check(now["taken"] + lost == said["events"], "every event was taken, or its loss counted")
    score.check(lost == 0 or reached > rate, f"none was lost at {reached:.0f} events/s")
    ended = page.requests("finished") - finished
    score.check(lost > 0 or ended == said["lives"], f"{ended} of {said['lives']} requests ended")


def nonsense(score: Score, page: Page, server: list[str]) -> None:
    """Calls that are no events are counted by what is wrong with them."""
    before = page.settled()
    said = told(server, "nonsense")
    now = page.settled()
    for result, n in said.items():
        score.check(now[result] - before[result] == n, f"nonsense: {result} {now[result] - before[result]} of {n}")


def wrong_user(score: Score, page: Page, path: Path) -> None:
    """A process of another user is let in by the file's mode and turned away by its credentials."""
    before = page.connections("refused_user")
    child = os.fork()
    if not child:
        heard = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(5)
                other.connect(str(path))
                heard = len(other.recv(1))
        except ConnectionResetError:
            heard = 0
        finally:
            os._exit(heard)
    refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    score.check(refused, "a process of another user sees the end of its connection")
    score.check(until(3, lambda: page.connections("refused_user") - before) == 1, "and is counted")


def dying(score: Score, page: Page, path: Path) -> None:
    """Servers that die within a batch, and peers that are none."""
    before = page.connections("broken")
    for piece in (b"\x10", b"\x10\0\0\0", b"\x10\0\0\0\x08\x01", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(str(path))
            server.sendall(piece)
    broken = until(3, lambda: page.connections("broken") - before == 5 and 5)
    score.check(broken == 5, f"five connections that end within a message are counted ({page.connections('broken') - before})")
    # More connections than there may be: the others are turned away, and nobody else suffers.
    crowd = []
    for _ in range(300):
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(path))
        crowd.append(one)
    score.check(bool(until(3, lambda: page.connections("refused_too_many") >= 40)), f"a crowd is bounded ({page.connections('refused_too_many')} turned away)")
    for one in crowd:
        one.close()
    until(3, lambda: page.sum("tokengauge_hook_sources", tokengauge_hook_via="socket") == 0)


def blocked(score: Score, agent: Agent, servers: dict[str, list[str]], path: Path) -> None:
    """An agent that does not read holds no server up."""
    n = 20_000
    away = told(servers["python"], "patience", path.with_name("nobody.sock"), n)
    os.kill(agent.child.pid, signal.SIGSTOP)
    try:
        stopped = told(servers["python"], "patience", path, n)
    finally:
        os.kill(agent.child.pid, signal.SIGCONT)
    for what, said in [("no agent", away), ("a stopped agent", stopped)]:
        print(f"      {what}: a call takes {said['median_ns']} ns (median), {said['p99_ns']} ns (p99), {said['longest_ns'] / 1e6:.2f} ms at most")
        whole = said["sent"] + said["dropped"] + said["waiting"]
        score.check(whole == n and said["dropped"] > 0, f"{what}: {said['sent']} sent + {said['dropped']} dropped + {said['waiting']} waiting = {whole} of {n}")
    score.check(stopped["median_ns"] < 3 * away["median_ns"], "a call takes no longer when the agent does not read")


def many_open(score: Score, page: Page, children: Children, agent: Agent, server: list[str]) -> None:
    """10,000 requests at once."""
    n = 10_000
    before, finished = page.events("tap", "taken"), page.requests("finished")
    resident = memory(agent)
    child = children.start([*server, "open", "open", str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    json.loads(child.stdout.readline())
    opened = until(5, lambda: page.sum("tokengauge_hook_requests_open") >= n and n)
    score.check(opened == n, f"{page.sum('tokengauge_hook_requests_open'):.0f} requests are open")
    grown = memory(agent) - resident
    print(f"      they take {grown / 1e6:.1f} MB")
    score.check(grown < 32e6, "and their memory is bounded")
    child.stdin.close()
    child.wait(30)
    score.check(bool(until(5, lambda: page.requests("finished") - finished == n)), f"{page.requests('finished') - finished} of them ended")
    score.check(page.events("tap", "taken") - before == 4 * n, "no event is missing")
    # A server that is killed: what it had open ends.
    gone = page.requests("server_gone")
    child = children.start([*server, "open", "open", "100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()  # type: ignore[union-attr]
    until(5, lambda: page.sum("tokengauge_hook_requests_open") >= 100)
    child.kill()
    child.wait()
    score.check(until(8, lambda: page.requests("server_gone") - gone == 100), f"of a server that was killed {page.requests('server_gone') - gone} of 100 requests are let go")


def memory(agent: Agent) -> int:
    """Resident bytes of the agent."""
    return int(Path(f"/proc/{agent.child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def restarted(score: Score, children: Children, folder: Path, start: Callable[[], Agent], agent: Agent, page: Page, servers: dict[str, list[str]], path: Path) -> Agent:
    """A server goes on while the agent is away, and is heard again afterwards."""
    child = children.start([*servers["python"], "forever", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    score.check(bool(until(5, lambda: page.events("socket", "taken") > 20)), "a server is heard")
    agent.stop()
    score.check(not path.exists(), "an agent that ends takes its socket away")
    time.sleep(0.5)
    agent = start()
    heard = until(8, lambda: page.events("socket", "taken") > 20)
    score.check(bool(heard), "and again by the agent that comes after it")
    child.stdin.write(b"\n")
    child.stdin.flush()
    said = json.loads(child.stdout.readline())
    print(f"      {said['told']} told, {said['sent']} sent, {said['dropped']} dropped while nobody was there")
    score.check(said["told"] >= said["sent"] + said["dropped"] >= said["told"] - 10, "every event was sent or counted")
    children.stop(child)
    # A second agent on the same socket, and one that finds what a killed one left.
    os.kill(agent.child.pid, signal.SIGKILL)
    agent.child.wait()
    score.check(path.exists(), "an agent that is killed leaves its socket")
    agent = start()
    score.check(bool(until(5, lambda: page.events("socket", "taken") >= 0 and path.exists())), "which the next one replaces")
    return agent


def main() -> None:
    """All of it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=int, default=5, help="how long the rate is held")
    arguments.add_argument("--rate", type=int, default=50_000, help="events a second")
    options = arguments.parse_args()
    skip_without_bpf()
    score = Score()
    with tempfile.TemporaryDirectory() as temporary, Children() as children:
        folder = Path(temporary)
        folder.chmod(0o755)  # the wrong user must reach the socket
        servers = build(folder)
        os.environ["PYTHONPATH"] = str(folder / "python")
        port, path = free_port(), folder / "hook.sock"
        config = folder / "config.yaml"
        config.write_text(f"hook: {{tap: true, socket: '{path}'}}\nengines: {{discover: false}}\nhttp: {{listen: '127.0.0.1:{port}'}}\n")
        page = Page(port)

        def start() -> Agent:
            return Agent(children, folder, "--config", str(config))

        alone = {name: told(servers[name], "cost") for name in ("c", "rust", "python", "python-ctypes")}
        for name, cost_alone in alone.items():
            score.check(cost_alone["told_ns"] > 0, f"{name}: an event costs {cost_alone['told_ns']:.1f} ns without the agent, an empty call {cost_alone['empty_ns']:.1f} ns")
        empty_probe = {n: cost_of_an_empty_probe(servers["c"], n) for n in (1, 5, 10)}
        agent = start()
        lives(score, page, servers, path)
        attached = [line for line in agent.log().splitlines() if "attached to the hook" in line]
        nop = int(re.search(r"Nop\((\d+)\)", attached[0])[1]) if attached else 1
        for name in alone:
            watched = told(servers[name], "cost")
            print(f"      {name}: {alone[name]['empty_ns']:.1f} ns an empty call, {alone[name]['told_ns']:.1f} told without the agent, {watched['told_ns']:.1f} with it")
            times = watched["told_ns"] / alone[name]["told_ns"]
            # In Python the rest of a call costs about as much as the probe.
            score.check(times > 10 or name.startswith("python"), f"{name}: the probe is there ({times:.1f} times)")
        for size, empty in empty_probe.items():
            if empty:
                used = " (where the agent stands)" if size == nop else ""
                print(f"      an empty probe on the nop of {size} bytes: {empty:.0f} ns{used}; the agent's costs {told(servers['c'], 'cost')['told_ns'] / empty:.2f} times as much")
        accounted(score, page, servers["c"], options.rate, options.seconds)
        nonsense(score, page, servers["c"])
        wrong_user(score, page, path)
        dying(score, page, path)
        many_open(score, page, children, agent, servers["c"])
        blocked(score, agent, servers, path)
        agent = restarted(score, children, folder, start, agent, page, servers, path)
        agent.stop()
        if score.failed:
            print(agent.log()[-3000:])
    print(f"      the agent was {AGENT}")
    score.finish()


if __name__ == "__main__":
    main()
