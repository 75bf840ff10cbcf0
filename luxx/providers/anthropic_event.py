"""The Anthropic dialect's stream events as Structs, decoded strictly and fast, or leniently where sloppy.

Only fields the parser reads are here; content blocks stay as they came, for they go back unchanged.
"""

import json
from typing import Any, cast

import msgspec

from luxx.errors import Garbled

Block = dict[str, Any]


class OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class EventUsage(msgspec.Struct):
    """Cumulative; a count that is absent leaves the one told before."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class EventDelta(msgspec.Struct):
    """Of a block, or (`stop_reason`, `stop_details`) of the message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Any = None
    content: Any = None
    encrypted_content: Any = None
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


class EventMessage(msgspec.Struct):
    model: str | None = None
    content: list[Block] | None = None
    usage: EventUsage | None = None


class Event(msgspec.Struct):
    """An event; also a whole message, as a server answers that was not asked to stream."""

    type: str = ""
    index: int | None = None
    delta: EventDelta | None = None
    content_block: Block | None = None
    message: Any = None
    usage: EventUsage | None = None
    error: Any = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(Event).decode


def decode_event(data: bytes) -> Event:
    """Raises Garbled when it is not JSON or no object that could be an event."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data)


def message_of(event: Event) -> EventMessage:
    """The message that an event carries: of `message_start`, or the event itself."""
    if event.type == "message":
        return EventMessage(model=event.model, content=event.content, usage=event.usage)
    try:
        return msgspec.convert(event.message, EventMessage, strict=False)
    except (msgspec.ValidationError, RecursionError):
        return EventMessage()


def _decode_leniently(data: bytes) -> Event:
    shown = data[:80].decode("utf-8", "replace")
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"The provider sent what is not JSON: {shown!r}") from error
    if not isinstance(value, dict):
        raise Garbled(f"The provider sent JSON that is no object: {shown!r}")
    try:
        return msgspec.convert(_encodable(cast("object", value)), Event, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Garbled(f"The provider sent JSON that is no event of a message: {shown!r}") from error


def _encodable(value: object) -> object:
    """Half a surrogate pair is legal JSON to some servers, but no UTF-8 on our way out."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_encodable(item) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[object, object]", value).items()
            return {_encodable(key): _encodable(item) for key, item in items}
        case _:
            return value
