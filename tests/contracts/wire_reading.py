"""Reading a recorded stream through an adapter, in pieces of a size, into comparable values."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from luxx.errors import ProviderError
from luxx.providers.adapter import StreamParser
from luxx.wire.delta import (
    Delta,
    FinishDelta,
    ReplayDelta,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageDelta,
)
from luxx.wire.usage import Usage


class Reading(msgspec.Struct, kw_only=True):
    text: str = ""
    thinking: str = ""
    calls: list[dict[str, str]] = []
    usage: dict[str, int] | None = None
    spent: Usage = Usage()
    finish: FinishDelta | None = None
    replay: dict[str, Any] = {}
    error: ProviderError | None = None
    finishes: int = 0


def read_in_pieces(make_parser: Callable[[], StreamParser], stream: bytes, size: int) -> Reading:
    """What the parser reads from the stream cut into pieces of `size` bytes, up to its first error."""
    parser = make_parser()
    deltas: list[Delta] = []
    error: ProviderError | None = None
    try:
        for at in range(0, len(stream), size):
            deltas += parser.feed(stream[at : at + size])
        deltas += parser.close()
    except ProviderError as raised:
        error = raised
    reading = reading_of(deltas)
    reading.error = error
    return reading


def reading_of(deltas: list[Delta]) -> Reading:
    reading = Reading(calls=[], replay={})
    for delta in deltas:
        match delta:
            case TextDelta():
                reading.text += delta.text
            case ThinkingDelta():
                reading.thinking += delta.text
            case ToolCallDelta():
                _grow(reading.calls, delta)
            case UsageDelta():
                reading.spent = delta.usage
                reading.usage = {
                    "prompt": delta.usage.prompt_tokens,
                    "completion": delta.usage.completion_tokens,
                }
            case ReplayDelta():
                reading.replay |= delta.data
            case FinishDelta():
                reading.finish = delta
                reading.finishes += 1
    return reading


def _grow(calls: list[dict[str, str]], delta: ToolCallDelta) -> None:
    if delta.slot == len(calls):
        calls.append({"id": delta.call_id, "name": delta.name, "arguments": ""})
    call = calls[delta.slot]
    assert (call["id"], call["name"]) == (delta.call_id, delta.name)
    call["arguments"] += delta.arguments


def as_json(arguments: str) -> Any:
    """Arguments as JSON where they are JSON, as their text where not."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def values_at_paths(value: Any, path: str = "$") -> dict[str, Any]:
    """The scalars in a JSON value by the JSON paths they are at."""
    if isinstance(value, dict):
        inner = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [(f"{path}[{at}]", item) for at, item in enumerate(value)]
    else:
        return {path: value}
    return {at: scalar for where, item in inner for at, scalar in values_at_paths(item, where).items()}
