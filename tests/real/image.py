#!/usr/bin/env python3
"""The image, without a registry or a container runtime: what is in it, that it runs, for both architectures.

    tests/real/image.py [amd64] [arm64]     # TOKENGAUGE=path of the agent; both without a word

helm/image/build.sh makes the image. Then: labels, user and size; every library is there (the agent runs in a chroot of the
image's files alone); the bill of materials is valid CycloneDX, has what is linked and nothing that is only for tests. arm64 is
cross-built and runs in qemu's user emulation (Debian's qemu-user-static): its records of a capture are those of amd64, and the
ABI of the kernel programs has the same layout there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, CACHE, ROOT, Record, Score  # noqa: E402

FOLDER = Path(os.environ.get("TOKENGAUGE_IMAGE_DIR", CACHE / "image"))
VENV = CACHE / "venv-sbom"
CYCLONEDX = "cyclonedx-python-lib[json-validation]==11.6.0"
SAMPLE = ROOT / "agent" / "src" / "demo" / "sample.pcap"
LIMIT = 40_000_000
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(f"{error}"[:500] if error else 0)
"""


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs it; output as text."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)


def install(program: str, package: str) -> bool:
    """Debian's package of a program, where it is missing."""
    if not shutil.which(program):
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
    return shutil.which(program) is not None


def manifest(path: Path) -> tuple[Record, Record]:
    """Manifest and configuration of an image in docker-save form."""
    with tarfile.open(path) as tar:

        def read(name: str) -> Any:
            member = tar.extractfile(name)
            assert member is not None
            return json.load(member)

        first = read("manifest.json")[0]
        return first, read(first["Config"])


def inside(arch: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The image's program with the image's files: in a chroot of its own, or emulated with them as its root for libraries."""
    root = FOLDER / f"{arch}-rootfs"
    if arch == "arm64" and os.uname().machine != "aarch64":
        return run("qemu-aarch64-static", "-L", root, root / "usr/local/bin/tokengauge", *words)
    return run("chroot", root, "/usr/local/bin/tokengauge", *words)


def check_image(score: Score, arch: str) -> None:
    """One architecture's."""
    root = FOLDER / f"{arch}-rootfs"
    built = sorted(FOLDER.glob(f"tokengauge-*-{arch}.tar"))
    if not score.check(len(built) == 1 and root.is_dir(), f"{arch}: one image: {[b.name for b in built]}"):
        return
    first, image = manifest(built[0])
    labels, config = image["config"].get("Labels", {}), image["config"]
    wanted = ("title", "description", "version", "revision", "created", "source", "documentation", "licenses")
    missing = [name for name in wanted if not labels.get(f"org.opencontainers.image.{name}")]
    score.check(image["architecture"] == arch and not missing, f"{arch}: its architecture, and every OCI label {missing or ''}")
    score.check(
        config["Entrypoint"] == ["/usr/local/bin/tokengauge"] and config["User"] == "65532:65532" and len(first["Layers"]) == 1,
        f"{arch}: one layer, an entry point, no root by default",
    )
    files = [f for f in root.rglob("*") if f.is_file() and not f.is_symlink()]
    size = sum(f.stat().st_size for f in files)
    score.check(size <= LIMIT, f"{arch}: {size / 1e6:.1f} MB of files (at most {LIMIT / 1e6:.0f}), {built[0].stat().st_size / 1e6:.1f} MB as an archive")
    programs = [str(f.relative_to(root)) for f in files if f.stat().st_mode & 0o111 and ".so" not in f.name]
    score.check(programs == ["usr/local/bin/tokengauge"], f"{arch}: one program and no shell: {programs}")
    present = [
        (root / path).stat().st_size > 0
        for path in ("etc/ssl/certs/ca-certificates.crt", "usr/share/doc/tokengauge/LICENSE", "usr/share/doc/libc6/copyright",
                     "usr/share/bash-completion/completions/tokengauge")
    ]  # fmt: skip
    score.check(all(present), f"{arch}: authorities, licences, completions")
    version = inside(arch, "--version")
    score.check(version.returncode == 0 and labels["org.opencontainers.image.version"] in version.stdout, f"{arch}: runs with the image's files alone: {(version.stdout + version.stderr).strip()}")


def check_sbom(score: Score, arch: str) -> None:
    """The bill of materials: valid, complete, and nothing too many."""
    path = FOLDER / f"{arch}-rootfs/usr/share/doc/tokengauge/sbom.cdx.json"
    bom = json.loads(path.read_text())
    if not (VENV / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", VENV)
    if run(VENV / "bin" / "python", "-c", "import cyclonedx").returncode:
        run(VENV / "bin" / "pip", "install", "--quiet", CYCLONEDX)
    valid = run(VENV / "bin" / "python", "-c", VALIDATE, path)
    score.check(valid.returncode == 0, f"{arch}: the bill of materials is CycloneDX 1.5 {valid.stderr.strip()[-300:]}")
    names = {c["name"] for c in bom["components"]}
    needed = {"aya", "pcap", "tokengauge-core", "libpcap0.8", "libc6", "ca-certificates", "ring"}
    score.check(needed <= names and not {"proptest", "criterion", "expect-test", "tempfile"} & names, f"{arch}: {len(names)} parts, with what is linked and without what only tests need {needed - names or ''}")
    unlicensed = [c["name"] for c in bom["components"] if c["purl"].startswith("pkg:cargo/") and "licenses" not in c]
    score.check(not unlicensed, f"{arch}: every crate has its licence {unlicensed or ''}")
    refs = {c["bom-ref"] for c in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
    dangling = [d for entry in bom["dependencies"] for d in [entry["ref"], *entry["dependsOn"]] if d not in refs]
    score.check(not dangling, f"{arch}: dependencies name parts of it {dangling[:3] or ''}")


def check_same_records(score: Score) -> None:
    """Both programs measure the same."""
    root = FOLDER / "arm64-rootfs"
    here = run(AGENT, "replay", SAMPLE, "--format", "jsonl")
    there = run("qemu-aarch64-static", "-L", root, root / "usr/local/bin/tokengauge", "replay", SAMPLE, "--format", "jsonl")
    lines = here.stdout.count("\n")
    score.check(here.returncode == there.returncode == 0 and here.stdout == there.stdout and lines > 5, f"arm64: {there.stdout.count(chr(10))} records of a capture, the same as amd64's {lines} {there.stderr[-200:] if there.returncode else ''}")


def check_abi(score: Score) -> None:
    """The structures that kernel programs and agent share, compiled for arm64."""
    target = "aarch64-unknown-linux-gnu"
    environment = os.environ | {
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": "aarch64-linux-gnu-gcc",
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER": f"qemu-aarch64-static -L {FOLDER / 'arm64-rootfs'}",
        "CARGO_TARGET_DIR": str(FOLDER / "abi"),
    }
    command = ("cargo", "test", "--locked", "-p", "tokengauge-ebpf-common", "--test", "abi", "--target", target)
    done = run(*command, cwd=ROOT, env=environment)
    score.check(done.returncode == 0 and "1 passed" in done.stdout, f"arm64: the ABI of the kernel programs {done.stderr[-300:] if done.returncode else ''}")


def main() -> None:
    """All of it."""
    score = Score()
    archs = sys.argv[1:] or ["amd64", "arm64"]
    if not score.check(AGENT.exists(), f"agent at {AGENT} (build it or set TOKENGAUGE)"):
        score.finish()
    environment = os.environ | {"TOKENGAUGE": str(AGENT), "TOKENGAUGE_IMAGE_DIR": str(FOLDER)}
    for old in FOLDER.glob("tokengauge-*.tar"):
        old.unlink()
    built = run(ROOT / "helm" / "image" / "build.sh", *archs, env=environment)
    if not score.check(built.returncode == 0, f"helm/image/build.sh {' '.join(archs)}: {(built.stdout if built.returncode == 0 else built.stderr[-800:]).strip()}"):
        score.finish()
    emulated = "arm64" in archs and os.uname().machine != "aarch64"
    if emulated and not score.check(install("qemu-aarch64-static", "qemu-user-static"), "qemu-aarch64-static"):
        score.finish()
    for arch in archs:
        check_image(score, arch)
        check_sbom(score, arch)
    if emulated:
        check_same_records(score)
        check_abi(score)
    score.finish()


if __name__ == "__main__":
    main()
