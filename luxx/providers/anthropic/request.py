"""Builds requests of the Anthropic dialect: options by model version, strict schemas, the POST and the GET.

`turns.py` converts the messages.
"""

import re
from typing import Any, cast

import msgspec

from luxx.providers.adapter import (
    CACHE_MARK,
    CompletionRequest,
    Target,
    UpstreamRequest,
    get_request,
    origin_of,
    post_request,
)
from luxx.providers.anthropic.turns import (
    HISTORY_TOOL_DESCRIPTION,
    build_messages,
    called_tools,
    system_text,
    user_blocks,
)
from luxx.providers.catalog import Catalog, ModelCard
from luxx.providers.demanded_forms import schema_instruction, takes_schema, with_demanded_roles
from luxx.providers.parsing import json_objects
from luxx.wire.message import UserPrompt
from luxx.wire.model_settings import ReasoningEffort
from luxx.wire.tool import ToolChoiceMode, ToolSpec

MIN_BUDGET = 1024
"""The least that the API accepts."""

MAX_BUDGET = 16_000
"""More thinking is seldom worth its time, and long completions need the remaining tokens."""

BUDGETS = {ReasoningEffort.LOW: 2_000, ReasoningEffort.MEDIUM: 8_000, ReasoningEffort.HIGH: MAX_BUDGET}
"""The most tokens of thinking of a model that takes a budget in place of an effort."""

ADAPTIVE = (4, 6)
"""From this version on, a model decides itself how much to think; older ones need a token budget."""

_FAMILY = re.compile(r"(opus|sonnet|haiku)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_OLD_NAME = re.compile(r"claude-(\d)(?:[-.](\d))?(?:-|$)")
_ANTHROPIC = re.compile(r"claude|anthropic\.com|fable|mythos")
_NEWEST_FAMILY = re.compile(r"fable|mythos")


def version_of(model: str) -> tuple[str, int, int]:
    """Family and version. An unknown name counts as version 0.0, which takes the fewest options."""
    name = model.lower()
    if match := _NEWEST_FAMILY.search(name):
        return match.group(), 5, 0
    if match := _FAMILY.search(name):
        return match.group(1), int(match.group(2)), int(match.group(3) or 0)
    if match := _OLD_NAME.search(name):
        return "", int(match.group(1)), int(match.group(2) or 0)
    return "", 0, 0


def is_stop_of_anthropic(text: str) -> bool:
    """Whether the API takes the stop: it refuses those of whitespace."""
    return bool(text.strip())


def takes_temperature(model: str) -> bool:
    """False for Opus from 4.7 and for version 5: these reject any temperature but the default."""
    family, *version = version_of(model)
    return tuple(version) < ((4, 7) if family == "opus" else (5, 0))


def thinking_switch(request: CompletionRequest, max_tokens: int) -> dict[str, Any]:
    """The options of thinking; empty if the model's default is wanted.

    Thinking stays off if `max_tokens` is too small for it.
    """
    model, effort = request.model, request.reasoning_effort
    if not request.thinking_enabled:
        off = _THINKING_OFF.get(version_of(model))
        return {"thinking": {"type": off}} if off else {}
    version = version_of(model)[1:]
    if (0, 0) < version < (3, 7):
        return {}  # These models cannot think.
    if version >= ADAPTIVE:
        # Without `display`, newer models send empty thinking blocks.
        adaptive = {"thinking": {"type": "adaptive", "display": "summarized"}}
        return adaptive if effort is None else {**adaptive, "output_config": {"effort": effort.value}}
    most = MAX_BUDGET if effort is None else BUDGETS[effort]
    budget = min(most, max(MIN_BUDGET, max_tokens // 2))
    if budget >= max_tokens:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


_THINKING_OFF = {("opus", 5, 0): "disabled", ("sonnet", 5, 0): "disabled", ("sonnet", 5, 5): "between_tools"}
"""Models that think by default and can be switched off; the others do not think or cannot be switched off."""


_SUPPORTED_KEYS = frozenset({"type", "enum", "const", "title", "required", "default", "$ref"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)


def is_closed(schema: object) -> bool:
    """Whether the API's form of a schema, see `strict_schema`, allows all that the schema allows.

    The API accepts only objects that allow no further properties, so each must say that itself.
    """
    if not isinstance(schema, dict):
        return False
    fields = cast("dict[str, Any]", schema)
    kinds = fields.get("type")
    is_object = "object" in (cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds])
    if is_object and (fields.get("additionalProperties") is not False or fields.get("patternProperties")):
        return False
    if not is_object and "properties" in fields:
        return False
    if not fields.keys() & {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}:
        return False
    inner: list[object] = [fields["items"]] if isinstance(fields.get("items"), dict) else []
    for name in ("anyOf", "oneOf", "allOf"):
        options = fields.get(name)
        inner += cast("list[object]", options) if isinstance(options, list) else []
    for name in ("properties", "$defs", "definitions"):
        named = fields.get(name)
        inner += cast("dict[str, object]", named).values() if isinstance(named, dict) else []
    return all(is_closed(each) for each in inner)


def strict_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of closed objects without unsupported keys, which move into the description."""
    strict: dict[str, Any] = {name: value for name, value in schema.items() if name in _SUPPORTED_KEYS}
    if "$ref" in strict:
        return {"$ref": strict["$ref"], **_definitions(schema)}
    unsupported = {
        name: value for name, value in schema.items() if name not in _SUPPORTED_KEYS | _CONVERTED_KEYS
    }
    for name, as_name in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(schema.get(name), list):
            strict[as_name] = [strict_schema(option) for option in json_objects(schema[name])]
    if "object" in str(schema.get("type")):
        strict["properties"] = _strict_each(schema.get("properties"))
        strict["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        strict["items"] = strict_schema(schema["items"])
    if schema.get("format") in _FORMATS:
        strict["format"] = schema["format"]
    elif "format" in schema:
        unsupported["format"] = schema["format"]
    if schema.get("minItems") in (0, 1):
        strict["minItems"] = schema["minItems"]
    elif "minItems" in schema:
        unsupported["minItems"] = schema["minItems"]
    descriptions = [str(schema["description"])] if schema.get("description") else []
    if unsupported:
        descriptions.append(msgspec.json.encode(unsupported).decode())
    if descriptions:
        strict["description"] = "\n\n".join(descriptions)
    return {**strict, **_definitions(schema)}


_CONVERTED_KEYS = frozenset(
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
    return {name: _strict_each(schema[name]) for name in ("$defs", "definitions") if name in schema}


def _strict_each(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    fields = cast("dict[str, Any]", value)
    return {
        name: strict_schema(cast("dict[str, Any]", schema))
        for name, schema in fields.items()
        if isinstance(schema, dict)
    }


API_VERSION = "2023-06-01"
"""The version that every server of this dialect supports; newer features are not used."""

MODELS_PER_PAGE = 1000


def build_message_request(request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest:
    """The POST for one completion; `base_url` with or without `/v1`."""
    card = Catalog().find(request.model)
    max_tokens = request.max_tokens or card.max_output
    # Models of other vendors do not sign their thinking, and some require it; Anthropic's refuse it unsigned.
    takes_unsigned = not _ANTHROPIC.search(f"{request.model} {target.base_url}".lower())
    messages = with_demanded_roles(request.messages, request.adaptations)
    origin = origin_of(request.model, target)
    built = build_messages(messages, request.model, origin, takes_unsigned=takes_unsigned)
    request_messages = built.joined
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": max_tokens,
        "messages": request_messages,
        "stream": stream,
    }
    system = system_text(messages)
    body |= thinking_switch(request, max_tokens)
    if "budget_tokens" in body.get("thinking", {}) and not built.begins_with_thinking:
        # The API rejects thinking in a turn whose earlier tool calls were made without it.
        del body["thinking"]
    if _is_tool_forced(request):
        # The API rejects thinking together with a forced tool.
        body.pop("thinking", None)
    if stops := [text for text in request.stop if is_stop_of_anthropic(text)]:
        body["stop_sequences"] = stops
    if request.temperature is not None and "thinking" not in body and takes_temperature(request.model):
        body["temperature"] = min(request.temperature, 1.0)
    body |= _tools(request, request_messages)
    answer_format, instruction = _answer_format(request, card)
    if answer_format:
        body["output_config"] = body.get("output_config", {}) | answer_format
    system = "\n\n".join(text for text in (system, instruction) if text)
    if system:
        body["system"] = system
    if request.caches_prompt:
        _mark_cached_prefixes(body, _tail_blocks(request))
    return post_request(endpoint(target.base_url, "messages"), _headers(target), body, stream=stream)


def _answer_format(request: CompletionRequest, card: ModelCard) -> tuple[dict[str, Any], str]:
    """The output options that demand the schema, and the sentence for what they do not say."""
    schema = request.response_schema
    if schema is None:
        return {}, ""
    may_take = (card.structured or card.is_unknown) and takes_schema(request)
    if not may_take or not is_closed(schema):
        return {}, schema_instruction(schema)
    field = {"format": {"type": "json_schema", "schema": strict_schema(schema)}}
    # A server that does not know the field may ignore it.
    return field, schema_instruction(schema) if card.is_unknown else ""


def _tail_blocks(request: CompletionRequest) -> int:
    """How many content blocks the messages of the tail are, which are merged with those before them."""
    tail = request.messages[len(request.messages) - request.tail :]
    return sum(len(user_blocks(each)) for each in tail if isinstance(each, UserPrompt))


def _mark_cached_prefixes(body: dict[str, Any], tail: int) -> None:
    """Marks up to four places to which the API caches the prompt: tools, system, and twice in the messages.

    The mark at the last user message caches the whole prompt. The one before it stands where the request
    before ended: the API looks for a cached prefix only in the 20 blocks before a mark. Later requests do not
    have the last `tail` blocks, so the mark stands before them.
    """
    if tools := body.get("tools"):
        tools[-1] = tools[-1] | _CACHE
    if system := body.get("system"):
        body["system"] = [{"type": "text", "text": system, **_CACHE}]
    user_contents = [message["content"] for message in body["messages"] if message["role"] == "user"]
    ends = [(content, len(content) - 1) for content in user_contents]
    if tail:
        content, end = ends.pop()
        ends += [(content, end - tail)] if end >= tail else []
    for content, end in ends[-2:]:
        content[end] = content[end] | _CACHE


_CACHE = {CACHE_MARK: {"type": "ephemeral"}}


def build_models_request(target: Target, *, after: str = "") -> UpstreamRequest:
    """The GET for the first page of the model list, or for the page after `after` (`&after_id=…`)."""
    url = f"{endpoint(target.base_url, 'models')}?limit={MODELS_PER_PAGE}{after}"
    return get_request(url, _headers(target))


def endpoint(base_url: str, path: str) -> str:
    """`base_url` with the path; a `/v1` or `/v1/messages` at the end of `base_url` is removed."""
    base = base_url.strip().rstrip("/").removesuffix("/messages").rstrip("/").removesuffix("/v1")
    return f"{base.rstrip('/')}/v1/{path}"


def _headers(target: Target) -> dict[str, str]:
    key = {"x-api-key": target.api_key} if target.api_key else {}
    return {**key, "anthropic-version": API_VERSION}


def _is_tool_forced(request: CompletionRequest) -> bool:
    choice = request.tool_choice
    return bool(request.tools) and choice is not None and choice.mode == ToolChoiceMode.REQUIRED


def _tool_choice(request: CompletionRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if choice is None and request.parallel_tool_calls is None:
        return {}
    mode = ToolChoiceMode.AUTO if choice is None else choice.mode
    chosen: dict[str, Any] = {"type": "any" if mode == ToolChoiceMode.REQUIRED else mode.value}
    if choice is not None and choice.name is not None:
        chosen = {"type": "tool", "name": choice.name}
    if request.parallel_tool_calls is not None and mode != ToolChoiceMode.NONE:
        chosen["disable_parallel_tool_use"] = not request.parallel_tool_calls
    return {"tool_choice": chosen}


def _tools(request: CompletionRequest, request_messages: list[dict[str, Any]]) -> dict[str, Any]:
    if request.tools:
        return {"tools": _tool_list(request.tools), **_tool_choice(request)}
    called = called_tools(request_messages)
    if not called:
        return {}
    # The API requires the tools of calls in the history; `tool_choice` forbids calling them.
    tools = [
        {"name": name, "description": HISTORY_TOOL_DESCRIPTION, "input_schema": _ANY_OBJECT}
        for name in called
    ]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def _tool_list(tools: list[ToolSpec]) -> list[dict[str, Any]]:
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in tools
    ]


_ANY_OBJECT: dict[str, Any] = {"type": "object"}
