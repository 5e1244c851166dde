"""The mistralai SDK: chat. One class has both modes."""

from __future__ import annotations

from typing import Any

import httpx2
from mistralai.client import Mistral
from view import API_KEY, MESSAGES, Link, View, close, each, got

SDK = "mistralai"
WIRES = {"chat": ("stream", "plain", "tool", "error", "cancel", "gzip")}
HTTP2 = True


class Client:
    """The SDK with a client of the mode that is asked for."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.http = link.pick(httpx2.Client, httpx2.AsyncClient)(http2=link.http2, timeout=30)
        given = {link.pick("client", "async_client"): self.http}
        self.sdk = Mistral(api_key=API_KEY, server_url=link.base("api.mistral.ai"), **given)

    async def aclose(self) -> None:
        """Ends its connections."""
        await close(self.http)


def client(link: Link, wire: str) -> Client:
    """A client of the mode that is asked for."""
    return Client(link)


async def chat(client: Client, view: View) -> None:
    """`chat.complete` and `chat.stream`."""
    calls, asked = client.sdk.chat, {"model": view.model, "messages": MESSAGES}
    if not view.streaming:
        answer = await got(client.link.pick(calls.complete, calls.complete_async)(**asked))
        usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return view.told(answer.id, answer.choices[0].finish_reason, usage)
    stream = await got(client.link.pick(calls.stream, calls.stream_async)(**asked))
    async for event in each(stream):
        chunk = event.data
        view.told(chunk.id)
        for choice in chunk.choices:
            view.told(finish=choice.finish_reason)
            if view.output(choice.delta.content or choice.delta.tool_calls):
                return await got(client.link.pick(stream.response.close, stream.response.aclose)())
        if chunk.usage and chunk.usage.completion_tokens:
            view.told(tokens=(chunk.usage.prompt_tokens, chunk.usage.completion_tokens))
