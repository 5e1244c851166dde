"""What the test beside a real node asks it: kubectl, helm, pods and their logs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import CACHE, ROOT, Record  # noqa: E402

K8S = CACHE / "k8s"
HELM = CACHE / "bin" / "helm"
OTELCOL = CACHE / "bin" / "otelcol"
CHART = ROOT / "helm" / "tokengauge"
NODE_IP = "10.99.0.1"  # of node.sh
SPACE = ("--namespace", "tokengauge")
RELEASE = "tokengauge"


def run(*command: str | Path, timeout: float = 120, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it; output as text."""
    return subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, timeout=timeout)


def kubectl(*words: str | Path, text: str | None = None) -> str:
    """Standard output of kubectl; what it complains about goes to ours."""
    result = run("kubectl", *words, text=text)
    if result.returncode:
        print(f"      kubectl {' '.join(map(str, words[:4]))}: {result.stderr.strip()[:300]}", flush=True)
    return result.stdout


def apply(manifest: object) -> None:
    """Creates or changes an object."""
    kubectl("apply", "-f", "-", text=json.dumps(manifest))


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """helm, without its warnings about what is linked into the chart."""
    result = run(HELM, *words)
    result.stderr = "\n".join(line for line in result.stderr.splitlines() if not line.startswith("walk.go:"))
    return result


def until(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it holds within that time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.3)
    return True


def get(url: str) -> str:
    """What a server answers with, or nothing."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return ""


def rolled_out(what: str = "daemonset/tokengauge", seconds: int = 90, space: tuple[str, str] = SPACE) -> tuple[bool, str]:
    """Whether all its pods became ready, and what was said last."""
    result = run("kubectl", "rollout", "status", *space, what, f"--timeout={seconds}s")
    return result.returncode == 0, (result.stdout + result.stderr).strip().splitlines()[-1]


def pods(selector: str = "app.kubernetes.io/name=tokengauge", space: tuple[str, str] = SPACE) -> list[Any]:
    """Pods by label that are not on their way out."""
    items = json.loads(kubectl("get", "pods", *space, "-l", selector, "-o", "json") or '{"items": []}')["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def pod_log(what: str = "daemonset/tokengauge", *more: str, space: tuple[str, str] = SPACE) -> str:
    """What a pod wrote."""
    return run("kubectl", "logs", *space, what, "--tail=-1", *more).stdout


def records(what: str = "daemonset/tokengauge", *more: str, space: tuple[str, str] = SPACE) -> list[Record]:
    """The records in an agent's log."""
    return [json.loads(line) for line in pod_log(what, *more, space=space).splitlines() if line.startswith("{")]


def effective_capabilities() -> int:
    """CapEff of the agent's process, as the node sees it."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = status.with_name("cmdline").read_bytes()
            if command.startswith(b"/usr/local/bin/tokengauge\0run\0--config\0/etc/tokengauge/"):
                found = re.search(r"^CapEff:\s*(\w+)", status.read_text(), re.M)
                return int(found.group(1), 16) if found else -1
        except OSError:
            continue
    return -1


def state_of(folder: Path) -> dict[str, Any]:
    """How objectives stand, by the file that the agent writes for `slo status` into the node's folder."""
    try:
        standing = json.loads((folder / "slo.journal.status.json").read_text())
    except (OSError, ValueError):
        return {}
    return {f"{o['slo']}/{o.get('objective', '')}": o for o in standing.get("objectives", [])} | {"": standing}
