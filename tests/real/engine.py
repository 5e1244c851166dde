#!/usr/bin/env python3
"""What an inference server says of itself beside what the wire shows: a real llama.cpp server (xllamacpp), found by the agent without
configuration, scraped and compared with captured packets and with what its clients were told.

Beside it a server with a text after vLLM's, with bad lines and a histogram that contradicts itself, and an address where nobody is. The
figures are read at the agent's /metrics and looked for in its OTLP requests. At last the real server dies.

    tests/real/setup.sh && sudo tests/real/engine.py             # TOKENGAUGE=path of the agent; captures on lo
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import CACHE, Agent, Children, Record, Score, first_json_line, free_port, wait_for_port  # noqa: E402
from stack import get, until  # noqa: E402

REQUESTS, AT_ONCE, TOKENS = 24, 3, 25
VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
this is no line of any metric
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="m"} NUMBER.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} NUMBER.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} NUMBER.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} NUMBER.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 9.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.0
"""


class Said(http.server.BaseHTTPRequestHandler):
    """Says VLLM, with a number that grows by 10 with each request."""

    asked = 0

    def do_GET(self) -> None:  # noqa: N802 (the library's name)
        type(self).asked += 1
        text = VLLM.replace("NUMBER", str(10 * type(self).asked)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Receiver(Said):
    """Takes OTLP requests and keeps their bytes."""

    bodies: list[bytes] = []

    def do_POST(self) -> None:  # noqa: N802
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()


def serve(handler: type[http.server.BaseHTTPRequestHandler]) -> int:
    """A server on a thread; its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def start_llama(children: Children, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """llama.cpp in a process that is called as llama.cpp's own server is: Python under that name, with the libraries of the cache."""
    python = folder / "python" / "bin" / "llama-server"
    python.parent.mkdir(parents=True)
    python.symlink_to((CACHE / "venv" / "bin" / "python").resolve())
    (folder / "python" / "lib").symlink_to(CACHE / "venv" / "lib")
    (folder / "python" / "pyvenv.cfg").write_text((CACHE / "venv" / "pyvenv.cfg").read_text())
    with (folder / "llama.log").open("wb") as log:
        llama = children.start([python, HERE / "server.py", CACHE / "model.gguf"], stdout=subprocess.PIPE, stderr=log)
    port = first_json_line(llama)["port"]
    wait_for_port(port, llama)
    return llama, port


def request(port: int, number: int) -> Record:
    """One stream; what the server told of it at its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    prompt = f"Tell me the story of number {number}. " * (1 + number % 5)
    body = {
        "model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    told: Record = {}
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            told |= {key: event[key] for key in ("usage", "timings") if event.get(key)}
    connection.close()
    return told


class Page:
    """The agent's /metrics as it is now: the series of one server."""

    def __init__(self, port: int, server: int) -> None:
        self.values: dict[str, float] = {}
        text = get(f"http://127.0.0.1:{port}/metrics")[1]
        for name, labels, value in re.findall(r"^tokengauge_engine_(\w+)\{(.*)\} (\S+)$", text, re.M):
            if f'server_port="{server}"' in labels:
                self.values[f"{name}{{{labels}}}"] = float(value)

    def sum(self, name: str) -> float | None:
        """The sum of a metric's series; None without one."""
        found = [value for series, value in self.values.items() if series.split("{")[0] == name]
        return sum(found) if found else None


def compare(page: Page, told: list[Record], own: dict[str, float], score: Score) -> None:
    """The engine's figures beside what its clients were told and what the wire showed."""
    output = sum(t["usage"]["completion_tokens"] for t in told)
    prompt = sum(t["usage"]["prompt_tokens"] for t in told)
    for name, want in (
        ("generation_tokens_total", output), ("wire_output_tokens_total", output), ("wire_token_coverage_ratio", 1),
        ("requests_running", 0), ("requests_waiting", 0), ("up", 1),
    ):  # fmt: skip
        score.check(page.sum(name) == want, f"llama.cpp: {name} {page.sum(name)}, told {want}")
    read = (page.sum("prompt_tokens_total") or 0) + (page.sum("prefix_cache_hits_total") or 0)
    score.check(read == prompt, f"llama.cpp: prompt tokens, cached ones and others, {read}, told {prompt}")
    for name, key in (("spent_prefill_seconds_total", "prompt_seconds_total"), ("spent_decode_seconds_total", "tokens_predicted_seconds_total")):
        ours, theirs = page.sum(name) or 0, own[key]
        score.check(abs(ours - theirs) <= 1e-6, f"llama.cpp: {name} {ours:.6f}, its own text {theirs:.6f}")
    # With several requests at once llama.cpp's counter of prefill is less than the sum of what it tells each: two figures of its own.
    decode = sum(t["timings"]["predicted_ms"] for t in told) / 1e3
    spent = page.sum("spent_decode_seconds_total") or 0
    score.check(abs(spent - decode) <= 0.02 * decode, f"llama.cpp: {spent:.3f} s of decoding, told {decode:.3f}")
    score.check(page.sum("wire_time_to_first_token_excess_seconds") is None, "llama.cpp tells no TTFT, so there is no excess")


def main() -> None:
    """Command line."""
    if os.geteuid():
        print("skipped: captures on lo, which needs root\n0 passed, 0 failed")
        return
    score = Score()
    with Children() as children, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llama, port = start_llama(children, folder)
        said, nobody, page_port, otlp = serve(Said), free_port(), free_port(), serve(Receiver)
        config = folder / "config.yaml"
        config.write_text(
            f"""taps: {{tls: {{enabled: false}}, pcap: [{{interface: lo, filter: tcp port {port}}}]}}
engines:
  interval_s: 0.5
  timeout_s: 2
  endpoints: [{{url: 'http://127.0.0.1:{said}'}}, {{url: 'http://127.0.0.1:{nobody}', kind: sglang}}]
http: {{listen: '127.0.0.1:{page_port}'}}
otlp: {{endpoint: 'http://127.0.0.1:{otlp}', protocol: http/protobuf, compression: none, interval_s: 1}}
"""
        )
        agent = Agent(children, folder, "--config", str(config))
        found = until(20, lambda: Page(page_port, port).sum("up") == 1)
        score.check(bool(found), "a llama.cpp server that nobody named is found and read")

        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = list(pool.map(lambda n: request(port, n), range(REQUESTS)))
        whole = [t for t in told if "usage" in t and "timings" in t]
        score.check(len(whole) == REQUESTS, f"{len(whole)} of {REQUESTS} requests were answered whole")
        tokens = sum(t["usage"]["completion_tokens"] for t in whole)
        until(10, lambda: Page(page_port, port).sum("wire_token_coverage_ratio") == 1)
        until(5, lambda: Page(page_port, port).sum("generation_tokens_total") == tokens)
        text = get(f"http://127.0.0.1:{port}/metrics")[1]
        own = {name: float(value) for name, value in re.findall(r"^llamacpp:(\w+) (\S+)$", text, re.M)}
        compare(Page(page_port, port), whole, own, score)

        bad = Page(page_port, said)
        score.check(bad.sum("up") == 1 and bad.sum("requests_running") == 2, "bad lines cost themselves only")
        score.check((bad.sum("bad_lines_total") or 0) >= 2, f"bad lines and histograms are counted: {bad.sum('bad_lines_total')}")
        score.check(bad.sum("queue_time_seconds_count") is None, "a histogram that contradicts itself is left out")
        first = [s for s in bad.values if s.startswith("time_to_first_token_seconds_bucket") and 'le="0.04"' in s]
        count, bucket = bad.sum("time_to_first_token_seconds_count"), sum(bad.values[s] for s in first)
        score.check(bool(count) and count == bucket and count % 10 == 0, f"a histogram keeps the server's bounds: {bucket} of {count}")
        gone = Page(page_port, nobody)
        score.check(gone.sum("up") == 0 and "scrapes_total" in str(gone.values), "an address where nobody is, is down")

        # A stream that its client leaves tells no usage: then nobody can say what was missed.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = connection.getresponse()
        answer.readline()
        answer.close()
        connection.close()
        absent = until(20, lambda: Page(page_port, port).sum("wire_token_coverage_ratio") is None)
        score.check(bool(absent), "coverage is absent once an answer told no usage")

        children.stop(llama)
        down = until(20, lambda: Page(page_port, port).sum("up") == 0)
        page = Page(page_port, port)
        score.check(bool(down), "a server that dies is down")
        score.check(page.sum("requests_running") is None, "it has no present")
        score.check((page.sum("generation_tokens_total") or 0) >= tokens, "what it counted stays")
        until(10, lambda: any(b"tokengauge.engine.up" in b for b in Receiver.bodies))
        sent = b"".join(Receiver.bodies)
        for metric in ("up", "generation_tokens", "time_to_first_token", "spent.decode", "wire.token_coverage", "kv_cache.usage"):
            score.check(f"tokengauge.engine.{metric}".encode() in sent, f"OTLP has {metric}")
        records = agent.stop()
        score.check(agent.exit_code == 0, f"the agent ended with {agent.exit_code}")
        whole_records = sum(r["outcome"] == "completed" and r["usage"]["output_tokens"] == TOKENS for r in records if r["usage"])
        score.check(whole_records == REQUESTS, f"{whole_records} whole records of {REQUESTS} requests")
        score.check("panicked" not in agent.log(), "no panic")
    score.finish()


if __name__ == "__main__":
    main()
