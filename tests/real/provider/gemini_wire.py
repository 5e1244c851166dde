"""Gemini's generateContent and streamGenerateContent, as server-sent events or as an array in pieces."""

from __future__ import annotations

import json
from typing import Any

from .answer import REASONING, TOOL_NAME, Answer, Asked, Script, fault, refused, sse, whole


def generate(asked: Asked) -> Answer:
    """`:generateContent` and `:streamGenerateContent`, with `alt=sse` or without."""
    api = "gemini.generate_content"
    if asked.case == "error":
        told = {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED"}
        return refused(api, {"error": told}, ["RESOURCE_EXHAUSTED", "429"])
    thoughts = 0 if asked.case == "tool" else 9
    identity = asked.identity("gem")
    usage = {
        "promptTokenCount": asked.input_tokens, "candidatesTokenCount": asked.output_tokens - thoughts,
        "totalTokenCount": asked.input_tokens + asked.output_tokens,
    } | ({"thoughtsTokenCount": thoughts} if thoughts else {})  # fmt: skip
    truth = {
        "id": identity, "finish": ["STOP"], "input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens,
        "reasoning_tokens": thoughts, "maybe_summarised": bool(thoughts),
    }  # fmt: skip

    def message(parts: list[dict[str, Any]], reason: str | None = None, counts: Any = None) -> dict[str, Any]:
        candidate = {"content": {"parts": parts, "role": "model"}, "index": 0}
        candidate |= {"finishReason": reason} if reason else {}
        first = {"promptTokenCount": asked.input_tokens, "totalTokenCount": asked.input_tokens}
        return {
            "candidates": [candidate], "usageMetadata": counts or first, "modelVersion": asked.model,
            "responseId": identity,
        }  # fmt: skip

    call = {"functionCall": {"name": TOOL_NAME, "args": {"harbour": "North", "hour": 17}}}
    texts = asked.outputs()
    if not asked.path.endswith(":streamGenerateContent"):
        parts = [call] if asked.case == "tool" else [{"text": "".join(texts)}]
        return whole(api, message(parts, "STOP", usage), asked, **truth)

    array = asked.query.get("alt") != "sse"
    answer = Answer(api, "application/json; charset=UTF-8" if array else "text/event-stream", truth=truth)
    first = iter([b"["])

    def element(what: Any) -> bytes:
        # Google parts the elements with `\n,\r\n` and indents them.
        return next(first, b"\n,\r\n") + json.dumps(what, indent=2).encode()

    script = Script(answer, element if array else sse)
    if asked.case == "tool":
        script.output("text", message([{"text": texts[0]}]))
        script.output("tool", message([call]))
    else:
        for text in texts[:REASONING]:
            script.output("reasoning", message([{"text": text, "thought": True}]))
        for text in texts[REASONING:]:
            script.output("text", message([{"text": text}]))
    if asked.case == "fault":
        error = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
        fault(script, ["UNAVAILABLE", "503"], {"error": error})
    else:
        script.tail(message([{"text": ""}], "STOP", usage))
    if array:
        script.raw(b"\n]\n")
    return answer
