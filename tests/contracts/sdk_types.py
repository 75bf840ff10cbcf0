"""The vendors' own request types as validators: unknown keys are refused where a type is closed."""

from collections.abc import Container, Iterator
from typing import Any

import msgspec
from anthropic.types.message_create_params import (
    MessageCreateParamsStreaming as AnthropicParams,
)
from google.genai.types import Content, GenerateContentConfig
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsStreaming as OpenAIParams,
)
from pydantic import BaseModel, ConfigDict, TypeAdapter

Json = dict[str, Any]

_CLOSED = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

# In a list, because a TypedDict alone takes no config; the types below it inherit the config of the list.
ANTHROPIC: TypeAdapter[Any] = TypeAdapter(list[AnthropicParams], config=_CLOSED)
OPENAI: TypeAdapter[Any] = TypeAdapter(list[OpenAIParams], config=_CLOSED)

_OF_AN_OLDER_API = frozenset({"temperature"})
"""Anthropic's types are of an API version without it; the version that the adapter sends still has it."""

_OWN_KEYS = {
    "deepseek": {"thinking", "reasoning_content"},
    "glm": {"thinking", "reasoning_content"},
    "openrouter": {"reasoning", "reasoning_content", "reasoning_details"},
    "openai_compatible": {"reasoning_content", "reasoning_details"},
    "qwen": {"enable_thinking", "reasoning_content"},
    "ollama": {"reasoning_content"},
    "local": {"chat_template_kwargs", "reasoning_content"},
}
"""Keys of each provider in addition to OpenAI's, in a request or in its messages."""


def accepted_by_openai(body: bytes, provider_type: str) -> Json:
    value = msgspec.json.decode(body)
    own = _OWN_KEYS.get(provider_type, set[str]())
    messages = [_without(message, own) for message in value["messages"]]
    _read_through(OPENAI.validate_python([{**_without(value, own), "messages": messages}]))
    return value


def accepted_by_anthropic(body: bytes, _provider_type: str = "anthropic") -> Json:
    value = msgspec.json.decode(body)
    _read_through(ANTHROPIC.validate_python([_without(value, _OF_AN_OLDER_API)]))
    return value


def accepted_by_google(body: bytes, _provider_type: str = "gemini") -> Json:
    """Google's SDK merges the generation settings into the request."""
    value = msgspec.json.decode(body)
    assert value.keys() <= {"contents", "systemInstruction", "tools", "generationConfig"}
    flat = {key: value[key] for key in ("systemInstruction", "tools") if key in value}
    GenerateContentConfig.model_validate({**flat, **value.get("generationConfig", {})})
    for content in value["contents"]:
        Content.model_validate_json(msgspec.json.encode(content))
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
