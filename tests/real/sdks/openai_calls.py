"""The openai SDK: chat, completions, embeddings, Responses, Azure, Realtime."""

from __future__ import annotations

from typing import Any

import openai
from view import API_KEY, MESSAGES, PROMPT, Link, View, close, each, got

SDK = "openai"
WIRES = {
    "chat": ("stream", "plain", "tool", "error", "cancel", "fault", "cut", "gzip"),
    "completions": ("stream", "plain"),
    "vectors": ("embed",),
    "responses": ("stream", "plain", "tool", "error", "cancel", "fault"),
    "azure": ("stream", "plain", "error"),
    "realtime": ("stream",),
}
HTTP2 = True


def client(link: Link, wire: str) -> Any:
    """A client of the mode that is asked for."""
    http = link.pick(openai.DefaultHttpxClient, openai.DefaultAsyncHttpxClient)(http2=link.http2)
    shared = {"api_key": API_KEY, "max_retries": 0, "http_client": http}
    if wire == "azure":
        kind = link.pick(openai.AzureOpenAI, openai.AsyncAzureOpenAI)
        return kind(azure_endpoint=link.base("rig.openai.azure.com"), api_version="2025-01-01-preview", **shared)
    return link.pick(openai.OpenAI, openai.AsyncOpenAI)(base_url=link.base("api.openai.com") + "/v1", **shared)


async def chat(client: Any, view: View) -> None:
    """`chat.completions.create`."""
    asked: dict[str, Any] = {"model": view.model, "messages": MESSAGES}
    if not view.streaming:
        answer = await got(client.chat.completions.create(**asked))
        usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return view.told(answer.id, answer.choices[0].finish_reason, usage)
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    if view.case == "tool":
        function = {"name": "look_up_tide", "parameters": {"type": "object", "properties": {}}}
        asked["tools"] = [{"type": "function", "function": function}]
    stream = await got(client.chat.completions.create(**asked))
    async for chunk in each(stream):
        view.told(chunk.id)
        for choice in chunk.choices:
            view.told(finish=choice.finish_reason)
            delta = choice.delta
            if view.output(delta.content or delta.tool_calls or getattr(delta, "reasoning_content", None)):
                return await close(stream)
        if chunk.usage:
            view.told(tokens=(chunk.usage.prompt_tokens, chunk.usage.completion_tokens))


azure = chat


async def completions(client: Any, view: View) -> None:
    """`completions.create`."""
    asked: dict[str, Any] = {"model": view.model, "prompt": PROMPT}
    if not view.streaming:
        answer = await got(client.completions.create(**asked))
        usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return view.told(answer.id, answer.choices[0].finish_reason, usage)
    async for chunk in each(await got(client.completions.create(stream=True, **asked))):
        view.told(chunk.id)
        for choice in chunk.choices:
            view.told(finish=choice.finish_reason)
            view.output(choice.text)
        if chunk.usage:
            view.told(tokens=(chunk.usage.prompt_tokens, chunk.usage.completion_tokens))


async def vectors(client: Any, view: View) -> None:
    """`embeddings.create`."""
    answer = await got(client.embeddings.create(model=view.model, input=PROMPT))
    view.told(tokens=(answer.usage.prompt_tokens, None))


async def responses(client: Any, view: View) -> None:
    """`responses.create`."""
    asked: dict[str, Any] = {"model": view.model, "input": PROMPT}
    if not view.streaming:
        answer = await got(client.responses.create(**asked))
        return view.told(answer.id, answer.status, (answer.usage.input_tokens, answer.usage.output_tokens))
    stream = await got(client.responses.create(stream=True, **asked))
    async for event in each(stream):
        named = event.type == "response.output_item.added" and getattr(event.item, "name", None)
        if view.output(named or event.type.endswith(".delta") and event.delta):
            return await close(stream)
        if event.type == "response.completed":
            told = event.response
            view.told(told.id, told.status, (told.usage.input_tokens, told.usage.output_tokens))
        if event.type == "response.failed":
            raise RuntimeError(event.response.error.code)


async def realtime(client: Any, view: View) -> None:
    """Two turns on one WebSocket."""
    manager = client.realtime.connect(model=view.model)
    socket = await got(manager.enter())
    for _ in range(1 if view.case == "warm" else 2):
        content = [{"type": "input_text", "text": PROMPT}]
        await got(socket.conversation.item.create(item={"type": "message", "role": "user", "content": content}))
        await got(socket.response.create())
        async for event in each(socket):
            view.output(event.type.endswith(".delta") and event.delta)
            if event.type == "response.done":
                told = event.response
                view.told(told.id, told.status, (told.usage.input_tokens, told.usage.output_tokens))
                break
    await close(socket)
