#!/usr/bin/env python3
"""The chart on a real Kubernetes node: installed by helm, measuring traffic of other processes of the node.

Brings up Kubernetes 1.34 on this machine for as long as the test takes (node.sh: own network, mounts and cgroups;
needs cgroup v1), with the agent's binary in an image made on the spot. With the capabilities of the chart's defaults,
unprivileged, the agent must tap a TLS server and its clients outside of its pod and deliver to a real Collector by
$(HOST_IP).

    tests/real/setup-go.sh helm collector && tests/k8s/setup.sh
    tests/k8s/run.py                                                  # as root; TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, CACHE, ROOT, Children, Record, Score, first_json_line, read_jsonl, skip_without_bpf  # noqa: E402

K8S = CACHE / "k8s"
HELM = CACHE / "bin" / "helm"
OTELCOL = CACHE / "bin" / "otelcol"
CHART = ROOT / "helm" / "tokengauge"
DEMO = ROOT / "agent" / "src" / "demo"
NODE_IP = "10.99.0.1"  # of node.sh
SPACE = ("--namespace", "tokengauge")
CAPABILITIES = {
    "CAP_BPF": 39,
    "CAP_PERFMON": 38,
    "CAP_SYS_PTRACE": 19,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_CHECKPOINT_RESTORE": 40,
}
VALUES = """
image: {repository: localhost/tokengauge, tag: test, pullPolicy: Never}
config: {jsonl: {path: "-"}}
otlp:
  endpoint: http://$(HOST_IP):4317
  intervalSeconds: 1
  headersSecret: {name: otlp-headers}
  resourceAttributes: {k8s.cluster.name: test}
"""


def run(*command: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs it; output as text."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout)


def kubectl(*words: str) -> str:
    """Standard output of kubectl."""
    return run("kubectl", *words).stdout


def until(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it holds within that time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.3)
    return True


def scrape() -> str:
    """The Collector's series."""
    try:
        with urllib.request.urlopen(f"http://{NODE_IP}:9464/metrics", timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return ""


def pod_log() -> str:
    """What the agent wrote."""
    return kubectl("logs", *SPACE, "daemonset/tokengauge", "--tail=-1")


def records() -> list[Record]:
    """The records in the agent's log."""
    return [json.loads(line) for line in pod_log().splitlines() if line.startswith("{")]


def effective_capabilities() -> int:
    """CapEff of the agent's process, as the node sees it."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = status.with_name("cmdline").read_bytes()
            if command.startswith(b"/tokengauge\0run\0--config\0/etc/tokengauge/"):
                found = re.search(r"^CapEff:\s*(\w+)", status.read_text(), re.M)
                return int(found.group(1), 16) if found else -1
        except OSError:
            continue
    return -1


def traffic(children: Children, folder: Path, score: Score) -> None:
    """A provider and clients outside of the pod; their own count against the records."""
    provider = children.start(
        [sys.executable, DEMO / "provider.py", "--truth", folder / "p.jsonl", "--dir", folder], stdout=subprocess.PIPE
    )
    hello = first_json_line(provider)
    time.sleep(4)  # the agent looks for new processes every second
    client = children.start(
        [sys.executable, DEMO / "client.py", "--port", str(hello["port"]), "--cert", hello["cert"]]
        + ["--truth", folder / "c.jsonl", "--count", "20", "--rate", "3"]
    )
    client.wait(120)
    truth = read_jsonl(folder / "c.jsonl")
    models = {r["model"] for r in truth}
    score.check(len(truth) == 20, f"the client made {len(truth)} requests outside of the pod")

    def seen(vantage: str) -> Counter[object]:
        asked = [r["request"]["model"] for r in records() if r["vantage"] == vantage]
        return Counter(model for model in asked if model in models)

    want = Counter(r["model"] for r in truth)
    score.check(until(10, lambda: seen("server") == want), f"records from the server's side: {dict(seen('server'))}")
    # A client is found up to a second after its start: its first requests may be missed, most may not.
    client_side = seen("client")
    score.check(client_side.total() >= 15, f"records from the client's side: {dict(client_side)}")


def inside() -> None:
    """What runs beside the node, with KUBECONFIG."""
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-k8s-") as name, Children() as children:
        folder = Path(name)
        environment = os.environ | {"TOKENGAUGE_LISTEN": NODE_IP, "TOKENGAUGE_DEBUG_VERBOSITY": "detailed"}
        with (folder / "collector.log").open("wb") as log:
            children.start(
                [OTELCOL, "--config", ROOT / "collector-config" / "tokengauge.yaml"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        (folder / "values.yaml").write_text(VALUES)
        kubectl("create", "namespace", "tokengauge")
        kubectl(
            "create",
            *SPACE,
            "secret",
            "generic",
            "otlp-headers",
            "--from-literal=headers=authorization=Bearer secret-of-the-test",
        )
        install = run(HELM, "install", "tokengauge", CHART, *SPACE, "--values", folder / "values.yaml")
        score.check(install.returncode == 0, f"helm install {install.stderr.strip()}")
        score.check("rollout status daemonset/tokengauge" in install.stdout, "the notes name the DaemonSet")
        rollout = run("kubectl", "rollout", "status", *SPACE, "daemonset/tokengauge", "--timeout=90s")
        ready = score.check(
            rollout.returncode == 0, f"rollout: {(rollout.stdout + rollout.stderr).strip().splitlines()[-1:]}"
        )
        score.check(until(30, lambda: "tapping" in pod_log()), "the pod's log says `tapping`")
        if not ready:
            print(kubectl("describe", "pods", *SPACE) + pod_log())
            score.finish()
        held, want = effective_capabilities(), sum(1 << bit for bit in CAPABILITIES.values())
        score.check(held == want, f"the agent holds these capabilities only: {', '.join(CAPABILITIES)} ({held:x})")
        traffic(children, folder, score)
        text = "tokengauge_requests_total"
        score.check(until(15, lambda: text in scrape()), "metrics reached the Collector at $(HOST_IP)")
        info = next((line for line in scrape().splitlines() if line.startswith("target_info{")), "")
        uid = kubectl("get", "pods", *SPACE, "-o", "jsonpath={.items[0].metadata.uid}")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', info))
        names = {
            "k8s_node_name": "k8snode",
            "host_name": "k8snode",
            "k8s_namespace_name": "tokengauge",
            "k8s_cluster_name": "test",
            "instance": uid,
        }
        wrong = {k: labels.get(k) for k, v in names.items() if labels.get(k) != v}
        score.check(
            not wrong, f"target_info says node, namespace, cluster, and the pod's uid as instance {wrong or ''}"
        )
        restarts = kubectl("get", "pods", *SPACE, "-o", "jsonpath={.items[0].status.containerStatuses[0].restartCount}")
        score.check(restarts == "0", f"{restarts} restarts")
        everything = pod_log() + scrape() + (folder / "collector.log").read_text()
        score.check("secret-of-the-test" not in everything, "the Secret's header is in no log and no series")
        if score.failed:
            print(f"--- pod\n{pod_log()[-3000:]}\n--- collector\n{(folder / 'collector.log').read_text()[-2000:]}")
        usage = kubectl("get", "pods", *SPACE, "-o", "wide")
        print(usage)
        check_new_configuration(score, folder)
        check_refused_namespace(score, folder)
        gone = run(HELM, "uninstall", "tokengauge", *SPACE, "--wait", "--timeout", "60s")
        score.check(
            gone.returncode == 0 and effective_capabilities() == -1,
            f"helm uninstall ends the agent {gone.stderr.strip()}",
        )
    score.finish()


def check_new_configuration(score: Score, folder: Path) -> None:
    """A changed file begins a new pod; a wrong one is refused before anything happens."""
    wrong = run(
        HELM,
        "upgrade",
        "tokengauge",
        CHART,
        *SPACE,
        "--values",
        folder / "values.yaml",
        "--set",
        "config.taps.tls.ringmib=1",
    )
    score.check(wrong.returncode != 0 and "ringmib" in wrong.stderr, "helm upgrade with a misspelt key is refused")
    before = kubectl("get", "pods", *SPACE, "-o", "jsonpath={.items[*].metadata.uid}")
    run(HELM, "upgrade", "tokengauge", CHART, *SPACE, "--values", folder / "values.yaml", "--set", "config.log=debug")
    rollout = run("kubectl", "rollout", "status", *SPACE, "daemonset/tokengauge", "--timeout=90s")
    after = kubectl("get", "pods", *SPACE, "-o", "jsonpath={.items[*].metadata.uid}")
    score.check(
        rollout.returncode == 0 and before not in after, "helm upgrade with another configuration begins a new pod"
    )


def check_refused_namespace(score: Score, folder: Path) -> None:
    """What the notes say about Pod Security is so."""
    kubectl("create", "namespace", "strict")
    kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    install = run(HELM, "install", "tokengauge", CHART, "--namespace", "strict", "--values", folder / "values.yaml")

    def events() -> str:
        return kubectl("describe", "daemonset/tokengauge", "--namespace", "strict")

    score.check(
        install.returncode == 0 and until(20, lambda: "violates PodSecurity" in events()),
        "in a restricted namespace helm succeeds and the DaemonSet's events say why no pod appears",
    )
    run(HELM, "uninstall", "tokengauge", "--namespace", "strict")


def main() -> None:
    """Prepares the image, then runs `inside` beside a node."""
    if sys.argv[1:] == ["--inside"]:
        inside()
    missing = [str(p) for p in (AGENT, HELM, OTELCOL, K8S / "bin" / "version") if not p.exists()]
    if missing or os.geteuid() != 0:
        print(f"FAIL: {'not root' if not missing else 'missing: ' + ', '.join(missing)}")
        print(
            "the agent: cargo, or TOKENGAUGE=path; the rest: tests/real/setup-go.sh helm collector, tests/k8s/setup.sh"
        )
        print("0 passed, 1 failed")
        sys.exit(1)
    skip_without_bpf()
    # The image's name for the binary is its entry point.
    subprocess.run(
        [HERE / "mkimage.py", K8S / "images" / "tokengauge.tar", "localhost/tokengauge:test", AGENT], check=True
    )
    command = [HERE / "node.sh", sys.executable, Path(__file__).resolve(), "--inside"]
    result = subprocess.run([str(w) for w in command], env=os.environ | {"K8S_DIR": str(K8S.resolve())})
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
