"""The anthropic SDK, synchronous or on asyncio; CA by SSL_CERT_FILE."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
from common import API_KEY, CANCEL_AFTER, CANCEL_TOKENS, LLAMA, PLAIN_TOKENS, PROMPT, STREAMS, TOKENS
from common import SendStamp, Truth, arguments

MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def request(truth: Truth, stamp: SendStamp, tokens: int, **more: Any) -> dict[str, Any]:
    """Arguments of `messages.create`."""
    headers = stamp.expect(truth)
    return {
        "model": truth.model, "messages": MESSAGES, "max_tokens": tokens, "extra_headers": headers, "extra_body": LLAMA
    } | more  # fmt: skip


def bad(truth: Truth, stamp: SendStamp) -> dict[str, Any]:
    """Arguments of a request that the server refuses with 400."""
    return request(truth, stamp, 8, extra_body={"messages": [{"role": "user", "content": 5}]})


def usage(truth: Truth, told: Any) -> None:
    """Anthropic's counts: all input is uncached + read from the cache + written to it."""
    parts = (told.input_tokens, told.cache_read_input_tokens, told.cache_creation_input_tokens)
    truth.usage(sum(part or 0 for part in parts) if told.input_tokens is not None else None, told.output_tokens)


def event(truth: Truth, part: Any) -> bool:
    """Notes one event; true once enough have come for a client that means to leave."""
    if part.type == "message_start":
        truth.response(200, part.message.id)
        usage(truth, part.message.usage)
    elif part.type == "content_block_delta" and getattr(part.delta, "text", ""):
        truth.output()
    elif part.type == "message_delta":
        usage(truth, part.usage)
    return truth.line["case"] == "cancel" and truth.outputs >= CANCEL_AFTER


def answer(truth: Truth, raw: Any, body: Any) -> None:
    """Notes an answer in one piece."""
    truth.local(raw.http_response)
    truth.response(raw.http_response.status_code, body.id)
    usage(truth, body.usage)


def run_sync(base: str, out: Any, http2: bool) -> None:
    """All cases, one after another, on one kept-alive connection."""
    stamp = SendStamp()
    http = anthropic.DefaultHttpxClient(event_hooks={"request": [stamp.hook]}, http2=http2)
    client = anthropic.Anthropic(base_url=base, api_key=API_KEY, max_retries=0, http_client=http)
    cases = [("warm", 0, TOKENS)] + [("stream", n, TOKENS) for n in range(STREAMS)] + [("cancel", 0, CANCEL_TOKENS)]
    for case, number, tokens in cases:
        truth = Truth("anthropic-sync", case, number)
        with client.messages.create(**request(truth, stamp, tokens, stream=True)) as stream:
            truth.local(stream.response)
            for part in stream:
                if event(truth, part):
                    break
        truth.write(out)
    truth = Truth("anthropic-sync", "plain")
    raw = client.messages.with_raw_response.create(**request(truth, stamp, PLAIN_TOKENS))
    answer(truth, raw, raw.parse())
    truth.write(out)
    truth = Truth("anthropic-sync", "error")
    try:
        client.messages.create(**bad(truth, stamp))
    except anthropic.APIStatusError as refused:
        truth.local(refused.response)
        truth.response(refused.status_code)
    truth.write(out)


async def run_async(base: str, out: Any, http2: bool) -> None:
    """The streams at once, then the others; every connection through memory BIOs."""
    stamp = SendStamp()
    http = anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [stamp.hook_async]}, http2=http2)
    client = anthropic.AsyncAnthropic(base_url=base, api_key=API_KEY, max_retries=0, http_client=http)

    async def one(case: str, number: int, tokens: int) -> None:
        truth = Truth("anthropic-asyncio", case, number)
        async with await client.messages.create(**request(truth, stamp, tokens, stream=True)) as stream:
            truth.local(stream.response)
            async for part in stream:
                if event(truth, part):
                    break
        truth.write(out)

    await one("warm", 0, TOKENS)
    await asyncio.gather(*(one("stream", n, TOKENS) for n in range(STREAMS)))
    await one("cancel", 0, CANCEL_TOKENS)
    truth = Truth("anthropic-asyncio", "plain")
    raw = await client.messages.with_raw_response.create(**request(truth, stamp, PLAIN_TOKENS))
    answer(truth, raw, await raw.parse())
    truth.write(out)
    truth = Truth("anthropic-asyncio", "error")
    try:
        await client.messages.create(**bad(truth, stamp))
    except anthropic.APIStatusError as refused:
        truth.local(refused.response)
        truth.response(refused.status_code)
    truth.write(out)
    await client.close()


if __name__ == "__main__":
    args = arguments(__doc__)
    told = (args.base, args.out, args.http2)
    asyncio.run(run_async(*told)) if args.asyncio else run_sync(*told)
