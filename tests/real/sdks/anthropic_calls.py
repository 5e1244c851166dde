"""The anthropic SDK: messages."""

from __future__ import annotations

from typing import Any

import anthropic
from view import API_KEY, MESSAGES, Link, View, close, each, got

SDK = "anthropic"
WIRES = {"messages": ("stream", "plain", "tool", "error", "cancel", "fault", "cut", "gzip")}
HTTP2 = True


def client(link: Link, wire: str) -> Any:
    """A client of the mode that is asked for."""
    http = link.pick(anthropic.DefaultHttpxClient, anthropic.DefaultAsyncHttpxClient)(http2=link.http2)
    kind = link.pick(anthropic.Anthropic, anthropic.AsyncAnthropic)
    return kind(base_url=link.base("api.anthropic.com"), api_key=API_KEY, max_retries=0, http_client=http)


def total(usage: Any) -> int:
    """All input: what was neither read from nor written to the cache, and what was."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return usage.input_tokens + cached


async def messages(client: Any, view: View) -> None:
    """`messages.create`."""
    asked: dict[str, Any] = {"model": view.model, "messages": MESSAGES, "max_tokens": 999}
    if not view.streaming:
        answer = await got(client.messages.create(**asked))
        return view.told(answer.id, answer.stop_reason, (total(answer.usage), answer.usage.output_tokens))
    stream = await got(client.messages.create(stream=True, **asked))
    async for event in each(stream):
        if event.type == "message_start":
            view.told(event.message.id)
        elif event.type == "content_block_start":
            view.output(getattr(event.content_block, "name", None))
        elif event.type == "content_block_delta":
            delta = event.delta
            shown = [getattr(delta, name, None) for name in ("text", "thinking", "partial_json")]
            if view.output(any(shown)):
                return await close(stream)
        elif event.type == "message_delta":
            view.told(finish=event.delta.stop_reason, tokens=(total(event.usage), event.usage.output_tokens))
