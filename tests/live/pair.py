"""The load pair of tlsload.c, as child processes: build it, run it, read what it noted."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))

from rig import CACHE, Children, Record, first_json_line, make_certificate, read_jsonl  # noqa: E402

SOURCE = Path(__file__).resolve().parent / "tlsload.c"


def build() -> Path:
    """Compiles the pair unless the binary is newer than its source; needs cc and libssl-dev."""
    binary = CACHE / "tlsload"
    if not binary.exists() or binary.stat().st_mtime < SOURCE.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        flags = "-O2 -Wall -Wextra -lssl -lcrypto -lpthread"
        subprocess.run(["cc", "-o", str(binary), str(SOURCE), *shlex.split(flags)], check=True)
    return binary


@dataclass
class Outcome:
    """What one run of the pair did: the two summaries, and the truth of each end by response id."""

    server: Record
    client: Record
    at_server: dict[str, Record]
    at_client: dict[str, Record]

    def truth(self, vantage: str) -> dict[str, Record]:
        """The truth of one end."""
        return self.at_server if vantage == "server" else self.at_client

    @property
    def chunk_rate(self) -> float:
        """Chunks per second that reached the clients."""
        return self.client["chunks"] / self.client["wall_s"]

    @property
    def cpu_us_per_chunk(self) -> float:
        """CPU time of both processes per chunk, in microseconds."""
        return (self.server["cpu_s"] + self.client["cpu_s"]) * 1e6 / max(self.client["chunks"], 1)


def run(children: Children, folder: Path, *flags: str, paced: bool = True) -> Outcome:
    """Runs server and client to the client's end; `flags` are the client's."""
    binary = build()
    cert, key = make_certificate(folder)
    at_server, at_client = folder / "truth-server.jsonl", folder / "truth-client.jsonl"
    pace = [] if paced else ["--no-pace"]
    server = children.start(
        [binary, "server", "--cert", cert, "--key", key, "--truth", at_server, *pace], stdout=subprocess.PIPE
    )
    port = first_json_line(server)["port"]
    client = children.start(
        [binary, "client", "--port", str(port), "--truth", at_client, *flags, *pace], stdout=subprocess.PIPE
    )
    said, _ = client.communicate()
    server.terminate()
    told, _ = server.communicate(timeout=10)
    children.stop(client)
    children.stop(server)
    by_id = [{line["id"]: line for line in read_jsonl(path)} for path in (at_server, at_client)]
    return Outcome(json.loads(told.splitlines()[-1]), json.loads(said.splitlines()[-1]), *by_id)
