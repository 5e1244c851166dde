"""Bedrock's Converse and InvokeModel: AWS event-stream frames with their checksums, or JSON."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from . import anthropic_wire
from .answer import HEAD_AT, REASONING, TOOL_ARGUMENTS, TOOL_NAME, Answer, Asked, Script, refused, whole

CONTENT_TYPE = "application/vnd.amazon.eventstream"
PADDING = "abcdefghijklmnopqrstuvwxyzABCD"


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One message: lengths, CRC32 of them, headers (all strings), payload, CRC32 of everything before."""
    heads = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(heads) + len(payload), len(heads))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    message = prelude + heads + payload
    return message + struct.pack("!I", zlib.crc32(message))


def event(name: str, payload: Any) -> bytes:
    """An event; Bedrock pads each payload."""
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(payload | {"p": PADDING}, separators=(",", ":")).encode())


def exception(name: str, message: str) -> bytes:
    """An exception inside a stream."""
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({"message": message}).encode())


def error(api: str) -> Answer:
    """Throttled: the class stands in a header."""
    headers = {"x-amzn-errortype": "ThrottlingException"}
    return refused(api, {"message": "Too many requests."}, ["ThrottlingException"], headers=headers)


def converse(asked: Asked) -> Answer:
    """`/model/{m}/converse` and `/converse-stream`."""
    api = "bedrock.converse"
    if asked.case == "error":
        return error(api)
    tool = asked.case == "tool"
    usage = {
        "inputTokens": asked.input_tokens, "outputTokens": asked.output_tokens,
        "totalTokens": asked.input_tokens + asked.output_tokens,
    }  # fmt: skip
    reason = "tool_use" if tool else "end_turn"
    truth = {
        "id": None, "finish": [reason], "input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens,
        "model_in_response": False,
    }  # fmt: skip
    texts = asked.outputs()
    if not asked.path.endswith("-stream"):
        content: list[Any] = [{"text": "".join(texts)}]
        if tool:
            content = [{"toolUse": {"toolUseId": "tooluse_rig", "name": TOOL_NAME, "input": {"harbour": "North"}}}]
        body = {
            "output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason, "usage": usage,
            "metrics": {"latencyMs": 300},
        }  # fmt: skip
        return whole(api, body, asked, **truth)

    script = Script(Answer(api, CONTENT_TYPE, truth=truth), event)
    script.head("messageStart", {"role": "assistant"})
    if tool:
        opening = {"toolUse": {"toolUseId": "tooluse_rig", "name": TOOL_NAME}}
        script.output("tool", "contentBlockStart", {"contentBlockIndex": 0, "start": opening})
        for part in TOOL_ARGUMENTS:
            delta = {"contentBlockIndex": 0, "delta": {"toolUse": {"input": part}}}
            script.output("tool", "contentBlockDelta", delta)
    else:
        for text in texts[:REASONING]:
            delta = {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": text}}}
            script.output("reasoning", "contentBlockDelta", delta)
        script.beside("contentBlockStop", {"contentBlockIndex": 0})
        for text in texts[REASONING:]:
            script.output("text", "contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": text}})
    if asked.case == "fault":
        return excepted(script)
    script.beside("contentBlockStop", {"contentBlockIndex": 0 if tool else 1})
    script.beside("messageStop", {"stopReason": reason})
    script.tail("metadata", {"usage": usage, "metrics": {"latencyMs": 700}})
    return script.answer


def excepted(script: Script) -> Answer:
    """An exception frame, and the end."""
    script.raw(exception("modelStreamErrorException", "The model died."))
    script.answer.pieces[-1].events = 1
    script.answer.truth |= {"error_types": ["modelStreamErrorException"], "faulty": True, "finish": []}
    script.answer.truth |= {"input_tokens": None, "output_tokens": None}
    return script.answer


def invoke(asked: Asked) -> Answer:
    """`/model/{m}/invoke` and `/invoke-with-response-stream`: Claude's messages, inside `chunk` frames."""
    api = "bedrock.invoke"
    if asked.case == "error":
        return error(api)
    truth = anthropic_wire.truth(asked)
    if not asked.path.endswith("-stream"):
        answer = whole(api, anthropic_wire.body(asked), asked, **truth)
        counts = {"input-token-count": asked.input_tokens, "output-token-count": asked.output_tokens}
        answer.headers |= {f"x-amzn-bedrock-{name}": str(count) for name, count in counts.items()}
        return answer

    def chunk(message: dict[str, Any]) -> bytes:
        if message["type"] == "message_stop":
            message = message | {"amazon-bedrock-invocationMetrics": metrics}
        inner = json.dumps(message, separators=(",", ":")).encode()
        return event("chunk", {"bytes": base64.b64encode(inner).decode()})

    metrics = {
        "inputTokenCount": asked.input_tokens, "outputTokenCount": asked.output_tokens, "invocationLatency": 700,
        "firstByteLatency": int(HEAD_AT * 1000),
    }  # fmt: skip
    script = Script(Answer(api, CONTENT_TYPE, truth=truth, headers={"x-amzn-bedrock-content-type": "application/json"}), chunk)
    anthropic_wire.play(script, asked)
    if asked.case == "fault":
        return excepted(script)
    return script.answer
