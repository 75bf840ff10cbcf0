"""Deltas: the fragments of a completion, in one form for all providers.

A parser yields them in the order of the stream. Text and thinking are fragments; a tool call's
fragments share a `slot`; usage is cumulative for the completion (the last one counts).
"""

from enum import StrEnum
from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. `total_tokens` is prompt plus completion unless the provider reports another total.

    `reasoning_tokens` are part of `completion_tokens`. `cached_tokens` (read from the provider's cache) and
    `cache_write_tokens` (written to it) are parts of `prompt_tokens` with separate prices at many providers.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


class FinishReason(StrEnum):
    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    REFUSED = "refused"
    PAUSED = "paused"
    UNKNOWN = "unknown"


class ThinkingDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    text: str


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    text: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment of a tool call. `slot` counts the calls of this completion from 0, in the order they began.

    `call_id` and `name` are complete on a slot's first delta and repeated on later ones; a provider
    that gives no id gets one from the parser. `arguments` is the next fragment of the JSON text.
    """

    slot: int
    call_id: str
    name: str
    arguments: str = ""


class UsageDelta(msgspec.Struct, frozen=True, kw_only=True):
    usage: Usage


class ReplayDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Data that the provider needs back unchanged in later requests (signatures, reasoning items).

    Later deltas replace earlier ones by key; only the adapter that wrote the data reads it.
    """

    data: dict[str, Any]


PAUSED_KEY = "paused"
"""The key in the replay note of a paused completion; the next completion continues it."""


class FinishDelta(msgspec.Struct, frozen=True, kw_only=True):
    reason: FinishReason
    raw: str = ""


Delta = ThinkingDelta | TextDelta | ToolCallDelta | UsageDelta | ReplayDelta | FinishDelta
