"""The openai SDK against a LiteLLM proxy, which asks OpenAI for some models and Anthropic for others."""

from __future__ import annotations

from typing import Any

import openai
from openai_calls import chat
from view import API_KEY, Link

SDK = "openai-litellm"
WIRES = {
    "chat": ("stream", "plain", "tool", "error", "cancel"),
    "claude": ("stream", "plain", "tool", "error", "cancel"),
}
claude = chat


def client(link: Link, wire: str) -> Any:
    """A client of the mode that is asked for."""
    kind = link.pick(openai.OpenAI, openai.AsyncOpenAI)
    return kind(base_url=link.base("litellm.rig.test") + "/v1", api_key=API_KEY, max_retries=0)
