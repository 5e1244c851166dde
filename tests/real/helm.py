#!/usr/bin/env python3
"""The chart under the real helm: lint, rendered output against the goldens, Kubernetes' schemas, and the agent itself.

    tests/real/setup-go.sh helm kubeconform schemas operator && tests/real/helm.py     # UPDATE_EXPECT=1 rewrites goldens

Each `helm/golden/NAME.values.yaml` (`default` has none) renders to `helm/golden/NAME.yaml`. The configuration files
inside the goldens are given to `tokengauge run --check` (TOKENGAUGE=path of the agent), and what values.schema.json says
of them is the agent's own schema. The table of values in the chart's README is made
from values.yaml.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import helm_schema  # noqa: E402
import helm_values  # noqa: E402
from rig import AGENT, CACHE, ROOT, Score  # noqa: E402

CHART = ROOT / "helm" / "tokengauge"
GOLDEN = ROOT / "helm" / "golden"
HELM = CACHE / "bin" / "helm"
KUBECONFORM = CACHE / "bin" / "kubeconform"
SCHEMAS = CACHE / "schemas"
OPERATOR = CACHE / "operator"
# Kinds of the Prometheus operator: Kubernetes has no schemas of them.
FOREIGN = "PrometheusRule,PodMonitor,ServiceMonitor"
COLLECTOR_CONFIG = ROOT / "collector-config" / "tokengauge.yaml"
NAMES = ("default", "privileged", "otlp", "slos", "prometheus", "collector")
# The version that the goldens are of, and an older one, before `appArmorProfile` was a field.
KUBERNETES, OLDER = "1.34.0", "1.29.0"
# Values that the schema refuses, each with a word of the message.
REFUSED = (
    ("privileged=yes please", "privileged"),
    ("otlp.endpoint=collector:4317", "endpoint"),
    ("otlp.protocol=http", "protocol"),
    ("config.taps.tls.enabld=true", "enabld"),
    ("config.taps.tls.ring_mib=33", "ring_mib"),
    ("securityContext.capabilities.add[0]=CAP_BPF", "add"),
    ("otlp.resourceAttributes.team=a\\,b", "team"),
    ("tolerationz[0].operator=Exists", "tolerationz"),
    ("tolerations[0].operater=Exists", "operater"),
    ("resources.limit.memory=1Gi", "limit"),
    ("resources.limits.memory=1GB", "memory"),
    ("image.digest=sha256:abc", "digest"),
    ("securityContext.seccompProfile.type=Localhost", "localhostProfile"),
    ("securityContext.seccompProfile.type=None", "type"),
    ("slos.files.chat=x", "chat"),
    ("slos.configMaps={Team_A}", "configMaps"),
    ("state.hostPath=var/lib", "hostPath"),
    ("updateStrategy.type=Recreate", "type"),
    ("priorityClass.value=2000000000", "value"),
    ("collector.replicas=0", "replicas"),
    ("extraEnv[0].nmae=X", "nmae"),
    ("tenants.headers={x tenant},tenants.keySecret.name=x", "headers"),
    # These the schema lets through; the templates do not.
    ("updateStrategy.rollingUpdate.maxSurge=1", "two agents on a node"),
    ("config.taps.pcap[0].interface=eth0", "NET_RAW"),
    ("collector.enabled=true,collector.config=none", "no Collector configuration"),
    ("prometheus.rules.slo=x: 1", "groups"),
    ("tenants.headers={x-tenant-id}", "without a key"),
    ("http.port=0", "port"),
    ("http.address=localhost", "address"),
    ("prometheus.podMonitor.interval=often", "interval"),
    ("prometheus.podMonitor.enabled=true,http.enabled=false", "nobody would answer"),
)


LOCATION = "{{.NormalizedKubernetesVersion}}-standalone{{.StrictSuffix}}/{{.ResourceKind}}{{.KindSuffix}}.json"


def run(*command: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it without a cluster or a user's helm settings at hand."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HELM_", "KUBE", "OTEL_", "TOKENGAUGE_"))}
    with tempfile.TemporaryDirectory(prefix="tokengauge-helm-") as home:
        environment |= {"HOME": home, "KUBECONFIG": "/dev/null"}
        return subprocess.run(
            [str(word) for word in command], input=text, env=environment, capture_output=True, text=True
        )


def values(name: str) -> list[str]:
    """helm's flags for a golden."""
    file = GOLDEN / f"{name}.values.yaml"
    return ["--values", str(file)] if file.exists() else []


def template(*flags: str, kubernetes: str = KUBERNETES) -> subprocess.CompletedProcess[str]:
    """`helm template` into the namespace of our documents."""
    return run(HELM, "template", "tokengauge", CHART, "--namespace", "tokengauge", "--kube-version", kubernetes, *flags)


def shortened(text: str) -> str:
    """Without the Collector's file, which has tests of its own."""
    config = COLLECTOR_CONFIG.read_text().strip()
    text = text.replace(textwrap.indent(config, "    "), f"    # {COLLECTOR_CONFIG.relative_to(ROOT)}")
    text = text.replace(textwrap.indent(config, "    ", lambda _: True), f"    # {COLLECTOR_CONFIG.relative_to(ROOT)}")
    return text.replace(hashlib.sha256(COLLECTOR_CONFIG.read_bytes()).hexdigest(), "sha256-of-that-file")


def check_golden(score: Score, name: str) -> str:
    """Rendered equals kept; returns what was rendered."""
    rendered = template(*values(name))
    if not score.check(rendered.returncode == 0, f"{name}: helm template {rendered.stderr.strip()}"):
        return ""
    file = GOLDEN / f"{name}.yaml"
    short = shortened(rendered.stdout)
    if os.environ.get("UPDATE_EXPECT") == "1":
        file.write_text(short)
    kept = file.read_text() if file.exists() else ""
    lines = difflib.unified_diff(
        kept.splitlines(), short.splitlines(), str(file.relative_to(ROOT)), "rendered", lineterm=""
    )
    diff = "\n".join(lines)
    score.check(
        kept == short,
        f"{name}: rendered equals helm/golden/{name}.yaml{diff and '; UPDATE_EXPECT=1 rewrites' + chr(10) + diff}",
    )
    return rendered.stdout


def check_schemas(score: Score, name: str) -> None:
    """kubeconform, strict: an unknown field is an error, as it is not for the API server."""
    for version in (KUBERNETES, OLDER):
        rendered = template(*values(name), kubernetes=version).stdout
        result = run(
            KUBECONFORM, "-strict", "-summary", "-output", "json", "-kubernetes-version", version, "-skip", FOREIGN,
            "-schema-location", f"{SCHEMAS}/{LOCATION}", "-", text=rendered,
        )  # fmt: skip
        try:
            summary = json.loads(result.stdout)["summary"]
        except (ValueError, KeyError):
            summary = {}
        foreign = rendered.count("apiVersion: monitoring.coreos.com/")
        good = result.returncode == 0 and summary.get("valid", 0) >= 2 and summary.get("skipped") == foreign
        said = summary if good else result.stdout + result.stderr
        score.check(good, f"{name}: kubeconform -strict, Kubernetes {version}: {said}")
        score.check(
            ("appArmorProfile" in rendered) == (version == KUBERNETES and name != "privileged"),
            f"{name}: appArmorProfile only where {version} has it",
        )


def operator_types(rendered: str) -> subprocess.CompletedProcess[str]:
    """The Prometheus operator's objects against its types."""
    return run("node", HERE / "operator_types.mjs", OPERATOR, text=rendered)


def check_operator(score: Score, rendered: dict[str, str]) -> None:
    """Every object of the operator, and that a misspelt field would be noticed."""
    for name, text in rendered.items():
        if "monitoring.coreos.com/v1" in text:
            result = operator_types(text)
            score.check(
                result.returncode == 0 and not result.stdout.startswith("0 "),
                f"{name}: the Prometheus operator's types: {(result.stdout + result.stderr).strip()}",
            )
    broken = operator_types(rendered["slos"].replace("alert: Tokengauge", "alrt: Tokengauge"))
    score.check(broken.returncode == 1 and "alrt" in broken.stderr, "the operator's types refuse a misspelt field")


def check_broken_is_seen(score: Score, rendered: str) -> None:
    """That kubeconform would notice."""
    broken = rendered.replace("hostPID: true", "hostPid: true")
    result = run(
        KUBECONFORM,
        "-strict",
        "-kubernetes-version",
        KUBERNETES,
        "-schema-location",
        f"{SCHEMAS}/{LOCATION}",
        "-",
        text=broken,
    )
    score.check(
        broken != rendered and result.returncode != 0 and "hostPid" in result.stdout + result.stderr,
        "kubeconform refuses a misspelt field",
    )


def check_readme(score: Score) -> None:
    """The table of values in the chart's README is that of values.yaml, and says something of each."""
    file, table = CHART / "README.md", helm_values.table(CHART / "values.yaml")
    kept = file.read_text()
    made = re.sub(r"(<!-- values -->\n).*(<!-- /values -->)", lambda m: f"{m[1]}{table}\n{m[2]}", kept, flags=re.S)
    if os.environ.get("UPDATE_EXPECT") == "1":
        file.write_text(made)
        kept = made
    score.check(table in kept and kept == made, "the README's table of values is that of values.yaml (UPDATE_EXPECT=1 rewrites)")
    silent = helm_values.undescribed(CHART / "values.yaml")
    score.check(not silent, f"every value is described {silent or ''}")


def check_profiles(score: Score, default: str) -> None:
    """The seccomp profile names what the agent is for and nothing twice; AppArmor's is one that its parser takes."""
    groups = json.loads((CHART / "profiles" / "tokengauge.json").read_text())["syscalls"]
    names = [name for group in groups for name in group["names"]]
    dangerous = {"mount", "ptrace", "setns", "unshare", "init_module", "kexec_load", "process_vm_writev", "chroot"}
    score.check(
        {"bpf", "perf_event_open", "execve"} <= set(names) and len(names) == len(set(names)) and not dangerous & set(names),
        f"the seccomp profile allows {len(names)} system calls, each once, and none that changes other processes",
    )
    if shutil.which("apparmor_parser"):
        parsed = run("apparmor_parser", "-Q", "-K", "--skip-cache", CHART / "profiles" / "tokengauge.apparmor")
        score.check(parsed.returncode == 0, f"AppArmor's parser takes the profile {parsed.stderr if parsed.returncode else ''}")
    else:
        print("skipped: AppArmor's profile (apparmor_parser is not installed)")
    sidecar = (CHART / "sidecar.yaml").read_text()
    capabilities = re.findall(r"^ +- ([A-Z_]+)$", default, re.M)
    score.check(f"add: [{', '.join(dict.fromkeys(c for c in capabilities if c != 'ALL'))}]" in sidecar, "the sidecar has the capabilities of the chart")
    result = run(KUBECONFORM, "-strict", "-kubernetes-version", KUBERNETES, "-schema-location", f"{SCHEMAS}/{LOCATION}", "-", text=sidecar)
    score.check(result.returncode == 0, f"sidecar.yaml: kubeconform -strict {result.stdout}")


def check_dashboards(score: Score) -> None:
    """A ConfigMap for each dashboard with the file in it, none too large for the API server."""
    text = template("--set", "grafana.dashboards.enabled=true").stdout
    files = sorted((CHART / "dashboards").glob("*.json"))
    inside = [f for f in files if textwrap.indent(f.read_text().strip(), "    ") in text]
    labels = text.count('grafana_dashboard: "1"')
    score.check(
        len(inside) == labels == len(files) > 0 and all(f.stat().st_size < 900_000 for f in files),
        f"{len(inside)} of {len(files)} dashboards are ConfigMaps, {labels} with Grafana's label",
    )


def config_of(rendered: str) -> str:
    """The agent's file inside the rendered ConfigMap."""
    found = re.search(r"^  tokengauge\.yaml: \|\n((?:    .*\n|\n)*)", rendered, re.M)
    return textwrap.dedent(found.group(1)) if found else ""


def agent_check(text: str) -> subprocess.CompletedProcess[str]:
    """`tokengauge run --check` of a file with this text."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return run(AGENT, "run", "--check", "--config", file.name)


def check_agent(score: Score, rendered: dict[str, str]) -> None:
    """The files and the schema against the agent itself."""
    if not score.check(AGENT.exists(), f"agent at {AGENT} (build it or set TOKENGAUGE)"):
        return
    for name, text in rendered.items():
        result = agent_check(config_of(text))
        score.check(
            result.returncode == 0, f"{name}: the agent takes the file: {(result.stdout + result.stderr).strip()}"
        )
    file = CHART / "values.schema.json"
    kept = file.read_text()
    made = helm_schema.dump(helm_schema.embed(json.loads(kept), json.loads(run(AGENT, "config", "schema").stdout))) + "\n"
    if os.environ.get("UPDATE_EXPECT") == "1":
        file.write_text(made)
        kept = made
    score.check(kept == made, "what values.schema.json says of `config` is what the agent says (UPDATE_EXPECT=1 rewrites)")


def main() -> None:
    """All of it."""
    score = Score()
    for path in (HELM, KUBECONFORM, SCHEMAS, OPERATOR):
        if not score.check(path.exists(), f"{path.name} at {path}"):
            print("they come from tests/real/setup-go.sh helm kubeconform schemas operator")
            score.finish()
    rendered = {}
    for name in NAMES:
        # helm lint reads files that it skips as well: each set of values is a run of its own.
        lint = run(HELM, "lint", "--strict", "--kube-version", KUBERNETES, *values(name), CHART)
        score.check(
            lint.returncode == 0 and "0 chart(s) failed" in lint.stdout,
            f"{name}: helm lint --strict {lint.returncode and lint.stdout + lint.stderr or ''}",
        )
        rendered[name] = check_golden(score, name)
        check_schemas(score, name)
    check_broken_is_seen(score, rendered["default"])
    check_operator(score, rendered)
    check_dashboards(score)
    check_readme(score)
    check_profiles(score, rendered["default"])
    stray = {f.name for f in GOLDEN.iterdir()} - {f"{n}{s}" for n in NAMES for s in (".yaml", ".values.yaml")}
    score.check(not stray, f"no golden without a check {stray or ''}")
    for setting, word in REFUSED:
        result = template("--set", setting)
        score.check(result.returncode != 0 and word in result.stderr, f"refused: --set {setting}")
    chosen = "otlp.endpoint=http://$(HOST_IP):4317,securityContext.capabilities.add={SYS_ADMIN,SYS_PTRACE}"
    text = template("--set", chosen).stdout
    score.check(
        'value: "http://$(HOST_IP):4317"' in text and "- SYS_ADMIN" in text and "- BPF" not in text,
        "a list of capabilities replaces ours",
    )
    secret = rendered["otlp"]
    score.check(
        "secretKeyRef" in secret and "OTEL_EXPORTER_OTLP_HEADERS" in secret and "Bearer" not in secret,
        "headers come from the Secret only",
    )
    check_agent(score, rendered)
    score.finish()


if __name__ == "__main__":
    main()
