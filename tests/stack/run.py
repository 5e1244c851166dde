#!/usr/bin/env python3
"""What is measured on the wire against what comes out at the far end of the stack.

    demo, llama.cpp ─► agent ─┬─► JSON lines
                              └─► tee ─┬─► gateway.yaml ─┬─► Prometheus by OTLP ─► rules, dashboards
                                       │                 └─► Jaeger
                                       └─► remote-write.yaml ─► Prometheus by remote write

TTFT p95, tokens per second in their three meanings and burn rates by PromQL must be those of the JSON lines, within the histogram's buckets where a
histogram is in between and exactly where not; exemplars must lead to spans in Jaeger that have the exemplar's value; every query of every dashboard
must find something. Everything listens on random loopback ports.

    tests/real/setup.sh && tests/real/setup-go.sh collector prometheus jaeger && tests/stack/run.py      # TOKENGAUGE=path of the agent
    tests/stack/run.py --seconds 240 --pictures DIR       # also draws the dashboards (tests/stack/draw.py; needs matplotlib)
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

import dashboards  # noqa: E402 (the path above comes first)
from rig import AGENT, CACHE, ROOT, Agent, Children, Record, Score, first_json_line, read_jsonl, skip_without_bpf  # noqa: E402
from stack import CONFIGS, JAEGER, OTELCOL, PROMETHEUS, Collector, Demo, Jaeger, Prometheus, get, otlp, until  # noqa: E402

TTFT, SPEED, GAP = "tokengauge_time_to_first_token_seconds", "tokengauge_output_speed_per_second", "tokengauge_inter_chunk_gap_seconds"
MODEL, CLIENT = "gen_ai_request_model", 'tokengauge_vantage="client"'
TTFT_LIMIT_S = 0.3
SLOS = f"""\
slos:
  service: rig
  window: 30d
  when: {{vantage: client}}
  objectives:
    - {{name: rig-availability, goal: availability >= 90%}}
    - {{name: rig-ttft, goal: ttft p80 <= {int(TTFT_LIMIT_S * 1000)}ms}}
"""
TARGETS = {"rig-availability": 0.9, "rig-ttft": 0.8}


# Traffic beside the demo -----------------------------------------------------------------------------------------------


class Llama(threading.Thread):
    """A real llama.cpp server, asked in the clear by one client after the other until it is told to end."""

    def __init__(self, children: Children) -> None:
        super().__init__(daemon=True)
        self.ended, self.asked = threading.Event(), 0
        server = children.start([CACHE / "venv/bin/python", ROOT / "tests/real/server.py", CACHE / "model.gguf"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = int(first_json_line(server, 60)["port"])

    def run(self) -> None:
        """Asks."""
        until(30, lambda: get(f"http://127.0.0.1:{self.port}/health")[0] == 200)
        body = json.dumps({"model": "tokengauge-random", "messages": [{"role": "user", "content": "go"}], "stream": True, "max_tokens": 48, "stream_options": {"include_usage": True}})
        while not self.ended.wait(0.5):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            connection.getresponse().read()
            connection.close()
            self.asked += 1


class Engines(BaseHTTPRequestHandler):
    """Stand-ins for engines that cannot be run here: names and labels as vLLM, SGLang and TensorRT-LLM write them, values made up. They show that the
    dashboard's queries match those names, nothing more."""

    began = time.monotonic()
    HISTOGRAMS = {
        "vllm:time_to_first_token_seconds": 'model_name="m",engine="0"', "vllm:request_time_per_output_token_seconds": 'model_name="m",engine="0"',
        "sglang:time_to_first_token_seconds": 'model_name="m"', "sglang:inter_token_latency_seconds": 'model_name="m"',
        "trtllm_time_to_first_token_seconds": 'model_name="m"', "trtllm_time_per_output_token_seconds": 'model_name="m"',
    }  # fmt: skip

    def do_GET(self) -> None:  # noqa: N802 (the base class's name)
        """The exposition."""
        n = int((time.monotonic() - Engines.began) * 4)
        lines = []
        for name, labels in self.HISTOGRAMS.items():
            counts = {"0.01": n // 2, "0.1": n * 9 // 10, "1.0": n, "+Inf": n}
            lines += [f"# TYPE {name} histogram", *(f'{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in counts.items())]
            lines += [f"{name}_sum{{{labels}}} {n * 0.02}", f"{name}_count{{{labels}}} {n}"]
        for name, value in (("vllm:num_requests_waiting", 1), ("vllm:kv_cache_usage_perc", 0.4), ("sglang:token_usage", 0.3)):
            lines += [f"# TYPE {name} gauge", f'{name}{{model_name="m"}} {value}']
        body = "\n".join(lines).encode() + b"\n"
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


# What the JSON lines say -------------------------------------------------------------------------------------------------


def grouped(records: Iterable[Record], of: Callable[[Record], float | None]) -> dict[str, list[float]]:
    """The defined values by model, in order."""
    out: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if (value := of(record)) is not None:
            out[record["request"]["model"]].append(value)
    return {model: sorted(values) for model, values in out.items()}


def order(values: list[float], q: float) -> float:
    """The value at the rank that PromQL asks a histogram for: the smallest with at least q of all at or below it."""
    return values[max(0, math.ceil(q * len(values) - 1e-9) - 1)]


def bounds(prometheus: Prometheus, metric: str, model: str, q: float) -> tuple[float, float, float]:
    """The bounds of the bucket that holds a quantile, and how many values the histogram has; native or classic."""
    selector = f'{{{CLIENT}, {MODEL}="{model}"}}'
    if native := prometheus.query(f"sum({metric}{selector})"):
        told = native[0]["histogram"]
        buckets = [(float(low), float(high), float(count)) for _, low, high, count in told["buckets"]]
    else:
        total = sorted((float(le), n) for le, n in prometheus.by(f"sum by (le) ({metric}_bucket{selector})", "le").items())
        buckets = [(low, high, n - before) for (low, before), (high, n) in zip([(0.0, 0.0), *total[:-1]], total, strict=True)]
    whole = sum(count for _, _, count in buckets)
    seen = 0.0
    for low, high, count in buckets:
        seen += count
        if seen >= q * whole - 1e-9 and count:
            return low, high, whole
    raise ValueError(f"{metric} of {model} is empty")


def promql_quantile(metric: str, q: float) -> str:
    """As the dashboards ask, but since the beginning, so that every request is in it."""
    return f"histogram_quantile({q}, sum by ({MODEL}) ({metric}{{{CLIENT}}})) or histogram_quantile({q}, sum by (le, {MODEL}) ({metric}_bucket{{{CLIENT}}}))"


# The checks --------------------------------------------------------------------------------------------------------------


def check_quantiles(score: Score, way: str, prometheus: Prometheus, metric: str, q: float, truth: dict[str, list[float]]) -> None:
    """A quantile by model: in the bucket of the true one."""
    got = prometheus.by(promql_quantile(metric, q), MODEL)
    for model, values in sorted(truth.items()):
        want, value = order(values, q), got.get(model, math.nan)
        low, high, whole = bounds(prometheus, metric, model, q)
        slack = 1e-9 * high  # a float's last digit
        right = whole == len(values) and low - slack <= want <= high + slack and low - slack <= value <= high + slack
        score.check(right, f"{way}: {metric} p{round(q * 100)} of {model}: {value:.4g}, of the {len(values)} lines {want:.4g} ({abs(value / want - 1):.1%} off; its bucket is {low:.4g} to {high:.4g})")


def check_counts(score: Score, way: str, prometheus: Prometheus, records: list[Record]) -> None:
    """What is counted, exactly; and the rates made of it."""
    by_outcome: dict[tuple[str, str], int] = defaultdict(int)
    for r in records:
        by_outcome[r["request"]["model"], r["outcome"]] += 1
    found = prometheus.query(f"sum by ({MODEL}, tokengauge_outcome) (tokengauge_requests_total{{{CLIENT}}}) > 0")
    got = {(r["metric"][MODEL], r["metric"]["tokengauge_outcome"]): int(float(r["value"][1])) for r in found}
    score.check(got == dict(by_outcome), f"{way}: {len(records)} requests in {len(got)} series by model and outcome")
    tokens = sum(r["usage"]["output_tokens"] or 0 for r in records)
    counted = prometheus.value(f"sum(tokengauge_output_tokens_total{{{CLIENT}}})")
    score.check(counted == tokens > 0, f"{way}: {counted} output tokens, of the lines {tokens}")
    took = sum(r["timing_s"]["duration"] or 0 for r in records)
    seconds = "(histogram_sum(sum(gen_ai_client_operation_duration_seconds)) or sum(gen_ai_client_operation_duration_seconds_sum))"
    # Those of llama.cpp are seen in between, and are in the same histogram of the conventions.
    others = f'sum(gen_ai_client_operation_duration_seconds_sum{{{MODEL}="tokengauge-random"}})'
    rate = prometheus.value(f"sum(tokengauge_output_tokens_total{{{CLIENT}}}) / ({seconds} - {others})")
    score.check(rate is not None and abs(rate / (tokens / took) - 1) < 1e-6, f"{way}: one request's rate {rate} tokens/s, of the lines {tokens / took}")


def check_throughput(score: Score, prometheus: Prometheus, records: list[Record], end: float) -> None:
    """The system's rate over a window in the middle of the traffic: PromQL extrapolates by up to one export at each edge."""
    window = 30.0
    # A request counts when it ends; its export comes up to a second and its way through the stack up to two later.
    ended = [(int(r["start_unix_nano"]) / 1e9 + r["timing_s"]["duration"], r["usage"]["output_tokens"] or 0) for r in records if r["timing_s"]["duration"] is not None]
    rates = [sum(n for at, n in ended if end - lag - window < at <= end - lag) / window for lag in (0, 1, 2, 3)]
    got = prometheus.value(f"sum(rate(tokengauge_output_tokens_total{{{CLIENT}}}[{int(window)}s]))", end) or math.nan
    score.check(min(rates) * 0.93 <= got <= max(rates) * 1.07, f"system throughput by rate(): {got:.1f} tokens/s, of the lines {min(rates):.1f} to {max(rates):.1f}")


def check_burn(score: Score, prometheus: Prometheus, records: list[Record]) -> None:
    """Burn rates: of the agent, and by PromQL of its counters."""
    judged = {"rig-availability": [], "rig-ttft": []}
    for r in records:
        if r["outcome"] in ("completed", "failed"):
            judged["rig-availability"].append(r["outcome"] == "completed")
            # A first token that came in time came in time, whatever failed behind it.
            judged["rig-ttft"].append(r["timing_s"]["ttft"] is not None and r["timing_s"]["ttft"] <= TTFT_LIMIT_S)
    for name, verdicts in judged.items():
        want = (1 - sum(verdicts) / len(verdicts)) / (1 - TARGETS[name])
        slo = f'{{tokengauge_slo_name="{name}"}}'
        counts = [prometheus.value(f"sum(tokengauge_slo_events_{kind}_total{slo})") for kind in ("valid", "good")]
        score.check(counts == [len(verdicts), sum(verdicts)], f"{name}: valid and good {counts}, of the lines {[len(verdicts), sum(verdicts)]}")
        own = prometheus.value(f'tokengauge_slo_burn_rate_ratio{{tokengauge_slo_name="{name}", tokengauge_slo_window="1h"}}')
        score.check(own is not None and abs(own - want) < 1e-6 * want, f"{name}: burn rate of the agent {own}, of the lines {want}")
        counters = prometheus.value(f"(1 - sum(tokengauge_slo_events_good_total{slo}) / sum(tokengauge_slo_events_valid_total{slo})) / (1 - max(tokengauge_slo_objective_ratio{slo}))")
        score.check(counters is not None and abs(counters - want) < 1e-6 * want, f"{name}: by PromQL of the counters {counters}")
        ruled = prometheus.value(f'slo:sli_error:ratio_rate1h{{sloth_slo="{name}"}} / on (sloth_id) group_left () slo:error_budget:ratio{{sloth_slo="{name}"}}')
        score.check(ruled is not None and abs(ruled / want - 1) < 0.05, f"{name}: by the recording rules, which extrapolate, {ruled}")


def check_traces(score: Score, jaeger: Jaeger, records: list[Record]) -> None:
    """Each line's trace is a span in Jaeger with the line's figures."""
    wrong = []
    for record in records[:: max(1, len(records) // 40)]:
        spans = until(10, lambda record=record: [s for s in jaeger.spans(record["trace"]["trace_id"]) if s["spanID"] == record["trace"]["span_id"]])
        ttft = record["timing_s"]["ttft"]
        same = spans and spans[0]["tags"].get("tokengauge.outcome") == record["outcome"] and (ttft is None or abs(spans[0]["tags"]["tokengauge.time_to_first_token"] - ttft) < 1e-8)
        if not same:
            wrong.append(record["trace"])
    score.check(not wrong, f"lines' traces are spans in Jaeger with the same outcome and TTFT {wrong[:2] or ''}")


def check_exemplars(score: Score, way: str, prometheus: Prometheus, jaeger: Jaeger, start: float, end: float) -> None:
    """Exemplars of the TTFT lead to the spans that they are of."""
    found = prometheus.exemplars(f'{{__name__=~"{TTFT}(_bucket)?"}}', start, end)
    if not found and prometheus.query(f"{TTFT}_bucket"):
        print(f"skipped: {way}: this agent's histograms have explicit bounds and no exemplars")
        return
    score.check(len(found) >= 5, f"{way}: {len(found)} exemplars of {TTFT}")
    ids = {}
    for exemplar in found:
        labels = exemplar["labels"]
        ids[labels.get("trace_id"), labels.get("span_id")] = float(exemplar["value"]), exemplar["series"].get(MODEL)
    wrong = []
    for (trace, span), (value, model) in list(ids.items())[:60]:
        spans = [s for s in jaeger.spans(str(trace)) if s["spanID"] == span]
        if not spans or abs(spans[0]["tags"].get("tokengauge.time_to_first_token", math.nan) - value) > 1e-8 or spans[0]["tags"].get("gen_ai.request.model") != model:
            wrong.append((trace, span, value))
    score.check(bool(ids) and not wrong, f"{way}: {min(60, len(ids))} exemplars are spans in Jaeger with that TTFT and model {wrong[:2] or ''}")


def check_rules(score: Score, prometheus: Prometheus) -> None:
    """Prometheus evaluates our rules without complaint."""
    groups = json.loads(get(f"{prometheus.url}/api/v1/rules")[1])["data"]["groups"]
    sick = [f"{rule['name']}: {rule['lastError']}" for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    score.check(len(groups) >= 3 and not sick, f"{sum(len(g['rules']) for g in groups)} rules in {len(groups)} groups are well {sick[:3] or ''}")
    firing = sorted({r["metric"]["alertname"] for r in prometheus.query('ALERTS{alertname!~"TokengaugeErrorBudgetBurn|TokengaugeSlo.*", alertstate="firing"}')})
    score.check(not firing, f"no alert on the agent itself fires {firing or ''}")


def prometheus_config(folder: Path, llama: int, engines: int) -> str:
    """The shipped configuration, with our rules and what is scraped here."""
    text = (CONFIGS / "prometheus.yaml").read_text()
    head, _, _ = text.partition("alerting:\n")
    head = head.replace("rules/*.yaml", f"{folder}/rules/*.yaml").replace("interval: 15s", "interval: 1s")
    targets = "".join(f"  - {{job_name: {name}, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n" for name, port in (("llama", llama), ("engines", engines)))
    return f"{head}scrape_configs:\n{targets}"


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description="the whole stack")
    parser.add_argument("--seconds", type=float, default=45, help="of traffic")
    parser.add_argument("--rate", type=float, default=6, help="requests per second of the demo's clients")
    parser.add_argument("--pictures", type=Path, help="draw the dashboards into this folder")
    args = parser.parse_args()
    score = Score()
    for what, path in (("agent", AGENT), ("Collector", OTELCOL), ("Prometheus", PROMETHEUS), ("llama.cpp", CACHE / "venv/bin/python")):
        if not score.check(path.exists(), f"{what} at {path}"):
            score.finish()
    skip_without_bpf()
    with tempfile.TemporaryDirectory(prefix="tokengauge-stack-") as name, Children() as children:
        folder = Path(name)
        (folder / "rules").mkdir()
        slos = folder / "slo.yaml"
        slos.write_text(SLOS)
        subprocess.run([AGENT, "slo", "rules", slos, "-o", folder / "rules" / "slo.yaml"], check=True)
        for path in (ROOT / "helm/tokengauge/alerts").glob("*.yaml"):
            (folder / "rules" / path.name).write_text(path.read_text())
        engines = ThreadingHTTPServer(("127.0.0.1", 0), Engines)
        threading.Thread(target=engines.serve_forever, daemon=True).start()
        llama = Llama(children)
        by_otlp = Prometheus(children, folder, "prometheus-otlp", prometheus_config(folder, llama.port, engines.server_port))
        by_write = Prometheus(children, folder, "prometheus-write")
        # Jaeger takes minutes to build, so CI goes without; `make test-stack` builds it first.
        jaeger = Jaeger(children, folder) if JAEGER.exists() else None
        gateway = Collector(
            children, folder, "gateway", CONFIGS / "gateway.yaml", PROMETHEUS=f"{by_otlp.url}/api/v1/otlp", TRACES_ENDPOINT=jaeger.grpc if jaeger else "127.0.0.1:1",
            INSECURE="true", KEEP_PERCENT="100", DECISION_WAIT="1s",
        )  # fmt: skip
        write = Collector(children, folder, "remote-write", CONFIGS / "remote-write.yaml", REMOTE_WRITE=f"{by_write.url}/api/v1/write")
        tee = Collector(children, folder, "tee", HERE / "tee.yaml", FIRST=gateway.grpc, SECOND=write.grpc)

        demo = Demo(children, folder, "--seconds", str(args.seconds), "--rate", str(args.rate), "--threads", "16")
        otlp(f"{tee.http}/v1/metrics", f"http://{tee.grpc}")
        config = folder / "agent.yaml"
        config.write_text(
            f"taps:\n  tls: {{pids: {demo.pids}}}\n  pcap: [{{interface: lo, filter: 'tcp port {llama.port}'}}]\nslo: {{files: [{slos}], journal: {folder / 'slo.journal'}}}\n"
        )
        agent = Agent(children, folder, "--config", str(config))
        until(20, lambda: by_otlp.query("tokengauge_slo_objective_ratio"))
        start = time.time()
        llama.start()
        demo.go()
        demo.truth(args.seconds + 60)
        end = time.time()
        llama.ended.set()
        llama.join(60)
        time.sleep(4)
        lines = read_jsonl(agent.records_path)
        records = [r for r in lines if r["vantage"] == "client"]
        unknown = [r for r in lines if r["vantage"] == "unknown"]
        score.check(len(unknown) == llama.asked > 0, f"{len(unknown)} inferences of llama.cpp in the clear, asked {llama.asked}")
        score.check(len(records) > 2.5 * args.seconds, f"{len(records)} inferences at the clients")

        all_counted = lambda p: p.value(f"sum(tokengauge_requests_total{{{CLIENT}}})") == len(records)  # noqa: E731
        ways = {"OTLP": by_otlp, "remote write": by_write}
        for way, prometheus in ways.items():
            until(15, lambda prometheus=prometheus: all_counted(prometheus))
            check_counts(score, way, prometheus, records)
            check_quantiles(score, way, prometheus, TTFT, 0.95, grouped(records, lambda r: r["timing_s"]["ttft"]))
            check_quantiles(score, way, prometheus, SPEED, 0.5, grouped(records, lambda r: r["rates"]["output_tokens_per_s"]))
        check_throughput(score, by_otlp, records, start + args.seconds - 3)
        check_burn(score, by_otlp, records)
        if jaeger:
            check_traces(score, jaeger, records)
            for way, prometheus in ways.items():
                check_exemplars(score, way, prometheus, jaeger, start, time.time())
        else:
            print(f"skipped: traces and exemplars: no Jaeger at {JAEGER}")
        check_rules(score, by_otlp)
        # A model that answers, and one that fails in the middle.
        chosen = [{"vantage": "client", "model": model} for model in ("swift-1", "error-1")]
        dashboards.check(score, by_otlp, start, start + args.seconds, chosen)
        if args.pictures:
            import draw  # only here: it needs matplotlib

            draw.all_dashboards(args.pictures, by_otlp, start + 10, end, chosen[0])
        agent.stop()
        score.check(agent.exit_code == 0, f"the agent ended with {agent.exit_code}")
        if score.failed:
            print(agent.log()[-2000:])
            for collector in (gateway, write, tee):
                print(f"--- {collector.name}", *(line[:400] for line in collector.log().splitlines() if "\tinfo\t" not in line), sep="\n")
    score.finish()


if __name__ == "__main__":
    main()
