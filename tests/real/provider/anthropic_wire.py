"""Anthropic's messages: thinking, text, tools, pings."""

from __future__ import annotations

from typing import Any

from .answer import HEAD_AT, REASONING, TOOL_ARGUMENTS, TOOL_NAME, Answer, Asked, Piece, Script
from .answer import fault, refused, sse, whole


def events(asked: Asked) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message as it begins, and its final usage. Total input is the sum of three counts."""
    first = {"input_tokens": asked.input_tokens - 13, "cache_creation_input_tokens": 6, "cache_read_input_tokens": 7}
    message = {
        "id": asked.identity("msg_"), "type": "message", "role": "assistant", "model": asked.model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": first | {"output_tokens": 2},
    }  # fmt: skip
    return message, first | {"output_tokens": asked.output_tokens}


def play(script: Script, asked: Asked) -> None:
    """All events of a stream: `script` frames a dictionary with `type`."""
    message, usage = events(asked)
    script.head({"type": "message_start", "message": message})
    if asked.case == "tool":
        block = {"type": "tool_use", "id": "toolu_rig", "name": TOOL_NAME, "input": {}}
        script.output("tool", {"type": "content_block_start", "index": 0, "content_block": block})
        script.beside(delta(0, {"type": "input_json_delta", "partial_json": ""}))
        for part in TOOL_ARGUMENTS:
            script.output("tool", delta(0, {"type": "input_json_delta", "partial_json": part}))
        script.beside({"type": "content_block_stop", "index": 0})
    else:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        script.head({"type": "content_block_start", "index": 0, "content_block": block})
        for text in asked.outputs()[:REASONING]:
            script.output("reasoning", delta(0, {"type": "thinking_delta", "thinking": text}))
        script.beside(delta(0, {"type": "signature_delta", "signature": "c2lnbmVk"}))
        script.beside({"type": "content_block_stop", "index": 0})
        block = {"type": "text", "text": ""}
        script.beside({"type": "content_block_start", "index": 1, "content_block": block})
        for text in asked.outputs()[REASONING:]:
            script.output("text", delta(1, {"type": "text_delta", "text": text}))
        if asked.case == "fault":
            return
        script.beside({"type": "content_block_stop", "index": 1})
    reason = {"stop_reason": "tool_use" if asked.case == "tool" else "end_turn", "stop_sequence": None}
    script.tail({"type": "message_delta", "delta": reason, "usage": usage})
    script.beside({"type": "message_stop"})


def delta(index: int, what: dict[str, Any]) -> dict[str, Any]:
    """A `content_block_delta`."""
    return {"type": "content_block_delta", "index": index, "delta": what}


def body(asked: Asked) -> dict[str, Any]:
    """The message in one piece."""
    message, usage = events(asked)
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(asked.outputs())}]
    if asked.case == "tool":
        content = [{"type": "tool_use", "id": "toolu_rig", "name": TOOL_NAME, "input": {"harbour": "North", "hour": 17}}]
    reason = "tool_use" if asked.case == "tool" else "end_turn"
    return message | {"content": content, "stop_reason": reason, "usage": usage}


def truth(asked: Asked) -> dict[str, Any]:
    """What is true of either form."""
    reason = "tool_use" if asked.case == "tool" else "end_turn"
    return {
        "id": asked.identity("msg_"), "finish": [reason], "input_tokens": asked.input_tokens,
        "output_tokens": asked.output_tokens,
    }  # fmt: skip


def messages(asked: Asked) -> Answer:
    """`/v1/messages`."""
    api = "anthropic.messages"
    if asked.case == "error":
        kind = "rate_limit_error"
        told = {"type": "error", "error": {"type": kind, "message": "Slow down."}, "request_id": "req_rig"}
        return refused(api, told, [kind])
    if not asked.body.get("stream"):
        return whole(api, body(asked), asked, **truth(asked))
    answer = Answer(api, "text/event-stream; charset=utf-8", truth=truth(asked))
    script = Script(answer, lambda message: sse(message, message["type"]))
    play(script, asked)
    answer.pieces.insert(1, Piece(sse({"type": "ping"}, "ping"), HEAD_AT, None, 0))
    if asked.case == "fault":
        kind = "overloaded_error"
        # The input's count came with message_start, before the fault: it may be given or not.
        return fault(script, [kind], {"type": "error", "error": {"type": kind, "message": "Overloaded"}})
    return answer
