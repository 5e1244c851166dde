#!/usr/bin/env python3
"""The agent itself with ten thousand series: what it holds in memory while it exports them by OTLP and Prometheus scrapes them in every form.

Real requests of many models over loopback, captured as packets; an OTLP receiver that takes everything; scrapes with gzip as Prometheus asks for them.

    tests/live/series.py        # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import gzip
import http.client
import json
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib"), str(HERE.parent / "outage")]

from receiver import Receiver  # noqa: E402 (the path above comes first)
from rig import Agent, Children, Score, free_port  # noqa: E402

SERIES = 10_000
MEGABYTES = 60  # the bound of the process, resident
FORMS = {
    "text": "text/plain;version=0.0.4",
    "OpenMetrics": "application/openmetrics-text;version=1.0.0",
    "Protobuf": "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
}


class Provider(BaseHTTPRequestHandler):
    """Streams two tokens of the model that is asked for."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # noqa: N802 (the name that http.server asks for)
        """One answer."""
        model = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "keep-alive")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
        say = [{"delta": {"content": word}, "index": 0, "finish_reason": None} for word in ("one", " two")]
        chunks = [head | {"choices": [choice]} for choice in (*say, {"delta": {}, "index": 0, "finish_reason": "stop"})]
        chunks.append(head | {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
        for text in (*map(json.dumps, chunks), "[DONE]"):
            data = f"data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


def scrape(port: int, accept: str) -> bytes:
    """The page, unpacked."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"accept": accept, "accept-encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-encoding"] == "gzip", answer.headers
        return gzip.decompress(answer.read())


def resident(pid: int) -> tuple[float, float]:
    """Without and with what the kernel shares with the taps (rings of packets and of eBPF, of a configured size), MB (10^6 bytes)."""
    whole = shared = 0
    ring = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "Rss":
            whole += int(value.split()[0])
            shared += int(value.split()[0]) * ring
        elif "-" in key and " " in line and not value.endswith("kB"):
            ring = "socket:[" in line or "anon_inode:bpf-map" in line
    return (whole - shared) * 1024 / 1e6, whole * 1024 / 1e6


def main() -> None:
    score = Score()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver, page = Receiver(free_port()), free_port()
    receiver.up()
    with Children() as children, tempfile.TemporaryDirectory(prefix="series-") as name:
        folder = Path(name)
        config = folder / "agent.yaml"
        config.write_text(json.dumps({
            "taps": {"tls": {"enabled": False}, "pcap": [{"interface": "lo", "filter": f"tcp port {server.server_port}"}]},
            "http": {"listen": f"127.0.0.1:{page}", "metrics": True},
            "otlp": {"endpoint": f"http://127.0.0.1:{receiver.port}", "protocol": "http/protobuf", "interval_s": 1, "queue": {"metrics_every_s": 1}},
            "metrics": {"limit": 2 * SERIES, "values": 2 * SERIES, "exact_models": True},
        }))  # fmt: skip
        agent = Agent(children, folder, "--config", str(config))
        before, _ = resident(agent.child.pid)
        largest = (0.0, 0.0)
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        series = asked = 0
        while series < SERIES and asked < 5_000:
            for _ in range(50):
                body = json.dumps({"model": f"model-{asked:05}-of-many", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
                connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
                connection.getresponse().read()
                asked += 1
            time.sleep(0.1)
            lines = scrape(page, FORMS["text"]).decode().splitlines()
            # A histogram is one series, as in OTLP.
            series = sum(1 for line in lines if not line.startswith("#") and "_bucket{" not in line and "_sum{" not in line)
        score.check(series >= SERIES, f"{asked} models are {series} series")
        print(f"      resident: {before:.1f} MB before the first request, {resident(agent.child.pid)[0]:.1f} MB with {series} series")
        for form, accept in FORMS.items():
            size = max(len(scrape(page, accept)) for _ in range(5))
            largest = max(largest, resident(agent.child.pid))
            print(f"      {form}: {size / 1e6:.1f} MB unpacked; resident {largest[0]:.1f} MB")
        sent = len(receiver.requests)
        deadline = time.monotonic() + 30
        while len(receiver.requests) == sent and time.monotonic() < deadline:
            time.sleep(0.1)
            largest = max(largest, resident(agent.child.pid))
        score.check(any("metrics" in path for _, path, _ in receiver.requests), f"and they go out by OTLP ({len(receiver.requests)} requests)")
        own, whole = largest
        score.check(own <= MEGABYTES, f"resident {own:.1f} MB (bound: {MEGABYTES}), {whole:.1f} MB with the ring of packets that it shares with the kernel")
        records = agent.stop()
        score.check(len(records) >= asked, f"{len(records)} records of {asked} requests")
    receiver.down()
    score.finish()


if __name__ == "__main__":
    main()
