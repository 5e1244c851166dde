"""boto3's bedrock-runtime: Converse and InvokeModel, with and without streams. It has no asynchronous client."""

from __future__ import annotations

import json
from typing import Any

import boto3
from botocore.config import Config
from view import PROMPT, Link, View

SDK = "boto3"
WIRES = {
    "converse": ("stream", "plain", "tool", "error", "cancel", "fault"),
    "invoke": ("stream", "plain", "tool", "error", "cancel", "fault"),
}
HTTP2 = False
PREFIX = "anthropic.claude-"


def client(link: Link, wire: str) -> Any:
    """A client with invented credentials."""
    region = "us-east-1"
    return boto3.client(
        "bedrock-runtime", region_name=region, endpoint_url=link.base(f"bedrock-runtime.{region}.amazonaws.com"),
        aws_access_key_id="AKIARIG", aws_secret_access_key="planted", config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip


async def converse(client: Any, view: View) -> None:
    """`converse` and `converse_stream`."""
    asked = {"modelId": view.model, "messages": [{"role": "user", "content": [{"text": PROMPT}]}]}
    if not view.streaming:
        answer = client.converse(**asked)
        usage = answer["usage"]
        return view.told(None, answer["stopReason"], (usage["inputTokens"], usage["outputTokens"]))
    stream = client.converse_stream(**asked)["stream"]
    for event in stream:
        if "contentBlockStart" in event:
            view.output(event["contentBlockStart"].get("start"))
        elif "contentBlockDelta" in event:
            if view.output(event["contentBlockDelta"]["delta"]):
                return stream.close()
        elif "messageStop" in event:
            view.told(finish=event["messageStop"]["stopReason"])
        elif "metadata" in event:
            usage = event["metadata"]["usage"]
            view.told(tokens=(usage["inputTokens"], usage["outputTokens"]))


async def invoke(client: Any, view: View) -> None:
    """`invoke_model` and `invoke_model_with_response_stream`, in Claude's own form."""
    message = {"role": "user", "content": PROMPT}
    body = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 999, "messages": [message]})
    asked = {"modelId": view.model, "body": body, "contentType": "application/json", "accept": "application/json"}
    if not view.streaming:
        answer = json.loads(client.invoke_model(**asked)["body"].read())
        return view.told(answer["id"], answer["stop_reason"], (total(answer["usage"]), answer["usage"]["output_tokens"]))
    stream = client.invoke_model_with_response_stream(**asked)["body"]
    for frame in stream:
        event = json.loads(frame["chunk"]["bytes"])
        if event["type"] == "message_start":
            view.told(event["message"]["id"])
        elif event["type"] == "content_block_start":
            view.output(event["content_block"].get("name"))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if view.output(any(delta.get(name) for name in ("text", "thinking", "partial_json"))):
                return stream.close()
        elif event["type"] == "message_delta":
            tokens = total(event["usage"]), event["usage"]["output_tokens"]
            view.told(finish=event["delta"]["stop_reason"], tokens=tokens)


def total(usage: dict[str, int]) -> int:
    """All input."""
    return sum(usage[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
