"""Tells tokengauge what an inference engine knows of its requests.

    from tokengauge_hook import Request

    request = Request("chatcmpl-1", model="llama-3.1-8b")  # once for each request
    request.received()
    request.scheduled()
    request.first_token()
    request.tokens(1)  # as often as there are some
    request.finished("stop", output_tokens=128)

By default events go to the tap symbol, a function that does nothing and on which the agent puts a probe: without the agent nothing happens.
`Request(..., to=Client("/run/tokengauge/hook.sock"))` sends them to the agent's Unix socket instead. The contract is agent/hook/README.md.
"""
from . import tap
from .client import Client
from .event import FINISH, KINDS, Request

__all__ = ["Client", "FINISH", "KINDS", "Request", "tap"]
