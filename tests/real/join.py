#!/usr/bin/env python3
"""Where the time to the first token goes: real clients with TLS, a real LiteLLM proxy, a real llama.cpp server, and an agent that taps both ends
of the clients' connection (eBPF) and the proxy's way to the server (packets on lo).

Every request's decomposition is read from the agent's OTLP spans. It must sum; prefill must be what llama.cpp says; a proxy that holds requests
must show as `proxy`, and a server without a free slot as `queue`.

    tests/real/setup.sh && sudo tests/real/join.py       # TOKENGAUGE=path of the agent, TOKENGAUGE_CACHE=folder of setup
    tests/real/join.py --quick                           # a quarter of the requests
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib"), str(HERE / "sdks")]

from rig import CACHE, Agent, Children, Record, Score, first_json_line, free_port, make_certificate, quantile, skip_without_bpf, wait_for_port  # noqa: E402
from stack import get, until  # noqa: E402
from view import API_KEY  # noqa: E402

SLOTS, TOKENS, HELD = 2, 8, 0.25
PROMPT = "Tell me the story of number {}. "
# Name, by the proxy or not, requests at once, how many, whether the proxy holds them.
PHASES = (
    ("direct alone", False, 1, 60, False),
    ("direct saturated", False, 8, 80, False),
    ("proxied alone", True, 1, 80, False),
    ("proxied", True, 2, 120, False),
    ("proxied saturated", True, 8, 120, False),
    ("held", True, 1, 40, True),
)
PARTS = ("network", "proxy", "queue", "load", "prefill", "unattributed")


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes OTLP/HTTP with JSON and keeps the spans."""

    spans: list[Record] = []

    def do_POST(self) -> None:  # noqa: N802 (the library's name)
        """One request."""
        text = self.rfile.read(int(self.headers["Content-Length"]))
        # The agent's own spans come by its SDK, in Protobuf.
        body = json.loads(text) if self.headers["Content-Type"].startswith("application/json") else {}
        for resource in body.get("resourceSpans", []):
            for scope in resource["scopeSpans"]:
                if scope["scope"]["name"] == "tokengauge":
                    self.spans.extend(scope["spans"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def attributes(span: Record) -> Record:
    """A span's attributes as plain values."""
    def plain(value: Record) -> object:
        kind, inner = next(iter(value.items()), ("", None))
        return {"intValue": int, "doubleValue": float}.get(kind, lambda x: x)(inner)

    return {a["key"]: plain(a["value"]) for a in span.get("attributes", [])}


class Client:
    """Sends requests; each has a model name of its own making, by which its spans are found."""

    def __init__(self, llama: int, proxy: int, cert: Path) -> None:
        self.llama, self.proxy = llama, proxy
        self.tls = ssl.create_default_context(cafile=str(cert))

    def request(self, phase: str, number: int, by_proxy: bool, held: bool) -> Record:
        """One stream; what the client saw of it."""
        if by_proxy:
            connection = http.client.HTTPSConnection("localhost", self.proxy, timeout=120, context=self.tls)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.llama, timeout=120)
        body = {
            "model": "m", "messages": [{"role": "user", "content": PROMPT.format(number) * (1 + number % 7)}], "max_tokens": TOKENS,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False,
            "user": "slow" if held else "quick",
        }  # fmt: skip
        connection.connect()  # with TLS: no part of a TTFT
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
        start = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        told: Record = {"phase": phase, "status": answer.status}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            told.setdefault("id", event.get("id"))
            for key in ("usage", "timings"):
                if event.get(key):
                    told[key] = event[key]
            if "ttft" not in told and any(c.get("delta", {}).get("content") for c in event.get("choices", [])):
                told["ttft"] = time.monotonic() - start
        connection.close()
        return told


def start_llama(children: Children, folder: Path) -> int:
    """llama.cpp; its port."""
    with (folder / "llama.log").open("wb") as log:
        command = [CACHE / "venv" / "bin" / "python", HERE / "server.py", CACHE / "model.gguf", "--parallel", str(SLOTS)]
        llama = children.start(command, stdout=subprocess.PIPE, stderr=log)
    port = first_json_line(llama)["port"]
    wait_for_port(port, llama)
    return port


def start_litellm(children: Children, folder: Path, upstream: int) -> tuple[int, int, Path]:
    """LiteLLM's proxy with TLS; its port, its process, the certificate."""
    cert, key = make_certificate(folder)
    (folder / "models.json").write_text(json.dumps({"m": "openai"}))
    port = free_port()
    command = [CACHE / "venv-litellm" / "bin" / "python", HERE / "fronts" / "litellm.py", folder / "models.json", "--port", str(port)]
    command += ["--cert", cert, "--key", key, "--upstream", str(upstream), "--plain", "--slow", str(HELD)]
    with (folder / "litellm.log").open("wb") as log:
        child = children.start(command, stdout=log, stderr=log)
    wait_for_port(port, child, 120)
    return port, child.pid, cert


def matched(told: list[Record], vantage_of: dict[str, str]) -> dict[str, list[tuple[Record, Record]]]:
    """Requests with the span of their outermost view, by phase."""
    by_id: dict[str, list[Record]] = defaultdict(list)
    for span in Receiver.spans:
        found = attributes(span)
        by_id[found.get("gen_ai.response.id", "")].append(found | {"links": len(span.get("links", []))})
    out: dict[str, list[tuple[Record, Record]]] = defaultdict(list)
    for request in told:
        views = [a for a in by_id[request["id"]] if a["tokengauge.vantage"] == vantage_of[request["phase"]]]
        if len(views) == 1:
            out[request["phase"]].append((request, views[0]))
    return out


def part(span: Record, name: str) -> float | None:
    """One part of a span's decomposition, seconds."""
    return span.get(f"tokengauge.split.{name}")


def check(phase: str, pairs: list[tuple[Record, Record]], proxied: bool, score: Score) -> dict[str, float]:
    """Every decomposition of a phase; the medians of its parts."""
    split = [(r, s) for r, s in pairs if part(s, "unattributed") is not None]
    score.check(len(split) == len(pairs), f"{phase}: {len(split)} of {len(pairs)} spans are taken apart")
    sums = [abs(sum(part(s, p) or 0 for p in PARTS) - s["tokengauge.time_to_first_token"]) for _, s in split]
    score.check(bool(sums) and max(sums) < 1e-6, f"{phase}: the parts sum to the TTFT, within {max(sums, default=9):.1e} s")
    negative = [p for _, s in split for p in PARTS if (part(s, p) or 0) < 0]
    score.check(not negative, f"{phase}: no part is negative {negative[:3]}")
    wanted = ("network", "proxy", "queue", "prefill") if proxied else ("queue", "prefill")
    both = [(r, s) for r, s in split if all(part(s, p) is not None for p in wanted)]
    whole = [s for _, s in both]
    score.check(len(whole) >= 0.99 * len(pairs), f"{phase}: {len(whole)} of {len(pairs)} have {', '.join(wanted)}")
    late = quantile([r["ttft"] - s["tokengauge.time_to_first_token"] for r, s in split if "ttft" in r], 0.5)
    score.check(-0.002 < late < 0.02, f"{phase}: the client's own TTFT is {late * 1e3:.2f} ms beyond the wire's (median)")
    compared = [(r["timings"]["prompt_ms"] / 1e3, part(s, "prefill")) for r, s in both if "timings" in r]
    if not proxied or compared:
        off = [abs(ours - told) for told, ours in compared if abs(ours - told) > max(0.002, 0.02 * told)]
        score.check(bool(compared) and not off, f"{phase}: prefill is llama.cpp's own in {len(compared)} of {len(pairs)}, {len(off)} are off")
    medians = {p: quantile([part(s, p) or 0 for s in whole], 0.5) for p in PARTS}
    ttft = quantile([s["tokengauge.time_to_first_token"] for s in whole], 0.5)
    print(f"      {phase}: TTFT {ttft * 1e3:.1f} ms = " + " + ".join(f"{p} {medians[p] * 1e3:.1f}" for p in PARTS))
    return medians


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    skip_without_bpf()
    score = Score()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Children() as children, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llama = start_llama(children, folder)
        proxy, pid, cert = start_litellm(children, folder, llama)
        page = free_port()
        (folder / "config.yaml").write_text(
            f"""taps: {{tls: {{pids: [{os.getpid()}, {pid}]}}, pcap: [{{interface: lo, filter: tcp port {llama}}}]}}
engines: {{discover: false}}
http: {{listen: '127.0.0.1:{page}'}}
otlp: {{endpoint: 'http://127.0.0.1:{server.server_address[1]}', protocol: http/json, compression: none, metrics: false, spans: {{phases: true}}}}
"""
        )
        client = Client(llama, proxy, cert)
        for by_proxy in (False, True):  # what is only slow the first time
            client.request("warm", 0, by_proxy, False)
        agent = Agent(children, folder, "--config", str(folder / "config.yaml"))
        client.request("warm", 1, True, False)
        told: list[Record] = []
        for phase, by_proxy, at_once, count, held in PHASES:
            with ThreadPoolExecutor(at_once) as pool:
                numbers = range(count // 4 if args.quick else count)
                told += pool.map(lambda n, p=phase, b=by_proxy, h=held: client.request(p, n, b, h), numbers)
        whole = [t for t in told if t.get("id") and "usage" in t]
        score.check(len(whole) == len(told), f"{len(whole)} of {len(told)} requests were answered whole {[t for t in told if t not in whole][:2]}")
        until(10, lambda: "tokengauge_join_waiting 0" in get(f"http://127.0.0.1:{page}/metrics")[1])
        text = get(f"http://127.0.0.1:{page}/metrics")[1]
        agent.stop()
        score.check(agent.exit_code == 0, f"the agent ended with {agent.exit_code}")
        score.check("panicked" not in agent.log(), "no panic")

        vantages = {phase: "client" if by_proxy else "unknown" for phase, by_proxy, *_ in PHASES}
        pairs = matched(whole, vantages)
        medians = {}
        for phase, by_proxy, _, _, _ in PHASES:
            wanted = sum(t["phase"] == phase for t in whole)
            score.check(len(pairs[phase]) >= 0.99 * wanted, f"{phase}: {len(pairs[phase])} of {wanted} requests have one outermost span")
            medians[phase] = check(phase, pairs[phase], by_proxy, score)
        slow, quick = medians["held"]["proxy"], medians["proxied alone"]["proxy"]
        score.check(0.9 * HELD < slow - quick < HELD + 0.1, f"a proxy that holds requests {HELD} s has {slow:.3f} s, else {quick:.3f} s")
        for p in ("network", "queue", "unattributed"):
            score.check(medians["held"][p] < medians["proxied alone"][p] + 0.05, f"it is not in {p}")
        for way in ("direct", "proxied"):
            full, alone = medians[f"{way} saturated"]["queue"], medians[f"{way} alone"]["queue"]
            score.check(full > max(4 * alone, 0.01), f"{way}: without a free slot the queue has {full * 1e3:.1f} ms, else {alone * 1e3:.1f} ms")
        linked = [s["links"] for phase in pairs for _, s in pairs[phase] if vantages[phase] == "client"]
        score.check(bool(linked) and sum(n >= 2 for n in linked) >= 0.99 * len(linked), "the client's span links to the proxy's and to the server's")
        phases = [s for s in Receiver.spans if s["name"] in ("tokengauge.queue", "tokengauge.prefill", "tokengauge.decode")]
        score.check(len(phases) >= 2.9 * len(whole), f"{len(phases)} spans of the engine's phases for {len(whole)} requests")
        found = {line.split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("tokengauge_")}
        counted = sum(n for series, n in found.items() if series.startswith("tokengauge_split_prefill_seconds_count"))
        score.check(counted >= len(whole), f"the histogram of prefill has {counted:.0f} of {len(whole)} requests")
        odd = found.get("tokengauge_join_contradictions_total", 0)
        score.check(odd <= 0.02 * len(whole), f"{odd:.0f} contradictions")
    score.finish()


if __name__ == "__main__":
    main()
