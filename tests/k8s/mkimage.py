#!/usr/bin/env python3
"""mkimage.py OUT.tar NAME:TAG BINARY [PATH...]: an image of one layer, in docker-save form, without registry or builder.

A binary that is linked dynamically brings the libraries that `ldd` names, at their own paths. More files and folders follow
at their own paths too, with the libraries that shared objects among them need.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile


def libraries(binary: str) -> list[str]:
    """Files that the dynamic linker would open, itself included; none of a static binary."""
    found = subprocess.run(["ldd", binary], capture_output=True, text=True)
    return sorted(set(re.findall(r"(/\S+) \(0x", found.stdout))) if found.returncode == 0 else []


def add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o755) -> None:
    """One file."""
    info = tarfile.TarInfo(name.lstrip("/"))
    info.mode, info.size = mode, len(data)
    tar.addfile(info, io.BytesIO(data))


def files(path: str) -> list[str]:
    """A file, or those of a folder that a program needs: no tests, no caches, no tools."""
    if os.path.isfile(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [f for f in folders if f not in ("__pycache__", "test", "tests", "idlelib", "ensurepip", "lib2to3", "pydoc_data") and not f.startswith("config-")]
        found += [os.path.join(folder, name) for name in names]
    return sorted(f for f in found if os.path.isfile(f))


def main() -> None:
    """The whole of it."""
    out, name, binary, *more = sys.argv[1:]
    base = os.path.basename(binary)
    extra = [file for path in more for file in files(path)]
    needed = sorted({lib for file in [binary, *(f for f in extra if ".so" in f)] for lib in libraries(file)})
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        folders = {"tmp", "etc", "sys", "proc", "dev"}
        for file in [*needed, *extra]:
            parts = file.strip("/").split("/")[:-1]
            folders |= {"/".join(parts[: n + 1]) for n in range(len(parts))}
        for folder in sorted(folders):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for path in [*needed, *(f for f in extra if f not in needed), binary]:
            with open(path, "rb") as file:
                add(tar, base if path == binary else path, file.read())
    data = layer.getvalue()
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Entrypoint": ["/" + base]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]},
        }
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(out, "w") as tar:
        for member, content in ((config_name, config), ("layer.tar", data), ("manifest.json", manifest)):
            add(tar, member, content, 0o644)


if __name__ == "__main__":
    main()
