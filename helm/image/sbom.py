#!/usr/bin/env python3
"""sbom.py --target TRIPLE --packages FILE --arch ARCH: the bill of materials of the image, CycloneDX 1.5 as JSON.

Two kinds of parts: crates that are linked into the agent for that target (from Cargo.lock by `cargo metadata`: what is only
needed to build or to test is left out), and Debian's packages whose libraries are in the image (FILE: a name and a version a
line). Tools that read Cargo.lock alone would know only the first kind, and of those too many. The same sources give the same
text: no clock, no random number.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def linked(metadata: dict[str, Any], root: str) -> dict[str, list[str]]:
    """Package ids that are linked into `root`, itself included, each with those that it depends on."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found: dict[str, list[str]] = {}
    left = [root]
    while left:
        package = left.pop()
        if package in found:
            continue
        found[package] = [
            dep["pkg"] for dep in nodes[package]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
        ]
        left += found[package]
    return found


def checksums() -> dict[tuple[str, str], str]:
    """SHA-256 of each crate's archive, by name and version, from Cargo.lock."""
    text = (ROOT / "Cargo.lock").read_text()
    pattern = re.compile(r'name = "(.+)"\nversion = "(.+)"\n(?:source = .+\n)?checksum = "(.+)"')
    return {(name, version): digest for name, version, digest in pattern.findall(text)}


def crate(package: dict[str, Any], digests: dict[tuple[str, str], str]) -> dict[str, Any]:
    """One crate as a component."""
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
        "scope": "required",
    }
    if package["license"]:
        # `MIT/Apache-2.0` is how old manifests spell `OR`.
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if digest := digests.get((package["name"], package["version"])):
        component["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return component


def debian(name: str, version: str, arch: str) -> dict[str, Any]:
    """One of Debian's packages as a component."""
    purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={arch}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "scope": "required"}


def main() -> None:
    """Prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--target", "--packages", "--arch"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", options.target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    agent = next(p for p in metadata["packages"] if p["name"] == "tokengauge" and p["source"] is None)
    graph, digests = linked(metadata, agent["id"]), checksums()
    # Metadata resolves features for all of the workspace, tests too; the tree of the agent alone knows what is linked.
    tree = ["cargo", "tree", "-p", "tokengauge", "-e", "normal,build", "--prefix", "none", "--locked", "--target", options.target]
    lines = subprocess.run([*tree, "-f", "{p}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    real = {tuple(line.split()[:2]) for line in lines if line.strip()}
    known = {i for i in graph if (packages[i]["name"], f"v{packages[i]['version']}") in real}
    graph = {i: [d for d in graph[i] if d in known] for i in graph if i in known}
    components = {package: crate(packages[package], digests) for package in graph}
    libraries = [
        debian(*line.split(), options.arch) for line in Path(options.packages).read_text().splitlines() if line.strip()
    ]
    top = components.pop(agent["id"])
    top |= {"type": "application"}
    top.pop("scope")
    refs = {package: component["bom-ref"] for package, component in components.items()}
    depends = [
        {"ref": top["bom-ref"], "dependsOn": sorted([refs[d] for d in graph[agent["id"]]] + [x["bom-ref"] for x in libraries])}
    ]
    depends += [{"ref": refs[p], "dependsOn": sorted({refs[d] for d in graph[p]})} for p in sorted(refs, key=refs.get)]
    parts = sorted(components.values(), key=lambda c: c["bom-ref"]) + libraries
    identity = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([top, parts], sort_keys=True))
    json.dump(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "serialNumber": f"urn:uuid:{identity}",
            "version": 1,
            "metadata": {"component": top},
            "components": parts,
            "dependencies": depends,
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
