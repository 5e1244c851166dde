"""Clients that write their secrets down: curl, openssl s_client (key updates), Python (resumption). All over loopback.

Each function makes one exchange of the given model and name (`user` of the request) with a relay's port.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import time
from pathlib import Path


def body(model: str, name: str, prompt: str = "hello") -> bytes:
    """A request as JSON."""
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": model, "user": name, "stream": model != "big", "messages": messages}).encode()


def request(model: str, name: str, prompt: str = "hello") -> bytes:
    """A whole request."""
    data = body(model, name, prompt)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def curl(port: int, keylog: Path, model: str, name: str, *options: str, prompt: str = "hello") -> None:
    """One exchange by curl; `options` choose version and cipher."""
    command = ["curl", "--silent", "--show-error", "--fail", "--http1.1", "--insecure", *options, "--data-binary", "@-"]
    command += ["-H", "Content-Type: application/json", "-H", "Expect:", f"https://127.0.0.1:{port}/v1/chat/completions"]
    environment = {**os.environ, "SSLKEYLOGFILE": str(keylog)}
    subprocess.run(command, input=body(model, name, prompt), check=True, env=environment, timeout=60, stdout=subprocess.DEVNULL)


def s_client(port: int, keylog: Path, model: str, name: str, commands: list[str], *options: str) -> None:
    """One exchange by `openssl s_client`, which obeys single letters on its input: k updates its own key, K both."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-keylogfile", str(keylog), *options]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None and child.stdout is not None
    time.sleep(0.3)
    child.stdin.write(request(model, name))
    child.stdin.flush()
    for letter in commands:
        time.sleep(0.1)
        child.stdin.write(f"{letter}\n".encode())
        child.stdin.flush()
    seen = b""
    while b"\r\n0\r\n\r\n" not in seen:
        more = os.read(child.stdout.fileno(), 65536)
        if not more:
            raise RuntimeError(f"s_client {options}: the answer ended early: {seen[-200:]!r}")
        seen += more
    child.stdin.write(b"Q\n")
    child.stdin.flush()
    child.wait(10)


def python(port: int, keylog: Path, models: list[tuple[str, str]], version: ssl.TLSVersion, leave_after: int | None = None) -> int:
    """Exchanges on one connection each, every one but the first resuming the session before it. How many were resumed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.keylog_filename = str(keylog)
    session, resumed = None, 0
    for model, name in models:
        with socket.create_connection(("127.0.0.1", port)) as raw:
            with context.wrap_socket(raw, session=session) as tls:
                resumed += bool(tls.session_reused)
                tls.sendall(request(model, name))
                seen = b""
                while not seen.endswith(b"0\r\n\r\n"):
                    more = tls.recv(65536)
                    if not more:
                        break
                    seen += more
                    if leave_after is not None and seen.count(b"data: ") >= leave_after:
                        return resumed
                session = tls.session
    return resumed
