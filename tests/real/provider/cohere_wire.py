"""Cohere's chat, version 1 (lines of JSON) and 2 (server-sent events), and its embeddings."""

from __future__ import annotations

from typing import Any

from .answer import REASONING, TOOL_ARGUMENTS, TOOL_NAME, Answer, Asked, Script, line, refused, sse, whole


def error(api: str) -> Answer:
    """Too many requests: no type, only a message."""
    return refused(api, {"id": "rig", "message": "You are using a trial key."}, [])


def chat_v2(asked: Asked) -> Answer:
    """`/v2/chat`."""
    api = "cohere.chat_v2"
    if asked.case == "error":
        return error(api)
    identity, tool = asked.identity("c2-"), asked.case == "tool"
    counts = {"input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens}
    usage = {"billed_units": counts, "tokens": {"input_tokens": asked.input_tokens + 400, "output_tokens": asked.output_tokens}}
    finish = "TOOL_CALL" if tool else "COMPLETE"
    truth = {"id": identity, "finish": [finish], "model_in_response": False} | counts
    texts = asked.outputs()
    function = {"name": TOOL_NAME, "arguments": "".join(TOOL_ARGUMENTS)}
    if not asked.body.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": "".join(texts)}]}
        if tool:
            calls = [{"id": "tide_rig", "type": "function", "function": function}]
            message = {"role": "assistant", "tool_plan": "I look it up.", "tool_calls": calls}
        return whole(api, {"id": identity, "finish_reason": finish, "message": message, "usage": usage}, asked, **truth)

    script = Script(Answer(api, "text/event-stream", truth=truth), lambda kind, more: sse({"type": kind} | more, kind))

    def message_of(kind: str, what: Any) -> dict[str, Any]:
        return {"delta": {"message": {kind: what}}}

    opening = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    script.head("message-start", {"id": identity, "delta": {"message": opening}})
    if tool:
        for text in texts[:REASONING]:
            script.output("text", "tool-plan-delta", message_of("tool_plan", text))
        start = {"id": "tide_rig", "type": "function", "function": {"name": TOOL_NAME, "arguments": ""}}
        script.output("tool", "tool-call-start", {"index": 0} | message_of("tool_calls", start))
        for part in TOOL_ARGUMENTS:
            delta = {"index": 0} | message_of("tool_calls", {"function": {"arguments": part}})
            script.output("tool", "tool-call-delta", delta)
        script.beside("tool-call-end", {"index": 0})
    else:
        script.head("content-start", {"index": 0} | message_of("content", {"type": "thinking", "thinking": ""}))
        for text in texts[:REASONING]:
            script.output("reasoning", "content-delta", {"index": 0} | message_of("content", {"thinking": text}))
        script.beside("content-end", {"index": 0})
        script.beside("content-start", {"index": 1} | message_of("content", {"type": "text", "text": ""}))
        for text in texts[REASONING:]:
            script.output("text", "content-delta", {"index": 1} | message_of("content", {"text": text}))
        if asked.case == "fault":
            end = {"finish_reason": "ERROR", "error": "The engine died.", "error_type": "internal", "usage": {}}
            script.beside("message-end", {"delta": end})
            script.answer.truth |= {"error_types": ["internal"], "faulty": True, "finish": ["ERROR"]}
            script.answer.truth |= {"input_tokens": None, "output_tokens": None}
            return script.answer
        script.beside("content-end", {"index": 1})
    script.tail("message-end", {"delta": {"finish_reason": finish, "usage": usage}})
    script.raw(b"data: [DONE]\n\n")
    return script.answer


def chat_v1(asked: Asked) -> Answer:
    """`/v1/chat`; the end repeats the whole text."""
    api = "cohere.chat_v1"
    if asked.case == "error":
        return error(api)
    identity, texts = asked.identity("c1-"), asked.outputs()
    counts = {"input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens}
    meta = {"api_version": {"version": "1"}, "billed_units": counts, "tokens": counts}
    final = {
        "response_id": f"r-{identity}", "generation_id": identity, "text": "".join(texts), "finish_reason": "COMPLETE",
        "chat_history": [], "meta": meta,
    }  # fmt: skip
    truth = {"id": identity, "finish": ["COMPLETE"], "model_in_response": False} | counts
    if not asked.body.get("stream"):
        return whole(api, final, asked, **truth)
    script = Script(Answer(api, "application/stream+json", truth=truth), line)
    script.head({"is_finished": False, "event_type": "stream-start", "generation_id": identity})
    for text in texts:
        script.output("text", {"is_finished": False, "event_type": "text-generation", "text": text})
    end = {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE", "response": final}
    script.tail(end)
    return script.answer


def embed(asked: Asked) -> Answer:
    """`/v2/embed`."""
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": asked.input_tokens}}
    body = {
        "id": asked.identity("ce-"), "embeddings": {"float": [[1.0, 0.0, 1.0]]}, "texts": ["x"], "meta": meta,
        "response_type": "embeddings_by_type",
    }  # fmt: skip
    truth = {"id": body["id"], "input_tokens": asked.input_tokens, "output_tokens": None, "finish": []}
    truth |= {"model_in_response": False}
    return whole("cohere.embed", body, asked, **truth)
