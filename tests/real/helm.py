#!/usr/bin/env python3
"""The chart under the real helm: lint, rendered output against the goldens, Kubernetes' schemas, and the agent itself.

    tests/real/setup-go.sh helm kubeconform schemas && tests/real/helm.py     # UPDATE_EXPECT=1 rewrites goldens

Each `helm/golden/NAME.values.yaml` (`default` has none) renders to `helm/golden/NAME.yaml`. The configuration files
inside the goldens are given to `tokengauge run --check` (TOKENGAUGE=path of the agent), and the keys of
values.schema.json are held against those that the agent itself names.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, CACHE, ROOT, Score  # noqa: E402

CHART = ROOT / "helm" / "tokengauge"
GOLDEN = ROOT / "helm" / "golden"
HELM = CACHE / "bin" / "helm"
KUBECONFORM = CACHE / "bin" / "kubeconform"
SCHEMAS = CACHE / "schemas"
NAMES = ("default", "privileged", "otlp")
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


def check_golden(score: Score, name: str) -> str:
    """Rendered equals kept; returns what was rendered."""
    rendered = template(*values(name))
    if not score.check(rendered.returncode == 0, f"{name}: helm template {rendered.stderr.strip()}"):
        return ""
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_EXPECT") == "1":
        file.write_text(rendered.stdout)
    kept = file.read_text() if file.exists() else ""
    lines = difflib.unified_diff(
        kept.splitlines(), rendered.stdout.splitlines(), str(file.relative_to(ROOT)), "rendered", lineterm=""
    )
    diff = "\n".join(lines)
    score.check(
        kept == rendered.stdout,
        f"{name}: rendered equals helm/golden/{name}.yaml{diff and '; UPDATE_EXPECT=1 rewrites' + chr(10) + diff}",
    )
    return rendered.stdout


def check_schemas(score: Score, name: str) -> None:
    """kubeconform, strict: an unknown field is an error, as it is not for the API server."""
    for version in (KUBERNETES, OLDER):
        rendered = template(*values(name), kubernetes=version).stdout
        result = run(
            KUBECONFORM, "-strict", "-summary", "-output", "json", "-kubernetes-version", version,
            "-schema-location", f"{SCHEMAS}/{LOCATION}", "-", text=rendered,
        )  # fmt: skip
        try:
            summary = json.loads(result.stdout)["summary"]
        except (ValueError, KeyError):
            summary = {}
        good = result.returncode == 0 and summary.get("valid", 0) >= 2 and not summary.get("skipped")
        said = summary if good else result.stdout + result.stderr
        score.check(good, f"{name}: kubeconform -strict, Kubernetes {version}: {said}")
        score.check(
            ("appArmorProfile" in rendered) == (version == KUBERNETES and name != "privileged"),
            f"{name}: appArmorProfile only where {version} has it",
        )


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


def keys_of_agent(path: str) -> set[str]:
    """The keys that the agent allows at a place of its file, from its own complaint about one that does not exist."""
    parents = path.split(".") if path else []
    text = "{nonsense_key: 1}"
    for parent in reversed(parents):
        text = f"{{{parent}: [{text}]}}" if parent == "pcap" else f"{{{parent}: {text}}}"
    _, _, list_ = agent_check(text + "\n").stderr.partition("expected ")
    return set(re.findall(r"`(\w+)`", list_.split("(did you mean")[0]))


def check_agent(score: Score, rendered: dict[str, str]) -> None:
    """The files and the schema against the agent itself."""
    if not score.check(AGENT.exists(), f"agent at {AGENT} (build it or set TOKENGAUGE)"):
        return
    for name, text in rendered.items():
        result = agent_check(config_of(text))
        score.check(
            result.returncode == 0, f"{name}: the agent takes the file: {(result.stdout + result.stderr).strip()}"
        )
    schema = json.loads((CHART / "values.schema.json").read_text())["definitions"]["config"]
    for path in ("", "taps", "taps.tls", "taps.pcap", "otlp", "jsonl"):
        part = schema
        for key in filter(None, path.split(".")):
            part = part["properties"][key]
            part = part.get("items", part)
        ours, theirs = set(part["properties"]), keys_of_agent(path)
        differ = sorted(ours ^ theirs)
        score.check(not differ, f"schema of config.{path or '*'} has the agent's {len(theirs)} keys {differ or ''}")


def main() -> None:
    """All of it."""
    score = Score()
    for path in (HELM, KUBECONFORM, SCHEMAS):
        if not score.check(path.exists(), f"{path.name} at {path}"):
            print("they come from tests/real/setup-go.sh helm kubeconform schemas")
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
