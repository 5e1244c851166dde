#!/usr/bin/env python3
"""From the wire to the pager: real TLS traffic, the real agent, a real Prometheus with the rules that `tokengauge slo rules` wrote, and a real
Alertmanager with the configuration in collector-config/, until a webhook has the page and later its end.

Windows are shortened by Sloth's AlertWindows, so that it takes three minutes. What is counted is compared with the requests that the
client made.

    tests/real/setup-go.sh prometheus alertmanager && tests/slo/alerts.py       # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, CACHE, ROOT, Agent, Children, Score, free_port, make_certificate  # noqa: E402 (the path above comes first)
from rig import skip_without_bpf, wait_for_port  # noqa: E402

SLOS = """\
slos:
  service: rig
  window: 2h
  when: {vantage: client, model: "rig-*"}
  objectives:
    - {name: rig-availability, goal: availability >= 99%}
    - {name: rig-quiet, goal: duration p50 <= 60s}
---
apiVersion: sloth.slok.dev/v1
kind: AlertWindows
spec:
  sloPeriod: 2h
  page:
    quick: {errorBudgetPercent: 8, shortWindow: 1m, longWindow: 2m}
    slow: {errorBudgetPercent: 12, shortWindow: 1m, longWindow: 3m}
  ticket:
    quick: {errorBudgetPercent: 20, shortWindow: 1m, longWindow: 4m}
    slow: {errorBudgetPercent: 30, shortWindow: 1m, longWindow: 5m}
"""
PER_SECOND = 10


class Provider(BaseHTTPRequestHandler):
    """Answers like OpenAI; fails when it is told to."""

    protocol_version = "HTTP/1.1"
    failing = False

    def do_POST(self) -> None:  # noqa: N802 (the base class's name)
        """One request."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if Provider.failing:
            status, told = 503, {"error": {"type": "overloaded", "message": "later"}}
        else:
            answer = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
            usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
            status, told = 200, {"id": "chatcmpl-1", "object": "chat.completion", "model": asked["model"], "choices": [answer], "usage": usage}
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Client(threading.Thread):
    """Asks at a steady pace and counts what came of it."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.good, self.bad, self.ended = port, 0, 0, threading.Event()

    def run(self) -> None:
        """Until it is told to end."""
        context = ssl._create_unverified_context()  # noqa: S323 (our own certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
        body = json.dumps({"model": "rig-1", "messages": [{"role": "user", "content": "well?"}]})
        while not self.ended.wait(1 / PER_SECOND):
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                self.good += 1
            else:
                self.bad += 1
        connection.close()


class Pager(BaseHTTPRequestHandler):
    """Keeps what Alertmanager sends."""

    got: list[tuple[float, str, dict[str, Any]]] = []

    def do_POST(self) -> None:  # noqa: N802
        """One notification."""
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Pager.got.extend((time.monotonic(), self.path, alert) for alert in told["alerts"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def serve(handler: type[BaseHTTPRequestHandler], certificate: tuple[Path, Path] | None = None) -> int:
    """A server in this process; returns its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def start_prometheus(children: Children, folder: Path, rules: Path, alertmanager: int) -> int:
    """Prometheus with its OTLP receiver and the rules, evaluated each second."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{evaluation_interval: 1s}}\nrule_files: [{rules}]\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alertmanager}']}}]}}]}}\n"
        "storage: {tsdb: {out_of_order_time_window: 5m}}\n"
    )
    command = [CACHE / "bin" / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--web.enable-otlp-receiver"]
    with (folder / "prometheus.log").open("wb") as log:
        child = children.start([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    wait_for_port(port, child, 60)
    return port


def start_alertmanager(children: Children, folder: Path, pager: int) -> int:
    """Alertmanager with the shipped configuration; only the receiver's port and the waiting are changed."""
    text = (ROOT / "collector-config" / "alertmanager.yaml").read_text()
    for old, new in (("127.0.0.1:9095", f"127.0.0.1:{pager}"), ("group_wait: 30s", "group_wait: 1s"), ("group_wait: 10s", "group_wait: 1s")):
        assert old in text, old
        text = text.replace(old, new)
    for old in ("group_interval: 5m", "group_interval: 1m"):
        assert old in text, old
        text = text.replace(old, "group_interval: 2s")
    config = folder / "alertmanager.yaml"
    config.write_text(text)
    port = free_port()
    command = [CACHE / "bin" / "alertmanager", f"--config.file={config}", f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address="]
    with (folder / "alertmanager.log").open("wb") as log:
        child = children.start([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    wait_for_port(port, child, 60)
    return port


def query(port: int, promql: str) -> list[dict[str, Any]]:
    """An instant query."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": promql})
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def value(port: int, promql: str) -> float | None:
    """The one value of a query."""
    found = query(port, promql)
    return float(found[0]["value"][1]) if len(found) == 1 else None


def until(seconds: float, holds: Callable[[], Any]) -> Any:
    """What `holds` gives, as soon as it is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.5)
    return None


def notified(path: str, status: str, alert: str = "TokengaugeErrorBudgetBurn") -> dict[str, Any] | None:
    """The last notification of that kind."""
    found = [a for _, at, a in Pager.got if at == path and a["status"] == status and a["labels"]["alertname"] == alert]
    return found[-1] if found else None


def status(folder: Path) -> tuple[int, str]:
    """`slo status` of the running agent."""
    done = subprocess.run([AGENT, "slo", "status", "--journal", folder / "slo.journal"], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main() -> None:
    """All of it."""
    skip_without_bpf()
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-alerts-") as name, Children() as children:
        folder = Path(name)
        slos, rules = folder / "slo.yaml", folder / "rules.yaml"
        slos.write_text(SLOS)
        subprocess.run([AGENT, "slo", "rules", slos, "-o", rules], check=True)
        checked = subprocess.run([CACHE / "bin" / "promtool", "check", "rules", rules], capture_output=True, text=True)
        score.check(checked.returncode == 0, f"promtool accepts the rules: {checked.stdout.split()[-3:]}")
        alertmanager = start_alertmanager(children, folder, serve(Pager))
        prometheus = start_prometheus(children, folder, rules, alertmanager)
        config = folder / "tokengauge.yaml"
        config.write_text(f"slo: {{files: [{slos}], journal: {folder / 'slo.journal'}}}\n")
        os.environ |= {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{prometheus}/api/v1/otlp/v1/metrics",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf", "OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_TRACES_EXPORTER": "none",
        }  # fmt: skip
        agent = Agent(children, folder, "--config", str(config))
        labels = '{tokengauge_slo_name="rig-availability"}'
        zero = until(20, lambda: value(prometheus, f"sum(tokengauge_slo_events_valid_total{labels})") is not None)
        score.check(bool(zero) and value(prometheus, f"sum(tokengauge_slo_events_valid_total{labels})") == 0, "counters are 0 from the start")

        client = Client(serve(Provider, make_certificate(folder)))
        client.start()
        time.sleep(20)
        score.check(not Pager.got, "nothing is sent while all is well")
        code, said = status(folder)
        score.check(code == 0 and "rig-availability" in said, f"slo status: {said.splitlines()[-3:]}")
        Provider.failing = True
        began = time.monotonic()
        page = until(90, lambda: notified("/page", "firing"))
        score.check(page is not None, f"the page came {time.monotonic() - began:.0f} s after the first failure")
        if page:
            labels_of, notes = page["labels"], page["annotations"]
            right = (labels_of["severity"], labels_of["tokengauge_slo_name"], labels_of["sloth_slo"]) == ("page", "rig-availability", "rig-availability")
            score.check(right and notes["runbook_url"].endswith("TokengaugeErrorBudgetBurn.md"), f"it says what burns: {notes['summary']}")
            runbook = ROOT / "helm" / "tokengauge" / "runbooks" / notes["runbook_url"].rpartition("/")[2]
            score.check(runbook.is_file(), f"its runbook is there: {runbook.name}")
        own = until(10, lambda: value(prometheus, 'tokengauge_slo_alert_state{tokengauge_slo_name="rig-availability",tokengauge_slo_severity="page"}') == 2)
        score.check(bool(own), "the agent itself says that the page fires")
        code, said = status(folder)
        score.check("firing" in said.lower() or "page" in said.lower(), f"slo status: {said.splitlines()[-3:]}")
        Provider.failing = False
        began = time.monotonic()
        end = until(150, lambda: notified("/page", "resolved"))
        score.check(end is not None, f"its end came {time.monotonic() - began:.0f} s after the last failure")
        client.ended.set()
        client.join()
        score.check(not [a for _, _, a in Pager.got if a["labels"].get("tokengauge_slo_name") == "rig-quiet"], "the other objective stays quiet")

        def counted(series: str) -> float | None:
            return value(prometheus, f"sum({series}{labels})")

        total = client.good + client.bad
        settled = until(10, lambda: counted("tokengauge_slo_events_valid_total") == total)
        got = [counted(f"tokengauge_slo_events_{kind}_total") for kind in ("valid", "good", "excluded")]
        score.check(bool(settled) and got == [total, client.good, 0], f"counted {got}, really {[total, client.good, 0]}")
        burned = value(prometheus, 'slo:sli_error:ratio_rate2h{sloth_slo="rig-availability"}')
        remaining = value(prometheus, f"tokengauge_slo_error_budget_remaining_ratio{labels}")
        wanted = 1 - client.bad / total / 0.01
        score.check(remaining is not None and abs(remaining - wanted) < 1e-6, f"budget remaining {remaining}, really {wanted}")
        score.check(burned is not None and burned > 0.05, f"the rules' error ratio over the window: {burned} (really {client.bad / total})")
        well = [value(prometheus, name) for name in ("tokengauge_slo_files_problems", "tokengauge_slo_journal_failing")]
        score.check(well == [0, 0], f"files and journal are well: {well}")
        good_file = slos.read_text()
        slos.write_text(good_file.replace("objectives:", "objektives:"))
        broken = until(15, lambda: value(prometheus, "tokengauge_slo_files_problems"))
        code, said = status(folder)
        score.check(bool(broken) and code == 1 and "objektives" in said, f"a broken file is told by metric ({broken}) and slo status (exit {code}); the last good one stays")
        slos.write_text(good_file)
        agent.stop()
        if score.failed:
            print(agent.log()[-3000:], json.dumps(Pager.got, indent=1)[-3000:])
    score.finish()


if __name__ == "__main__":
    main()
