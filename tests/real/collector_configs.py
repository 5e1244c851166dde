#!/usr/bin/env python3
"""Every Collector configuration that we ship, each run by a real Collector with what the real agent really tapped.

    agent ─► tee ─┬─► node.yaml ─► gateway.yaml ─┬─► Prometheus (OTLP)
                  │                              └─► sink (spans that were kept)
                  ├─► remote-write.yaml ─► Prometheus (remote write)
                  ├─► redaction.yaml ─► sink       (and spans with prompts and keys, made here)
                  └─► grafana-cloud.yaml, honeycomb.yaml, datadog.yaml ─► a receiver that notes headers ─► sink

The gateway is down while the traffic runs, and the node's Collector is killed meanwhile: its queue is on disk. The sink is a Collector that
writes what it gets as JSON. Everything listens on random loopback ports.

    tests/real/setup-go.sh collector prometheus && tests/real/collector_configs.py     # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, Agent, Children, Record, Score, free_port, skip_without_bpf  # noqa: E402 (the path above comes first)
from stack import CONFIGS, OTELCOL, PROMETHEUS, Collector, Demo, Prometheus, otlp, until, validate  # noqa: E402

# The oldest Collector that has each file's components under these names; the file must say so.
FILES = {
    "tokengauge.yaml": "0.144.0", "node.yaml": "0.154.0", "gateway.yaml": "0.154.0", "remote-write.yaml": "0.154.0", "redaction.yaml": "0.154.0",
    "grafana-cloud.yaml": "0.144.0", "honeycomb.yaml": "0.144.0", "datadog.yaml": "0.159.0",
}  # fmt: skip
VENDORS = {
    "grafana-cloud": ("GRAFANA_CLOUD", {"GRAFANA_CLOUD_BASIC": "MTIzOnRva2Vu"}, {"authorization": "Basic MTIzOnRva2Vu"}),
    "honeycomb": ("HONEYCOMB", {"HONEYCOMB_API_KEY": "hc-key"}, {"x-honeycomb-team": "hc-key", "x-honeycomb-dataset": "tokengauge-metrics"}),
    "datadog": ("DATADOG", {"DD_API_KEY": "dd-key"}, {"dd-api-key": "dd-key", "dd-otlp-source": "tokengauge"}),
}
SINKS = ("kept", "redacted", *VENDORS)
# None of the demo's models takes as long as that, give or take a third of a second.
SLOW_S = 1.8
DECISION_WAIT_S = 3
# What SDKs put on spans, and what must be left of it.
PROMPT, KEY, MAIL = "the patient said that", "sk-proj-0123456789abcdefghij", "jane.doe@example.org"
CUMULATIVE, DELTA = 2, 1


def tee_config(folder: Path, targets: dict[str, str]) -> Path:
    """A Collector that sends everything to each target; small files of the rig, not shipped."""
    lines = ["receivers: {otlp: {protocols: {grpc: {endpoint: '127.0.0.1:${env:TOKENGAUGE_OTLP_GRPC_PORT}'}, http: {endpoint: '127.0.0.1:${env:TOKENGAUGE_OTLP_HTTP_PORT}'}}}}"]
    lines += ["exporters:", *(f"  otlp_grpc/{name}: {{endpoint: '{to}', tls: {{insecure: true}}}}" for name, to in targets.items())]
    names = ", ".join(f"otlp_grpc/{name}" for name in targets)
    return write_config(folder / "tee.yaml", lines, [f"{signal}: {{receivers: [otlp], exporters: [{names}]}}" for signal in ("metrics", "traces")])


def sink_config(folder: Path, ports: dict[str, tuple[int, int]]) -> Path:
    """A Collector that writes what comes to each of its receivers into a file of its own."""
    lines = ["receivers:"]
    for name, (grpc, http) in ports.items():
        lines.append(f"  otlp/{name}: {{protocols: {{grpc: {{endpoint: '127.0.0.1:{grpc}'}}, http: {{endpoint: '127.0.0.1:{http}'}}}}}}")
    lines += ["exporters:", *(f"  file/{name}: {{path: '{folder / name}.json', flush_interval: 200ms}}" for name in ports)]
    pipelines = [f"{signal}/{name}: {{receivers: [otlp/{name}], exporters: [file/{name}]}}" for signal in ("metrics", "traces") for name in ports]
    return write_config(folder / "sink.yaml", lines, pipelines)


def write_config(path: Path, lines: list[str], pipelines: list[str]) -> Path:
    """Adds what every one of them needs."""
    lines += ["extensions: {health_check: {endpoint: '127.0.0.1:${env:TOKENGAUGE_HEALTH_PORT}'}}", "service:", "  extensions: [health_check]"]
    lines += ["  telemetry: {metrics: {level: none}}", "  pipelines:", *(f"    {line}" for line in pipelines)]
    path.write_text("\n".join(lines) + "\n")
    return path


class Vendor(ThreadingHTTPServer):
    """An OTLP/HTTP intake: notes the headers, and hands the body on to the sink."""

    def __init__(self, sink: str) -> None:
        super().__init__(("127.0.0.1", 0), Intake)
        self.sink, self.headers = sink, dict[str, dict[str, str]]()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Intake(BaseHTTPRequestHandler):
    """One request to a vendor."""

    server: Vendor

    def do_POST(self) -> None:  # noqa: N802 (the base class's name)
        """Any signal."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        signal = self.path.rpartition("/")[2]
        self.server.headers[signal] = {k.lower(): v for k, v in self.headers.items()} | {"path": self.path}
        urllib.request.urlopen(urllib.request.Request(f"{self.server.sink}/v1/{signal}", body, {"content-type": self.headers["content-type"]}), timeout=10)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


# What the sink wrote -------------------------------------------------------------------------------------------------


def attributes(of: Record) -> Record:
    """OTLP's list of attributes as a map."""
    return {a["key"]: next(iter(a["value"].values()), None) for a in of.get("attributes", [])}


def written(path: Path, kind: str, inner: str) -> Iterator[tuple[Record, Record]]:
    """Resource attributes, and each span or metric."""
    for line in path.read_text().splitlines() if path.exists() else []:
        for resource in json.loads(line).get(f"resource{kind}", []):
            for scope in resource[f"scope{kind}"]:
                yield from ((attributes(resource["resource"]), item) for item in scope[inner])


def spans(path: Path) -> list[Record]:
    """The spans in a sink's file, attributes as maps."""
    return [span | {"attributes": attributes(span), "resource": resource} for resource, span in written(path, "Spans", "spans")]


def inferences(path: Path) -> list[Record]:
    """Those of them that the agent made of an inference."""
    return [span for span in spans(path) if "tokengauge.vantage" in span["attributes"]]


def metrics(path: Path) -> dict[str, Record]:
    """The last of each metric in a sink's file."""
    return {metric["name"]: metric | {"resource": resource} for resource, metric in written(path, "Metrics", "metrics")}


def seconds(span: Record) -> float:
    """Its length."""
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


# The checks ------------------------------------------------------------------------------------------------------------


def check_files(score: Score) -> None:
    """The files by themselves."""
    ours = {path.name for path in CONFIGS.glob("*.yaml") if "\nservice:\n" in path.read_text()}
    score.check(ours == FILES.keys(), f"{len(ours)} Collector configurations are known here {sorted(ours ^ FILES.keys()) or ''}")
    for name, lowest in FILES.items():
        text = (CONFIGS / name).read_text()
        done = validate(CONFIGS / name)
        score.check(done.returncode == 0, f"otelcol validate {name}{done.returncode and ': ' + done.stderr or ''}")
        score.check(f"Lowest Collector version: {lowest}" in text, f"{name} says that it needs {lowest}")
        variables = set(re.findall(r"\$\{env:([A-Z0-9_]+)", text))
        told = {v for v in variables if re.search(rf"^#   {v}\s", text, re.M)}
        score.check(variables == told, f"{name} explains each of its {len(variables)} variables {sorted(variables - told) or ''}")


def check_gateway(score: Score, path: Path, truth: list[Record], prometheus: Prometheus) -> None:
    """What was counted, and what was sampled after it."""
    made = 2 * len(truth)  # each inference is seen at its client and at its server
    calls = 'sum(tokengauge_spans_calls_total{tokengauge_vantage=~"client|server"})'
    counted = until(40, lambda: prometheus.value(calls) == made)
    score.check(bool(counted), f"span_metrics counted all spans before sampling, those that waited in the queue of a killed node too: {prometheus.value(calls)} of {made}")
    check_requests(score, prometheus, truth, "by OTLP through node and gateway")
    time.sleep(DECISION_WAIT_S + 1)
    kept = inferences(path)
    outcome = Counter(s["attributes"]["tokengauge.outcome"] for s in kept)
    for name in ("failed", "cancelled"):
        want = 2 * sum(r["outcome"] == name for r in truth)
        score.check(outcome[name] == want, f"kept all {outcome[name]} spans of {name} inferences, of {want}")
    slow = [s for s in kept if s["attributes"]["tokengauge.outcome"] == "completed" and seconds(s) > SLOW_S]
    want = 2 * sum(r["outcome"] == "completed" and (r["chunks_ns"][-1] - r["t_send_ns"]) / 1e9 > SLOW_S for r in truth)
    score.check(len(slow) == want > 0, f"kept all {len(slow)} spans longer than {SLOW_S} s, of {want}")
    ordinary, of = len(kept) - len(slow) - outcome["failed"] - outcome["cancelled"], made - want - outcome["failed"] - outcome["cancelled"]
    score.check(ordinary <= of // 2, f"kept {ordinary} of {of} ordinary ones (5 %, by trace id)")


def check_requests(score: Score, prometheus: Prometheus, truth: list[Record], way: str) -> None:
    """The agent's own counters, by which SLOs are judged, against the clients' truth."""
    query = 'sum by (gen_ai_request_model, tokengauge_outcome) (tokengauge_requests_total{tokengauge_vantage="client"}) > 0'
    want = dict(Counter((r["model"], r["outcome"]) for r in truth))

    def seen() -> dict[tuple[str, str], int]:
        found = prometheus.query(query)
        return {(r["metric"]["gen_ai_request_model"], r["metric"]["tokengauge_outcome"]): int(float(r["value"][1])) for r in found}

    score.check(bool(until(30, lambda: seen() == want)), f"requests by model and outcome are the clients', {way}: {len(seen())} series")
    names = {r["metric"]["job"] for r in prometheus.query("tokengauge_requests_total")}
    score.check(names == {"tokengauge"}, f"job is the agent's service.name, {way}: {names}")


def foreign(collector: Collector) -> None:
    """A span as an SDK with content capture makes it, with a prompt, a key and an address."""
    say = lambda key, value: {"key": key, "value": {"stringValue": value}}  # noqa: E731 (a table)
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "chat foreign-1", "kind": 3,
        "startTimeUnixNano": str(time.time_ns() - 10**9), "endTimeUnixNano": str(time.time_ns()),
        "attributes": [
            say("gen_ai.request.model", "foreign-1"), say("gen_ai.input.messages", PROMPT), say("gen_ai.prompt.0.content", PROMPT), say("note", f"used {KEY} for {MAIL}"),
        ],
        "events": [{"name": "gen_ai.user.message", "timeUnixNano": str(time.time_ns()), "attributes": [say("content", PROMPT)]}],
    }  # fmt: skip
    body = {"resourceSpans": [{"resource": {"attributes": [say("service.name", "app")]}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]}
    request = urllib.request.Request(f"{collector.http}/v1/traces", json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=10)


def check_redaction(score: Score, path: Path, truth: list[Record]) -> None:
    """Nothing private got through; nothing of the agent's figures is missing."""
    text = path.read_text()
    score.check("foreign-1" in text, "the foreign span came through")
    left = [secret for secret in (PROMPT, KEY, MAIL) if secret in text]
    score.check(not left, f"without prompt, key and address {left or ''}")
    ours = inferences(path)
    score.check(len(ours) == 2 * len(truth), f"all {len(ours)} spans of the agent came through")
    gone = {"process.pid"} & {k for s in ours for k in s["attributes"]} | {"host.name"} & {k for s in ours for k in s["resource"]}
    score.check(not gone, f"without process ids and host names {gone or ''}")
    kept = {"tokengauge.time_to_first_token", "gen_ai.request.model", "tokengauge.outcome", "server.address"}
    score.check(kept <= {k for s in ours for k in s["attributes"]}, "with what dashboards need")
    points = metrics(path)["tokengauge.requests"]["sum"]["dataPoints"]
    total = sum(int(p["asInt"]) for p in points if attributes(p)["tokengauge.vantage"] == "client")
    score.check(total == len(truth), f"and the counters are what they were: {total} requests")


def check_vendor(score: Score, name: str, vendor: Vendor, headers: dict[str, str], path: Path, truth: list[Record]) -> None:
    """Headers, spans and temporality."""
    for signal in ("traces", "metrics"):
        got = vendor.headers.get(signal, {})
        score.check(headers.items() <= got.items() and got.get("path") == f"/v1/{signal}", f"{name}: {signal} come with the vendor's headers to {got.get('path')}")
    ours = inferences(path)
    score.check(len(ours) == 2 * len(truth), f"{name}: all {len(ours)} spans of inferences")
    sums = [m["sum"] for m in metrics(path).values() if m.get("sum", {}).get("isMonotonic")]
    want = DELTA if name == "datadog" else CUMULATIVE
    score.check(bool(sums) and {s["aggregationTemporality"] for s in sums} == {want}, f"{name}: {len(sums)} counters are {'delta' if want == DELTA else 'cumulative'}")
    if name == "datadog":
        points = [p for _, m in written(path, "Metrics", "metrics") if m["name"] == "tokengauge.requests" for p in m["sum"]["dataPoints"]]
        total = sum(int(p["asInt"]) for p in points if attributes(p)["tokengauge.vantage"] == "client")
        score.check(total == len(truth), f"{name}: the deltas add up to {total} requests, of {len(truth)}")


def main() -> None:
    """All of it."""
    score = Score()
    for what, path in (("agent", AGENT), ("Collector", OTELCOL), ("Prometheus", PROMETHEUS)):
        if not score.check(path.exists(), f"{what} at {path}"):
            score.finish()
    check_files(score)
    skip_without_bpf()
    with tempfile.TemporaryDirectory(prefix="tokengauge-configs-") as name, Children() as children:
        folder = Path(name)
        by_otlp, by_write = (Prometheus(children, folder, f"prometheus-{way}") for way in ("otlp", "write"))
        ports = {name: (free_port(), free_port()) for name in SINKS}
        sink = Collector(children, folder, "sink", sink_config(folder, ports))
        gateway_settings = {
            "TRACES_ENDPOINT": f"127.0.0.1:{ports['kept'][0]}", "INSECURE": "true", "PROMETHEUS": f"{by_otlp.url}/api/v1/otlp", "DECISION_WAIT": f"{DECISION_WAIT_S}s",
            "SLOW": f"{int(SLOW_S * 1000)}ms",
        }  # fmt: skip
        gateway = Collector(children, folder, "gateway", CONFIGS / "gateway.yaml", **gateway_settings)
        # No cluster here: the processor asks an API server that is not there, and passes everything on. tests/k8s/collector.py has a real one.
        no_api = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
        node_settings = {"K8S_AUTH": "none", "GATEWAYS": "localhost", "GATEWAY": gateway.grpc, "GATEWAY_PORT": str(gateway.ports["OTLP_GRPC_PORT"]), "INSECURE": "true"}
        node = Collector(children, folder, "node", CONFIGS / "node.yaml", no_api, **node_settings)
        write = Collector(children, folder, "remote-write", CONFIGS / "remote-write.yaml", REMOTE_WRITE=f"{by_write.url}/api/v1/write")
        redaction = Collector(children, folder, "redaction", CONFIGS / "redaction.yaml", ENDPOINT=f"127.0.0.1:{ports['redacted'][0]}", INSECURE="true")
        vendors, senders = {}, []
        for vendor, (prefix, keys, _) in VENDORS.items():
            vendors[vendor] = Vendor(f"http://127.0.0.1:{ports[vendor][1]}")
            extra = keys | {f"{prefix}_ENDPOINT": f"http://127.0.0.1:{vendors[vendor].server_port}"}
            senders.append(Collector(children, folder, vendor, CONFIGS / f"{vendor}.yaml", extra))
        chain = [node, write, redaction, *senders]
        tee = Collector(children, folder, "tee", tee_config(folder, {c.name: c.grpc for c in chain}))

        demo = Demo(children, folder, "--count", "40", "--rate", "5")
        otlp(f"{tee.http}/v1/metrics", f"http://{tee.grpc}")
        config = folder / "agent.yaml"
        config.write_text(f"taps: {{tls: {{pids: {demo.pids}}}}}\n")
        agent = Agent(children, folder, "--config", str(config))
        score.check(gateway.stop() == 0, "the gateway is stopped, then the traffic begins")
        demo.go()
        truth = demo.truth()
        score.check(len(truth) == 40, f"the clients made {len(truth)} requests")
        foreign(redaction)
        time.sleep(3)
        agent.stop()
        score.check(agent.exit_code == 0, f"the agent ended with {agent.exit_code}")
        drops = sum(float(r["value"][1]) for r in by_write.query("tokengauge_export_drops_total"))
        score.check(drops == 0, f"the agent dropped {drops:g} exports")

        size = sum(p.stat().st_size for p in (folder / "node").iterdir())
        score.check(size > 10_000, f"{size} bytes wait in the node's queue")
        node.kill()
        gateway.start()
        node.start()
        kept = folder / "kept.json"
        check_gateway(score, kept, truth, by_otlp)
        check_requests(score, by_write, truth, "by remote write")
        for collector in (tee, *chain, gateway, sink):
            score.check(collector.stop() == 0, f"{collector.name} ends cleanly")
        check_redaction(score, folder / "redacted.json", truth)
        for vendor, (_, _, headers) in VENDORS.items():
            check_vendor(score, vendor, vendors[vendor], headers, folder / f"{vendor}.json", truth)
        logs = {c.name: c.log() for c in (*chain, gateway)}
        # The node is without its gateway and without an API server on purpose, and says so.
        worries = [f"{name}: {line}" for name, text in logs.items() for line in text.splitlines() if re.search(r"deprecat|\t(error|fatal)\t", line) and name != "node"]
        score.check(not worries, f"no Collector complains {[w[:300] for w in worries[:3]] or ''}")
        score.check("deprecat" not in logs["node"], "nothing that the node's file uses is deprecated")
        if score.failed:
            print(f"--- agent\n{agent.log()[-2000:]}")
            for name, text in logs.items():
                print(f"--- {name}", *(line[:400] for line in text.splitlines() if "\tinfo\t" not in line), sep="\n")
    score.finish()


if __name__ == "__main__":
    main()
