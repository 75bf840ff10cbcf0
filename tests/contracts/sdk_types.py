"""The vendors' own request types as validators: unknown keys are refused where a type is closed.

`load` imports the SDKs: four seconds of CPU time, which only a process that runs these tests spends.
"""

from collections.abc import Container, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, TypeAdapter

Json = dict[str, Any]

_CLOSED = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


def load() -> None:
    _google()
    _anthropic()
    _openai()
    _responses()


@cache
def _google() -> Any:
    return import_module("google.genai.types")


@cache
def _anthropic() -> TypeAdapter[Any]:
    return _closed(import_module("anthropic.types.message_create_params").MessageCreateParamsStreaming)


@cache
def _openai() -> TypeAdapter[Any]:
    return _closed(
        import_module("openai.types.chat.completion_create_params").CompletionCreateParamsStreaming
    )


@cache
def _responses() -> TypeAdapter[Any]:
    return _closed(
        import_module("openai.types.responses.response_create_params").ResponseCreateParamsStreaming
    )


def _closed(params: Any) -> TypeAdapter[Any]:
    """In a list, because a TypedDict alone takes no config; the types below it inherit the list's config."""
    return TypeAdapter(list[params], config=_CLOSED)


_OF_AN_OLDER_API = frozenset({"temperature"})
"""Anthropic's types are of an API version without it; the version that the adapter sends still has it."""

_OWN_KEYS = {
    "deepseek": {"thinking", "reasoning_content"},
    "glm": {"thinking", "reasoning", "reasoning_content"},
    "openrouter": {"reasoning", "reasoning_content", "reasoning_details"},
    "openai_compatible": {"reasoning", "reasoning_content", "reasoning_details", "extra_content"},
    "qwen": {"enable_thinking", "reasoning", "reasoning_content"},
    "ollama": {"reasoning"},
    "local": {"chat_template_kwargs", "reasoning", "reasoning_content"},
}
"""Keys of each provider in addition to OpenAI's, in a request or in its messages."""


def accepted_by_openai(body: bytes, provider_type: str) -> Json:
    value = msgspec.json.decode(body)
    own = _OWN_KEYS.get(provider_type, set[str]())
    messages = [_without(message, own) for message in value["messages"]]
    for message in messages:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [_without(call, own) for call in calls]
    _read_through(_openai().validate_python([{**_without(value, own), "messages": messages}]))
    return value


def accepted_by_responses(body: bytes, _provider_type: str = "openai_responses") -> Json:
    value = msgspec.json.decode(body)
    _read_through(_responses().validate_python([value]))
    return value


def accepted_by_anthropic(body: bytes, _provider_type: str = "anthropic") -> Json:
    value = msgspec.json.decode(body)
    _read_through(_anthropic().validate_python([_without(value, _OF_AN_OLDER_API)]))
    return value


def accepted_by_google(body: bytes, _provider_type: str = "gemini") -> Json:
    """Google's SDK merges the generation settings into the request."""
    value = msgspec.json.decode(body)
    assert value.keys() <= {"contents", "systemInstruction", "tools", "generationConfig"}
    flat = {key: value[key] for key in ("systemInstruction", "tools") if key in value}
    _google().GenerateContentConfig.model_validate({**flat, **value.get("generationConfig", {})})
    for content in value["contents"]:
        _google().Content.model_validate_json(msgspec.json.encode(content))
    return value


def _without(value: Json, keys: Container[str]) -> Json:
    return {key: item for key, item in value.items() if key not in keys}


def _read_through(value: Any) -> None:
    """The types use Iterable nearly everywhere, which is validated only when it is read."""
    if isinstance(value, BaseModel):
        # Anthropic also accepts the blocks of its answers; those types are open, while the adapter's are
        # closed.
        assert not value.model_extra, f"no type of a request takes {value!r}"
        for name in type(value).model_fields:
            _read_through(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            _read_through(item)
    elif isinstance(value, list | Iterator) or type(value).__name__ == "ValidatorIterator":
        for item in value:
            _read_through(item)
