"""OpenAI's Realtime API: messages of a WebSocket, one inference per `response.create`."""

from __future__ import annotations

import json
from typing import Any

from .answer import Answer, Asked, Script


def event(kind: str, more: dict[str, Any]) -> bytes:
    """A server event, as a text message."""
    return json.dumps({"type": kind, "event_id": "event_rig"} | more).encode()


def session(asked: Asked) -> bytes:
    """What the server says first."""
    told = {"type": "realtime", "object": "realtime.session", "id": "sess_rig", "model": asked.model}
    return event("session.created", {"session": told | {"output_modalities": ["text"]}})


def turn(asked: Asked, number: int) -> Answer:
    """The events after a `response.create`."""
    identity = f"{asked.identity('resp_')}{number}"
    base = {"object": "realtime.response", "id": identity, "status": "in_progress", "output": [], "usage": None}
    texts = asked.outputs()
    usage = {
        "total_tokens": asked.input_tokens + asked.output_tokens, "input_tokens": asked.input_tokens,
        "output_tokens": asked.output_tokens,
        "input_token_details": {"text_tokens": asked.input_tokens, "audio_tokens": 0, "cached_tokens": 0},
        "output_token_details": {"text_tokens": asked.output_tokens, "audio_tokens": 0},
    }  # fmt: skip
    truth = {
        "id": identity, "finish": ["completed"], "input_tokens": asked.input_tokens,
        "output_tokens": asked.output_tokens, "model_in_response": False,
    }  # fmt: skip
    script = Script(Answer("openai.realtime", "", truth=truth), event)
    place = {"response_id": identity, "item_id": "item_rig", "output_index": 0, "content_index": 0}
    item = {"id": "item_rig", "object": "realtime.item", "type": "message", "role": "assistant", "content": []}
    script.head("response.created", {"response": base})
    added = {"response_id": identity, "output_index": 0, "item": item | {"status": "in_progress"}}
    script.head("response.output_item.added", added)
    script.head("response.content_part.added", place | {"part": {"type": "text", "text": ""}})
    for text in texts:
        script.output("text", "response.output_text.delta", place | {"delta": text})
    script.beside("response.output_text.done", place | {"text": "".join(texts)})
    script.beside("response.content_part.done", place | {"part": {"type": "text", "text": "".join(texts)}})
    spoken = item | {"status": "completed", "content": [{"type": "output_text", "text": "".join(texts)}]}
    script.beside("response.output_item.done", {"response_id": identity, "output_index": 0, "item": spoken})
    final = base | {"status": "completed", "output": [spoken], "usage": usage}
    script.tail("response.done", {"response": final})
    return script.answer
