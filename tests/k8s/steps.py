"""What is shown beside a real node, step by step; each leaves the release as it found it, unless its name says otherwise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cluster import (
    CHART,
    HERE,
    NODE_IP,
    OTELCOL,
    RELEASE,
    SPACE,
    apply,
    effective_capabilities,
    get,
    helm,
    kubectl,
    pod_log,
    pods,
    records,
    rolled_out,
    run,
    state_of,
    until,
)
from rig import ROOT, Children, Record, Score, first_json_line, make_certificate, read_jsonl

DEMO = ROOT / "agent" / "src" / "demo"
PROFILES = CHART / "profiles"
CAPABILITIES = {
    "CAP_BPF": 39,
    "CAP_PERFMON": 38,
    "CAP_SYS_PTRACE": 19,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_CHECKPOINT_RESTORE": 40,
}
VALUES = """
image: {{pullPolicy: Never}}
config: {{jsonl: {{path: "-"}}}}
otlp:
  endpoint: http://$(HOST_IP):4317
  intervalSeconds: 1
  headersSecret: {{name: otlp-headers}}
  resourceAttributes: {{k8s.cluster.name: test}}
slos:
  files:
    chat.yaml:
      slos: {{service: chat, when: {{model: "pod-*"}}, objectives: [availability >= 90%]}}
state:
  hostPath: {state}
"""


class Rig:
    """What the steps share."""

    def __init__(self, score: Score, folder: Path, children: Children) -> None:
        self.score, self.folder, self.children = score, folder, children
        self.check = score.check
        self.state = folder / "state"
        self.values = folder / "values.yaml"
        self.values.write_text(VALUES.format(state=self.state))
        self.collector_log = folder / "collector.log"
        self.asked: list[Any] = []

    def upgrade(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """`helm upgrade` with the rig's values and these."""
        return helm("upgrade", RELEASE, CHART, *SPACE, "--values", self.values, *flags)

    def series(self) -> str:
        """What the Collector beside the node serves."""
        return get(f"http://{NODE_IP}:9464/metrics")

    def counted(self) -> dict[str, int]:
        """Requests that the objective has ever counted on this node, as the agent's file says."""
        for key, objective in state_of(self.state).items():
            if key:
                return {name: objective["total"][name] for name in ("valid", "good")}
        return {}

    def evidence(self) -> str:
        """For whoever looks at a failure."""
        collector = self.collector_log.read_text()[-1500:] if self.collector_log.exists() else ""
        described = kubectl("describe", "pods", *SPACE)[-3000:]
        return f"--- pods\n{described}\n--- agent\n{pod_log()[-3000:]}\n--- collector\n{collector}"


def container(name: str, *words: str, image: str = "localhost/python:test") -> Record:
    """A container of the test's interpreter with its script and certificate."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["/llm/llm.py", *words],
        "env": [{"name": "PYTHONHOME", "value": "/usr"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "volumeMounts": [{"name": "llm", "mountPath": "/llm"}],
    }


def pod_spec(*containers: Record, **more: object) -> Record:
    """A pod of such containers."""
    volume = {"name": "llm", "configMap": {"name": "llm"}}
    return {"containers": list(containers), "volumes": [volume], "terminationGracePeriodSeconds": 1} | more


def namespace(rig: Rig, name: str, level: str = "") -> tuple[str, str]:
    """Creates a namespace with the script and certificate in it; what selects it."""
    kubectl("create", "namespace", name)
    if level:
        kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")
    if not (rig.folder / "cert.pem").exists():
        make_certificate(rig.folder)
    files = [f"--from-file={path}" for path in (HERE / "llm.py", rig.folder / "cert.pem", rig.folder / "key.pem")]
    kubectl("create", "configmap", "llm", "--namespace", name, *files)
    return ("--namespace", name)


def provider(rig: Rig) -> str:
    """A Deployment that serves models, in a namespace of its own; the address of its pod."""
    space = ("--namespace", "models")
    if not pods("app=provider", space):
        namespace(rig, "models")
        labels = {"app": "provider"}
        template = {"metadata": {"labels": labels}, "spec": pod_spec(container("server", "serve", "8443", "/llm/cert.pem", "/llm/key.pem"))}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "provider", "namespace": "models"}, "spec": spec})
        rolled_out("deployment/provider", space=space)
        until(20, lambda: "listening" in pod_log("deployment/provider", space=space))
        time.sleep(3)
    return str(pods("app=provider", space)[0]["status"]["podIP"])


def ask(rig: Rig, job: str, model: str, count: int, rate: float = 10, space: str = "apps") -> bool:
    """A Job in another namespace that asks the provider; whether it got all its answers."""
    address = provider(rig)
    if not kubectl("get", "namespace", space, "--ignore-not-found"):
        namespace(rig, space)
    spec = pod_spec(container("client", "ask", address, "8443", str(count), str(rate), model), restartPolicy="Never")
    body = {"backoffLimit": 0, "template": {"spec": spec}}
    apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job, "namespace": space}, "spec": body})
    done = run("kubectl", "wait", "--namespace", space, f"job/{job}", "--for=condition=complete", f"--timeout={30 + int(count / rate)}s")
    told = [json.loads(line) for line in pod_log(f"job/{job}", space=("--namespace", space)).splitlines()]
    rig.asked += told
    return rig.check(done.returncode == 0 and len(told) == count, f"pod {space}/{job} asked {len(told)} of {count} times {done.stderr.strip()}")


def seen(model: str, vantage: str) -> list[Record]:
    """Records of a model, from one side."""
    return [r for r in records() if r["request"]["model"] == model and r["vantage"] == vantage]


# Steps -------------------------------------------------------------------------------------------------------------


def refused_namespaces(rig: Rig) -> None:
    """Where Pod Security would never let the pods run, the chart says so; with the check off, what the notes say is so."""
    for level in ("restricted", "baseline"):
        kubectl("create", "namespace", level)
        kubectl("label", "namespace", level, f"pod-security.kubernetes.io/enforce={level}")
        command = ("install", RELEASE, CHART, "--namespace", level, "--values", rig.values)
        refused = helm(*command)
        wanted = f"kubectl label --overwrite namespace {level} pod-security.kubernetes.io/enforce=privileged"
        rig.check(refused.returncode != 0 and wanted in refused.stderr, f"refused in a namespace of level {level}, with the command that helps")
    forced = helm(*command, "--set", "podSecurity.check=false")

    def events() -> str:
        return kubectl("describe", "daemonset/tokengauge", "--namespace", level)

    rig.check(
        forced.returncode == 0 and until(20, lambda: "violates PodSecurity" in events()),
        "with podSecurity.check=false helm succeeds there, and the DaemonSet's events say why no pod appears",
    )
    helm("uninstall", RELEASE, "--namespace", level)


def install(rig: Rig) -> bool:
    """The release that the other steps use, beside a Collector on the node."""
    environment = os.environ | {"TOKENGAUGE_LISTEN": NODE_IP, "TOKENGAUGE_DEBUG_VERBOSITY": "detailed"}
    with rig.collector_log.open("wb") as log:
        config = ROOT / "collector-config" / "tokengauge.yaml"
        rig.children.start([OTELCOL, "--config", config], env=environment, stdout=log, stderr=log)
    kubectl("create", "namespace", "tokengauge")
    kubectl("label", "namespace", "tokengauge", "pod-security.kubernetes.io/enforce=privileged")
    secret = "--from-literal=headers=authorization=Bearer secret-of-the-test"
    kubectl("create", *SPACE, "secret", "generic", "otlp-headers", secret)
    done = helm("install", RELEASE, CHART, *SPACE, "--values", rig.values)
    rig.check(done.returncode == 0, f"helm install {done.stderr.strip()}")
    rig.check("rollout status daemonset/tokengauge" in done.stdout, "the notes name the DaemonSet")
    ready, said = rolled_out()
    rig.check(ready, f"rollout: {said}")
    rig.check(until(30, lambda: "tapping" in pod_log()), "the pod's log says `tapping`")
    held, want = effective_capabilities(), sum(1 << bit for bit in CAPABILITIES.values())
    rig.check(held == want, f"the agent holds these capabilities only: {', '.join(CAPABILITIES)} ({held:x})")
    return ready


def doctor(rig: Rig) -> None:
    """`helm test`: a pod with the agents' rights taps itself."""
    tested = helm("test", RELEASE, *SPACE, "--logs")
    rig.check(tested.returncode == 0 and re.search(r"Phase:\s+Succeeded", tested.stdout) is not None, f"helm test {tested.stderr.strip()[-300:]}")
    rig.check(len(pods()) == 1, "the DaemonSet leaves the test's pod alone")


def processes_of_the_node(rig: Rig) -> None:
    """A provider and clients outside of any pod; their own count against the records."""
    folder = rig.folder
    command = [sys.executable, DEMO / "provider.py", "--truth", folder / "p.jsonl", "--dir", folder]
    hello = first_json_line(rig.children.start(command, stdout=subprocess.PIPE))
    time.sleep(4)  # the agent looks for new processes every second
    client = rig.children.start(
        [sys.executable, DEMO / "client.py", "--port", str(hello["port"]), "--cert", hello["cert"]]
        + ["--truth", folder / "c.jsonl", "--count", "20", "--rate", "3"]
    )
    client.wait(120)
    truth = read_jsonl(folder / "c.jsonl")
    rig.check(len(truth) == 20, f"a client made {len(truth)} requests outside of any pod")

    def side(vantage: str) -> Counter[object]:
        # Others may show the demo on this machine at the same time.
        return Counter(r["request"]["model"] for r in records() if r["vantage"] == vantage and r["server"]["port"] == hello["port"])

    want = Counter(r["model"] for r in truth)
    rig.check(until(10, lambda: side("server") == want), f"records from the server's side: {dict(side('server'))}")
    # A client is found up to a second after its start: its first requests may be missed, most may not.
    rig.check(side("client").total() >= 15, f"records from the client's side: {dict(side('client'))}")


def metrics(rig: Rig) -> None:
    """What the Collector at $(HOST_IP) got, and by whose name."""
    rig.check(until(15, lambda: "tokengauge_requests_total" in rig.series()), "metrics reached the Collector at $(HOST_IP)")
    info = next((line for line in rig.series().splitlines() if line.startswith("target_info{")), "")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info))
    names = {
        "k8s_node_name": "k8snode",
        "host_name": "k8snode",
        "k8s_namespace_name": "tokengauge",
        "k8s_cluster_name": "test",
        "instance": pods()[0]["metadata"]["uid"],
    }
    wrong = {k: labels.get(k) for k, v in names.items() if labels.get(k) != v}
    rig.check(not wrong, f"target_info says node, namespace, cluster, and the pod's uid as instance {wrong or ''}")
    everything = pod_log() + rig.series() + rig.collector_log.read_text()
    rig.check("secret-of-the-test" not in everything, "the Secret's header is in no log and no series")
    rig.check(pods()[0]["status"]["containerStatuses"][0]["restartCount"] == 0, "no restarts")


def other_pods(rig: Rig) -> None:
    """A pod of one namespace asks a pod of another: both sides are measured, by an agent in a third."""
    if not ask(rig, "first", "pod-model", 20):
        return
    rig.check(until(10, lambda: len(seen("pod-model", "server")) == 20), f"{len(seen('pod-model', 'server'))} of 20 requests measured at the server's pod")
    clients = seen("pod-model", "client")
    rig.check(len(clients) >= 19, f"{len(clients)} of 20 requests measured at the client's pod")
    good = [r for r in clients if r["outcome"] == "completed" and r["usage"]["output_tokens"] == 5 and r["timing_s"]["ttft"] > 0.005]
    rig.check(len(good) == len(clients), f"{len(good)} of them completed, with 5 tokens and a time to first token")


def budgets(rig: Rig) -> None:
    """Upgrade, rollback and a deleted pod continue the budget; a changed SLO file is read without a new pod."""
    before = rig.counted()
    if not (ask(rig, "good", "pod-good", 20) and ask(rig, "bad", "pod-bad", 10)):
        return

    def grown(since: dict[str, int], valid: int, good: int) -> bool:
        now = rig.counted()
        return bool(now) and now["valid"] - since["valid"] >= valid and now["good"] - since["good"] >= good

    rig.check(bool(before) and until(10, lambda: grown(before, 30, 20)), f"the budget on the node counts both sides: {before} → {rig.counted()}")
    time.sleep(3)
    counted = rig.counted()
    uid = pods()[0]["metadata"]["uid"]

    def continued(what: str) -> None:
        """A new pod, and no request forgotten."""
        nonlocal uid
        ready, said = rolled_out()
        new = pods()[0]["metadata"]["uid"]
        pid = state_of(rig.state).get("", {}).get("at_unix", 0)
        fresh = until(15, lambda: state_of(rig.state).get("", {}).get("at_unix", 0) > pid)
        rig.check(ready and new != uid and fresh and rig.counted() == counted, f"{what}: a new pod, and the budget goes on: {rig.counted()} ({said})")
        uid = new

    rig.upgrade("--set", "config.log=debug")
    continued("helm upgrade with another configuration")
    helm("rollback", RELEASE, *SPACE)
    continued("helm rollback")
    kubectl("delete", "pod", *SPACE, pods()[0]["metadata"]["name"])
    continued("kubectl delete pod")
    # The kubelet renews ConfigMaps of running pods within its sync period; the agent sees the turned link.
    rig.upgrade("--set", "slos.files.chat\\.yaml.slos.objectives={availability >= 95%}")

    def target() -> float:
        return next((o["target"] for key, o in state_of(rig.state).items() if key), 0.0)

    changed = until(120, lambda: abs(target() - 0.95) < 1e-9)
    rig.check(changed and pods()[0]["metadata"]["uid"] == uid and rig.counted() == counted, f"a changed SLO file is in force in the same pod, with the same budget: {target()} {rig.counted()}")
    rig.upgrade()
    until(120, lambda: abs(target() - 0.9) < 1e-9)


def wrong_values(rig: Rig) -> None:
    """A wrong value is refused before anything happens."""
    wrong = rig.upgrade("--set", "config.taps.tls.ringmib=1")
    rig.check(wrong.returncode != 0 and "ringmib" in wrong.stderr, "helm upgrade with a misspelt key is refused")


def own_seccomp_profile(rig: Rig) -> None:
    """The narrower profile, as a node's administrator would put it there."""
    folder = Path(kubelet_folder()) / "seccomp"
    folder.mkdir(exist_ok=True)
    (folder / "tokengauge.json").write_bytes((PROFILES / "tokengauge.json").read_bytes())
    flags = ("securityContext.seccompProfile.type=Localhost", "securityContext.seccompProfile.localhostProfile=tokengauge.json")
    rig.upgrade("--set", ",".join(flags))
    ready, said = rolled_out()
    rig.check(ready and until(30, lambda: "tapping" in pod_log()), f"the agent runs under profiles/tokengauge.json: {said}")
    ask(rig, "seccomp", "seccomp-model", 10)
    rig.check(until(10, lambda: len(seen("seccomp-model", "server")) == 10), "it measures under it")
    refused = [line for line in pod_log().splitlines() if re.search(r"not permitted|EPERM|denied", line)]
    rig.check(not refused, f"and is refused nothing {refused[:2] or ''}")
    rig.upgrade()
    rolled_out()


def kubelet_folder() -> str:
    """--root-dir of the node's kubelet."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[0].endswith("kubelet"):
            return next(word.partition("=")[2] for word in words if word.startswith("--root-dir="))
    raise RuntimeError("no kubelet")


def sidecar(rig: Rig) -> None:
    """helm/tokengauge/sidecar.yaml as it stands, with the test's application; it sees its own pod and no other."""
    space = namespace(rig, "beside")
    text = (CHART / "sidecar.yaml").read_text()
    text = text.replace("image: tokengauge:0.1.0", f"image: {pods()[0]['spec']['containers'][0]['image']}")
    text = text.replace("args: [run, --verbose]", 'args: [run, --jsonl, "-"]').replace("http://collector.monitoring:4317", f"http://{NODE_IP}:4317")
    server = container("server", "serve", "9443", "/llm/cert.pem", "/llm/key.pem")
    client = container("application", "ask", "127.0.0.1", "9443", "10", "5", "beside-model")
    text = text.replace("    - name: application\n      image: your-application:1\n", "".join(f"    - {json.dumps(c)}\n" for c in (server, client)))
    text = text.replace("spec:\n", f"spec:\n  restartPolicy: Never\n  volumes: {json.dumps(pod_spec()['volumes'])}\n", 1)
    kubectl("apply", *space, "-f", "-", text=text)
    rig.check(until(60, lambda: pod_log("pod/with-tokengauge", "-c", "application", space=space).count('"status"') == 10), "an application with the sidecar asked 10 times")

    def mine() -> list[Record]:
        return records("pod/with-tokengauge", "-c", "tokengauge", space=space)

    rig.check(until(10, lambda: len(mine()) >= 15), f"the sidecar measured both sides of them: {len(mine())} records")
    ask(rig, "apart", "apart-model", 5)
    foreign = {r["request"]["model"] for r in mine()} - {"beside-model"}
    rig.check(not foreign, f"and no other pod's {foreign or ''}")
    kubectl("delete", "pod", *space, "with-tokengauge", "--wait=false")


def own_collector(rig: Rig) -> None:
    """The chart's Collector: runs without any right, takes what the agents send, serves Prometheus."""
    image = "collector.image.repository=localhost/otelcol,collector.image.tag=test,collector.image.pullPolicy=Never"
    rig.upgrade("--set", f"collector.enabled=true,{image}")
    ready, said = rolled_out("deployment/tokengauge-collector")
    rig.check(ready, f"the chart's Collector becomes ready: {said}")
    if not ready:
        print(kubectl("describe", "pods", *SPACE, "-l", "app.kubernetes.io/component=collector")[-2000:])
        return
    address = pods("app.kubernetes.io/component=collector")[0]["status"]["podIP"]
    # No DNS on this node: the Service's name, which is the default endpoint, cannot be resolved here.
    rig.upgrade("--set", f"collector.enabled=true,{image},otlp.endpoint=http://{address}:4317")
    rolled_out()
    ask(rig, "collected", "collected-model", 5)
    rig.check(until(15, lambda: "collected-model" in get(f"http://{address}:9464/metrics")), "it got the agent's metrics and serves them")
    rig.upgrade()
    rolled_out()


def uninstall(rig: Rig) -> None:
    """Ends the agent and leaves the budgets on the node."""
    gone = helm("uninstall", RELEASE, *SPACE)
    ended = until(30, lambda: effective_capabilities() == -1)
    rig.check(gone.returncode == 0 and ended, f"helm uninstall ends the agent {gone.stderr.strip()}")
    rig.check((rig.state / "slo.journal").exists(), "the journal of budgets stays on the node")


ALL = (
    refused_namespaces,
    install,
    doctor,
    wrong_values,
    processes_of_the_node,
    metrics,
    other_pods,
    budgets,
    own_seccomp_profile,
    sidecar,
    own_collector,
    uninstall,
)
