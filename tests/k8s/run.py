#!/usr/bin/env python3
"""The chart on a real Kubernetes node: installed by helm, measuring what other pods say to each other.

Brings up Kubernetes 1.34 on this machine for as long as the test takes (node.sh: own network, mounts and cgroups; needs
cgroup v1), with the image that helm/image/build.sh makes. The agent has the capabilities of the chart's defaults and no more.

    tests/real/setup-go.sh helm collector && tests/k8s/setup.sh
    tests/k8s/run.py [STEP...]                                        # as root; TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

from rig import AGENT, CACHE, ROOT, Children, Score, skip_without_bpf  # noqa: E402

import steps  # noqa: E402
from cluster import HELM, K8S, OTELCOL, kubectl  # noqa: E402

PYTHON = Path("/usr/bin/python3")


def inside(names: list[str]) -> None:
    """What runs beside the node, with KUBECONFIG."""
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-k8s-") as name, Children() as children:
        rig = steps.Rig(score, Path(name), children)
        for step in steps.ALL:
            if not names or step is steps.install or step.__name__ in names:
                print(f"-- {step.__name__}", flush=True)
                if step(rig) is False:
                    print(kubectl("get", "events", "-A", "--sort-by=.lastTimestamp")[-3000:])
                    print(rig.evidence())
                    break
        if score.failed:
            print(rig.evidence())
    score.finish()


def images() -> None:
    """The agent's image as it is shipped, an interpreter for the test's own pods, and a Collector."""
    folder = CACHE / "image"
    subprocess.run([ROOT / "helm" / "image" / "build.sh"], env=os.environ | {"TOKENGAUGE": str(AGENT), "TOKENGAUGE_IMAGE_DIR": str(folder)}, check=True)
    target = K8S / "images"
    for old in target.glob("tokengauge*.tar"):
        old.unlink()
    built = max(folder.glob("tokengauge-*.tar"), key=lambda path: path.stat().st_mtime)
    (target / "tokengauge.tar").write_bytes(built.read_bytes())
    python = PYTHON.resolve()
    library = f"/usr/lib/{python.name}"
    for tar, command in {
        "python.tar": ["localhost/python:test", python, library],
        "otelcol.tar": ["localhost/otelcol:test", OTELCOL],
    }.items():
        if not (target / tar).exists():
            subprocess.run([HERE / "mkimage.py", target / tar, *command], check=True)


def main() -> None:
    """Prepares the images, then runs `inside` beside a node."""
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
    missing = [str(p) for p in (AGENT, HELM, OTELCOL, K8S / "bin" / "version", PYTHON) if not p.exists()]
    if missing or os.geteuid() != 0:
        print(f"FAIL: {'not root' if not missing else 'missing: ' + ', '.join(missing)}")
        print(
            "the agent: cargo, or TOKENGAUGE=path; the rest: tests/real/setup-go.sh helm collector, tests/k8s/setup.sh"
        )
        print("0 passed, 1 failed")
        sys.exit(1)
    skip_without_bpf()
    images()
    command = [HERE / "node.sh", sys.executable, Path(__file__).resolve(), "--inside", *sys.argv[1:]]
    result = subprocess.run([str(w) for w in command], env=os.environ | {"K8S_DIR": str(K8S.resolve())})
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
