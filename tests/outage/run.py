#!/usr/bin/env python3
"""An agent under load whose receiver goes away, is slow, answers errors and partial success; whose disk is full; that is killed; with a real Collector
in between. An hour is compressed by 200: 18 seconds without a receiver at 1,000 inferences a second are an hour at five.

    cargo build --release -p tokengauge --example outage_load && tests/outage/run.py     # OUTAGE_LOAD=path of the example

The load is an example of the agent's crate: its own pipeline, export thread and exporter, fed by a tap that makes exchanges. Every span that was made
is at the receiver once, or is counted; the figures must add up exactly.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

from receiver import Answer, Receiver  # noqa: E402
from rig import CACHE, ROOT, Children, Score, free_port, wait_for_port  # noqa: E402

LOAD = Path(os.environ.get("OUTAGE_LOAD", ROOT / "target" / "release" / "examples" / "outage_load"))
OTELCOL = CACHE / "bin" / "otelcol"
RATE = int(os.environ.get("OUTAGE_RATE", "1000"))
MIB = 1 << 20


class Told(Score):
    """Checks that say what they saw when they fail."""

    def that(self, what: str, holds: bool, seen: object = None) -> bool:
        """One check."""
        return self.check(holds, what if holds or seen is None else f"{what}: {seen}")

    def equal(self, what: str, got: object, want: object) -> bool:
        """One comparison."""
        return self.that(f"{what} ({got})" if got == want else what, got == want, f"{got}, expected {want}")


class Agent:
    """The load as a child, and what it says of itself."""

    def __init__(self, children: Children, folder: Path, otlp: dict[str, Any], seconds: float, **environment: str) -> None:
        config = folder / "agent.yaml"
        config.write_text(json.dumps({"otlp": otlp, "log": "warn"}))
        self.log = (folder / "agent.log").open("ab")
        self.lines: list[dict[str, Any]] = []
        self._children = children
        self._text = folder / f"agent-{time.monotonic_ns()}.out"
        with self._text.open("wb") as out:
            self.child = children.start(
                [LOAD, config, str(RATE), str(seconds)], stdout=out, stderr=self.log, env={**os.environ, **environment}
            )

    def read(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return [json.loads(line) for line in self._text.read_text().splitlines() if line.endswith("}")]

    def last(self) -> dict[str, Any]:
        """The newest line."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if lines := self.read():
                return lines[-1]
            time.sleep(0.05)
        raise RuntimeError("the load says nothing")

    def until(self, what: str, condition: Any, seconds: float = 90) -> dict[str, Any]:
        """Waits for a line for which `condition` holds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition(line := self.last()):
                return line
            if self.child.poll() is not None and not condition(self.last()):
                break
            time.sleep(0.05)
        raise RuntimeError(f"{what} did not come: {self.last()}")

    def end(self) -> dict[str, Any]:
        """SIGTERM, and the last line."""
        self._children.stop(self.child)
        line = self.last()
        assert line["ended"], line
        return line

    def kill(self) -> dict[str, Any]:
        """SIGKILL, and the last line before it."""
        self.child.kill()
        self.child.wait()
        return self.last()


def otlp(port: int, folder: Path | None, **queue: Any) -> dict[str, Any]:
    """The exporter's configuration, compressed in time like everything here."""
    waits = {"metrics_every_s": 0.3, "recovery_per_s": 40, "retry_max_s": 0.5, **queue}
    if folder is not None:
        waits["directory"] = str(folder)
    return {"endpoint": f"http://127.0.0.1:{port}", "protocol": "http/protobuf", "interval_s": 0.15, "queue": waits}


def lost(line: dict[str, Any], *but: str) -> int:
    """Spans that were counted as lost."""
    return sum(n for why, n in line["traces"]["lost"].items() if why not in {"unsampled", "superseded", *but})


def delivered(line: dict[str, Any], made: int) -> bool:
    """Whether nothing waits of what was made."""
    return line["made"] >= made and line["traces"]["memory_items"] == line["traces"]["disk_items"] == 0


def hour(score: Told, children: Children, folder: Path) -> None:
    """A receiver that is away for an hour."""
    receiver = Receiver(free_port())
    receiver.up()
    agent = Agent(children, folder, otlp(receiver.port, folder / "queue"), 0, OTEL_BSP_SCHEDULE_DELAY="1000")
    before = agent.until("the first spans", lambda line: line["traces"]["delivered"] > RATE)
    receiver.down()
    went = time.time_ns()
    time.sleep(18)
    during = agent.last()
    receiver.up()
    came, back = time.monotonic(), time.time_ns()
    score.that("an hour without a receiver is on disk", during["traces"]["disk_items"] > 15 * RATE, during["traces"])
    agent.until("an empty queue", lambda line: line["traces"]["disk_items"] == 0 and line["metrics"]["disk_items"] == 0)
    agent.until("the last spans", lambda line: line["made"] > during["made"] + 5 * RATE)
    end = agent.end()
    seen = len(receiver.spans)
    score.equal("every span arrived", seen, end["made"])
    score.equal("none came twice", receiver.doubles(), 0)
    score.equal("nothing is counted as lost", lost(end), 0)
    score.equal("delivered as counted", end["traces"]["delivered"], end["made"])
    score.that("memory is bounded", end["peak_rss_bytes"] - before["rss_bytes"] < 40 * MIB, (end["peak_rss_bytes"], before["rss_bytes"]))
    # Pacing: after the return, requests of what waited come at the rate that is configured, those of what is new beside them.
    arrivals = [at for at, path, _ in receiver.requests if path.endswith("/traces") and at > came]
    busiest = max(sum(1 for other in arrivals if at <= other < at + 1) for at in arrivals)
    score.that("recovery does not flood", busiest <= 40 + 2 + RATE / 512 + 4, busiest)
    # Metrics: the totals are right, in order, and graphs have no hole where the outage was.
    times = sorted(receiver.readings)
    score.equal("the last reading counts everything", receiver.readings[times[-1]], end["made"])
    score.that("readings come in order", receiver.order == times)
    inside = [t for t in times if went <= t <= back]
    holes = [b - a for a, b in zip([went, *inside], [*inside, back])]
    score.that("a reading in every minute of the outage", len(inside) > 30 and max(holes) < 1.3e9, (len(inside), max(holes) / 1e9))
    score.that("readings were thinned", end["metrics"]["lost"]["superseded"] > 0, end["metrics"])
    receiver.down()


def killed(score: Told, children: Children, folder: Path) -> None:
    """kill -9 in the middle of an outage, again and again."""
    receiver, made, bound, damage = Receiver(free_port()), 0, 0, 0
    for _ in range(6):
        agent = Agent(children, folder, otlp(receiver.port, folder / "queue"), 0, OTEL_BSP_SCHEDULE_DELAY="200")
        agent.until("something on disk", lambda line: line["traces"]["disk_items"] > 0 and line["made"] > RATE)
        time.sleep(0.37)
        made += agent.kill()["made"]
        # A span may wait for its batch (0.2 s, looked at once a second), and the last line is up to 0.1 s old.
        bound += int(1.5 * RATE)
        damage += lost(agent.last())
    receiver.up()
    agent = Agent(children, folder, otlp(receiver.port, folder / "queue"), 2, OTEL_BSP_SCHEDULE_DELAY="200")
    agent.child.wait(60)
    # What the first did not deliver within its time a second one does.
    agent2 = Agent(children, folder, otlp(receiver.port, folder / "queue"), 0, OTEL_BSP_SCHEDULE_DELAY="200")
    agent2.until("an empty queue", lambda line: line["traces"]["disk_items"] == 0)
    end = agent2.end()
    made += agent.last()["made"] + end["made"]
    missing = made - len(receiver.spans)
    score.that("kill -9 loses what was not on disk yet and no more", -bound < missing <= bound, (made, len(receiver.spans), bound))
    score.that("most of it is there", len(receiver.spans) > made - 6 * 1.5 * RATE)
    score.equal("nothing else is lost", damage + lost(agent.last()) + lost(end), 0)
    print(f"    of {made} spans around 6 kills {missing} are missing, {receiver.doubles()} came twice")
    receiver.down()


def full(score: Told, children: Children, folder: Path) -> None:
    """A disk of 1 MiB, then one with room again."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        score.that(f"a small file system can be mounted ({mounted.stderr.strip()})", os.environ.get("TOKENGAUGE_REQUIRE_MOUNT") != "1")
        return
    try:
        receiver = Receiver(free_port())
        agent = Agent(children, folder, otlp(receiver.port, disk / "queue"), 0, OTEL_BSP_SCHEDULE_DELAY="500")
        agent.until("a full disk", lambda line: line["traces"]["disk_trouble"] is not None)
        waiting = agent.until("memory in its place", lambda line: line["traces"]["memory_items"] > 5 * RATE)
        score.that("a full disk is said", "No space left" in waiting["traces"]["disk_trouble"], waiting["traces"]["disk_trouble"])
        score.that("and counted", waiting["traces"]["disk_errors"] > 0)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = agent.until("room again", lambda line: line["traces"]["disk_trouble"] is None)
        agent.until("less memory", lambda line: line["traces"]["memory_items"] < 2 * RATE)
        receiver.up()
        agent.until("an empty queue", lambda line: line["made"] > again["made"] + RATE and line["traces"]["disk_items"] == 0)
        end = agent.end()
        score.equal("every span arrived or is counted", len(receiver.spans) + lost(end), end["made"])
        score.equal("and all arrived: memory had room", lost(end), 0)
        score.that("memory is bounded", end["peak_rss_bytes"] < 120 * MIB, end["peak_rss_bytes"])
        receiver.down()
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def bounds(score: Told, children: Children, folder: Path) -> None:
    """An outage that is larger than the queue: the oldest goes, and is counted."""
    receiver = Receiver(free_port())
    small = otlp(receiver.port, folder / "queue", max_bytes=MIB)
    agent = Agent(children, folder, small, 0, OTEL_BSP_SCHEDULE_DELAY="500")
    agent.until("drops", lambda line: line["traces"]["lost"]["queue_full"] > 5 * RATE, 120)
    line = agent.last()
    score.that("the disk keeps its bound", all(at["traces"]["disk_bytes"] <= MIB for at in agent.read()))
    receiver.up()
    agent.until("an empty queue", lambda now: now["made"] > line["made"] + RATE and now["traces"]["disk_items"] == 0)
    end = agent.end()
    score.equal("every span arrived or is counted", len(receiver.spans) + lost(end), end["made"])
    receiver.down()

    receiver = Receiver(free_port())
    agent = Agent(children, folder, otlp(receiver.port, None, memory_bytes=MIB), 0, OTEL_BSP_SCHEDULE_DELAY="500")
    agent.until("drops", lambda line: line["traces"]["lost"]["queue_full"] > 2 * RATE, 120)
    receiver.up()
    line = agent.last()
    agent.until("an empty queue", lambda now: now["made"] > line["made"] + RATE and now["traces"]["memory_items"] < RATE)
    end = agent.end()
    score.equal("without a disk as well", len(receiver.spans) + lost(end), end["made"])
    score.that("memory keeps its bound", max(at["traces"]["memory_bytes"] for at in agent.read()) < 4 * MIB)
    receiver.down()


def slow(score: Told, children: Children, folder: Path) -> None:
    """A receiver that takes longer than the spans take to come."""
    receiver = Receiver(free_port())
    receiver.answers = itertools.repeat(Answer(delay=4 * 50 / (RATE / 2)))
    receiver.up()
    small = otlp(receiver.port, folder / "queue", memory_bytes=MIB)
    agent = Agent(children, folder, small, 8, OTEL_BSP_SCHEDULE_DELAY="50", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="50")
    time.sleep(6)
    line = agent.last()
    receiver.answers = itertools.repeat(Answer())
    agent.child.wait(60)
    end = agent.last()
    agent = Agent(children, folder, small, 0)
    agent.until("an empty queue", lambda now: now["traces"]["disk_items"] == 0)
    rest = agent.end()
    score.that("a slow receiver makes the disk wait", line["traces"]["disk_items"] > 0, line["traces"])
    score.equal("every span arrived", len(receiver.spans), end["made"] + rest["made"])
    score.equal("nothing is lost", lost(end) + lost(rest), 0)
    score.that("memory keeps its bound", max(at["traces"]["memory_bytes"] for at in agent.read()) < 2 * MIB)
    receiver.down()


def errors(score: Told, children: Children, folder: Path) -> None:
    """Every second answer is an error, some are partial success."""
    receiver = Receiver(free_port())
    cycle = [Answer(), Answer(503), Answer(rejected=7), Answer(429, {"Retry-After": "1"}), Answer(500), Answer(), Answer(502)]
    receiver.answers = itertools.cycle(cycle)
    receiver.up()
    agent = Agent(children, folder, otlp(receiver.port, folder / "queue"), 0, OTEL_BSP_SCHEDULE_DELAY="100", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="200")
    agent.until("many answers", lambda line: line["traces"]["retries"] > 5 and receiver.refused > 0 and receiver.rejected > 0)
    receiver.answers = itertools.repeat(Answer())
    line = agent.last()
    agent.until("an empty queue", lambda now: now["made"] > line["made"] + RATE and now["traces"]["disk_items"] == 0)
    end = agent.end()
    score.that("there were errors", receiver.refused > 0 and receiver.rejected > 0 and end["traces"]["retries"] > 5, end["traces"])
    score.equal("every span arrived or is counted", len(receiver.spans) + lost(end), end["made"])
    score.equal("what was refused is counted", end["traces"]["lost"]["refused"], receiver.refused)
    score.equal("what was rejected in part is counted", end["traces"]["lost"]["rejected"], receiver.rejected)
    score.equal("and what was delivered", end["traces"]["delivered"], len(receiver.spans))
    score.equal("none came twice", receiver.doubles(), 0)
    receiver.down()


def certificates(folder: Path) -> dict[str, Path]:
    """An authority, and certificates by it for the Collector and for the agent."""
    made = {}

    def openssl(*words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", 2, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "client"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / "ext").write_text("basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2, "-extfile", "ext", "-out", f"{name}.pem")
    for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key"):
        made[name] = folder / name
    return made


def collector(score: Told, children: Children, folder: Path) -> None:
    """A real Collector with mutual TLS in between, which is killed and comes back; by each transport."""
    if not OTELCOL.exists():
        score.that("a Collector is there (tests/real/setup-go.sh collector)", os.environ.get("TOKENGAUGE_REQUIRE_COLLECTOR") != "1")
        return
    pem = certificates(folder)
    for protocol, compression in (("grpc", "zstd"), ("http/json", "gzip"), ("http/protobuf", "zstd")):
        receiver, ports = Receiver(free_port()), {"grpc": free_port(), "http": free_port()}
        receiver.up()
        tls = {"cert_file": str(pem["server.pem"]), "key_file": str(pem["server.key"]), "client_ca_file": str(pem["ca.pem"])}
        backend = {"endpoint": f"http://127.0.0.1:{receiver.port}", "compression": "none", "sending_queue": {"enabled": False}, "retry_on_failure": {"enabled": False}}
        pipeline = {"receivers": ["otlp"], "exporters": ["otlp_http"]}
        config = folder / "collector.yaml"
        config.write_text(json.dumps({
            "receivers": {"otlp": {"protocols": {name: {"endpoint": f"127.0.0.1:{port}", "tls": tls} for name, port in ports.items()}}},
            "exporters": {"otlp_http": backend},
            "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"traces": pipeline, "metrics": pipeline}},
        }))  # fmt: skip
        log = (folder / "collector.log").open("ab")

        def begin() -> Any:
            child = children.start([OTELCOL, "--config", config], stdout=log, stderr=log)
            wait_for_port(ports["grpc" if protocol == "grpc" else "http"], child)
            return child

        running = begin()
        settings = otlp(0, folder / protocol.replace("/", "-"))
        settings |= {
            "endpoint": f"https://localhost:{ports['grpc' if protocol == 'grpc' else 'http']}", "protocol": protocol, "compression": compression,
            "certificate": str(pem["ca.pem"]), "client_certificate": str(pem["client.pem"]), "client_key": str(pem["client.key"]),
        }  # fmt: skip
        agent = Agent(children, folder, settings, 0, OTEL_BSP_SCHEDULE_DELAY="200")
        agent.until("the first spans", lambda line: line["traces"]["delivered"] > RATE)
        running.kill()
        running.wait()
        agent.until("something on disk", lambda line: line["traces"]["disk_items"] > 3 * RATE)
        running = begin()
        line = agent.last()
        agent.until("an empty queue", lambda now: now["made"] > line["made"] + RATE and now["traces"]["disk_items"] == 0)
        end = agent.end()
        children.stop(running)
        missing = end["made"] - len(receiver.spans)
        score.equal(f"{protocol} with {compression} and mutual TLS: every span arrived", missing, 0)
        score.equal(f"{protocol}: nothing is counted as lost", lost(end), 0)
        # A request that the Collector had passed on when it was killed is sent again: at least once.
        score.that(f"{protocol}: no more came twice than was under way", receiver.doubles() <= 4 * 512, receiver.doubles())
        last = receiver.readings[max(receiver.readings)] if receiver.readings else None
        score.equal(f"{protocol}: the last reading counts everything", last, end["made"])
        receiver.down()


SCENARIOS = (hour, killed, full, bounds, slow, errors, collector)


def main() -> None:
    if not LOAD.exists():
        raise SystemExit(f"no load at {LOAD}: cargo build --release -p tokengauge --example outage_load, or set OUTAGE_LOAD")
    score = Told()
    chosen = sys.argv[1:]
    for scenario in SCENARIOS:
        if chosen and scenario.__name__ not in chosen:
            continue
        print(f"{scenario.__name__}: {scenario.__doc__}")
        with Children() as children, tempfile.TemporaryDirectory(prefix="outage-") as name:
            try:
                scenario(score, children, Path(name))
            except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
                score.that(f"{scenario.__name__} runs to its end", False, str(error)[:600])
                print((Path(name) / "agent.log").read_text()[-1500:] if (Path(name) / "agent.log").exists() else "")
    score.finish()


if __name__ == "__main__":
    main()
