#!/usr/bin/env python3
"""collector-config/node.yaml and its `k8s_attributes` against a real API server: what an agent's pod sends says which pod it is.

Only the API server runs (node.sh with K8S_NODE=0); the pods are objects without containers. The Collector has the rights that its file names, and no others.

    tests/real/setup-go.sh collector && tests/k8s/setup.sh && tests/k8s/collector.py       # as root
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib"), str(HERE.parent / "real")]

from collector_configs import sink_config, spans  # noqa: E402 (the path above comes first)
from rig import CACHE, Children, Score, free_port  # noqa: E402
from stack import CONFIGS, OTELCOL, Collector, until  # noqa: E402

K8S = CACHE / "k8s"
# What the file's first lines ask for.
RIGHTS = [{"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get", "list", "watch"]}, {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list", "watch"]}]


def kubectl(*words: str, stdin: Any = None) -> str:
    """Standard output; fails loudly."""
    done = subprocess.run(["kubectl", *words], input=json.dumps(stdin) if stdin else None, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"kubectl {words}: {done.stderr}")
    return done.stdout


def pod(name: str, node: str) -> str:
    """A pod of a DaemonSet on that node; its uid."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "tokengauge", "uid": "11111111-1111-1111-1111-111111111111", "controller": True}
    spec = {"nodeName": node, "containers": [{"name": "tokengauge", "image": "none"}], "automountServiceAccountToken": False}
    kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "watch", "ownerReferences": [owner]}, "spec": spec})
    return kubectl("get", "pod", name, "-n", "watch", "-o", "jsonpath={.metadata.uid}")


def send(collector: Collector, uid: str, name: str) -> None:
    """A span from the pod of that uid."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "tokengauge"}}, {"key": "k8s.pod.uid", "value": {"stringValue": uid}}]}
    span = {"traceId": os.urandom(16).hex(), "spanId": os.urandom(8).hex(), "name": name, "kind": 3, "startTimeUnixNano": str(time.time_ns()), "endTimeUnixNano": str(time.time_ns())}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": [span]}]}]}
    urllib.request.urlopen(urllib.request.Request(f"{collector.http}/v1/traces", json.dumps(body).encode(), {"content-type": "application/json"}), timeout=10)


def kubeconfig(folder: Path) -> Path:
    """For a ServiceAccount with the file's rights."""
    kubectl("create", "serviceaccount", "collector", "-n", "watch")
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "collector"}, "rules": RIGHTS}
    kubectl("apply", "-f", "-", stdin=role)
    kubectl("create", "clusterrolebinding", "collector", "--clusterrole=collector", "--serviceaccount=watch:collector")
    token = kubectl("create", "token", "collector", "-n", "watch").strip()
    told = json.loads(kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    told["users"] = [{"name": told["users"][0]["name"], "user": {"token": token}}]
    path = folder / "kubeconfig.json"
    path.write_text(json.dumps(told))
    return path


def inside() -> None:
    """Beside the API server, with KUBECONFIG."""
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-attributes-") as name, Children() as children:
        folder = Path(name)
        kubectl("create", "namespace", "watch")
        here, elsewhere = pod("agent-here", "node-1"), pod("agent-elsewhere", "node-2")
        port = free_port()
        sink = Collector(children, folder, "sink", sink_config(folder, {"kept": (port, free_port())}))
        settings = {"K8S_AUTH": "kubeConfig", "NODE": "node-1", "GATEWAYS": "localhost", "GATEWAY": f"127.0.0.1:{port}", "GATEWAY_PORT": str(port), "INSECURE": "true"}
        node = Collector(children, folder, "node", CONFIGS / "node.yaml", {"KUBECONFIG": str(kubeconfig(folder))}, **settings)

        def resource(span: str) -> dict[str, Any]:
            return next((s["resource"] for s in spans(folder / "kept.json") if s["name"] == span), {})

        def asked() -> bool:
            send(node, here, "first")
            return "k8s.pod.name" in resource("first")

        score.check(bool(until(30, asked, 1)), "the processor knows the node's pods")
        send(node, here, "here")
        until(15, lambda: resource("here"))
        got = {k: v for k, v in resource("here").items() if k.startswith("k8s.")}
        want = {"k8s.pod.name": "agent-here", "k8s.namespace.name": "watch", "k8s.node.name": "node-1", "k8s.daemonset.name": "tokengauge", "k8s.pod.uid": here}
        score.check(got == want, f"a span says which pod sent it: {got}")
        send(node, elsewhere, "elsewhere")
        until(15, lambda: resource("elsewhere"))
        score.check("k8s.pod.name" not in resource("elsewhere"), "pods of other nodes are not watched")
        new = pod("agent-new", "node-1")

        def seen() -> bool:
            send(node, new, "new")
            return any(s["resource"].get("k8s.pod.name") == "agent-new" for s in spans(folder / "kept.json"))

        score.check(bool(until(20, seen, 1)), "a pod that appears is known within seconds")
        errors = [line[:300] for line in node.log().splitlines() if "\terror\t" in line or "forbidden" in line]
        score.check(not errors, f"the rights that the file names are enough {errors[:2] or ''}")
        score.check(node.stop() == 0 and sink.stop() == 0, "both end cleanly")
        if score.failed:
            print(node.log()[-3000:])
    score.finish()


def main() -> None:
    """Starts the API server around `inside`."""
    if sys.argv[1:] == ["--inside"]:
        inside()
    missing = [str(p) for p in (OTELCOL, K8S / "bin" / "version") if not p.exists()]
    if missing or os.geteuid() != 0:
        print(f"FAIL: {'not root' if not missing else 'missing: ' + ', '.join(missing)}\n0 passed, 1 failed")
        sys.exit(1)
    command = [HERE / "node.sh", sys.executable, Path(__file__).resolve(), "--inside"]
    sys.exit(subprocess.run([str(w) for w in command], env=os.environ | {"K8S_DIR": str(K8S.resolve()), "K8S_NODE": "0"}).returncode)


if __name__ == "__main__":
    main()
