"""The google-genai SDK: generate_content and its stream (server-sent events)."""

from __future__ import annotations

from typing import Any

from google import genai
from google.genai import types
from view import API_KEY, PROMPT, Link, View, close, each, got

SDK = "google-genai"
WIRES = {"generate": ("stream", "plain", "tool", "error", "cancel", "fault", "gzip")}
HTTP2 = True


def client(link: Link, wire: str) -> Any:
    """A client of the mode that is asked for."""
    more = {"http2": True} if link.http2 else {}
    options = types.HttpOptions(
        base_url=link.base("generativelanguage.googleapis.com"), client_args=more, async_client_args=more
    )
    whole = genai.Client(api_key=API_KEY, http_options=options)
    # The client owns the connections and closes them when it is collected: `aio` keeps no reference to it.
    half = whole.aio if link.asynchronous else whole
    half.whole = whole
    return half


def counts(usage: Any) -> tuple[int, int]:
    """Input, and output with thoughts."""
    return usage.prompt_token_count, (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)


async def generate(client: Any, view: View) -> None:
    """`models.generate_content` and `generate_content_stream`."""
    asked: dict[str, Any] = {"model": view.model, "contents": PROMPT}
    if not view.streaming:
        answer = await got(client.models.generate_content(**asked))
        finish = answer.candidates[0].finish_reason
        return view.told(answer.response_id, finish, counts(answer.usage_metadata))
    stream = await got(client.models.generate_content_stream(**asked))
    async for chunk in each(stream):
        view.told(chunk.response_id)
        for candidate in chunk.candidates or []:
            view.told(finish=candidate.finish_reason)
            parts = candidate.content.parts if candidate.content else None
            if view.output(any(part.text or part.function_call for part in parts or [])):
                return await close(stream)
        if chunk.usage_metadata and chunk.usage_metadata.candidates_token_count:
            view.told(tokens=counts(chunk.usage_metadata))
