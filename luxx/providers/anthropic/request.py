"""The Anthropic dialect's requests: the POST for one completion, and the GET that lists models.

Messages become turns in `anthropic_turns.py`; what differs by model is in `anthropic_models.py`.
"""

import re
from typing import Any, cast

import msgspec

from luxx.providers.adapter import CompletionRequest, Target, UpstreamRequest
from luxx.providers.anthropic.turns import (
    HISTORY_TOOL,
    begins_with_thinking,
    called_tools,
    system_text,
    turns_of,
)
from luxx.providers.catalog import Catalog
from luxx.wire.tool import ToolSpec

MIN_BUDGET = 1024
"""The least the API takes."""

MAX_BUDGET = 16_000
"""More thinking than this is seldom worth its time, and long answers need the rest."""

ADAPTIVE = (4, 6)
"""From this version on a model decides itself how much to think; others are given a budget of tokens."""

_FAMILY = re.compile(r"(opus|sonnet|haiku)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_OLD_NAME = re.compile(r"claude-(\d)(?:[-.](\d))?(?:-|$)")
_ALWAYS_NEW = re.compile(r"fable|mythos")


def version_of(model: str) -> tuple[str, int, int]:
    """Family and version; what is not known by its name counts as old, for it takes the fewest switches."""
    name = model.lower()
    if named := _ALWAYS_NEW.search(name):
        return named.group(), 5, 0
    if found := _FAMILY.search(name):
        return found.group(1), int(found.group(2)), int(found.group(3) or 0)
    if found := _OLD_NAME.search(name):
        return "", int(found.group(1)), int(found.group(2) or 0)
    return "", 0, 0


def takes_temperature(model: str) -> bool:
    """Since Opus 4.7, and in all of the fifth generation, any but the default is an error."""
    family, *version = version_of(model)
    return tuple(version) < ((4, 7) if family == "opus" else (5, 0))


def thinking_switch(model: str, *, wanted: bool, max_tokens: int) -> dict[str, Any]:
    """The request's `thinking`, or nothing where the model's own way is what is wanted.

    Thinking is left off where `max_tokens` leaves no room for it.
    """
    if not wanted:
        off = _OFF.get(version_of(model))
        return {"thinking": {"type": off}} if off else {}
    version = version_of(model)[1:]
    if (0, 0) < version < (3, 7):
        return {}  # these do not think
    if version >= ADAPTIVE:
        # Otherwise the newer models send their thinking blocks empty.
        return {"thinking": {"type": "adaptive", "display": "summarized"}}
    budget = min(MAX_BUDGET, max(MIN_BUDGET, max_tokens // 2))
    if budget >= max_tokens:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


_OFF = {("opus", 5, 0): "disabled", ("sonnet", 5, 0): "disabled", ("sonnet", 5, 5): "between_tools"}
"""Models that think unless told otherwise, and can be told; the rest either do not, or cannot be stopped."""


_KEPT = frozenset({"type", "enum", "const", "title", "required", "default", "$ref"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)


def strict_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with closed objects and without limits; those go into the description."""
    strict: dict[str, Any] = {name: value for name, value in schema.items() if name in _KEPT}
    if "$ref" in strict:
        return {"$ref": strict["$ref"], **_definitions(schema)}
    left = {name: value for name, value in schema.items() if name not in _KEPT | _READ}
    for name, as_name in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(schema.get(name), list):
            strict[as_name] = [strict_schema(one) for one in _objects(schema[name])]
    if schema.get("type") == "object" or "properties" in schema:
        strict["type"] = "object"
        strict["properties"] = _each(schema.get("properties"))
        strict["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        strict["items"] = strict_schema(schema["items"])
    if schema.get("format") in _FORMATS:
        strict["format"] = schema["format"]
    elif "format" in schema:
        left["format"] = schema["format"]
    if schema.get("minItems") in (0, 1):
        strict["minItems"] = schema["minItems"]
    elif "minItems" in schema:
        left["minItems"] = schema["minItems"]
    said = [str(schema["description"])] if schema.get("description") else []
    if left:
        said.append(msgspec.json.encode(left).decode())
    if said:
        strict["description"] = "\n\n".join(said)
    return {**strict, **_definitions(schema)}


_READ = frozenset(
    {
        "$defs",
        "$schema",
        "additionalProperties",
        "allOf",
        "anyOf",
        "definitions",
        "description",
        "format",
        "items",
        "minItems",
        "oneOf",
        "properties",
    }
)


def _definitions(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: _each(schema[name]) for name in ("$defs", "definitions") if name in schema}


def _each(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    fields = cast("dict[str, Any]", value)
    return {
        name: strict_schema(cast("dict[str, Any]", one))
        for name, one in fields.items()
        if isinstance(one, dict)
    }


def _objects(value: list[Any]) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", one) for one in value if isinstance(one, dict)]


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
