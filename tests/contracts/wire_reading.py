"""Reads a recorded stream through an adapter, in pieces of a given size, into comparable values."""

import json
from collections.abc import Callable
from typing import Any

import jiter
import msgspec

from luxx.errors import ProviderError
from luxx.providers.adapter import StreamParser
from luxx.wire.source import Source
from luxx.wire.turn import (
    CitationDelta,
    CompletionEnd,
    Delta,
    FinishDelta,
    HostedCallDelta,
    ImageDelta,
    ReplayDelta,
    TextDelta,
    TextWasThinking,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
    UsageDelta,
    with_end,
)


class Reading(msgspec.Struct, kw_only=True):
    text: str = ""
    thinking: str = ""
    calls: list[dict[str, str]] = []
    sources: list[Source] = []
    images: list[ImageDelta] = []
    hosted: list[HostedCallDelta] = []
    usage: dict[str, int] | None = None
    cached: int = 0
    spent: Usage = Usage()
    finish: FinishDelta | None = None
    replay: dict[str, Any] = {}
    error: ProviderError | None = None
    finishes: int = 0


def read_in_pieces(make_parser: Callable[[], StreamParser], stream: bytes, size: int) -> Reading:
    """What the parser reads from the stream in pieces of `size` bytes, up to its first error."""
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
    reading = Reading(calls=[], sources=[], images=[], hosted=[], replay={})
    for delta in deltas:
        match delta:
            case TextDelta():
                reading.text += delta.text
            case ThinkingDelta():
                reading.thinking += delta.text
            case TextWasThinking():
                reading.thinking += reading.text
                reading.text = ""
            case ToolCallDelta():
                _grow(reading.calls, delta)
            case HostedCallDelta():
                reading.hosted.append(delta)
            case CitationDelta():
                reading.sources.append(delta.source)
            case ImageDelta():
                reading.images.append(delta)
            case UsageDelta():
                reading.spent = delta.usage
                reading.usage = {
                    "prompt": delta.usage.prompt_tokens,
                    "completion": delta.usage.completion_tokens,
                }
                reading.cached = delta.usage.cached_tokens
            case ReplayDelta():
                reading.replay |= delta.data
            case FinishDelta():
                reading.finish = delta
                reading.finishes += 1
                reading.replay = with_end(reading.replay, CompletionEnd(refusal=delta.refusal))
    return reading


def _grow(calls: list[dict[str, str]], delta: ToolCallDelta) -> None:
    if delta.slot == len(calls):
        calls.append({"id": delta.call_id, "name": delta.name, "arguments": ""})
    call = calls[delta.slot]
    assert (call["id"], call["name"]) == (delta.call_id, delta.name)
    call["arguments"] += delta.arguments


def as_sdk_arguments(arguments: Any, entry: dict[str, Any]) -> Any:
    """Arguments as the vendor's SDK returns them: as JSON if they are valid.

    Anthropic's SDK completes broken ones. Luxx keeps what the model wrote, so that no tool runs with half of
    its arguments.
    """
    if not isinstance(arguments, str):
        return arguments
    if entry["api"] == "anthropic":
        return jiter.from_json(arguments.encode(), partial_mode=True)
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def as_sdk_speech(text: str, thinking: str, entry: dict[str, Any]) -> tuple[str, str]:
    """Text and thinking as the SDKs return them: inline thinking stays in the text, and no character is
    lost."""
    if thinking and not entry["expected_reasoning"]:
        tagged = [f"{opening}{thinking}{closing}{text}" for opening, closing in _TAGS]
        return next((each for each in tagged if each == entry["expected_text"]), tagged[0]), ""
    return text, thinking


_TAGS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("", "</think>"),
]


def without_blanks(text: str) -> str:
    """The text without white space: what is between two parts of a reasoning is the reader's choice."""
    return "".join(text.split())


def values_at_paths(value: Any, path: str = "$") -> dict[str, Any]:
    """The scalars in a JSON value by their JSON paths."""
    if isinstance(value, dict):
        inner = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [(f"{path}[{at}]", item) for at, item in enumerate(value)]
    else:
        return {path: value}
    return {at: scalar for where, item in inner for at, scalar in values_at_paths(item, where).items()}


def joined_calls(call_deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls joined from the fragments that the SDK returns for a streamed call."""
    calls: list[dict[str, Any]] = []
    for fragment in call_deltas:
        if fragment["name"]:
            whole = values_at_paths(fragment["arguments"] or {})
            calls.append({"id": fragment["id"], "name": fragment["name"], "values": whole})
        for item in fragment.get("partial_args") or []:
            kind = next((key for key in item if key.endswith("_value")), None)
            if kind is None:
                continue
            values, path = calls[-1]["values"], item["json_path"]
            old = values.get(path)
            values[path] = old + item[kind] if isinstance(old, str) else item[kind]
    return calls
