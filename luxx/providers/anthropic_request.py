"""The Anthropic dialect's requests: the POST for one completion, and the GET that lists models.

Messages become turns in `anthropic_turns.py`; what differs by model is in `anthropic_models.py`.
"""

from typing import Any

import msgspec

from luxx.providers.adapter import CompletionRequest, Target, UpstreamRequest
from luxx.providers.anthropic_models import takes_temperature, thinking_switch
from luxx.providers.anthropic_schema import strict_schema
from luxx.providers.anthropic_turns import (
    HISTORY_TOOL,
    begins_with_thinking,
    called_tools,
    system_text,
    turns_of,
)
from luxx.providers.catalog import Catalog
from luxx.wire.tool import ToolSpec

API_VERSION = "2023-06-01"
"""The one that every server of this dialect knows; what it lacks is not used here."""

MOST_MODELS_A_PAGE = 1000


def build_message_request(request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest:
    """The POST for one completion; `base_url` may end in `/v1`, or not."""
    card = Catalog().find(request.model)
    max_tokens = request.max_tokens or card.max_output
    turns = turns_of(request.messages, request.model)
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": max_tokens,
        "messages": turns,
        "stream": stream,
    }
    system = system_text(request.messages)
    body |= thinking_switch(request.model, wanted=request.thinking_enabled, max_tokens=max_tokens)
    if "budget_tokens" in body.get("thinking", {}) and not begins_with_thinking(turns):
        # A turn that called tools without thinking cannot be gone on with thinking.
        del body["thinking"]
    if request.temperature is not None and "thinking" not in body and takes_temperature(request.model):
        body["temperature"] = min(request.temperature, 1.0)
    body |= _tools(request.tools, turns)
    if request.response_schema is not None:
        if card.structured:
            schema = strict_schema(request.response_schema)
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        else:
            asked = msgspec.json.encode(request.response_schema).decode()
            wish = f"Answer with JSON alone, of this schema: {asked}"
            system = f"{system}\n\n{wish}" if system else wish
    if system:
        body["system"] = system
    accept = "text/event-stream" if stream else "application/json"
    return UpstreamRequest(
        url=endpoint(target.base_url, "messages"),
        headers={**_headers(target), "content-type": "application/json", "accept": accept},
        body=msgspec.json.encode(body),
    )


def build_models_request(target: Target, *, after: str = "") -> UpstreamRequest:
    """The first page of the list, or the one after the query's `after_id`."""
    return UpstreamRequest(
        url=f"{endpoint(target.base_url, 'models')}?limit={MOST_MODELS_A_PAGE}{after}",
        headers={**_headers(target), "accept": "application/json"},
        body=b"",
    )


def endpoint(base_url: str, path: str) -> str:
    """`base_url` with the path, also when the base was pasted with `/v1` or `/v1/messages` at its end."""
    base = base_url.strip().rstrip("/").removesuffix("/messages").rstrip("/").removesuffix("/v1")
    return f"{base.rstrip('/')}/v1/{path}"


def _headers(target: Target) -> dict[str, str]:
    key = {"x-api-key": target.api_key} if target.api_key else {}
    return {**key, "anthropic-version": API_VERSION}


def _tools(offered: list[ToolSpec], turns: list[dict[str, Any]]) -> dict[str, Any]:
    if offered:
        return {"tools": [_tool(tool) for tool in offered]}
    called = called_tools(turns)
    if not called:
        return {}
    # Calls in the history need tools to be named, and none may be called now.
    tools = [{"name": name, "description": HISTORY_TOOL, "input_schema": _ANY_OBJECT} for name in called]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


_ANY_OBJECT: dict[str, Any] = {"type": "object"}
