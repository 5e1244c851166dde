"""OpenAI's wires: chat completions (also Azure's and Mistral's), completions, embeddings and Responses."""

from __future__ import annotations

from typing import Any

from .answer import REASONING, TOOL_ARGUMENTS, TOOL_NAME, Answer, Asked, Script, fault, refused, sse, whole

DONE = b"data: [DONE]\n\n"


def error(api: str) -> Answer:
    """Rate limited, as OpenAI says it."""
    told = {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    return refused(api, {"error": told}, ["rate_limit_exceeded", "requests"], headers={"x-request-id": "req_rig"})


def usage(asked: Asked, reasoning: int = 0) -> dict[str, Any]:
    """The usage object of chat and completions."""
    return {
        "prompt_tokens": asked.input_tokens, "completion_tokens": asked.output_tokens,
        "total_tokens": asked.input_tokens + asked.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }  # fmt: skip


def counts(asked: Asked, finish: str, **more: Any) -> dict[str, Any]:
    """What is true of any answer with these counts."""
    return {"input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens, "finish": [finish]} | more


def chat(asked: Asked) -> Answer:
    """`/chat/completions`. Azure's deployments begin with an event of filter results; Mistral pads its chunks."""
    api = "openai.chat_completions"
    if asked.case == "error":
        return error(api)
    azure, mistral = "/deployments/" in asked.path, asked.headers.get("host", "").startswith("api.mistral")
    identity = asked.identity("chatcmpl-")
    shared: dict[str, Any] = {"id": identity, "created": 1790000000, "model": asked.model}
    finish = "tool_calls" if asked.case == "tool" else "stop"
    truth = counts(asked, finish, id=identity)
    if not asked.body.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": "".join(asked.outputs()), "refusal": None}
        if asked.case == "tool":
            call = {"id": "call_rig", "type": "function"}
            call |= {"function": {"name": TOOL_NAME, "arguments": "".join(TOOL_ARGUMENTS)}}
            message |= {"content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return whole(api, shared | {"object": "chat.completion", "choices": [choice], "usage": usage(asked)}, asked, **truth)

    answer = Answer(api, "text/event-stream; charset=utf-8", truth=truth)
    script = Script(answer, sse)
    padding = {"p": "abcdefgh"} if mistral else {}

    def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return shared | {"object": "chat.completion.chunk", "choices": [choice]} | padding | more

    if azure:
        filtered = {"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}
        script.head(shared | {"object": "", "choices": [], "prompt_filter_results": [filtered]})
    script.head(chunk({"role": "assistant", "content": ""}))
    if asked.case == "tool":
        function = {"name": TOOL_NAME, "arguments": "".join(TOOL_ARGUMENTS) if mistral else ""}
        opening = {"index": 0, "id": "call_rig9b", "type": "function", "function": function}
        script.output("tool", chunk({"tool_calls": [opening]}))
        for part in [] if mistral else TOOL_ARGUMENTS:  # Mistral sends the call whole
            script.output("tool", chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}))
    else:
        for word in asked.outputs():
            script.output("text", chunk({"content": word}))
    if asked.case == "fault":
        kind = "server_error"
        return fault(script, [kind], {"error": {"message": "The engine died.", "type": kind, "param": None, "code": None}})
    if mistral:  # its finish chunk carries the usage, asked for or not
        script.tail(chunk({"content": ""}, finish, usage=usage(asked)))
    else:
        script.beside(chunk({}, finish))
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            script.tail(shared | {"object": "chat.completion.chunk", "choices": [], "usage": usage(asked)})
        else:
            answer.truth |= {"input_tokens": None, "output_tokens": None}
    script.raw(DONE)
    return answer


def completions(asked: Asked) -> Answer:
    """`/v1/completions`."""
    api = "openai.completions"
    if asked.case == "error":
        return error(api)
    identity = asked.identity("cmpl-")
    shared = {"id": identity, "object": "text_completion", "created": 1790000000, "model": asked.model}
    truth = counts(asked, "length", id=identity)

    def choice(text: str, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    if not asked.body.get("stream"):
        body = shared | {"choices": [choice("".join(asked.outputs()), "length")], "usage": usage(asked)}
        return whole(api, body, asked, **truth)
    script = Script(Answer(api, "text/event-stream", truth=truth), sse)
    for word in asked.outputs():
        script.output("text", shared | {"choices": [choice(word, None)]})
    script.beside(shared | {"choices": [choice("", "length")]})
    script.tail(shared | {"choices": [], "usage": usage(asked)})
    script.raw(DONE)
    return script.answer


def embeddings(asked: Asked) -> Answer:
    """`/v1/embeddings`: floats, or base64 as the SDKs ask for by themselves."""
    api = "openai.embeddings"
    if asked.case == "error":
        return error(api)
    vector: Any = "AACAPwAAAAAAAIA/" if asked.body.get("encoding_format") == "base64" else [1.0, 0.0, 1.0]
    told = {"prompt_tokens": asked.input_tokens, "total_tokens": asked.input_tokens}
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    body = {"object": "list", "data": data, "model": asked.model, "usage": told}
    return whole(api, body, asked, input_tokens=asked.input_tokens, output_tokens=None, finish=[])


def responses(asked: Asked) -> Answer:
    """`/v1/responses`: a reasoning summary, then text; or a function call."""
    api = "openai.responses"
    if asked.case == "error":
        return error(api)
    identity, tool = asked.identity("resp_"), asked.case == "tool"
    hidden = 0 if tool else 9
    told = {
        "input_tokens": asked.input_tokens, "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": asked.output_tokens, "output_tokens_details": {"reasoning_tokens": hidden},
        "total_tokens": asked.input_tokens + asked.output_tokens,
    }  # fmt: skip
    base = {
        "id": identity, "object": "response", "created_at": 1790000000, "model": asked.model, "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
        "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
    }  # fmt: skip
    thoughts, words = asked.outputs()[:REASONING], asked.outputs()[REASONING:]
    thinking = {"id": "rs_rig", "type": "reasoning", "summary": [{"type": "summary_text", "text": "".join(thoughts)}]}
    part = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
    spoken = {"id": "msg_rig", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    called = {
        "id": "fc_rig", "type": "function_call", "status": "completed", "call_id": "call_rig", "name": TOOL_NAME,
        "arguments": "".join(TOOL_ARGUMENTS),
    }  # fmt: skip
    output = [called] if tool else [thinking, spoken]
    final = base | {"status": "completed", "output": output, "usage": told}
    truth = counts(asked, "completed", id=identity, reasoning_tokens=hidden, summarised=not tool)
    if not asked.body.get("stream"):
        return whole(api, final, asked, **truth)

    serial = iter(range(10_000))

    def frame(kind: str, **more: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(serial)} | more, kind)

    script = Script(Answer(api, "text/event-stream; charset=utf-8", truth=truth), lambda kind, more: frame(kind, **more))
    running = base | {"status": "in_progress", "output": [], "usage": None}
    script.head("response.created", {"response": running})
    script.head("response.in_progress", {"response": running})
    if tool:
        opening = called | {"status": "in_progress", "arguments": ""}
        script.output("tool", "response.output_item.added", {"output_index": 0, "item": opening})
        place = {"item_id": "fc_rig", "output_index": 0}
        for text in TOOL_ARGUMENTS:
            script.output("tool", "response.function_call_arguments.delta", place | {"delta": text})
        done = place | {"arguments": called["arguments"], "name": TOOL_NAME}
        script.beside("response.function_call_arguments.done", done)
        script.beside("response.output_item.done", {"output_index": 0, "item": called})
    else:
        place = {"item_id": "rs_rig", "output_index": 0, "summary_index": 0}
        script.head("response.output_item.added", {"output_index": 0, "item": thinking | {"summary": []}})
        script.head("response.reasoning_summary_part.added", place | {"part": {"type": "summary_text", "text": ""}})
        for text in thoughts:
            script.output("reasoning", "response.reasoning_summary_text.delta", place | {"delta": text})
        script.beside("response.reasoning_summary_text.done", place | {"text": "".join(thoughts)})
        script.beside("response.reasoning_summary_part.done", place | {"part": thinking["summary"][0]})
        script.beside("response.output_item.done", {"output_index": 0, "item": thinking})
        place = {"item_id": "msg_rig", "output_index": 1, "content_index": 0}
        opening = spoken | {"status": "in_progress", "content": []}
        script.beside("response.output_item.added", {"output_index": 1, "item": opening})
        script.beside("response.content_part.added", place | {"part": part | {"text": ""}})
        for text in words:
            delta = {"delta": text, "logprobs": [], "obfuscation": "xyzzyxyzzy"}
            script.output("text", "response.output_text.delta", place | delta)
        if asked.case == "fault":
            told_error = {"code": "server_error", "message": "The engine died."}
            script.beside("error", told_error | {"param": None})
            failed = base | {"status": "failed", "output": [], "usage": None, "error": told_error}
            script.beside("response.failed", {"response": failed})
            script.answer.truth |= {"error_types": ["server_error"], "faulty": True, "finish": None}
            script.answer.truth |= {"input_tokens": None, "output_tokens": None}
            return script.answer
        script.beside("response.output_text.done", place | {"text": part["text"], "logprobs": []})
        script.beside("response.content_part.done", place | {"part": part})
        script.beside("response.output_item.done", {"output_index": 1, "item": spoken})
    script.tail("response.completed", {"response": final})
    return script.answer
