"""Compares records with what the local provider wrote down and what the SDKs saw.

No bound here is a number of milliseconds. An event cannot be read before it was written and cannot be shown before it was
read: each instant of a record must lie between the provider's stamp (before its write) and the SDK's (after its
parsing), and every length between the least and the most that these two allow. What is printed as an error is how far
behind the provider's stamp the record's instant lies.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from rig import Record, quantile  # noqa: E402 (the path above comes first)

FIGURES = (
    "records", "api", "provider", "model", "protocol", "id", "status", "tokens", "chunks", "finish", "outcome", "error",
    "start", "ttft", "ttfa", "last", "tpot", "stall",
)  # fmt: skip
# Clocks are one, but each stamps at its own place: the offset of the epoch is read once per process.
CLOCK_NS = 1_000_000
PROVIDERS = {
    "api.openai.com": "openai", "rig.openai.azure.com": "azure.ai.openai", "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini", "bedrock-runtime.us-east-1.amazonaws.com": "aws.bedrock",
    "api.cohere.com": "cohere", "api.mistral.ai": "mistral_ai",
}  # fmt: skip

# A proxy that speaks OpenAI's chat to its clients, whatever it asks itself.
PROXY_HOST, PROXY_API = "litellm.rig.test", "openai.chat_completions"


@dataclass
class Row:
    """One client × wire: of each figure how many are right, how many were looked at."""

    right: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)  # first outputs behind the provider's stamps
    failures: list[str] = field(default_factory=list)

    def check(self, figure: str, holds: bool, what: str) -> bool:
        """One check of one figure."""
        self.of[figure] = self.of.get(figure, 0) + 1
        self.right[figure] = self.right.get(figure, 0) + bool(holds)
        if not holds:
            self.failures.append(f"{figure}: {what}")
        return holds

    def same(self, figure: str, seen: Any, told: Any, what: str) -> bool:
        """Equality with the truth."""
        return self.check(figure, seen == told, f"{what}: {seen!r}, really {told!r}")


class Call:
    """One call: the provider's line and the SDK's view."""

    def __init__(self, view: Record, truth: Record) -> None:
        self.view = view
        self.truth = truth
        self.outputs = [kind for kind, _ in truth["outputs"]]
        self.low = [at - CLOCK_NS for _, at in truth["outputs"]]
        shown = view["outputs_ns"]
        end = view["end_ns"] + CLOCK_NS
        # A view that did not show each output bounds them by the end of the call only.
        self.high = [at + CLOCK_NS for at in shown] if len(shown) == len(self.low) else [end for _ in self.low]
        if truth["case"] == "cancel":  # it showed some
            self.high = [at + CLOCK_NS for at in shown] + [end] * (len(self.low) - len(shown))

    def between(self, seconds: float | None, start: int, index: int) -> bool:
        """Whether an instant, in seconds after `start`, is possible for an output."""
        return seconds is not None and self.low[index] <= start + seconds * 1e9 <= self.high[index]


def check_view(call: Call, row: Row) -> None:
    """The SDK's view beside the provider's truth: what the records are compared with must hold by itself."""
    view, truth, what = call.view, call.truth, call.view["model"]
    if truth["case"] != "fault":  # some take the status of what they raise from the error's body
        row.same("view", view["status"], truth["status"], f"{what} status ({view['error']})")
    if truth["case"] in ("error", "fault", "cut"):
        # HAProxy ends a stream of HTTP/2 whose server was cut without a word that an SDK raises.
        silent = view["sdk"] == "curl" or (truth["case"], view["sdk"]) == ("fault", "node-ollama")
        silent |= truth["case"] == "cut" and view["http"] == "h2"
        row.check("view", bool(view["error"]) or silent, f"{what} raised nothing")
        return
    row.check("view", not view["error"], f"{what} raised {view['error']}")
    row.same("view", truth["left"], truth["case"] == "cancel", f"{what} left early")
    if truth["case"] == "cancel":
        return
    row.same("view", (view["input_tokens"], view["output_tokens"]), tokens(truth), f"{what} tokens")
    if view["front"] == "litellm":
        return  # events, finish reasons and ids are the proxy's own
    if truth["streaming"]:
        row.same("view", len(view["outputs_ns"]), len(call.outputs), f"{what} outputs")
    if view["finish"] or truth["finish"]:
        row.same("view", [str(view["finish"]).lower()], [told.lower() for told in truth["finish"]], f"{what} finish")
    if view["id"] and truth.get("id"):
        row.same("view", view["id"], truth["id"], f"{what} id")


def tokens(truth: Record) -> tuple[int | None, int | None]:
    """Input and output tokens that the provider told."""
    return truth["input_tokens"], truth["output_tokens"]


def check_record(call: Call, record: Record, row: Row) -> None:
    """One record of a call, at either end."""
    view, truth = call.view, call.truth
    what = f"{view['model']} at the {record['vantage']}"
    case, response = truth["case"], record["response"]
    row.same("api", record["api"], truth["api"], what)
    told = PROVIDERS.get(truth["host"].partition(":")[0])
    if told:
        row.same("provider", record["provider"], told, what)
    row.same("model", record["request"]["model"], truth["model"], what)
    if truth.get("model_in_response", True) and case not in ("error",):
        row.same("model", response["model"], truth["model"], f"{what}, response")
    websocket = truth["api"] == "openai.realtime"
    row.same("protocol", record["protocol"], "websocket" if websocket else f"http/{'2' if view['http'] == 'h2' else '1.1'}", what)
    if truth.get("id"):
        row.same("id", response["id"], truth["id"], what)
    row.same("status", response["status"], 101 if websocket else truth["status"], what)
    outcome = {"error": "failed", "fault": "failed", "cut": "failed", "cancel": "cancelled"}.get(case, "completed")
    row.same("outcome", record["outcome"], outcome, f"{what} ({record['error']})")
    if case in ("error", "fault", "cut"):
        error = record["error"] or {}
        # A provider that names neither type nor code leaves the status, or nothing that could be told apart.
        types = truth["error_types"] or (str(truth["status"]), "error", "stream_error", "_OTHER")
        row.check("error", error.get("type") in types, f"{what}: {error}, really {types}")
        row.same("error", error.get("stage"), {"error": "http", "cut": "transport"}.get(case, "stream"), f"{what} stage")
    if case not in ("error", "fault", "cut", "cancel"):
        seen = record["usage"]["input_tokens"], record["usage"]["output_tokens"]
        allowed = {tokens(truth)} | ({(truth["input_tokens"], 0)} if truth["output_tokens"] is None else set())
        row.check("tokens", seen in allowed, f"{what}: {seen}, really {tokens(truth)}")
        found = [reason.lower() for reason in response["finish_reasons"] or []]
        row.same("finish", found, [reason.lower() for reason in truth["finish"]], what)
    start = int(record["start_unix_nano"])
    begun = view["begin_ns"] - CLOCK_NS <= start <= truth["received_ns"] + CLOCK_NS
    row.check("start", begun, f"{what}: {(truth['received_ns'] - start) / 1e6:.3f} ms before the provider had the request")
    if truth["streaming"] and case != "error":
        check_stream(call, record, start, what, row)
    elif not truth["streaming"]:
        row.check("ttft", record["timing_s"]["ttft"] is None, f"{what}: a TTFT without a stream")


def check_translated(call: Call, record: Record, row: Row) -> None:
    """The hop between an SDK and a proxy that re-writes every event: what it must keep, and the same order of instants."""
    view, truth, timing = call.view, call.truth, record["timing_s"]
    what = f"{view['model']} at the {record['vantage']}, before the proxy"
    row.same("api", record["api"], PROXY_API, what)
    row.same("model", record["request"]["model"], truth["model"], what)
    row.same("status", record["response"]["status"], truth["status"], what)
    outcome = {"error": "failed", "cancel": "cancelled"}.get(truth["case"], "completed")
    row.same("outcome", record["outcome"], outcome, f"{what} ({record['error']})")
    start = int(record["start_unix_nano"])
    row.check("start", view["begin_ns"] - CLOCK_NS <= start <= truth["received_ns"] + CLOCK_NS, what)
    if truth["case"] in ("error", "cancel"):
        return
    row.same("tokens", (record["usage"]["input_tokens"], record["usage"]["output_tokens"]), tokens(truth), what)
    if view["id"]:
        row.same("id", record["response"]["id"], view["id"], what)
    if view["finish"]:
        row.same("finish", record["response"]["finish_reasons"], [view["finish"]], what)
    if truth["streaming"]:
        row.check("ttft", call.between(timing["ttft"], start, 0), f"{what}: {timing['ttft']}, {record['undefined']}")
        row.check("last", call.between(timing["last_generated"], start, -1), f"{what}: {timing['last_generated']}")


def check_stream(call: Call, record: Record, start: int, what: str, row: Row) -> None:
    """Counts and instants of a stream."""
    truth, timing, chunks = call.truth, record["timing_s"], record["chunks"]
    whole, low, high = truth["case"] != "cancel", call.low, call.high
    if whole:
        row.same("chunks", chunks["generated"], len(low), f"{what} generated")
        row.same("chunks", chunks["events"], truth["events"], f"{what} events")
    else:
        held = len(call.view["outputs_ns"]) <= chunks["generated"] <= len(low)
        row.check("chunks", held, f"{what}: {chunks['generated']} of {len(call.view['outputs_ns'])} to {len(low)}")
    seen = timing["ttft"]
    first_ms = None if seen is None else (start + seen * 1e9 - low[0] - CLOCK_NS) / 1e6
    if row.check("ttft", call.between(seen, start, 0), f"{what}: {seen}, {first_ms} ms after the write, {record['undefined']}"):
        row.late_ms.append(first_ms or 0.0)
    answer = next((n for n, kind in enumerate(call.outputs) if kind != "reasoning"), None)
    if answer is not None:
        row.check("ttfa", call.between(timing["ttfa"], start, answer), f"{what}: {timing['ttfa']}, {record['undefined']}")
    if not whole:
        return
    row.check("last", call.between(timing["last_generated"], start, -1), f"{what}: {timing['last_generated']}")
    if len(low) < 2:  # one arrival has no rate and no silence
        row.check("tpot", timing["tpot"] is None, f"{what}: {timing['tpot']} of one arrival")
        row.check("stall", timing["max_stall"] is None, f"{what}: {timing['max_stall']} of one arrival")
        return
    check_tpot(call, record, what, row)
    least = max(low[n + 1] - high[n] for n in range(len(low) - 1)) / 1e9
    most = max(high[n + 1] - low[n] for n in range(len(low) - 1)) / 1e9
    stall = timing["max_stall"]
    row.check("stall", stall is not None and least <= stall <= most, f"{what}: {stall}, possible {least:.4f} to {most:.4f}")


def check_tpot(call: Call, record: Record, what: str, row: Row) -> None:
    """TPOT, over the visible tokens where reasoning is told to be a summary (formulas of the record's contract)."""
    truth, tpot = call.truth, record["timing_s"]["tpot"]
    low, high, output = call.low, call.high, truth["output_tokens"]
    if output is None:
        row.check("tpot", tpot is None, f"{what}: {tpot} without usage")
        return
    answer = next((n for n, kind in enumerate(call.outputs) if kind != "reasoning"), 0)
    ways = [(0, output)]
    if truth.get("summarised") or truth.get("maybe_summarised"):
        ways = ways * bool(truth.get("maybe_summarised")) + [(answer, output - truth["reasoning_tokens"])]
    bounds = [((low[-1] - high[n]) / (many - 1) / 1e9, (high[-1] - low[n]) / (many - 1) / 1e9) for n, many in ways]
    holds = tpot is not None and any(least <= tpot <= most for least, most in bounds)
    row.check("tpot", holds, f"{what}: {tpot}, possible {bounds}, {record['undefined']}")


def compare(views: list[Record], truth: list[Record], records: list[Record] | None) -> dict[tuple[str, ...], Row]:
    """Rows by (sdk, mode, http, front, wire). Without records only the views are checked."""
    told: dict[str, list[Record]] = {}
    for line in truth:
        told.setdefault(line["model"], []).append(line)
    rows: dict[tuple[str, ...], Row] = {}
    for view in views:
        row = rows.setdefault((view["sdk"], view["mode"], view["http"], view["front"], view["wire"]), Row())
        lines = told.get(view["model"], [])
        turns = 2 if view["wire"] == "realtime" else 1
        if not row.check("view", len(lines) == turns, f"{view['model']}: {len(lines)} of {turns} requests ({view['error']})"):
            continue
        for number, line in enumerate(lines):
            call = Call(turn_of(view, number, turns), line)
            check_view(call, row)
            if records is None:
                continue
            found = find(records, line, turns)
            ends = sorted(record["vantage"] for record in found)
            hops = 2 if view["front"] == "litellm" else 1
            row.same("records", ends, ["client"] * hops + ["server"] * hops, f"{view['model']} seen by")
            for record in found:
                if ((record["server"] or {}).get("host") or "").startswith(PROXY_HOST):
                    check_translated(call, record, row)
                else:
                    check_record(call, record, row)
    return rows


def turn_of(view: Record, number: int, turns: int) -> Record:
    """The part of a view that belongs to one turn; ids and counts are told of the last one."""
    if turns == 1:
        return view
    each = len(view["outputs_ns"]) // turns
    part = view | {"outputs_ns": view["outputs_ns"][number * each : (number + 1) * each]}
    return part if number == turns - 1 else part | {"id": None}


def find(records: list[Record], truth: Record, turns: int) -> list[Record]:
    """The records of a request: by its model, which is unique; of one turn of several by its response id."""
    named = [r for r in records if truth["model"] in (r["request"]["model"], r["response"]["model"])]
    if truth.get("id") and (turns > 1 or not named):
        return [r for r in records if r["response"]["id"] == truth["id"]]
    return named


def table(rows: dict[tuple[str, ...], Row]) -> str:
    """The table `SDK × protocol × figure` in Markdown: `✓` all right, else right/of, empty where there is nothing to see."""
    heads = ["SDK", "mode", "HTTP", "front", "wire", "calls", *FIGURES, "late ms"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key, row in sorted(rows.items()):
        cells = [*key, str(row.of.get("records", 0))]
        for figure in FIGURES:
            of, right = row.of.get(figure, 0), row.right.get(figure, 0)
            cells.append("" if not of else "✓" if right == of else f"{right}/{of}")
        cells.append(f"{quantile(row.late_ms, 0.5):.2f}" if row.late_ms else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
