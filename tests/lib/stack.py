"""The programs that tokengauge's data goes through, as the rigs start them: real Collectors, Prometheus and Jaeger on random loopback ports, and the
demo's provider and clients in front of the real agent.

Standard library only. The programs come from tests/real/setup-go.sh.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rig import CACHE, ROOT, Children, Record, first_json_line, free_port, read_jsonl

CONFIGS = ROOT / "collector-config"
OTELCOL = CACHE / "bin" / "otelcol"
PROMETHEUS = CACHE / "bin" / "prometheus"
JAEGER = CACHE / "bin" / "jaeger"
DEMO = ROOT / "agent" / "src" / "demo"
# Ports that the shipped files name; one that does not know a port does not mind.
PORTS = ("OTLP_GRPC_PORT", "OTLP_HTTP_PORT", "PROMETHEUS_PORT", "HEALTH_PORT", "SELF_PORT")


def get(url: str, seconds: float = 5) -> tuple[int, str]:
    """Status and body; status 0 when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return 0, ""


def until(seconds: float, holds: Callable[[], Any], pause: float = 0.3) -> Any:
    """What `holds` gives as soon as it is something; else its last answer, which is nothing."""
    end = time.monotonic() + seconds
    while True:
        if (found := holds()) or time.monotonic() > end:
            return found
        time.sleep(pause)


# Collectors ----------------------------------------------------------------------------------------------------------


def environment(ports: dict[str, int], **settings: str) -> dict[str, str]:
    """This process's environment without any of the files' variables, and these instead: `TOKENGAUGE_` stands before names without a `_` of a vendor's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TOKENGAUGE_")}
    return kept | {f"TOKENGAUGE_{k}": str(v) for k, v in (ports | settings).items()}


class Collector:
    """A Collector with one of our files, on ports of its own."""

    def __init__(
        self, children: Children, folder: Path, name: str, config: Path = CONFIGS / "tokengauge.yaml", extra: dict[str, str] | None = None, **settings: str
    ) -> None:
        self.name, self.config, self.log_path = name, config, folder / f"{name}.log"
        self.ports = {port: free_port() for port in PORTS}
        (folder / name).mkdir(exist_ok=True)
        self.environment = environment(self.ports, QUEUE=str(folder / name), **settings) | (extra or {})
        self._children = children
        self.start()

    def start(self) -> None:
        """Starts it, also once more after it was ended."""
        with self.log_path.open("ab") as log:
            self.child = self._children.start([OTELCOL, "--config", self.config], env=self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while get(f"http://127.0.0.1:{self.ports['HEALTH_PORT']}/")[0] != 200:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"collector {self.name} does not come up:\n{self.log()[-3000:]}")
            time.sleep(0.1)

    @property
    def grpc(self) -> str:
        """host:port of OTLP/gRPC."""
        return f"127.0.0.1:{self.ports['OTLP_GRPC_PORT']}"

    @property
    def http(self) -> str:
        """URL of OTLP/HTTP."""
        return f"http://127.0.0.1:{self.ports['OTLP_HTTP_PORT']}"

    def log(self) -> str:
        """What it wrote."""
        return self.log_path.read_text(errors="replace")

    def own(self, metric: str) -> float:
        """The sum of one of its own figures."""
        lines = get(f"http://127.0.0.1:{self.ports['SELF_PORT']}/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{metric}{{", f"{metric} ")))

    def stop(self) -> int:
        """Ends it; the exit code."""
        return self._children.stop(self.child)

    def kill(self) -> None:
        """Ends it without a chance to say goodbye."""
        self.child.kill()
        self._children.stop(self.child)


def validate(config: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """`otelcol validate` of a file."""
    command = [str(OTELCOL), "validate", "--config", str(config)]
    return subprocess.run(command, env=environment({}, **settings), capture_output=True, text=True, timeout=60)


# Prometheus ----------------------------------------------------------------------------------------------------------


class Prometheus:
    """A real Prometheus that takes OTLP and remote write."""

    def __init__(self, children: Children, folder: Path, name: str, config: str | None = None, flags: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = folder / f"{name}.log"
        text = config or "storage: {tsdb: {out_of_order_time_window: 10m}, exemplars: {max_exemplars: 100000}}\n"
        path = folder / f"{name}.yml"
        path.write_text(text)
        command = [PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={folder / name}", "--web.enable-otlp-receiver", "--web.enable-remote-write-receiver"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage", "--web.enable-lifecycle", *flags]
        with self.log_path.open("wb") as log:
            child = children.start(command, stdout=log, stderr=log)
        if not until(60, lambda: get(f"{self.url}/-/ready")[0] == 200 or child.poll() is not None) or child.poll() is not None:
            raise RuntimeError(f"{name} does not come up:\n{self.log_path.read_text()[-3000:]}")

    def _ask(self, path: str, **words: str | float) -> Any:
        status, body = get(f"{self.url}/api/v1/{path}?" + urllib.parse.urlencode(words), 20)
        told = json.loads(body or "{}")
        if status != 200:
            raise ValueError(f"{words}: {told.get('error', status)}")
        return told["data"]

    def query(self, promql: str, at: float | None = None) -> list[Record]:
        """An instant query; ValueError says what is wrong with it."""
        return self._ask("query", query=promql, **({} if at is None else {"time": at}))["result"]

    def range(self, promql: str, start: float, end: float, step: float) -> list[Record]:
        """A range query."""
        return self._ask("query_range", query=promql, start=start, end=end, step=step)["result"]

    def value(self, promql: str, at: float | None = None) -> float | None:
        """The value of a query that gives one; None for nothing or several."""
        found = self.query(promql, at)
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def by(self, promql: str, label: str, at: float | None = None) -> dict[str, float]:
        """The values of a query by one label."""
        return {r["metric"].get(label, ""): float(r["value"][1]) for r in self.query(promql, at)}

    def exemplars(self, selector: str, start: float, end: float) -> list[Record]:
        """All exemplars of the series."""
        found = self._ask("query_exemplars", query=selector, start=start, end=end)
        return [exemplar | {"series": series["seriesLabels"]} for series in found for exemplar in series["exemplars"]]


# Jaeger ----------------------------------------------------------------------------------------------------------------

JAEGER_CONFIG = """\
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry: {{metrics: {{level: none}}}}
extensions:
  jaeger_query:
    storage: {{traces: memory}}
    http: {{endpoint: "127.0.0.1:{query}"}}
    grpc: {{endpoint: "127.0.0.1:{query_grpc}"}}
  jaeger_storage:
    backends: {{memory: {{memory: {{max_traces: 100000}}}}}}
receivers:
  otlp:
    protocols: {{grpc: {{endpoint: "127.0.0.1:{otlp}"}}}}
exporters:
  jaeger_storage_exporter: {{trace_storage: memory}}
"""


class Jaeger:
    """A real Jaeger that keeps traces in memory."""

    def __init__(self, children: Children, folder: Path) -> None:
        ports = {name: free_port() for name in ("query", "query_grpc", "otlp")}
        self.url, self.grpc = f"http://127.0.0.1:{ports['query']}", f"127.0.0.1:{ports['otlp']}"
        config, log_path = folder / "jaeger.yaml", folder / "jaeger.log"
        config.write_text(JAEGER_CONFIG.format(**ports))
        with log_path.open("wb") as log:
            child = children.start([JAEGER, "--config", config], stdout=log, stderr=log)
        if not until(30, lambda: get(f"{self.url}/api/services")[0] == 200 or child.poll() is not None) or child.poll() is not None:
            raise RuntimeError(f"jaeger does not come up:\n{log_path.read_text()[-3000:]}")

    def spans(self, trace_id: str) -> list[Record]:
        """The spans of a trace, their tags as a map; nothing when Jaeger does not know it."""
        status, body = get(f"{self.url}/api/traces/{trace_id}")
        found = json.loads(body)["data"] if status == 200 else []
        return [span | {"tags": {t["key"]: t["value"] for t in span["tags"]}} for trace in found or [] for span in trace["spans"]]


# Traffic ---------------------------------------------------------------------------------------------------------------


class Demo:
    """The demo's provider, and clients that wait until they are let go. The agent is started between both, and told these pids."""

    def __init__(self, children: Children, folder: Path, *client: str) -> None:
        self.truth_path = folder / "client.jsonl"
        provider = children.start(
            [sys.executable, DEMO / "provider.py", "--truth", folder / "provider.jsonl", "--dir", folder], stdout=subprocess.PIPE
        )
        hello = first_json_line(provider)
        # The client waits at its standard input until the agent, which is told both pids, taps.
        self.client = children.start(
            [sys.executable, DEMO / "client.py", "--port", str(hello["port"]), "--cert", hello["cert"], "--truth", self.truth_path, "--gate", *client],
            stdin=subprocess.PIPE,
        )
        self.pids = [provider.pid, self.client.pid]

    def go(self) -> None:
        """Lets the clients begin."""
        assert self.client.stdin is not None
        self.client.stdin.write(b"go\n")
        self.client.stdin.close()

    def truth(self, seconds: float = 300) -> list[Record]:
        """Waits for their end; what they wrote down."""
        self.client.wait(seconds)
        return read_jsonl(self.truth_path)


def otlp(metrics: str, traces: str | None, interval_ms: int = 1000) -> None:
    """Sets the standard variables for an agent that is started later: metrics to a URL by HTTP, spans to a URL by gRPC."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    os.environ |= {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": metrics, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": str(interval_ms),
    }  # fmt: skip
    if traces:
        os.environ |= {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": traces, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
    else:
        os.environ["OTEL_TRACES_EXPORTER"] = "none"
