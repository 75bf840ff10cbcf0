"""The vendors' own types of a request as validators: unknown keys are refused wherever a type is closed."""

from collections.abc import Iterator
from typing import Any

import msgspec
from anthropic.types.message_create_params import (
    MessageCreateParamsStreaming as AnthropicParams,
)
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsStreaming as OpenAIParams,
)
from pydantic import BaseModel, ConfigDict, TypeAdapter

_CLOSED = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

# In a list, for a bare TypedDict takes no config from outside; those below take the list's.
ANTHROPIC: TypeAdapter[Any] = TypeAdapter(list[AnthropicParams], config=_CLOSED)
OPENAI: TypeAdapter[Any] = TypeAdapter(list[OpenAIParams], config=_CLOSED)

_OF_AN_OLDER_API = {id(ANTHROPIC): {"temperature"}, id(OPENAI): set[str]()}
"""Anthropic's types are of an API version without it; the version that the adapter names still has it."""


def accepted_by(sdk: TypeAdapter[Any], body: bytes) -> dict[str, Any]:
    """The request's JSON, if the SDK's types take it; raises pydantic's ValidationError."""
    value = msgspec.json.decode(body)
    of_its_version = {key: item for key, item in value.items() if key not in _OF_AN_OLDER_API[id(sdk)]}
    _read_through(sdk.validate_python([of_its_version]))
    return value


def _read_through(value: Any) -> None:
    """The types say Iterable nearly everywhere, which is validated as it is read."""
    if isinstance(value, BaseModel):
        # Anthropic also takes the blocks of its answers as they are; their types are open, ours are not.
        assert not value.model_extra, f"no type of a request takes {value!r}"
        for name in type(value).model_fields:
            _read_through(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            _read_through(item)
    elif isinstance(value, list | Iterator) or type(value).__name__ == "ValidatorIterator":
        for item in value:
            _read_through(item)
