#!/usr/bin/env python3
"""A real OpenTelemetry Collector with the configuration that we ship, fed by the real agent with what it really tapped.

Two Collectors run the same file: one as an agent's next hop (scraped here, and sending spans on), one as the backend
that prints the spans it gets. The demo's provider and clients make the traffic; their own truth is what the scrape and
the spans are compared with. Everything listens on random loopback ports.

    tests/real/setup-go.sh collector && tests/real/collector.py     # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, ROOT, Agent, Children, Record, Score, skip_without_bpf  # noqa: E402
from stack import CONFIGS, OTELCOL, Collector, Demo, get, otlp, validate  # noqa: E402

CONFIG = CONFIGS / "tokengauge.yaml"
SEMCONV = ROOT / "agent" / "core" / "src" / "semconv.rs"
# What must never leave the agent: the demo client's key and prompt, and words of the provider's answers.
SECRETS = ("sk-demo-key-that-no-report-may-show", "go on", "a stream is a promise", "promise kept")

# The series that the README's rules and dashboards will build on; the rest is compared by rule with semconv.rs.
EXPECTED = (
    "gen_ai_client_operation_duration_seconds_bucket", "gen_ai_client_operation_time_to_first_chunk_seconds_bucket",
    "gen_ai_client_operation_time_per_output_chunk_seconds_bucket", "gen_ai_client_token_usage_bucket",
    "gen_ai_server_request_duration_seconds_bucket", "gen_ai_server_time_to_first_token_seconds_bucket",
    "gen_ai_server_time_per_output_token_seconds_bucket", "tokengauge_time_to_first_token_seconds_bucket",
    "tokengauge_time_to_first_answer_seconds_bucket", "tokengauge_time_per_output_token_seconds_bucket",
    "tokengauge_inter_chunk_gap_seconds_bucket", "tokengauge_max_stall_seconds_bucket",
    "tokengauge_output_speed_per_second_bucket", "tokengauge_requests_total", "tokengauge_input_tokens_total",
    "tokengauge_output_tokens_total", "tokengauge_in_flight", "tokengauge_capture_records_total",
    "tokengauge_capture_bytes_total", "tokengauge_export_drops_total", "target_info",
)  # fmt: skip


# What Prometheus would see ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One line of the exposition format."""

    name: str
    labels: dict[str, str]
    value: float


class Scrape:
    """A parsed answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        self.samples = [
            Sample(name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value))
            for name, labels, value in re.findall(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$", text, re.M)
        ]

    def of(self, name: str, **labels: str) -> list[Sample]:
        """The samples of that name with these labels."""
        return [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        """Their sum."""
        return sum(s.value for s in self.of(name, **labels))


def catalogue() -> dict[str, tuple[str, str]]:
    """Prometheus name → (type, OTLP name) of every metric in semconv.rs, by the translator's rules written anew."""
    rows = re.findall(r'^\s+[A-Z_]+ = "([\w.]+)", (\w+), "([^"]*)"', SEMCONV.read_text(), re.M)
    kinds = {"Histogram": "histogram", "Counter": "counter", "UpDownCounter": "gauge", "Gauge": "gauge"}
    out = {}
    for name, kind, unit in rows:
        base, _, per = unit.partition("/")
        word = {"s": "seconds", "By": "bytes"}.get(base, "")
        parts = name.replace(".", "_").split("_")
        parts += [word] if word and parts[-1] != word else []
        parts += ["per", "second"] if per == "s" else []
        parts += ["total"] if kind == "Counter" else ["ratio"] if (kind, unit) == ("Gauge", "1") else []
        out["_".join(parts)] = (kinds[kind], name)
    return out


# The traffic ---------------------------------------------------------------------------------------------------------


def traffic(children: Children, folder: Path, gateway: Collector, count: int) -> tuple[list[Record], str, int]:
    """Provider, agent, client, in this order; the client's truth, the agent's log and its exit code."""
    demo = Demo(children, folder, "--count", str(count), "--rate", "4")
    # Metrics over HTTP, spans over gRPC: both of the receiver's ports are used.
    otlp(f"{gateway.http}/v1/metrics", f"http://{gateway.grpc}")
    config = folder / "tokengauge.yaml"
    config.write_text(f"taps: {{tls: {{pids: {demo.pids}}}}}\n")
    agent = Agent(children, folder, "--config", str(config))
    demo.go()
    truth = demo.truth(120)
    time.sleep(2)
    agent.stop()
    return truth, agent.log(), agent.exit_code


# The checks ----------------------------------------------------------------------------------------------------------


def check_configuration(score: Score) -> None:
    """The file by itself."""
    for what, settings in (
        ("as it is", {}),
        ("with spans sent on", {"TRACES_EXPORTER": "otlp_grpc", "TRACES_ENDPOINT": "backend:4317"}),
        ("in an IPv6 pod", {"LISTEN": "[fd00::7]"}),
    ):
        result = validate(CONFIG, **settings)
        score.check(
            result.returncode == 0, f"otelcol validate, {what}{result.returncode and ': ' + result.stderr or ''}"
        )
    result = validate(CONFIG, TRACES_EXPORTER="no_such_exporter")
    score.check(
        result.returncode != 0 and "no_such_exporter" in result.stderr, "otelcol validate refuses an unknown exporter"
    )


def check_metrics(score: Score, scrape: Scrape, truth: list[Record]) -> None:
    """The scrape against the names of semconv.rs and the client's own truth."""
    names = {s.name for s in scrape.samples}
    for name in EXPECTED:
        score.check(name in names, f"scraped {name}")
    known = catalogue()
    strange = {
        n: t
        for n, t in scrape.types.items()
        if known.get(n, ("gauge", ""))[0] != t or n not in known and n != "target_info"
    }
    score.check(
        not strange,
        f"all {len(scrape.types) - 1} metrics have the name and type of semconv.rs, translated {strange or ''}",
    )
    score.check(len(known) >= 30, f"semconv.rs lists {len(known)} metrics")

    count = Counter((r["model"], r["outcome"]) for r in truth)
    for (model, outcome), n in sorted(count.items()):
        seen = scrape.sum(
            "tokengauge_requests_total",
            gen_ai_request_model=model,
            tokengauge_outcome=outcome,
            tokengauge_vantage="client",
        )
        score.check(seen == n, f"tokengauge_requests_total of {model}, {outcome}: {seen:g}, the client counted {n}")
    for model in sorted({r["model"] for r in truth}):
        first = [
            (r["t_first_chunk_ns"] - r["t_send_ns"]) / 1e9 for r in truth if r["model"] == model and r["chunks_ns"]
        ]
        labels = {"gen_ai_request_model": model, "tokengauge_vantage": "client"}
        streams = scrape.sum("tokengauge_time_to_first_token_seconds_count", **labels)
        total = scrape.sum("tokengauge_time_to_first_token_seconds_sum", **labels)
        close = streams == len(first) and abs(total - sum(first)) < 0.03 * len(first)
        score.check(
            close,
            f"first token of {model}: {streams:g} in {total:.3f} s, the client's {len(first)} in {sum(first):.3f} s",
        )
    tokens = sum(r["output_tokens"] or 0 for r in truth if r["outcome"] == "completed")
    counted = scrape.sum("tokengauge_output_tokens_total", tokengauge_vantage="client")
    score.check(counted >= tokens > 0, f"output tokens: {counted:g}, of completed requests {tokens}")

    zero = scrape.of("tokengauge_requests_total", gen_ai_request_model="swift-1", tokengauge_outcome="failed")
    score.check(
        bool(zero) and all(s.value == 0 for s in zero),
        f"{len(zero)} counters of failures that did not happen are there as 0",
    )
    bounds = {s.labels["le"] for s in scrape.of("tokengauge_time_to_first_token_seconds_bucket")}
    score.check(
        {"0.2", "0.5", "1.5", "+Inf"} <= bounds and len(bounds) == 28,
        f"{len(bounds)} bounds of the first token's histogram",
    )
    ours = [s for s in scrape.samples if s.name != "target_info"]
    score.check({s.labels.get("job") for s in ours} == {"tokengauge"}, "job is the agent's service.name")
    score.check(len({s.labels.get("instance") for s in ours}) == 1, "one agent, one instance")
    score.check(
        not any(k.startswith("otel_scope") for s in ours for k in s.labels), "no label with the agent's version"
    )
    info = scrape.of("target_info")
    wanted = {"service_version", "host_name", "job", "instance"}
    score.check(len(info) == 1 and wanted <= info[0].labels.keys(), "target_info has version and host")
    drops = scrape.of("tokengauge_export_drops_total")
    score.check(bool(drops) and not any(s.value for s in drops), "the agent dropped no export")


def check_spans(score: Score, log: str, truth: list[Record]) -> None:
    """What the backend printed: each inference once from either side."""
    spans = re.split(r"^Span #\d+\n", log, flags=re.M)[1:]
    of_ours = [s for s in spans if "tokengauge.vantage" in s]
    names = Counter(
        (name.group(1), side.group(1))
        for s in of_ours
        if (name := re.search(r"^\s+Name\s+: (.+)$", s, re.M))
        and (side := re.search(r"tokengauge\.vantage: Str\((\w+)\)", s))
    )
    for (model), n in sorted(Counter(r["model"] for r in truth).items()):
        got = names[(f"chat {model}", "client")], names[(f"chat {model}", "server")]
        score.check(
            got == (n, n), f"spans `chat {model}`: {got[0]} at the client, {got[1]} at the server, requests {n}"
        )
    keys = ("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.operation.name", "server.address")
    score.check(all(k in s for s in of_ours for k in keys), f"each of {len(of_ours)} spans has {', '.join(keys)}")
    score.check("Name: tokengauge.first_token" in log, "spans have the event of the first token")
    score.check("SchemaURL: https://opentelemetry.io/schemas/" in log, "spans have a schema")


def main() -> None:
    """All of it."""
    score = Score()
    for what, path in (("agent", AGENT), ("Collector", OTELCOL)):
        if not score.check(path.exists(), f"{what} at {path}"):
            print("build the agent or set TOKENGAUGE; the Collector comes from tests/real/setup-go.sh collector")
            score.finish()
    check_configuration(score)
    skip_without_bpf()
    with tempfile.TemporaryDirectory(prefix="tokengauge-collector-") as name, Children() as children:
        folder = Path(name)
        backend = Collector(children, folder, "backend", DEBUG_VERBOSITY="detailed")
        gateway = Collector(
            children, folder, "gateway", TRACES_EXPORTER="otlp_grpc", TRACES_INSECURE="true",
            TRACES_ENDPOINT=backend.grpc,
        )  # fmt: skip
        truth, said, exit_code = traffic(children, folder, gateway, count=30)
        score.check(len(truth) == 30, f"the client made {len(truth)} requests")
        score.check(exit_code == 0, f"the agent ended with {exit_code}{exit_code and ': ' + said or ''}")
        scrape = Scrape(get(f"http://127.0.0.1:{gateway.ports['PROMETHEUS_PORT']}/metrics")[1])
        check_metrics(score, scrape, truth)
        score.check(gateway.stop() == 0, "the gateway ends cleanly")
        time.sleep(1.5)  # the backend's own batch
        score.check(backend.stop() == 0, "the backend ends cleanly")
        check_spans(score, backend.log(), truth)
        logs = gateway.log() + backend.log()
        worries = [line for line in logs.splitlines() if re.search(r"\t(warn|error)\t|deprecated", line)]
        score.check(not worries, f"neither Collector warns {worries[:3] or ''}")
        everything = logs + "".join(f"{s.name}{s.labels}" for s in scrape.samples)
        found = [secret for secret in SECRETS if secret in everything]
        score.check(not found, f"no key, prompt or answer got out {found or ''}")
        if score.failed:
            print(f"--- agent\n{said[-3000:]}\n--- gateway\n{gateway.log()[-3000:]}")
    score.finish()


if __name__ == "__main__":
    main()
