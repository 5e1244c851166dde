#!/usr/bin/env python3
"""Health tells the truth: a running agent whose taps, files and listener are disturbed one after the other, as root.

An interface that vanishes under a tap, a folder that vanishes under the records, an agent that is stopped (SIGSTOP, as a machine that is too busy would) and
goes on, a secret that is changed, and the end: each shows in /readyz or /healthz with its reason, and nothing else does.

    tests/live/health.py        # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from rig import AGENT, Score  # noqa: E402

INTERFACE = "tg-health0"


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port: int, path: str, token: str = "", timeout: float = 5) -> tuple[int, str]:
    """Status and body; 0 when nobody answers in time."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def until(port: int, path: str, want: int, seconds: float = 15) -> tuple[int, str]:
    """The first answer with this status, or the last one."""
    end = time.monotonic() + seconds
    while True:
        status, body = get(port, path)
        if status == want or time.monotonic() > end:
            return status, body
        time.sleep(0.1)


def main() -> None:
    """Disturbs and asks."""
    score = Score()
    if os.geteuid() != 0:
        print("not tried: needs root")
        sys.exit(0)
    work = Path(tempfile.mkdtemp())
    subprocess.run(["ip", "link", "delete", INTERFACE], capture_output=True, check=False)
    made = subprocess.run(["ip", "link", "add", INTERFACE, "type", "ifb"], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "link", "set", INTERFACE, "up"], check=True)
    port, token, records = free_port(), work / "token", work / "records"
    token.write_text("first\n")
    records.mkdir()
    taps = [{"interface": "lo", "filter": f"tcp port {port}"}] + ([{"interface": INTERFACE}] if made else [])
    config = {
        "taps": {"tls": {"enabled": False}, "pcap": taps},
        "http": {"listen": f"127.0.0.1:{port}", "bearer_token_file": str(token)},
        "jsonl": {"path": str(records / "r.jsonl")},
    }
    (work / "c.yaml").write_text(json.dumps(config))
    with open(work / "log", "wb") as log:
        agent = subprocess.Popen([AGENT, "run", "--config", work / "c.yaml"], stdout=log, stderr=log)
    try:
        status, body = until(port, "/readyz", 200)
        score.check(status == 200 and body.endswith("\nready\n"), "ready once every tap captures")
        score.check(get(port, "/healthz")[0] == 200, "alive")
        refused, allowed = get(port, "/metrics")[0], get(port, "/metrics", "first")[0]
        score.check((refused, allowed) in ((401, 200), (404, 404)), f"metrics: {refused} without a token, {allowed} with it")
        if allowed == 200:
            token.write_text("second\n")
            changed = get(port, "/metrics", "first")[0], get(port, "/metrics", "second")[0]
            score.check(changed == (401, 200), "a changed secret holds at once")

        shutil.rmtree(records)
        end = time.monotonic() + 10
        while "[!] records" not in (body := get(port, "/readyz")[1]) and time.monotonic() < end:
            time.sleep(0.2)
        score.check("[!] records" in body and "No such file" in body and body.endswith("\nready\n"), "lost records degrade, and do not make unready")
        records.mkdir()
        end = time.monotonic() + 10
        while "[+] records" not in (body := get(port, "/readyz")[1]) and time.monotonic() < end:
            time.sleep(0.2)
        score.check("[+] records: written" in body, "records are well again")

        agent.send_signal(signal.SIGSTOP)
        score.check(get(port, "/healthz", timeout=1)[0] == 0, "a stopped agent does not answer")
        time.sleep(7)
        agent.send_signal(signal.SIGCONT)
        status, body = until(port, "/readyz", 200)
        score.check(status == 200, "and is ready again when it goes on")

        if made:
            subprocess.run(["ip", "link", "delete", INTERFACE], check=True)
            status, body = until(port, "/readyz", 503)
            score.check(status == 503 and f"[-] packets on {INTERFACE}: " in body, f"a vanished interface shows: {body.strip()}")
            score.check("[+] packets on lo: at work" in body and get(port, "/healthz")[0] == 200, "the other tap is at work, and nothing is stuck")
        else:
            print("not tried: this machine has no interfaces of type ifb")

        agent.send_signal(signal.SIGTERM)
        score.check(agent.wait(10) in (0, 1), "it ends")
        score.check(get(port, "/healthz", timeout=1)[0] == 0, "and nobody answers any more")
    finally:
        agent.kill()
        subprocess.run(["ip", "link", "delete", INTERFACE], capture_output=True, check=False)
        if score.failed:
            print((work / "log").read_text()[-2000:])
        shutil.rmtree(work, ignore_errors=True)
    score.finish()


if __name__ == "__main__":
    main()
