"""What stands before a server in these rigs: nginx or HAProxy, from the distribution's packages."""

from __future__ import annotations

import os
from pathlib import Path

from rig import CACHE, Children, free_port, wait_for_port

COMMANDS = {"nginx": ["nginx", "-p", "@DIR@", "-e", "stderr", "-c"], "haproxy": ["haproxy", "-q", "-f"]}


def start_front(children: Children, folder: Path, template: Path, upstream: int) -> int:
    """Fills in `template` (its name says which program), starts it and returns the port that it listens on. The folder
    holds `cert.pem` and `key.pem`."""
    name = template.stem
    (folder / "both.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    port = free_port()
    text = template.read_text()
    for word, value in {"DIR": folder, "PORT": port, "UPSTREAM": upstream}.items():
        text = text.replace(f"@{word}@", str(value))
    config = folder / template.name
    config.write_text(text)
    library = CACHE / "haproxy" / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
    path = f"{os.environ['PATH']}:/usr/sbin:{CACHE / 'haproxy' / 'usr' / 'sbin'}"
    environment = os.environ | {"PATH": path, "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    command = [word.replace("@DIR@", str(folder)) for word in COMMANDS[name]]
    with (folder / f"{name}.log").open("wb") as log:
        front = children.start([*command, config], env=environment, stdout=log, stderr=log)
    wait_for_port(port, front)
    return port
