"""The ollama SDK: chat, generate, embed."""

from __future__ import annotations

from typing import Any

import ollama
from view import MESSAGES, PROMPT, Link, View, close, each, got

SDK = "ollama"
WIRES = {
    "chat": ("stream", "plain", "tool", "error", "cancel", "fault", "gzip"),
    "generate": ("stream", "plain"),
    "vectors": ("embed",),
}
HTTP2 = True


def client(link: Link, wire: str) -> Any:
    """A client of the mode that is asked for."""
    made = link.pick(ollama.Client, ollama.AsyncClient)(host=link.base("ollama.rig.test"), http2=link.http2, timeout=30)
    made.aclose = made._client.aclose if link.asynchronous else made._client.close
    return made


async def chat(client: Any, view: View) -> None:
    """`chat`."""
    answer = await got(client.chat(model=view.model, messages=MESSAGES, stream=view.streaming))
    if not view.streaming:
        return view.told(None, answer.done_reason, (answer.prompt_eval_count, answer.eval_count))
    async for line in each(answer):
        message = line.message
        if view.output(message.content or message.thinking or message.tool_calls):
            return await close(answer)
        if line.done:
            view.told(None, line.done_reason, (line.prompt_eval_count, line.eval_count))


async def generate(client: Any, view: View) -> None:
    """`generate`."""
    answer = await got(client.generate(model=view.model, prompt=PROMPT, stream=view.streaming))
    if not view.streaming:
        return view.told(None, answer.done_reason, (answer.prompt_eval_count, answer.eval_count))
    async for line in each(answer):
        view.output(line.response or line.thinking)
        if line.done:
            view.told(None, line.done_reason, (line.prompt_eval_count, line.eval_count))


async def vectors(client: Any, view: View) -> None:
    """`embed`."""
    answer = await got(client.embed(model=view.model, input=PROMPT))
    view.told(tokens=(answer.prompt_eval_count, None))
