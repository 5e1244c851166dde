"""Ollama's chat, generate and embed: lines of JSON; streaming unless the request says no."""

from __future__ import annotations

import datetime
from typing import Any

from .answer import PLAIN_AT, REASONING, TOOL_NAME, Answer, Asked, Script, line, refused, whole


def error(api: str) -> Answer:
    """Busy: a sentence is all it says."""
    return refused(api, {"error": "server busy, please try again."}, [])


def answer_of(asked: Asked, api: str, part: Any, tool: Any = None) -> Answer:
    """Either form of either call: `part` makes what a line carries of a text and of reasoning."""
    if asked.case == "error":
        return error(api)
    now = datetime.datetime.now(datetime.UTC).isoformat()
    shared = {"model": asked.model, "created_at": now}
    final = {
        "done": True, "done_reason": "stop", "total_duration": int(PLAIN_AT * 1e9), "load_duration": 10_000_000,
        "prompt_eval_count": asked.input_tokens, "prompt_eval_duration": 50_000_000, "eval_count": asked.output_tokens,
        "eval_duration": 240_000_000,
    }  # fmt: skip
    truth = {
        "id": None, "finish": ["stop"], "input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens,
    }  # fmt: skip
    texts = asked.outputs()
    called = tool if asked.case == "tool" else None
    if asked.body.get("stream") is False:
        return whole(api, shared | (called or part("".join(texts), "")) | final, asked, **truth)
    script = Script(Answer(api, "application/x-ndjson", truth=truth), line)
    for text in texts[:REASONING]:
        script.output("reasoning", shared | part("", text) | {"done": False})
    if called:
        script.output("tool", shared | called | {"done": False})
    else:
        for text in texts[REASONING:]:
            script.output("text", shared | part(text, "") | {"done": False})
    if asked.case == "fault":
        script.beside({"error": "an error was encountered while running the model"})
        script.answer.truth |= {"error_types": [], "faulty": True, "finish": []}
        script.answer.truth |= {"input_tokens": None, "output_tokens": None}
        return script.answer
    script.tail(shared | part("", "") | final)
    return script.answer


def chat(asked: Asked) -> Answer:
    """`/api/chat`."""

    def part(text: str, thinking: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text} | ({"thinking": thinking} if thinking else {})}

    calls = [{"function": {"name": TOOL_NAME, "arguments": {"harbour": "North", "hour": 17}}}]
    tool = {"message": {"role": "assistant", "content": "", "tool_calls": calls}}
    return answer_of(asked, "ollama.chat", part, tool)


def generate(asked: Asked) -> Answer:
    """`/api/generate`."""
    return answer_of(asked, "ollama.generate", lambda text, more: {"response": text} | ({"thinking": more} if more else {}))


def embed(asked: Asked) -> Answer:
    """`/api/embed`."""
    body = {
        "model": asked.model, "embeddings": [[1.0, 0.0, 1.0]], "total_duration": 14_000_000, "load_duration": 1_000_000,
        "prompt_eval_count": asked.input_tokens,
    }  # fmt: skip
    return whole("ollama.embed", body, asked, input_tokens=asked.input_tokens, output_tokens=None, finish=[])
