#!/usr/bin/env python3
"""Our Grafana dashboards, written as JSON into the chart. What several panels ask stands in panels.py once.

    helm/dashboards/make.py            # writes helm/tokengauge/dashboards/*.json
    helm/dashboards/make.py --check    # fails when what is there is something else

tests/stack/run.py executes every query against a real Prometheus that holds the agent's data; tests/stack/types.sh checks the JSON against Grafana's types.
"""

from __future__ import annotations

import json
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
OURS = 'job=~"(.*/)?tokengauge"'
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
        stat("Agents", "none", f"count(target_info{{{OURS}, {own}}})", "That reported within the last minutes."),
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
    cost = [
        series("Processor time (cores)", "none", [Target(rate("process_cpu_time_seconds_total", f"{own}, {OURS}", "instance"), node)], "Of the agents themselves.", table=True),
        series("Resident memory", "bytes", [Target(f"sum by (instance) (process_memory_usage_bytes{{{own}, {OURS}}})", node)], "Of the agents themselves, kernel rings not included.", table=True, defaults={"min": 0}),
        series("How far parsers are behind the wire", "s", [Target(f"max by (instance, tokengauge_tap_name) (tokengauge_capture_lag_seconds{{{own}}})", "{{tokengauge_tap_name}} on {{instance}}")], "At most, in the last half minute.", table=True),
        series("Taps at work", "none", [Target(f"min by (instance, tokengauge_tap_name) (tokengauge_tap_working{{{own}}})", "{{tokengauge_tap_name}} on {{instance}}")], "1 while it is; 0 while it starts, is silent, has failed or ended.", table=True, defaults={"min": 0, "max": 1}),
        series("Inferences that wait for exporters", "none", [Target(f"sum by (instance) (tokengauge_agent_queue{{{own}}})", node)], "When the queue is full they are lost.", table=True),
        series("Series", "none", [Target(f"sum by (instance) (tokengauge_export_series{{{own}}})", "held by " + node), Target(rate("tokengauge_export_overflows_total", own), "measurements/s that had to share one", color=VERMILION)], "Of all metrics.", table=True),
    ]  # fmt: skip
    return dashboard(
        "tokengauge-capture", "tokengauge / Capture health", "What the agents see, what they miss, and what it costs.", [variable("instance", "Agent", "label_values(tokengauge_capture_bytes_total, instance)")],
        rows(("", top), ("What is seen", sees), ("What is lost", loses), ("What it costs", cost)),
    )  # fmt: skip


def engine() -> Json:
    """What model servers say of themselves, beside what was measured on their wire."""
    own = 'server_address=~"$server"'
    which = ("tokengauge_engine", "gen_ai_response_model", "server_address", "server_port")
    name = "{{tokengauge_engine}} {{gen_ai_response_model}} {{server_address}}:{{server_port}}"
    seen = f'{VANTAGE}=~"server|unknown"'

    def itself(figure: str, q: float, also: str = "") -> Target:
        return Target(quantile(q, f"tokengauge_engine_{figure}_seconds", own, *which), f"{name} itself{also}", dash=[10, 4])

    def spent(what: str) -> str:
        mean_of = mean(f"tokengauge_engine_{what}_time_seconds", own)
        only_sums = f"sum(rate(tokengauge_engine_spent_{what}_seconds_total{{{own}}}[{RATE}]))\n/ sum(rate({REQUESTS}{{{seen}}}[{RATE}]))"
        return f"{mean_of}\nor\n{only_sums}"

    top = [
        stat("Servers read", "none", f"sum(tokengauge_engine_up{{{own}}})", "Whose last scrape gave figures."),
        stat("Not read", "none", f"count(tokengauge_engine_up{{{own}}} == 0) or vector(0)", "Known servers whose last scrape failed.", steps=[(None, SKY), (1, VERMILION)]),
        stat("Waiting", "none", f"sum(tokengauge_engine_requests_waiting{{{own}}})", "Requests that wait for an engine."),
        stat("Running", "none", f"sum(tokengauge_engine_requests_running{{{own}}})", "Requests that engines work on."),
        stat("Fullest KV cache", "percentunit", f"max(tokengauge_engine_kv_cache_usage_ratio{{{own}}})", "When it is full, requests wait: TTFT rises before anything else does.", steps=[(None, SKY), (0.9, ORANGE), (0.98, VERMILION)]),
        stat("Tokens seen on the wire", "percentunit", f"min(tokengauge_engine_wire_token_coverage_ratio{{{own}}})", "Output tokens on the wire / generated tokens by the engine's count, of the worst server. Less than all is loss of capture, or traffic that is not watched.", steps=[(None, VERMILION), (0.95, ORANGE), (0.99, SKY)]),
    ]
    both = [
        series(
            "Time to first token p95", "s", [Target(quantile(0.95, TTFT, seen, MODEL), f"wire: {{{{{MODEL}}}}}", exemplar=True), itself("time_to_first_token", 0.95)],
            "Engines begin to count when their frontend has the request; the wire begins with its first byte. What lies between is TLS, proxy and accept queue. An engine's figure is only as fine as its buckets (SGLang: nothing below 100 ms).", width=12, table=True,
        ),
        series(
            "Time per output token p50", "s",
            [Target(quantile(0.5, TPOT, seen, MODEL), f"wire: {{{{{MODEL}}}}}"), itself("time_per_output_token", 0.5), itself("inter_token_latency", 0.5, " (between tokens)"), Target(f"sum(rate(tokengauge_engine_spent_decode_seconds_total{{{own}}}[{RATE}])) / sum(rate(tokengauge_engine_generation_tokens_total{{{own}}}[{RATE}]))", "engines that tell only sums (mean)", dash=[3, 4])],
            "vLLM and TensorRT-LLM: one value per request, as here. SGLang: one per token. llama.cpp: a mean over all tokens.", width=12, table=True,
        ),
        series(
            "Output tokens per second", "suffix: tok/s",
            [Target(f"sum(rate(tokengauge_engine_generation_tokens_total{{{own}}}[{RATE}]))", "engines (as they come)", color=ORANGE, dash=[10, 4]), Target(f"sum(rate(tokengauge_engine_wire_output_tokens_total{{{own}}}[{RATE}]))", "wire (when a request ends)", color=SKY)],
            "Of the same servers. Over some minutes both must be the same: a lasting shortfall of the wire is loss of capture.", width=12,
        ),
        series("Outside of the engine: mean TTFT on the wire − in the engine", "s", [Target(f"tokengauge_engine_wire_time_to_first_token_excess_seconds{{{own}}}", name)], "HTTP, network, tokeniser, proxies. Only where both sides counted the same requests.", width=12, table=True),
    ]  # fmt: skip
    inside = [
        series(
            "Waiting and running", "none",
            [Target(f"sum(tokengauge_engine_requests_waiting{{{own}}})", "waiting", color=VERMILION), Target(f"sum(tokengauge_engine_requests_running{{{own}}})", "running", color=SKY), Target("sum(tokengauge_in_flight)", "in flight on the wire", color=GREEN, dash=[3, 4])],
            "Requests in flight that no engine runs or queues are on their way, or in a proxy.",
        ),
        series("KV cache in use", "percentunit", [Target(f"tokengauge_engine_kv_cache_usage_ratio{{{own}}}", name)], "When it is full, requests wait.", table=True, defaults={"max": 1, "min": 0}),
        series("Prefix cache hits", "percentunit", [Target(f"sum by ({', '.join(which)}) (rate(tokengauge_engine_prefix_cache_hits_total{{{own}}}[{RATE}])) / sum by ({', '.join(which)}) (rate(tokengauge_engine_prefix_cache_queries_total{{{own}}}[{RATE}])) or tokengauge_engine_prefix_cache_hit_share_ratio{{{own}}}", name)], "Of prompt tokens that were looked for.", table=True, defaults={"max": 1, "min": 0}),
        series(
            "Where a request's time goes (mean)", "s", [Target(spent("queue"), "queue", color=VERMILION), Target(spent("prefill"), "prefill", color=ORANGE), Target(spent("decode"), "decode", color=SKY)],
            "By the engines' own clocks. Of servers that tell only sums: divided by what was seen on the wire.", stacked=True, width=12,
        ),
        series("Failed and preempted", "suffix: /s", [Target(rate("tokengauge_engine_requests_failed_total", own, *which), name + " failed"), Target(rate("tokengauge_engine_preemptions_total", own, *which), name + " preempted")], "By the engines' own count.", table=True, width=12),
    ]  # fmt: skip
    words = text("What this needs", "An agent on the servers' nodes, which finds them and reads their metrics (`engines:` in its configuration; vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp with `--metrics`, Triton). Ollama has no metrics of its own.", width=24, height=3)
    return dashboard(
        "tokengauge-engine", "tokengauge / Engine beside wire", "What model servers say of themselves, beside what was measured on their wire.", [variable("server", "Server", "label_values(tokengauge_engine_up, server_address)")],
        rows(("", top), ("Engine and wire", both), ("Inside the engines", inside), ("", [words])),
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
