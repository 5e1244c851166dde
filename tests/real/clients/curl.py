"""curl, a process per request. It tells its own port (`-w`) and when it sends the request (`-v`); the client
that leaves is killed, so that its connection ends without a TLS shutdown."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from common import API_KEY, CANCEL_AFTER, CANCEL_TOKENS, LLAMA, PLAIN_TOKENS, PROMPT, STREAMS, TOKENS
from common import Truth, arguments

FIGURES = "curl-figures "


def body(truth: Truth) -> dict[str, Any]:
    """The request's JSON."""
    case = truth.line["case"]
    tokens = {"stream": TOKENS, "cancel": CANCEL_TOKENS, "plain": PLAIN_TOKENS, "error": 8}[case]
    messages: Any = "not a list" if case == "error" else [{"role": "user", "content": PROMPT}]
    more = {} if case == "plain" else {"stream": True, "stream_options": {"include_usage": True}}
    return {"model": truth.model, "max_tokens": tokens, "messages": messages, **LLAMA, **more}


def event(truth: Truth, text: str) -> None:
    """Notes one JSON body or event."""
    told = json.loads(text)
    truth.line["id"] = told.get("id") or truth.line["id"]
    if any(choice.get("delta", {}).get("content") for choice in told.get("choices", [])):
        truth.output()
    if told.get("usage"):
        truth.usage(told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"])
    if truth.line["case"] == "stream":
        truth.timings(told.get("timings"))


def watch(truth: Truth, trace: IO[str]) -> None:
    """Stamps the line with which `curl -v` says that it has sent the request; reads the rest so that it never blocks.
    (`--trace-time` would be nearer, but mixes two clocks in curl 7.)"""
    for line in trace:
        if line.startswith("> POST"):
            truth.sent()


def run(base: str, out: Path, version: str, case: str, number: int = 0) -> None:
    """One request. Headers and body go by standard input, so that no process list shows the key."""
    truth = Truth("curl", case, number)
    config = "\n".join(
        [
            f"url = {base}/v1/chat/completions",
            f'header = "Authorization: Bearer {API_KEY}"',
            'header = "Content-Type: application/json"',
            f"data = {json.dumps(json.dumps(body(truth)))}",
            f'write-out = "\\n{FIGURES}%{{json}}"',
        ]
    )
    command = ["curl", "-sNv", version, "--cacert", os.environ["SSL_CERT_FILE"], "-K", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        watcher = threading.Thread(target=watch, args=(truth, child.stderr))
        watcher.start()
        child.stdin.write(config)
        child.stdin.close()
        for line in child.stdout:
            if line.startswith(FIGURES):
                figures = json.loads(line.removeprefix(FIGURES))
                truth.line["local"] = [figures["local_ip"], figures["local_port"]]
                truth.response(figures["http_code"])
            elif line.startswith("data: {"):
                event(truth, line.removeprefix("data: "))
                truth.response(200)
            elif line.startswith("{"):
                event(truth, line)
            if case == "cancel" and truth.outputs >= CANCEL_AFTER:
                child.kill()
                break
        watcher.join()
    truth.write(out)


if __name__ == "__main__":
    args = arguments(__doc__)
    version = "--http2" if args.http2 else "--http1.1"
    for stream in range(STREAMS):
        run(args.base, args.out, version, "stream", stream)
    for one in ("cancel", "plain", "error"):
        run(args.base, args.out, version, one)
