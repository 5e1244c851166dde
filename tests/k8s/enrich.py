#!/usr/bin/env python3
"""Who the two ends of a connection are, on a real node with a real API server, with the least rights that the agent asks for.

Processes are put into the network and the cgroups of real pods (the kubelet made both), ask each other over TLS, and the agent beside the node must name
both ends from either side: owners of every kind, a service's address, a pod that is gone when its record ends. Then the API server is killed and started
again, rights are taken away, the kubelet's list is all there is, and at last nothing; and 5,000 pods are watched by a bounded agent.

    tests/k8s/setup.sh
    tests/k8s/enrich.py                                               # as root; TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "lib"))

from cluster import K8S, apply, kubectl, run, until  # noqa: E402
from rig import AGENT, Children, Record, Score, make_certificate, read_jsonl, skip_without_bpf  # noqa: E402

NODE = "k8snode"  # of node.sh
CGROUPS = Path("/sys/fs/cgroup")
TREE = "k8stest/kubepods"
PORT = 8443
ASKED = 4  # requests of one step

# What the agent's service account may do: the table in agent/src/enrich/kubernetes.rs.
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
    {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
]
KUBELET_RULE = {"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}


# Pods ------------------------------------------------------------------------------------------------------------------


def template(app: str, **spec: Any) -> Record:
    """A pod that sleeps."""
    return {
        "metadata": {"labels": {"app": app}, "annotations": {"example.com/team": "llm"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "localhost/pause:1", "imagePullPolicy": "Never"}],
            **spec,
        },
    }


def thing(kind: str, name: str, space: str, api: str = "apps/v1", **spec: Any) -> Record:
    """An object of the API."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": space}, "spec": spec}


def create_workloads() -> None:
    """One workload of each kind, in two namespaces."""
    for space in ("shop", "models"):
        kubectl("create", "namespace", space)
        until(20, lambda space=space: bool(run("kubectl", "get", "sa", "default", "-n", space).stdout))
    apps = lambda app: {"selector": {"matchLabels": {"app": app}}, "template": template(app)}  # noqa: E731
    apply(thing("Deployment", "vllm", "models", replicas=1, **apps("vllm")))
    apply(thing("Deployment", "ui", "shop", replicas=1, **apps("ui")))
    apply(thing("ReplicaSet", "by-hand", "shop", replicas=1, **apps("by-hand")))
    apply(thing("DaemonSet", "every", "shop", **apps("every")))
    apply(thing("Job", "once", "shop", api="batch/v1", template=template("once", restartPolicy="Never")))
    apply(thing("CronJob", "nightly", "shop", api="batch/v1", schedule="0 0 1 1 *", jobTemplate={"spec": {"template": template("nightly", restartPolicy="Never")}}))
    # As the CronJob controller calls it, and as people run one by hand.
    uid = kubectl("get", "cronjob", "nightly", "-n", "shop", "-o", "jsonpath={.metadata.uid}")
    minute = int(time.time() // 60)
    for name in (f"nightly-{minute}", "nightly-manual"):
        job = thing("Job", name, "shop", api="batch/v1", template=template(name, restartPolicy="Never"))
        job["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": uid, "controller": True}]
        apply(job)
    bare = template("bare") | {"apiVersion": "v1", "kind": "Pod"}
    bare["metadata"] |= {"name": "bare", "namespace": "shop"}
    apply(bare)
    apply(thing("Service", "vllm", "models", api="v1", selector={"app": "vllm"}, ports=[{"port": PORT}]))


class Pod:
    """A running pod: its address, its cgroup, and what is started inside of it."""

    def __init__(self, app: str, space: str) -> None:
        found: list[Record] = []

        def running() -> bool:
            items = json.loads(kubectl("get", "pods", "-n", space, "-l", f"app={app}", "-o", "json"))["items"]
            found[:] = [p for p in items if p["status"].get("phase") == "Running" and p["status"].get("containerStatuses", [{}])[0].get("ready")]
            return bool(found)

        if not until(90, running):
            raise SystemExit(f"no pod of {app}:\n{kubectl('describe', 'pods', '-n', space, '-l', f'app={app}')[-1500:]}")
        self.name, self.uid = found[0]["metadata"]["name"], found[0]["metadata"]["uid"]
        self.ip, self.space = found[0]["status"]["podIP"], space
        self.container = found[0]["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
        self.cgroups = list(CGROUPS.glob(f"*/{TREE}/*/pod{self.uid}/{self.container}"))
        self.pid = next(int(pid) for group in self.cgroups for pid in (group / "cgroup.procs").read_text().split())

    def start(self, children: Children, *command: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        """In the pod's network and in its container's cgroups, as the container's own processes are."""
        enter = "for g in $GROUPS_; do echo $$ >$g/cgroup.procs; done; exec nsenter --net=/proc/$POD_PID/ns/net -- \"$@\""
        environment = os.environ | {"GROUPS_": " ".join(map(str, self.cgroups)), "POD_PID": str(self.pid)}
        return children.start(["sh", "-c", enter, "sh", *command], env=environment, **options)

    def serve(self, children: Children, cert: Path, key: Path) -> subprocess.Popen[bytes]:
        """A server of models."""
        child = self.start(children, sys.executable, HERE / "llm.py", "serve", str(PORT), cert, key, stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline().strip() == b"listening"
        return child

    def ask(self, children: Children, host: str, model: str, count: int = ASKED) -> subprocess.Popen[bytes]:
        """A client that asks for that model, so many times."""
        return self.start(children, sys.executable, HERE / "llm.py", "ask", host, str(PORT), str(count), "4", model, stdout=subprocess.DEVNULL)


# The agent -------------------------------------------------------------------------------------------------------------


class Named:
    """An agent that names both ends, with a service account's token."""

    def __init__(self, children: Children, folder: Path, account: str, **kubernetes: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.children, self.records_path, self.log_path = children, folder / "records.jsonl", folder / "agent.log"
        config = {"enabled": True, "node_name": NODE, "labels": ["app"], "annotations": ["example.com/team"], **kubernetes}
        (folder / "config.json").write_text(json.dumps({"kubernetes": config, "jsonl": {"path": str(self.records_path)}, "log": "tokengauge=debug"}))
        environment = os.environ | {"KUBECONFIG": str(kubeconfig(folder, account)), "HOST_IP": "10.99.0.1"}
        with self.log_path.open("wb") as log:
            self.child = children.start([AGENT, "run", "--config", folder / "config.json"], env=environment, stdout=log, stderr=log)
        if not until(30, lambda: "tapping" in self.log()):
            raise SystemExit(f"the agent does not tap:\n{self.log()}")

    def log(self) -> str:
        """What it said."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log_path.read_text(errors="replace"))

    def says(self, what: str, seconds: float = 30) -> bool:
        """Whether it says that within the time."""
        return until(seconds, lambda: re.search(what, self.log()) is not None)

    def records(self, model: str, vantage: str) -> list[Record]:
        """Of that model, seen from that side."""
        lines = read_jsonl_so_far(self.records_path)
        return [r for r in lines if r["request"]["model"] == model and r["vantage"] == vantage]

    def rss_mb(self) -> float:
        """Its resident set now."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def stop(self) -> None:
        """Ends it."""
        self.children.stop(self.child)


def read_jsonl_so_far(path: Path) -> list[Record]:
    """The whole lines of a file that is being written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def kubeconfig(folder: Path, account: str) -> Path:
    """For a service account, with a token of its own."""
    token = kubectl("create", "token", account, "-n", "tokengauge", "--duration=2h").strip()
    config = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def create_accounts() -> None:
    """`full` has the least rights with which nothing is missing, `kubelet` may ask the kubelet only, `none` may nothing."""
    kubectl("create", "namespace", "tokengauge")
    for account, rules in (("full", RULES), ("kubelet", [KUBELET_RULE]), ("none", None)):
        apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "tokengauge"}})
        if rules:
            role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"tokengauge-{account}"}}
            apply(role | {"kind": "ClusterRole", "rules": rules})
            subject = {"kind": "ServiceAccount", "name": account, "namespace": "tokengauge"}
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"tokengauge-{account}"}
            apply(role | {"kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference})


def end(workload: Record | None) -> tuple[Any, ...]:
    """What tells an end: kind, name, namespace, pod, container."""
    w = workload or {}
    return tuple(w.get(key) for key in ("kind", "name", "namespace", "pod", "container"))


# Steps -----------------------------------------------------------------------------------------------------------------


class Rig:
    """The two ends and the agent between them."""

    def __init__(self, score: Score, children: Children, folder: Path) -> None:
        self.score, self.children, self.folder = score, children, folder
        self.cert, self.key = make_certificate(folder)
        self.server = Pod("vllm", "models")
        self.server.serve(children, self.cert, self.key)
        self.models = 0

    def model(self, what: str) -> str:
        """A name for what is asked in this step."""
        self.models += 1
        return f"{what}-{self.models}"

    def owners(self, agent: Named) -> None:
        """Whatever owns a pod, both ends have names, from both sides."""
        kinds = {
            "ui": ("Deployment", "ui"),
            "by-hand": ("ReplicaSet", "by-hand"),
            "every": ("DaemonSet", "every"),
            "once": ("Job", "once"),
            f"nightly-{int(time.time() // 60)}": ("CronJob", "nightly"),
            "nightly-manual": ("CronJob", "nightly"),
            "bare": ("Pod", "bare"),
        }
        names = kubectl("get", "jobs", "-n", "shop", "-o", "jsonpath={.items[*].metadata.name}").split()
        scheduled = next(name for name in names if re.fullmatch(r"nightly-\d+", name))
        kinds = {scheduled if re.fullmatch(r"nightly-\d+", app) else app: owner for app, owner in kinds.items()}
        asking = []
        for app, owner in kinds.items():
            pod, model = Pod(app, "shop"), self.model(app)
            asking.append((pod, owner, model, pod.ask(self.children, self.server.ip, model)))
        for pod, (kind, name), model, child in asking:
            child.wait(60)
            server = ("Deployment", "vllm", "models", self.server.name)
            client = (kind, name, "shop", pod.name)
            seen = lambda vantage, model=model: agent.records(model, vantage)  # noqa: E731
            until(10, lambda seen=seen: len(seen("server")) == ASKED and len(seen("client")) == ASKED)
            ends = {(vantage, end(r["client"].get("workload"))[:4], end(r["server"].get("workload"))[:4]) for vantage in ("client", "server") for r in seen(vantage)}
            want = {("client", client, server), ("server", client, server)}
            counts = len(seen("client")), len(seen("server"))
            self.score.check(ends == want, f"{kind} {name}: both ends from both sides, {counts} records {'' if ends == want else ends}")
            observed = {(end(r["workload"])[4], r["workload"]["container_id"], r["workload"]["node"], r["workload"]["pod_ip"], r["workload"]["process"]["command"]) for r in seen("client")}
            self.score.check(observed == {("main", pod.container, NODE, pod.ip, "python3")}, f"{kind} {name}: container, node, address, process {observed}")
        labels = [r["workload"].get("labels") for r in agent.records(asking[0][2], "client")]
        notes = [r["workload"].get("annotations") for r in agent.records(asking[0][2], "client")]
        self.score.check(labels == [{"app": "ui"}] * ASKED and notes == [{"example.com/team": "llm"}] * ASKED, f"labels and annotations {labels[:1]} {notes[:1]}")

    def service(self, agent: Named) -> None:
        """A client that asks a service's address: the service is the other end."""
        address = kubectl("get", "service", "vllm", "-n", "models", "-o", "jsonpath={.spec.clusterIP}")
        # There is no kube-proxy here: the address leads to the pod as if it were its own.
        run("nsenter", f"--net=/proc/{self.server.pid}/ns/net", "ip", "addr", "add", f"{address}/32", "dev", "lo")
        run("ip", "route", "add", f"{address}/32", "via", self.server.ip)
        model = self.model("service")
        Pod("ui", "shop").ask(self.children, address, model).wait(60)
        until(10, lambda: len(agent.records(model, "client")) == ASKED)
        ends = {end(r["server"].get("workload"))[:4] for r in agent.records(model, "client")}
        self.score.check(ends == {("Service", "vllm", "models", None)}, f"a service's address is the service {ends}")

    def come_and_go(self, agent: Named) -> None:
        """Pods that live for seconds, under load: every record has its names, also of one that is gone when it ends."""
        before = agent.log().count("listed anew")
        apply(thing("Deployment", "burst", "shop", replicas=6, selector={"matchLabels": {"app": "burst"}}, template=template("burst")))
        load = Pod("ui", "shop").ask(self.children, self.server.ip, self.model("load"), count=80)
        want, got, odd = 0, [], []
        for _ in range(3):
            pod, model = Pod("burst", "shop"), self.model("burst")
            child = pod.ask(self.children, self.server.ip, model, count=40)
            until(20, lambda model=model: len(agent.records(model, "server")) >= 2)
            kubectl("delete", "pods", "-n", "shop", "-l", "app=burst", "--wait=false", "--grace-period=0", "--force")
            until(20, lambda child=child: child.poll() is not None)
            time.sleep(3)
            records = agent.records(model, "server")
            want += len(records)
            got += [end(r["client"].get("workload"))[1:4] == ("burst", "shop", pod.name) for r in records]
            odd += [(r["client"], r["outcome"], r["timing_s"].get("duration")) for r in records if end(r["client"].get("workload"))[3:4] != (pod.name,)]
        kubectl("delete", "deployment", "burst", "-n", "shop", "--wait=false")
        load.wait(60)
        self.score.check(want >= 6 and all(got), f"pods that come and go: {sum(got)} of {want} records are named {odd or ''}")
        model = f"load-{self.models - 3}"
        until(10, lambda: len(agent.records(model, "client")) == 80)
        named = sum(end(r["server"].get("workload"))[1] == "vllm" for r in agent.records(model, "client"))
        self.score.check(named == 80, f"the load beside them: {named} of 80 records are named")
        self.score.check(agent.log().count("listed anew") == before, "the watch was never begun anew")

    def restart(self, agent: Named) -> None:
        """The API server is killed: what is known goes on; started again, the watch goes on."""
        server = ApiServer()
        server.kill()
        model = self.model("outage")
        Pod.ask(self.ui, self.children, self.server.ip, model).wait(60)
        until(10, lambda: len(agent.records(model, "server")) == ASKED)
        ends = {end(r["client"].get("workload"))[1] for r in agent.records(model, "server")}
        self.score.check(ends == {"ui"}, f"without an API server, known pods are named {ends}")
        told = agent.says(r"the API does not answer", 30)
        self.score.check(told, "the agent says that the API does not answer")
        self.score.check(agent.says("degraded", 15), "and that it is degraded")
        marks = agent.log().count("pods are watched")
        server.start(self.children)
        self.score.check(until(60, lambda: run("kubectl", "get", "--raw", "/readyz").stdout == "ok"), "the API server is back")
        back = until(60, lambda: agent.log().count("pods are watched") > marks)
        self.score.check(back, "the watch goes on")
        kubectl("delete", "pod", "bare", "-n", "shop", "--grace-period=0", "--force")
        bare = template("after") | {"apiVersion": "v1", "kind": "Pod"}
        bare["metadata"] |= {"name": "after", "namespace": "shop"}
        apply(bare)
        model = self.model("after")
        Pod("after", "shop").ask(self.children, self.server.ip, model).wait(60)
        until(10, lambda: len(agent.records(model, "server")) == ASKED)
        ends = {end(r["client"].get("workload"))[:4] for r in agent.records(model, "server")}
        self.score.check(ends == {("Pod", "after", "shop", "after")}, f"a pod made after that is named {ends}")

    def degraded(self) -> None:
        """Without the rights: the kubelet's list, then ids alone; each with a message."""
        ui = self.ui
        agent = Named(self.children, self.folder / "kubelet", "kubelet")
        self.score.check(agent.says("the API denies the list or the watch of pods: 403.*needs `list` and `watch` of `pods`"), "without rights on pods the agent says which it lacks")
        self.score.check(agent.says("names come from the kubelet"), "and that names come from the kubelet")
        model = self.model("kubelet")
        ui.ask(self.children, self.server.ip, model).wait(60)
        until(10, lambda: len(agent.records(model, "client")) == ASKED)
        ends = {(end(r["client"].get("workload"))[:4], end(r["server"].get("workload"))[:4]) for r in agent.records(model, "client")}
        want = {(("Deployment", "ui", "shop", ui.name), ("Deployment", "vllm", "models", self.server.name))}
        self.score.check(ends == want, f"by the kubelet both pods of this node are named {'' if ends == want else ends}")
        agent.stop()
        agent = Named(self.children, self.folder / "none", "none")
        self.score.check(agent.says("no names, only the ids in cgroups; the kubelet: 403"), "without any right it says that there are no names")
        model = self.model("none")
        ui.ask(self.children, self.server.ip, model).wait(60)
        until(10, lambda: len(agent.records(model, "client")) == ASKED)
        own = {tuple(r["client"].get("workload", {}).get(key) for key in ("pod_uid", "container_id", "pod", "node")) for r in agent.records(model, "client")}
        self.score.check(own == {(ui.uid, ui.container, None, NODE)}, f"ids are there all the same {own}")
        waited = [r["workload"]["name"] for r in agent.records(model, "client")]
        self.score.check(waited == ["python3"] * ASKED, f"and the process is the workload {waited[:1]}")
        # Rights that are given later are used without a restart.
        subject = {"kind": "ServiceAccount", "name": "none", "namespace": "tokengauge"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tokengauge-full"}
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "late"}}
        apply(binding | {"subjects": [subject], "roleRef": reference})
        self.score.check(agent.says("pods are watched", 90), "rights that are given later are used without a restart")
        agent.stop()

    def many(self) -> None:
        """5,000 pods of another node, watched by an agent that keeps 5,000, and by one that keeps 1,000."""
        api = Direct()
        made = api.pods(5_000)
        self.score.check(made == 5_000, f"{made} pods of another node were made")
        sizes = {}
        for kept in (6_000, 1_000):
            agent = Named(self.children, self.folder / f"many-{kept}", "full", peers="watch", max_pods=kept)
            agent.says("pods are watched", 60)
            found = re.findall(r"(\d+) pods are watched", agent.log())
            time.sleep(2)
            sizes[kept] = (int(found[-1]) if found else 0, agent.rss_mb())
            agent.stop()
        agent = Named(self.children, self.folder / "many-node", "full")
        agent.says("pods are watched", 60)
        time.sleep(2)
        alone = agent.rss_mb()
        agent.stop()
        (all_, rss), (bounded, less) = sizes[6_000], sizes[1_000]
        self.score.check(all_ >= 5_000 and bounded == 1_000, f"{all_} pods are known, {bounded} where 1,000 may be")
        print(f"      resident: {alone:.1f} MB with this node's pods, {less:.1f} MB with 1,000 of 5,000, {rss:.1f} MB with all")
        self.score.check(rss - alone < 40, f"5,000 pods cost {rss - alone:.1f} MB")


class ApiServer:
    """The node's API server, to be killed and started again as it was."""

    def __init__(self) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")[:-1]
            except OSError:
                continue
            if words and words[0].endswith(b"kube-apiserver"):
                self.pid, self.words = int(path.parent.name), [w.decode() for w in words]
                self.directory = os.readlink(path.parent / "cwd")
                return
        raise SystemExit("no API server is running")

    def kill(self) -> None:
        """At once."""
        os.kill(self.pid, signal.SIGKILL)

    def start(self, children: Children) -> None:
        """As before."""
        with open("/tmp/apiserver-again.log", "wb") as log:
            children.start(self.words, cwd=self.directory, stdout=log, stderr=log)


class Direct:
    """Objects made by the thousand, with the administrator's certificate."""

    def __init__(self) -> None:
        config = json.loads(kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
        self.context = ssl.create_default_context(cadata=base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode())
        user = config["users"][0]["user"]
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"]))
            pair.flush()
            self.context.load_cert_chain(pair.name)

    def pods(self, count: int) -> int:
        """Pods that run on another node; how many were made."""
        apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}})
        kubectl("create", "namespace", "many")
        until(20, lambda: bool(run("kubectl", "get", "sa", "default", "-n", "many").stdout))
        with ThreadPoolExecutor(4) as pool:
            return sum(pool.map(lambda part: self._some(part, count), range(4)))

    def _some(self, part: int, count: int) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", 443, context=self.context, timeout=30)
        made = 0

        def send(method: str, path: str, body: Record, kind: str = "application/json") -> int:
            connection.request(method, path, json.dumps(body), {"content-type": kind})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        for n in range(part, count, 4):
            name = f"llm-gateway-{n:05}-with-a-name-of-usual-length"
            pod = template("many", nodeName="other") | {"apiVersion": "v1", "kind": "Pod"}
            pod["metadata"] |= {"name": name}
            ip = f"10.200.{n // 250}.{n % 250 + 1}"
            status = {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}
            if send("POST", "/api/v1/namespaces/many/pods", pod) != 201:
                continue
            made += send("PATCH", f"/api/v1/namespaces/many/pods/{name}/status", status, "application/merge-patch+json") == 200
        return made


def inside() -> None:
    """What runs beside the node, with KUBECONFIG."""
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-enrich-") as name, Children() as children:
        folder = Path(name)
        create_accounts()
        create_workloads()
        rig = Rig(score, children, folder)
        agent = Named(children, folder / "full", "full")
        score.check(agent.says("pods are watched"), "with the least rights pods are watched")
        wanted = os.environ.get("ENRICH_STEPS", "owners service come_and_go restart degraded many").split()
        rig.ui = Pod("ui", "shop")
        for step in ("owners", "service", "come_and_go", "restart"):
            if step in wanted:
                attempt(score, step, lambda step=step: getattr(rig, step)(agent), agent)
        score.check("denied" not in agent.log(), "nothing that it needs was denied")
        agent.stop()
        for step in ("degraded", "many"):
            if step in wanted:
                attempt(score, step, lambda step=step: getattr(rig, step)(), None)
        if score.failed:
            for log in sorted(folder.glob("*/agent.log")):
                lines = [line for line in log.read_text(errors="replace").splitlines() if "kubernetes" in line]
                print(f"--- {log.parent.name}\n" + "\n".join(lines[-12:]))
    score.finish()


def attempt(score: Score, what: str, step: Callable[[], None], agent: Named | None) -> None:
    """A step that breaks is one failure; the others follow."""
    began = time.monotonic()
    try:
        step()
    except Exception as error:  # noqa: BLE001
        score.check(False, f"{what} broke: {type(error).__name__}: {error}")
    print(f"      {what}: {time.monotonic() - began:.0f} s", flush=True)
    if agent and agent.child.poll() is not None:
        score.check(False, f"the agent ended with {agent.child.returncode}: {agent.log()[-1500:]}")


def main() -> None:
    """Runs `inside` beside a node."""
    if sys.argv[1:] == ["--inside"]:
        inside()
    missing = [str(p) for p in (AGENT, K8S / "bin" / "version") if not p.exists()]
    if missing or os.geteuid() != 0:
        print(f"FAIL: {'not root' if not missing else 'missing: ' + ', '.join(missing)}")
        print("the agent: cargo, or TOKENGAUGE=path; the rest: tests/k8s/setup.sh")
        print("0 passed, 1 failed")
        sys.exit(1)
    skip_without_bpf()
    command = [HERE / "node.sh", sys.executable, Path(__file__).resolve(), "--inside"]
    result = subprocess.run([str(w) for w in command], env=os.environ | {"K8S_DIR": str(K8S.resolve())})
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
