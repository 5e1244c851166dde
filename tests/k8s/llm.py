#!/usr/bin/env python3
"""What runs in the test's pods: a provider that streams OpenAI chat completions over TLS, and a client that asks it.

    llm.py serve PORT CERT KEY                 until it is told to stop
    llm.py ask HOST PORT COUNT RATE MODEL      prints a JSON line for each request, with its status; a model `…bad` is refused with 500

Python's standard library only, so that an image of it is an interpreter and nothing else.
"""

from __future__ import annotations

import http.client
import json
import signal
import socketserver
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler

TOKENS = 5


class Handler(BaseHTTPRequestHandler):
    """POST /v1/chat/completions, whatever is asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Five tokens, 10 ms apart, or an error."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["model"].endswith("bad"):
            error = b'{"error": {"type": "server_error", "message": "no"}}'
            self.send_response(500)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(error)))
            self.end_headers()
            self.wfile.write(error)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for i in range(TOKENS + 1):
            time.sleep(0.01)
            last = i == TOKENS
            chunk = {
                "id": "c1", "object": "chat.completion.chunk", "model": body["model"], "created": 1,
                "choices": [{"index": 0, "delta": {} if last else {"content": f"w{i} "}, "finish_reason": "stop" if last else None}],
            }  # fmt: skip
            if last:
                chunk["usage"] = {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": TOKENS + 3}
            self.piece(f"data: {json.dumps(chunk)}\n\n")
        self.piece("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def piece(self, text: str) -> None:
        """One chunk of the transfer, in one write."""
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Server(socketserver.ThreadingTCPServer):
    """One thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True


def serve(port: int, cert: str, key: str) -> None:
    """Until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = Server(("", port), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print("listening", flush=True)
    server.serve_forever()


def ask(host: str, port: int, count: int, rate: float, model: str) -> None:
    """`count` requests on one connection, `rate` a second."""
    context = ssl._create_unverified_context()
    # Until the agent has found this process: it looks for new ones every second.
    time.sleep(3)
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=30)
    for _ in range(count):
        body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "x"}]})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        print(json.dumps({"model": model, "status": answer.status, "events": text.count(b"data: ")}), flush=True)
        time.sleep(1 / rate)
    connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), sys.argv[6])
