#!/usr/bin/env python3
"""A stranger's path, as the README tells it: an empty cluster, the chart, a first objective, an alert in Alertmanager.

The commands are not repeated here: they are taken out of README.md (between the marks `stranger`) and given to bash, word for word. Around them are only a
real Kubernetes node (node.sh), a real Prometheus and Alertmanager beside it, the image in the node's store, and a service that is asked over TLS and begins
to fail.

    tests/real/setup-go.sh helm prometheus alertmanager && tests/k8s/setup.sh
    tests/k8s/stranger.py                                             # as root; TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib"), str(HERE.parent / "slo")]

import alerts  # noqa: E402 (the path above comes first)
from rig import AGENT, CACHE, ROOT, Children, Score, make_certificate, skip_without_bpf  # noqa: E402
from stack import PROMETHEUS, get, until  # noqa: E402

K8S, HELM, ALERTMANAGER = CACHE / "k8s", CACHE / "bin" / "helm", CACHE / "bin" / "alertmanager"
NODE_IP = "10.99.0.1"  # of node.sh
PROMETHEUS_URL, ALERTMANAGER_URL = f"http://{NODE_IP}:9090", f"http://{NODE_IP}:9093"
IMAGE = "localhost/tokengauge"
# As in the image that `make image` builds: OTLP over HTTP wants the roots.
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# What only this rig needs: the image is in the node's store already, and its state goes away with it.
RIG_VALUES = """\
image: {tag: test, pullPolicy: Never}
state: {hostPath: %s}
"""


def commands() -> str:
    """The README's."""
    found = re.search(r"<!-- stranger -->\n```sh\n(.*?)```\n<!-- /stranger -->", (ROOT / "README.md").read_text(), re.S)
    if not found:
        raise SystemExit("README.md has no commands between the marks `stranger`")
    return found[1]


def steps(text: str) -> list[str]:
    """Cut before each numbered comment; the first piece sets the variables."""
    return re.split(r"(?m)^(?=# \d\. )", text)


class Shell:
    """One bash that keeps its variables over all steps. Where something fails, it ends."""

    def __init__(self, children: Children, folder: Path) -> None:
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        (bin_dir / "tokengauge").symlink_to(AGENT)
        # helm as it is, with the rig's values behind those of the README.
        rig_values = folder / "rig.yaml"
        rig_values.write_text(RIG_VALUES % (folder / "state"))
        wrapper = bin_dir / "helm"
        wrapper.write_text(f'#!/bin/bash\nif [ "$1" = install ]; then set -- "$@" --values {rig_values}; fi\nexec {HELM} "$@"\n')
        wrapper.chmod(0o755)
        # The checkout, as a stranger has it, and a place to write.
        (folder / "helm").symlink_to(ROOT / "helm")
        environment = os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}", "IMAGE": IMAGE, "PROMETHEUS": PROMETHEUS_URL, "ALERTMANAGER": ALERTMANAGER_URL}
        self.log_path, self.folder = folder / "shell.log", folder
        with self.log_path.open("wb") as log:
            self.child = children.start(["bash", "-e", "-u", "-o", "pipefail"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder, env=environment)

    def run(self, step: str, seconds: float) -> tuple[bool, str]:
        """Whether it went well, and what it said."""
        before, mark = len(self.log_path.read_bytes()), f"done-{time.monotonic_ns()}"
        assert self.child.stdin is not None
        if self.child.poll() is not None:
            return False, "an earlier command failed"
        self.child.stdin.write(f"{step}\necho {mark}\n".encode())
        self.child.stdin.flush()
        said = lambda: self.log_path.read_bytes()[before:].decode(errors="replace")  # noqa: E731
        until(seconds, lambda: mark in said() or self.child.poll() is not None)
        return mark in said(), said().replace(mark, "").strip()


def start_prometheus(children: Children, folder: Path) -> None:
    """A Prometheus with an empty folder of rules."""
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{evaluation_interval: 1s}}\nrule_files: ['{folder}/rules/*.yaml']\nstorage: {{tsdb: {{out_of_order_time_window: 5m}}}}\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{NODE_IP}:9093']}}]}}]}}\n"
    )
    command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--web.enable-otlp-receiver", "--web.enable-lifecycle", f"--web.listen-address={NODE_IP}:9090"]
    with (folder / "prometheus.log").open("wb") as log:
        child = children.start(command, stdout=log, stderr=log)
    if not until(60, lambda: get(f"{PROMETHEUS_URL}/-/ready")[0] == 200 or child.poll() is not None):
        raise SystemExit((folder / "prometheus.log").read_text()[-2000:])


def start_alertmanager(children: Children, folder: Path) -> None:
    """Alertmanager with the shipped configuration."""
    command = [ALERTMANAGER, f"--config.file={ROOT / 'collector-config' / 'alertmanager.yaml'}", f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address="]
    with (folder / "alertmanager.log").open("wb") as log:
        child = children.start([*command, f"--web.listen-address={NODE_IP}:9093"], stdout=log, stderr=log)
    if not until(60, lambda: get(f"{ALERTMANAGER_URL}/-/ready")[0] == 200 or child.poll() is not None):
        raise SystemExit((folder / "alertmanager.log").read_text()[-2000:])


def firing() -> list[dict[str, str]]:
    """Labels of what Alertmanager has."""
    status, body = get(f"{ALERTMANAGER_URL}/api/v2/alerts?" + urllib.parse.urlencode({"filter": "alertname=TokengaugeErrorBudgetBurn"}))
    return [alert["labels"] for alert in json.loads(body)] if status == 200 else []


def value(promql: str) -> float | None:
    """The one value of a query."""
    status, body = get(f"{PROMETHEUS_URL}/api/v1/query?" + urllib.parse.urlencode({"query": promql}))
    found = json.loads(body)["data"]["result"] if status == 200 else []
    return float(found[0]["value"][1]) if len(found) == 1 else None


def explain() -> None:
    """What Kubernetes and the agent say, after a failure."""
    for words in (["describe", "pods"], ["get", "events"], ["logs", "daemonset/tokengauge"], ["logs", "daemonset/tokengauge", "--previous"]):
        done = subprocess.run(["kubectl", "--namespace", "tokengauge", *words], capture_output=True, text=True)
        print(f"--- kubectl {' '.join(words)}\n{(done.stdout + done.stderr)[-2500:]}")


def inside() -> None:
    """Beside the node, with KUBECONFIG."""
    score = Score()
    pieces = steps(commands())
    with tempfile.TemporaryDirectory(prefix="tokengauge-stranger-") as name, Children() as children:
        folder = Path(name)
        start_alertmanager(children, folder)
        start_prometheus(children, folder)
        shell = Shell(children, folder)
        began = time.monotonic()
        for piece in pieces[:4]:
            went, said = shell.run(piece, 240)
            title = piece.splitlines()[0][:90]
            if not score.check(went, f"{title}{'' if went else chr(10) + said[-3000:]}"):
                explain()
                score.finish()
        rules = json.loads(get(f"{PROMETHEUS_URL}/api/v1/rules")[1])["data"]["groups"]
        score.check(len(rules) >= 3, f"Prometheus has {len(rules)} groups of rules")

        # A service of the cluster and its client: as processes of the node, since the rig has no image with Python.
        client = alerts.Client(alerts.serve(alerts.Provider, make_certificate(folder)))
        time.sleep(2)  # the agent looks for new processes every second
        client.start()
        seen = until(60, lambda: value('sum(tokengauge_slo_events_good_total{tokengauge_slo_objective_name="99%"})'))
        score.check(bool(seen), f"{seen} good requests reached Prometheus {time.monotonic() - began:.0f} s after the first command")
        went, said = shell.run(pieces[4], 30)
        score.check(went and "rig-1" in said and "chat" in said, f"{pieces[4].splitlines()[0]}: {said.splitlines()[-1][:200] if said else ''}")
        score.check(not firing(), "nothing fires while all is well")
        alerts.Provider.failing = True
        failed = time.monotonic()
        page = until(120, lambda: [a for a in firing() if a.get("severity") == "page"])
        score.check(bool(page), f"the page was in Alertmanager {time.monotonic() - failed:.0f} s after the first failure, {time.monotonic() - began:.0f} s after the first command: {page[0]['sloth_id'] if page else ''}")
        went, said = shell.run(pieces[5], 30)
        score.check(went and "TokengaugeErrorBudgetBurn" in said, pieces[5].splitlines()[0])
        client.ended.set()
        client.join()
        if score.failed:
            print(shell.log_path.read_text()[-3000:])
            explain()
    score.finish()


def main() -> None:
    """Prepares the image, then runs `inside` beside a node."""
    if sys.argv[1:] == ["--inside"]:
        inside()
    missing = [str(p) for p in (AGENT, HELM, PROMETHEUS, ALERTMANAGER, K8S / "bin" / "version") if not p.exists()]
    if missing or os.geteuid() != 0:
        print(f"FAIL: {'not root' if not missing else 'missing: ' + ', '.join(missing)}")
        print("0 passed, 1 failed")
        sys.exit(1)
    skip_without_bpf()
    subprocess.run([HERE / "mkimage.py", K8S / "images" / "tokengauge.tar", f"{IMAGE}:test", AGENT, CERTIFICATES], check=True)
    command = [HERE / "node.sh", sys.executable, Path(__file__).resolve(), "--inside"]
    sys.exit(subprocess.run([str(w) for w in command], env=os.environ | {"K8S_DIR": str(K8S.resolve())}).returncode)


if __name__ == "__main__":
    main()
