"""The cohere SDK: chat of both versions, and embeddings."""

from __future__ import annotations

from typing import Any

import cohere
import httpx
from view import API_KEY, MESSAGES, PROMPT, Link, View, close, each, got

SDK = "cohere"
WIRES = {
    "chat_v2": ("stream", "plain", "tool", "error", "cancel", "fault", "gzip"),
    "chat_v1": ("stream", "plain", "cancel"),
    "vectors": ("embed",),
}
HTTP2 = True


def client(link: Link, wire: str) -> Any:
    """A client of the mode that is asked for."""
    one = link.pick(cohere.Client, cohere.AsyncClient)
    two = link.pick(cohere.ClientV2, cohere.AsyncClientV2)
    http = link.pick(httpx.Client, httpx.AsyncClient)(http2=link.http2, timeout=30)
    made = (one if wire == "chat_v1" else two)(
        API_KEY, base_url=link.base("api.cohere.com"), httpx_client=http, max_retries=0,
        log_warning_experimental_features=False,
    )  # fmt: skip
    made.aclose = http.aclose if link.asynchronous else http.close
    return made


async def chat_v2(client: Any, view: View) -> None:
    """`chat` and `chat_stream` of version 2."""
    asked: dict[str, Any] = {"model": view.model, "messages": MESSAGES}
    if not view.streaming:
        answer = await got(client.chat(**asked))
        units = answer.usage.billed_units
        return view.told(answer.id, answer.finish_reason, (int(units.input_tokens), int(units.output_tokens)))
    stream = client.chat_stream(**asked)
    async for event in each(stream):
        message = getattr(getattr(event, "delta", None), "message", None)
        if event.type == "message-start":
            view.told(event.id)
        elif event.type == "content-delta":
            content = message.content
            if view.output(content.text or getattr(content, "thinking", None)):
                return await close(stream)
        elif event.type == "tool-plan-delta":
            view.output(message.tool_plan)
        elif event.type in ("tool-call-start", "tool-call-delta"):
            view.output(message.tool_calls)
        elif event.type == "message-end":
            if event.delta.finish_reason == "ERROR":
                raise RuntimeError(event.delta.finish_reason)
            units = event.delta.usage.billed_units
            view.told(finish=event.delta.finish_reason, tokens=(int(units.input_tokens), int(units.output_tokens)))


async def chat_v1(client: Any, view: View) -> None:
    """`chat` and `chat_stream` of version 1."""
    asked: dict[str, Any] = {"model": view.model, "message": PROMPT}
    if not view.streaming:
        answer = await got(client.chat(**asked))
        units = answer.meta.billed_units
        return view.told(answer.generation_id, answer.finish_reason, (int(units.input_tokens), int(units.output_tokens)))
    stream = client.chat_stream(**asked)
    async for event in each(stream):
        if event.event_type == "stream-start":
            view.told(event.generation_id)
        elif event.event_type == "text-generation":
            if view.output(event.text):
                return await close(stream)
        elif event.event_type == "stream-end":
            units = event.response.meta.billed_units
            view.told(finish=event.finish_reason, tokens=(int(units.input_tokens), int(units.output_tokens)))


async def vectors(client: Any, view: View) -> None:
    """`embed`."""
    answer = await got(client.embed(model=view.model, texts=["x"], input_type="search_query", embedding_types=["float"]))
    view.told(answer.id, tokens=(int(answer.meta.billed_units.input_tokens), None))
