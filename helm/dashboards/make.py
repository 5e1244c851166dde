#!/usr/bin/env python3
"""Our Grafana dashboards, written as JSON into the chart. What several panels ask stands in panels.py once.

    helm/dashboards/make.py            # writes helm/tokengauge/dashboards/*.json
    helm/dashboards/make.py --check    # fails when what is there is something else

tests/stack/run.py executes every query against a real Prometheus that holds the agent's data; tests/stack/types.sh checks the JSON against Grafana's types.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from panels import GREEN, GREY, ORANGE, OUTCOMES, PURPLE, RATE, SKY, VERMILION, Json, Panel, Target
from panels import bars, by, dashboard, mean, percentiles, quantile, rate, rows, series, share, stat, table, text, total, variable

OUT = Path(__file__).resolve().parents[1] / "tokengauge" / "dashboards"
MODEL, PROVIDER, VANTAGE, OUTCOME, REASON = "gen_ai_request_model", "gen_ai_provider_name", "tokengauge_vantage", "tokengauge_outcome", "tokengauge_reason"
NAMESPACE, WORKLOAD, PEER = "k8s_namespace_name", "tokengauge_workload_name", "tokengauge_peer_workload_name"
TTFT, TTFA, TPOT = "tokengauge_time_to_first_token_seconds", "tokengauge_time_to_first_answer_seconds", "tokengauge_time_per_output_token_seconds"
GAP, STALL, SPEED = "tokengauge_inter_chunk_gap_seconds", "tokengauge_max_stall_seconds", "tokengauge_output_speed_per_second"
REQUESTS, TOKENS_IN, TOKENS_OUT = "tokengauge_requests_total", "tokengauge_input_tokens_total", "tokengauge_output_tokens_total"
# What finished as it should; users who leave are no failure of the service, and neither is what capture could not see.
GOOD, BAD = f'{OUTCOME}="completed"', f'{OUTCOME}="failed"'
# What sampling leaves out, and readings that a newer one replaces, are no losses.
LOST = f'{REASON}!~"unsampled|superseded"'
SLO = "tokengauge_slo_name, tokengauge_slo_service, tokengauge_slo_objective_name"

VANTAGES = variable("vantage", "Seen at", f"label_values({REQUESTS}, {VANTAGE})", multi=False)
PROVIDERS = variable("provider", "Provider", f'label_values({REQUESTS}{{{VANTAGE}="$vantage"}}, {PROVIDER})')
MODELS = variable("model", "Model", f'label_values({REQUESTS}{{{VANTAGE}="$vantage", {PROVIDER}=~"$provider"}}, {MODEL})')

WORDS = {
    "ttft": "From the first byte of the request to the first generated output: text, reasoning or a tool call. A role-only first chunk is no token.",
    "tpot": "(last − first generated output) / (output tokens − 1), one value per stream, by the provider's count of tokens.",
    "gap": "Silence between consecutive arrivals of output. One stall among thousands shows in p99 only.",
    "stall": "The longest silence of each stream, from its first to its last output.",
    "speed": "1 / time per output token: what one user sees while it writes. Not what the system does.",
}


def total_rate(vantage: str) -> str:
    """Output tokens per second of request, from the first byte of the request to the end: it counts the waiting as well."""
    if vantage == "server":
        tokens, duration = rate(TOKENS_OUT, f'{VANTAGE}="server", {MODEL}=~"$model"'), total("gen_ai_server_request_duration_seconds", f'{MODEL}=~"$model"')
    else:
        tokens = rate(TOKENS_OUT, f'{VANTAGE}!="server", {MODEL}=~"$model"')
        duration = " or ".join(total(f"gen_ai_client_{name}_duration_seconds", f'{MODEL}=~"$model"') for name in ("operation", "inference"))
    return f"{tokens}\n/ ({duration})"


def throughput(selector: str) -> list[Panel]:
    """Tokens per second in its three meanings, which are never the same number."""
    speed = series(
        "One user's speed (output tokens/s)", "suffix: tok/s",
        [Target(quantile(0.5, SPEED, selector), "median stream", color=SKY), Target(quantile(0.05, SPEED, selector), "slowest 5 %", color=ORANGE, dash=[10, 4])],
        WORDS["speed"],
    )  # fmt: skip
    request = series(
        "One request's rate (output tokens / duration)", "suffix: tok/s",
        [Target(total_rate("client"), "seen at clients", color=SKY), Target(total_rate("server"), "seen at servers", color=ORANGE, dash=[10, 4])],
        "All output tokens divided by all time that requests took, waiting for the first token included. Weighted by duration. Of all vantages, whatever is selected above.",
    )  # fmt: skip
    system = series(
        "The system's throughput (tokens/s)", "suffix: tok/s",
        [Target(rate(TOKENS_OUT, selector), "output", color=SKY), Target(rate(TOKENS_IN, selector), "input", color=ORANGE, dash=[10, 4])],
        "Tokens of all requests together, counted when a request ends.",
    )  # fmt: skip
    return [speed, request, system]


def outcomes(selector: str) -> list[Panel]:
    """How requests end, and why they fail."""
    ended = series(
        "Requests by outcome", "reqps", [Target(rate(REQUESTS, selector, OUTCOME), f"{{{{{OUTCOME}}}}}")],
        "completed; failed (HTTP error, an error inside a 200, cut by the server); cancelled (the client left); truncated (we ended first); lost (capture could not see enough to say).",
        stacked=True, colors=OUTCOMES, width=12,
    )  # fmt: skip
    why = series(
        "Not completed, by reason", "reqps", [Target(f'sum by ({OUTCOME}, {REASON}) (rate({REQUESTS}{{{selector}, {OUTCOME}!="completed"}}[{RATE}])) > 0', f"{{{{{OUTCOME}}}}}: {{{{{REASON}}}}}")],
        "What did not end well, and why.", table=True, width=12,
    )  # fmt: skip
    return [ended, why]


def numbers(selector: str) -> list[Panel]:
    """The line of numbers at the top."""
    return [
        stat("Requests", "reqps", rate(REQUESTS, selector), "Finished per second."),
        stat("Completed", "percentunit", share(REQUESTS, selector, GOOD), "Of all that finished.", steps=[(None, VERMILION), (0.95, ORANGE), (0.99, SKY)]),
        stat("TTFT p95", "s", quantile(0.95, TTFT, selector), WORDS["ttft"]),
        stat("TPOT p50", "s", quantile(0.5, TPOT, selector), WORDS["tpot"]),
        stat("Longest silence p99", "s", quantile(0.99, STALL, selector), WORDS["stall"]),
        stat("Output", "suffix: tok/s", rate(TOKENS_OUT, selector), "Tokens of all requests together."),
    ]


def latency(selector: str) -> list[Panel]:
    """The four figures of a stream."""
    return [
        percentiles("Time to first token", "s", TTFT, selector, WORDS["ttft"], width=12),
        percentiles("Time per output token", "s", TPOT, selector, WORDS["tpot"], width=12),
        percentiles("Gap between chunks", "s", GAP, selector, WORDS["gap"], width=12),
        percentiles("Longest silence of a stream", "s", STALL, selector, WORDS["stall"], width=12),
    ]


def fleet() -> Json:
    """All models and workloads at a glance."""
    selector = f'{VANTAGE}="$vantage", {PROVIDER}=~"$provider", {MODEL}=~"$model"'
    link = [{"title": "this model", "url": "/d/tokengauge-model?var-model=${__value.text}&var-vantage=${vantage}&${datasource:queryparam}&${__url_time_range}"}]
    models = table(
        "Models",
        [
            ("requests/s", "reqps", rate(REQUESTS, selector, MODEL)), ("completed", "percentunit", share(REQUESTS, selector, GOOD, MODEL)),
            ("TTFT p95", "s", quantile(0.95, TTFT, selector, MODEL)), ("TPOT p50", "s", quantile(0.5, TPOT, selector, MODEL)),
            ("longest silence p99", "s", quantile(0.99, STALL, selector, MODEL)), ("output tokens/s", "none", rate(TOKENS_OUT, selector, MODEL)),
        ],
        [MODEL], {MODEL: "model"}, "One row per model as it was asked for.", link, width=24,
    )  # fmt: skip
    by_model = [
        series("TTFT p95 by model", "s", [Target(quantile(0.95, TTFT, selector, MODEL), f"{{{{{MODEL}}}}}")], WORDS["ttft"], table=True),
        series("TPOT p50 by model", "s", [Target(quantile(0.5, TPOT, selector, MODEL), f"{{{{{MODEL}}}}}")], WORDS["tpot"], table=True),
        series("Failed by model", "percentunit", [Target(share(REQUESTS, selector, BAD, MODEL), f"{{{{{MODEL}}}}}")], "Share of the model's finished requests.", table=True),
    ]
    return dashboard(
        "tokengauge-fleet", "tokengauge / Fleet", "LLM traffic of all agents: how long people wait, how fast it writes, how it ends.", [VANTAGES, PROVIDERS, MODELS],
        rows(("", numbers(selector)), ("Latency", latency(selector)), ("Throughput, in its three meanings", throughput(selector)), ("Outcomes", outcomes(selector)), ("By model", [models, *by_model])),
    )  # fmt: skip


def model() -> Json:
    """One model: who serves it, from where it is seen, what errors it gives."""
    selector = f'{VANTAGE}="$vantage", {MODEL}="$model"'
    only = f'{MODEL}="$model"'
    first = variable("model", "Model", f'label_values({REQUESTS}{{{VANTAGE}="$vantage"}}, {MODEL})', multi=False)
    answered = series("Answered by", "reqps", [Target(rate(REQUESTS, selector, PROVIDER, "gen_ai_response_model"), f"{{{{{PROVIDER}}}}}: {{{{gen_ai_response_model}}}}")], "Provider, and the model that the answers name. A change here explains many others.", table=True)
    durations = {"operation": "gen_ai_client_operation_duration_seconds", "inference": "gen_ai_client_inference_duration_seconds", "server": "gen_ai_server_request_duration_seconds"}
    errors = " or ".join(f'sum by (error_type) (rate({name}_count{{{only}, error_type!=""}}[{RATE}]))' for name in durations.values())
    error = series("Errors by type", "reqps", [Target(errors, "{{error_type}}")], "The provider's own error type or code, the HTTP status, or how the connection ended.", table=True)
    sides = series(
        "TTFT p50, by the side it is seen from", "s", [Target(quantile(0.5, TTFT, only, VANTAGE), f"{{{{{VANTAGE}}}}}")],
        "With both ends on watched nodes: client − server is network, proxies and queues in front of the server's TLS.", colors={"client": SKY, "server": ORANGE, "unknown": GREY},
    )  # fmt: skip
    answer = percentiles("Time to first answer", "s", TTFA, selector, "To the first output that is not reasoning.", width=8)
    in_out = series(
        "Tokens per request", "none",
        [Target(f"{rate(TOKENS_IN, selector)}\n/ {rate(REQUESTS, selector)}", "input", color=ORANGE, dash=[10, 4]), Target(f"{rate(TOKENS_OUT, selector)}\n/ {rate(REQUESTS, selector)}", "output", color=SKY)],
        "By the provider's count, over all finished requests.",
    )  # fmt: skip
    return dashboard(
        "tokengauge-model", "tokengauge / One model", "One model: latency, speed, errors, and who answers.", [VANTAGES, first],
        rows(("", numbers(selector)), ("Latency", [*latency(selector), answer, sides, in_out]), ("Throughput, in its three meanings", throughput(selector)), ("Outcomes", outcomes(selector)), ("Who answers", [answered, error])),
    )  # fmt: skip


def workload() -> Json:
    """One workload of Kubernetes: what it asks, or what it serves."""
    selector = f'{VANTAGE}="$vantage", {NAMESPACE}=~"$namespace", {WORKLOAD}=~"$workload"'
    variables = [
        VANTAGES, variable("namespace", "Namespace", f'label_values({REQUESTS}{{{VANTAGE}="$vantage"}}, {NAMESPACE})'),
        variable("workload", "Workload", f'label_values({REQUESTS}{{{VANTAGE}="$vantage", {NAMESPACE}=~"$namespace"}}, {WORKLOAD})'),
    ]  # fmt: skip
    peers = table(
        "Workloads",
        [
            ("requests/s", "reqps", rate(REQUESTS, selector, NAMESPACE, WORKLOAD)), ("completed", "percentunit", share(REQUESTS, selector, GOOD, NAMESPACE, WORKLOAD)),
            ("TTFT p95", "s", quantile(0.95, TTFT, selector, NAMESPACE, WORKLOAD)), ("output tokens/s", "none", rate(TOKENS_OUT, selector, NAMESPACE, WORKLOAD)),
        ],
        [WORKLOAD], {NAMESPACE: "namespace", WORKLOAD: "workload"}, "Seen at clients: who asks. Seen at servers: who serves.", width=24,
    )  # fmt: skip
    models = [
        series("Requests by model", "reqps", [Target(rate(REQUESTS, selector, MODEL), f"{{{{{MODEL}}}}}")], "What it asks for, or serves.", table=True),
        series("Output tokens by model", "suffix: tok/s", [Target(rate(TOKENS_OUT, selector, MODEL), f"{{{{{MODEL}}}}}")], "Who causes the bill.", table=True),
        series("TTFT p95 by model", "s", [Target(quantile(0.95, TTFT, selector, MODEL), f"{{{{{MODEL}}}}}")], WORDS["ttft"], table=True),
    ]
    return dashboard(
        "tokengauge-workload", "tokengauge / One workload", "A Deployment, Job or the like: what it asks of models, or how it serves them.", variables,
        rows(("", numbers(selector)), ("Latency", latency(selector)), ("Outcomes", outcomes(selector)), ("What", [peers, *models])),
    )  # fmt: skip


def slo() -> Json:
    """Budget, burn, and what burns it."""
    own = 'tokengauge_slo_name=~"$slo"'
    name = "{{tokengauge_slo_name}} {{tokengauge_slo_objective_name}}"
    target = f"max by ({SLO}) (tokengauge_slo_objective_ratio{{{own}}})"

    def burn(window: str) -> str:
        bad = f"sum by ({SLO}) (increase(tokengauge_slo_events_valid_total{{{own}}}[{window}])) - sum by ({SLO}) (increase(tokengauge_slo_events_good_total{{{own}}}[{window}]))"
        return f"({bad})\n/ (sum by ({SLO}) (increase(tokengauge_slo_events_valid_total{{{own}}}[{window}])) > 0)\n/ (1 - {target})"

    objectives = table(
        "Objectives",
        [
            ("target", "percentunit", target), ("burn, 5 min", "none", burn("5m")), ("burn, 1 h", "none", burn("1h")),
            ("budget left (worst node)", "percentunit", f"min by ({SLO}) (tokengauge_slo_error_budget_remaining_ratio{{{own}}})"),
            ("coverage (worst node)", "percentunit", f"min by ({SLO}) (tokengauge_slo_coverage_ratio{{{own}}})"),
            ("nodes", "none", f"count by ({SLO}) (tokengauge_slo_objective_ratio{{{own}}})"),
        ],
        ["tokengauge_slo_name"], {"tokengauge_slo_name": "objective", "tokengauge_slo_service": "service", "tokengauge_slo_objective_name": "goal"},
        "Burn of the whole service, from counters of all nodes: 1 spends exactly the budget. Budgets and coverage are each node's own: ratios of nodes do not add up.", width=24, height=7,
    )  # fmt: skip
    left = series(
        "Budget left over the SLO's window (recording rules)", "percentunit", [Target('slo:period_error_budget_remaining:ratio{sloth_slo=~"$slo"}', "{{sloth_slo}}")],
        "Of the whole service, by the rules of `tokengauge slo rules`. Without them this is empty; the table above is not.", table=True, width=12, defaults={"max": 1},
    )  # fmt: skip
    nodes = series(
        "Budget left, by node", "percentunit", [Target(f"min by (instance, {SLO}) (tokengauge_slo_error_budget_remaining_ratio{{{own}}})", name + " on {{instance}}")],
        "Each node's own: it sees a slice of the service.", table=True, width=12, defaults={"max": 1},
    )  # fmt: skip
    burning = series(
        "Burn rate of the service", "none", [Target(burn("5m"), name + ", 5 min"), Target(burn("1h"), name + ", 1 h")],
        "Error ratio over the window divided by the budget. The page of a 99.9 % objective over 30 days comes at 14.4 over an hour and five minutes.", table=True, width=12,
    )  # fmt: skip
    exhausted = series("Until the budget is spent, at the present rate", "s", [Target(f"min by ({SLO}) (tokengauge_slo_time_to_exhaustion_seconds{{{own}}})", name)], "Of the worst node. Absent while nothing burns.", table=True, width=12)
    states = series(
        "Alerts, as the nodes themselves see them", "none", [Target(f"max by (tokengauge_slo_severity, {SLO}) (tokengauge_slo_alert_state{{{own}}})", name + ", {{tokengauge_slo_severity}}")],
        "0 quiet, 1 pending, 2 firing, 3 frozen because too little is seen. What pages is the rule of the whole service.", width=12, table=True,
        defaults={"mappings": [{"type": "value", "options": {"0": {"text": "quiet", "color": SKY}, "1": {"text": "pending", "color": ORANGE}, "2": {"text": "firing", "color": VERMILION}, "3": {"text": "frozen", "color": GREY}}}], "min": 0, "max": 3},
    )  # fmt: skip
    events = series(
        "Requests that count", "reqps",
        [Target(rate("tokengauge_slo_events_good_total", own), "good", color=SKY), Target(f"{rate('tokengauge_slo_events_valid_total', own)} - {rate('tokengauge_slo_events_good_total', own)}", "bad", color=VERMILION), Target(rate("tokengauge_slo_events_excluded_total", own), "excluded (not seen)", color=GREY)],
        "Good and bad requests of the selected objectives, and those that capture could not see well enough to judge.", width=12,
    )  # fmt: skip
    bad = lambda *labels: f"sum{by(*labels)} (increase(tokengauge_slo_events_valid_total{{{own}}}[$__range])) - sum{by(*labels)} (increase(tokengauge_slo_events_good_total{{{own}}}[$__range]))"  # noqa: E731
    what = [
        bars("Bad requests by objective", "none", [Target(bad("tokengauge_slo_name", "tokengauge_slo_objective_name"), name)], "Over the selected time."),
        bars("Bad requests by node", "none", [Target(bad("instance"), "{{instance}}")], "One node alone: look there. All: look at the model."),
        bars("Not completed by model and reason", "none", [Target(f'topk(12, sum by ({MODEL}, {OUTCOME}, {REASON}, {VANTAGE}) (increase({REQUESTS}{{{OUTCOME}!="completed"}}[$__range])) > 0)', f"{{{{{MODEL}}}}}: {{{{{OUTCOME}}}}}, {{{{{REASON}}}}} ({{{{{VANTAGE}}}}})")], "Of all traffic, whatever the objectives select, from each side that it is seen from: the usual suspects."),
        series("TTFT p95 by model", "s", [Target(quantile(0.95, TTFT, f'{MODEL}!=""', MODEL), f"{{{{{MODEL}}}}}")], "For objectives about time.", table=True, width=12),
        series("Time per output token p95 by model", "s", [Target(quantile(0.95, TPOT, f'{MODEL}!=""', MODEL), f"{{{{{MODEL}}}}}")], "For objectives about speed.", table=True, width=12),
    ]
    return dashboard(
        "tokengauge-slo", "tokengauge / Objectives", "Budgets, burn rates, and what burns them.", [variable("slo", "Objective", "label_values(tokengauge_slo_objective_ratio, tokengauge_slo_name)")],
        rows(("", [objectives]), ("Budget", [left, nodes]), ("Burn", [burning, exhausted, states, events]), ("What burns it", what)),
    )  # fmt: skip


def capture() -> Json:
    """Whether the agents see what they should."""
    own = 'instance=~"$instance"'
    node = "{{instance}}"

    def nodewise(title: str, unit: str, metric: str, description: str) -> Panel:
        return series(title, unit, [Target(rate(metric, own, "instance"), node)], description, table=True)

    def named_by(title: str, unit: str, metric: str, label: str, description: str, **more: object) -> Panel:
        return series(title, unit, [Target(rate(metric, own, label), f"{{{{{label}}}}}")], description, table=True, **more)  # type: ignore[arg-type]

    top = [
        stat("Agents", "none", f"count(target_info{{job=~\".*tokengauge\", {own}}})", "That reported within the last minutes."),
        stat("Inferences", "reqps", rate(REQUESTS, own), "From all vantages."),
        stat("Lost or cut by capture", "percentunit", share(REQUESTS, own, f'{OUTCOME}=~"lost|truncated"'), "Inferences that could not be seen to their end.", steps=[(None, SKY), (0.001, ORANGE), (0.01, VERMILION)]),
        stat("Dropped by agents", "none", f"sum(increase(tokengauge_capture_drops_total{{{own}}}[$__range]))", "Records and inferences, over the selected time.", steps=[(None, SKY), (1, VERMILION)]),
        stat("Exports dropped", "none", f"sum(increase(tokengauge_export_drops_total{{{own}, {LOST}}}[$__range]))", "Spans and metric batches that could not be delivered, over the selected time.", steps=[(None, SKY), (1, VERMILION)]),
        stat("In flight", "none", f"sum(tokengauge_in_flight{{{own}}})", "Inferences that are running."),
    ]
    sees = [
        nodewise("Payload", "Bps", "tokengauge_capture_bytes_total", "Bytes that reached the parsers."),
        nodewise("Events of streams", "suffix: /s", "tokengauge_capture_events_total", "Events of streamed answers."),
        series("Open connections", "none", [Target(f"sum by (instance) (tokengauge_capture_open_connections{{{own}}})", node)], "That are watched now.", table=True),
        series(
            "HTTP exchanges", "suffix: /s", [Target(rate("tokengauge_capture_exchanges_total", own), "all", color=SKY), Target(rate("tokengauge_capture_non_llm_exchanges_total", own), "not of a language model", color=ORANGE, dash=[10, 4])],
            "What is watched and is no LLM traffic costs only its head.",
        ),
        series("Attached libraries", "none", [Target(f"sum by (tokengauge_result) (tokengauge_capture_attaches_total{{{own}}})", "{{tokengauge_result}}")], "Attempts since the agents started, by how they went.", table=True),
        series("Taps' records", "suffix: /s", [Target(rate("tokengauge_capture_records_total", own), "eBPF records", color=SKY), Target(rate("tokengauge_capture_packets_total", own), "packets", color=ORANGE, dash=[10, 4])], "What comes from the kernel."),
    ]  # fmt: skip
    loses = [
        named_by("Capture gaps by reason", "suffix: /s", "tokengauge_capture_gaps_total", "tokengauge_reason", "Nothing is measured across one."),
        named_by("Drops by reason", "suffix: /s", "tokengauge_capture_drops_total", "tokengauge_reason", "Records and inferences lost inside the agents."),
        series("Surprises of the wire", "suffix: /s", [Target(f"topk(10, sum by (tokengauge_anomaly) (rate(tokengauge_anomalies_total{{{own}}}[{RATE}])))", "{{tokengauge_anomaly}}")], "By name; none of them is an error of the agent by itself.", table=True),
        series("Exports dropped by signal", "suffix: /s", [Target(rate("tokengauge_export_drops_total", f"{own}, {LOST}", "tokengauge_signal", "tokengauge_reason"), "{{tokengauge_signal}}: {{tokengauge_reason}}")], "Because the receiver was away for too long, or refused.", table=True),
        series("Coverage of objectives", "percentunit", [Target(f"min by (instance, tokengauge_slo_name) (tokengauge_slo_coverage_ratio{{{own}}})", "{{tokengauge_slo_name}} on {{instance}}")], "The share of what should have been judged that could be.", table=True, defaults={"max": 1}),
        series("SLO files and journal", "none", [Target(f"sum by (instance) (tokengauge_slo_files_problems{{{own}}})", "problems in files, " + node), Target(f"max by (instance) (tokengauge_slo_journal_failing{{{own}}})", "journal failing, " + node)], "0 is well.", table=True),
    ]  # fmt: skip
    return dashboard(
        "tokengauge-capture", "tokengauge / Capture health", "What the agents see, what they miss, and what it costs.", [variable("instance", "Agent", "label_values(tokengauge_capture_bytes_total, instance)")],
        rows(("", top), ("What is seen", sees), ("What is lost", loses)),
    )  # fmt: skip


def engine() -> Json:
    """What model servers say of themselves, beside what was measured on their wire."""

    def named_engine(expr: str, name: str) -> str:
        return f'label_replace({expr}, "engine", "{re.split("[:_]", name)[0]}", "", "")'

    def engines(q: float, *names: str) -> str:
        # Each by its own name: `rate` forgets names, and two engines with the same labels would be one series.
        return "\nor\n".join(named_engine(f"histogram_quantile({q}, sum by (le) (rate({name}_bucket[{RATE}])))", name) for name in names)

    def all_engines(*names: str) -> str:
        return "sum(\n" + "\nor\n".join("  " + named_engine(f"sum(rate({name}[{RATE}]))", name) for name in names) + "\n)"

    firsts = ["vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds", "trtllm_time_to_first_token_seconds"]
    wire = f'{VANTAGE}="server"'
    seen = f'{VANTAGE}=~"server|unknown"'
    ttft = series(
        "Time to first token p95", "s",
        [Target(quantile(0.95, TTFT, seen, MODEL), f"wire: {{{{{MODEL}}}}}", exemplar=True, color=SKY), Target(engines(0.95, *firsts), "{{engine}} itself", color=ORANGE, dash=[10, 4])],
        "Engines begin to count when their frontend has the request; the wire begins with its first byte. What lies between is TLS, proxy and accept queue. An engine's figure is only as fine as its buckets (SGLang: nothing below 100 ms).", width=12,
    )  # fmt: skip
    tpot = series(
        "Time per output token p50", "s",
        [Target(quantile(0.5, TPOT, seen, MODEL), f"wire: {{{{{MODEL}}}}}", color=SKY), Target(engines(0.5, "vllm:request_time_per_output_token_seconds", "sglang:inter_token_latency_seconds", "trtllm_time_per_output_token_seconds"), "{{engine}} itself", color=ORANGE, dash=[10, 4]), Target(f"sum(rate(llamacpp:tokens_predicted_seconds_total[{RATE}])) / sum(rate(llamacpp:tokens_predicted_total[{RATE}]))", "llama.cpp itself (mean)", color=GREEN, dash=[3, 4])],
        "vLLM and TensorRT-LLM: one value per request, as here. SGLang: one per token. llama.cpp: a mean over all tokens.", width=12,
    )  # fmt: skip
    tokens = series(
        "Output tokens per second", "suffix: tok/s",
        [Target(rate(TOKENS_OUT, seen), "wire (when a request ends)", color=SKY), Target(all_engines("vllm:generation_tokens_total", "sglang:generation_tokens_total", "trtllm_generation_tokens_total", "llamacpp:tokens_predicted_total"), "engines (as they come)", color=ORANGE, dash=[10, 4])],
        "Over some minutes both must be the same: a lasting shortfall of the wire is loss of capture.", width=12,
    )  # fmt: skip
    queue = series(
        "Waiting and running in engines", "none",
        [Target('sum({__name__=~"vllm:num_requests_waiting|sglang:num_queue_reqs|trtllm_num_requests_waiting|llamacpp:requests_deferred|tgi_queue_size"})', "waiting", color=VERMILION), Target('sum({__name__=~"vllm:num_requests_running|sglang:num_running_reqs|trtllm_num_requests_running|llamacpp:requests_processing|tgi_batch_current_size"})', "running", color=SKY), Target("sum(tokengauge_in_flight)", "in flight on the wire", color=GREEN, dash=[3, 4])],
        "Requests in flight that no engine runs or queues are on their way, or in a proxy.", width=12,
    )  # fmt: skip
    cache = series("KV cache in use", "percentunit", [Target('{__name__=~"vllm:kv_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization"}', "{{__name__}} {{model_name}}")], "When it is full, requests wait: TTFT rises before anything else does.", table=True, width=12, defaults={"max": 1, "min": 0})
    outside = series(
        "Outside of the engine (mean TTFT on the wire − in the engine)", "s", [Target(f"({mean(TTFT, wire)})\n- {all_engines(*(f'{name}_sum' for name in firsts))}\n/ {all_engines(*(f'{name}_count' for name in firsts))}", "proxy, TLS, accept queue", color=PURPLE)],
        "Must be positive and small. Needs the agent on the server's node, and the engine scraped.", width=12,
    )  # fmt: skip
    words = text("What this needs", "Prometheus must scrape the engines' own `/metrics` (vLLM; SGLang with `--enable-metrics`; `trtllm-serve`; llama.cpp with `--metrics`; TGI), and an agent must run on their nodes. Ollama has no metrics of its own.", width=24, height=3)
    return dashboard(
        "tokengauge-engine", "tokengauge / Engine beside wire", "What model servers say of themselves, beside what was measured on their wire.", [],
        rows(("", [words, ttft, tpot, tokens, queue, cache, outside])),
    )  # fmt: skip


def main() -> None:
    """Writes, or compares."""
    OUT.mkdir(exist_ok=True)
    made = {f"{d['uid'].removeprefix('tokengauge-')}.json": json.dumps(d, indent=1, ensure_ascii=False) + "\n" for d in (fleet(), model(), workload(), slo(), capture(), engine())}
    there = {path.name: path.read_text() for path in OUT.glob("*.json")}
    if "--check" in sys.argv:
        stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
        print(f"{len(made) - len(stale)} passed, {len(stale)} failed{': ' + ', '.join(stale) + ' differ from helm/dashboards/make.py' if stale else ''}")
        sys.exit(bool(stale))
    for name, content in made.items():
        (OUT / name).write_text(content)
    print(f"wrote {len(made)} dashboards into {OUT}")


if __name__ == "__main__":
    main()
