"""curl against the local provider, HTTP/1.1 or HTTP/2: chat, and what no SDK asks for: Gemini's array in pieces.

    curl_calls.py --port N --front NAME [--h2] --out FILE
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from view import API_KEY, MESSAGES, PROMPT, Link, View

WIRES = {"chat": ("stream", "plain", "error", "cancel", "cut", "gzip"), "array": ("stream", "tool", "cancel", "fault")}
HOSTS = {"chat": "api.openai.com", "array": "generativelanguage.googleapis.com"}


def event(view: View, line: str) -> bool:
    """Notes a line of a streamed chat; true once enough was seen."""
    if not line.startswith("data: {"):
        return False
    chunk = json.loads(line.removeprefix("data: "))
    view.told(chunk["id"])
    if chunk.get("usage"):
        view.told(tokens=(chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]))
    choice = (chunk["choices"] or [{"delta": {}, "finish_reason": None}])[0]
    view.told(finish=choice["finish_reason"])
    return view.output(choice["delta"].get("content"))


def element(view: View, line: str) -> bool:
    """Notes a line of an indented array: a part's text or call stands on a line of its own."""
    return view.output(line.strip().startswith(('"text": "', '"functionCall"')) and '""' not in line)


def run(wire: str, case: str, link: Link, out: Path) -> None:
    """One request, a process of its own. The client that leaves is killed: no TLS shutdown."""
    view = View("curl", wire, case, link)
    path = "/v1/chat/completions" if wire == "chat" else f"/v1beta/models/{view.model}:streamGenerateContent"
    body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]}
    if wire == "chat":
        body = {"model": view.model, "messages": MESSAGES}
        body |= {"stream": True, "stream_options": {"include_usage": True}} if view.streaming else {}
    host = HOSTS[wire]
    config = "\n".join(
        [
            f"url = {link.base(host)}{path}",
            f'header = "Authorization: Bearer {API_KEY}"',
            'header = "Content-Type: application/json"',
            f"data = {json.dumps(json.dumps(body))}",
            'write-out = "\\nstatus %{http_code} %{http_version}"',
        ]
    )
    command = ["curl", "-sN", "--max-time", "20", "--cacert", os.environ["SSL_CERT_FILE"]]
    command += ["--http2" if link.http2 else "--http1.1"]
    command += ["--resolve", f"{host}:{link.port}:127.0.0.1", "-K", "-"] + ["--compressed"] * (case == "gzip")
    note = event if wire == "chat" else element
    whole = ""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(config)
        child.stdin.close()
        for line in child.stdout:
            if line.startswith("status "):
                view.line["status"] = int(line.split()[1])
            elif note(view, line):
                child.kill()
                break
            whole += "" if line.startswith("status ") else line
    if view.line["status"] == 200 and case != "cancel" and (wire == "array" or not view.streaming):
        told = json.loads(whole)
        if wire == "array" and "error" in told[-1]:
            view.line["error"] = told[-1]["error"]["status"]
        elif wire == "array":
            usage = told[-1]["usageMetadata"]
            output = usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
            finish = told[-1]["candidates"][0]["finishReason"]
            view.told(told[-1]["responseId"], finish, (usage["promptTokenCount"], output))
        else:
            usage = told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]
            view.told(told["id"], told["choices"][0]["finish_reason"], usage)
    view.write(out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--front", required=True)
    parser.add_argument("--h2", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    link = Link(args.port, args.front, args.h2, asynchronous=False)
    for wire, cases in WIRES.items():
        for case in cases:
            if case == "cut" and args.h2 and args.front == "direct":
                continue  # hypercorn says nothing when a stream fails
            run(wire, case, link, args.out)


if __name__ == "__main__":
    main()
