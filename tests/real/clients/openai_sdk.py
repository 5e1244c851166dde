"""The openai SDK, synchronous or on asyncio; CA by SSL_CERT_FILE."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from common import API_KEY, CANCEL_AFTER, CANCEL_TOKENS, LLAMA, PLAIN_TOKENS, PROMPT, STREAMS, TOKENS
from common import SendStamp, Truth, arguments

MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def request(truth: Truth, stamp: SendStamp, tokens: int, **more: Any) -> dict[str, Any]:
    """Arguments of `chat.completions.create`."""
    headers = stamp.expect(truth)
    return {
        "model": truth.model, "messages": MESSAGES, "max_tokens": tokens, "extra_headers": headers, "extra_body": LLAMA
    } | more  # fmt: skip


def streaming(truth: Truth, stamp: SendStamp, tokens: int) -> dict[str, Any]:
    """Arguments of a streaming request that asks for usage."""
    return request(truth, stamp, tokens, stream=True, stream_options={"include_usage": True})


def bad(truth: Truth, stamp: SendStamp) -> dict[str, Any]:
    """Arguments of a request that the server refuses with 400."""
    return request(truth, stamp, 8, stream=True, extra_body={"messages": "not a list"})


def event(truth: Truth, chunk: Any) -> bool:
    """Notes one event; true once enough have come for a client that means to leave."""
    truth.response(200, chunk.id)
    if chunk.choices and chunk.choices[0].delta.content:
        truth.output()
    if chunk.usage:
        truth.usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
    truth.timings((chunk.model_extra or {}).get("timings"))
    return truth.line["case"] == "cancel" and truth.outputs >= CANCEL_AFTER


def answer(truth: Truth, raw: Any) -> None:
    """Notes an answer in one piece."""
    body = raw.parse()
    truth.local(raw.http_response)
    truth.response(raw.http_response.status_code, body.id)
    truth.usage(body.usage.prompt_tokens, body.usage.completion_tokens)


def run_sync(base: str, out: Any, http2: bool) -> None:
    """All cases, one after another, on one kept-alive connection."""
    stamp = SendStamp()
    http = openai.DefaultHttpxClient(event_hooks={"request": [stamp.hook]}, http2=http2)
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=API_KEY, max_retries=0, http_client=http)
    cases = [("warm", 0, TOKENS)] + [("stream", n, TOKENS) for n in range(STREAMS)] + [("cancel", 0, CANCEL_TOKENS)]
    for case, number, tokens in cases:
        truth = Truth("openai-sync", case, number)
        with client.chat.completions.create(**streaming(truth, stamp, tokens)) as stream:
            truth.local(stream.response)
            for chunk in stream:
                if event(truth, chunk):
                    break
        truth.write(out)
    truth = Truth("openai-sync", "plain")
    answer(truth, client.chat.completions.with_raw_response.create(**request(truth, stamp, PLAIN_TOKENS)))
    truth.write(out)
    truth = Truth("openai-sync", "error")
    try:
        client.chat.completions.create(**bad(truth, stamp))
    except openai.APIStatusError as refused:
        truth.local(refused.response)
        truth.response(refused.status_code)
    truth.write(out)


async def run_async(base: str, out: Any, http2: bool) -> None:
    """The streams at once, then the others; every connection through memory BIOs."""
    stamp = SendStamp()
    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [stamp.hook_async]}, http2=http2)
    client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=API_KEY, max_retries=0, http_client=http)

    async def one(case: str, number: int, tokens: int) -> None:
        truth = Truth("openai-asyncio", case, number)
        async with await client.chat.completions.create(**streaming(truth, stamp, tokens)) as stream:
            truth.local(stream.response)
            async for chunk in stream:
                if event(truth, chunk):
                    break
        truth.write(out)

    await one("warm", 0, TOKENS)
    await asyncio.gather(*(one("stream", n, TOKENS) for n in range(STREAMS)))
    await one("cancel", 0, CANCEL_TOKENS)
    truth = Truth("openai-asyncio", "plain")
    answer(truth, await client.chat.completions.with_raw_response.create(**request(truth, stamp, PLAIN_TOKENS)))
    truth.write(out)
    truth = Truth("openai-asyncio", "error")
    try:
        await client.chat.completions.create(**bad(truth, stamp))
    except openai.APIStatusError as refused:
        truth.local(refused.response)
        truth.response(refused.status_code)
    truth.write(out)
    await client.close()


if __name__ == "__main__":
    args = arguments(__doc__)
    told = (args.base, args.out, args.http2)
    asyncio.run(run_async(*told)) if args.asyncio else run_sync(*told)
