"""Turns a scripted reply into the stream of a dialect, in pieces."""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from luxx.providers.scripted.script import (
    Bytes,
    Call,
    Counts,
    Fail,
    Finish,
    Gate,
    Pause,
    ReplyEvent,
    ScriptedRequest,
    Text,
    Thinking,
)

DialectEvent = Thinking | Text | Call | Counts | Finish | Fail


class WireBytes(msgspec.Struct, frozen=True, kw_only=True):
    """`is_delta`: the rule's `delay` applies before it."""

    data: bytes
    is_delta: bool = True


StreamAction = WireBytes | Gate | Pause


class DialectWriter(Protocol):
    """Writes one stream of a dialect: `begin`, `event` for each scripted event in order, `end`."""

    def begin(self) -> list[Any]: ...
    def event(self, event: DialectEvent) -> list[Any]: ...
    def end(self) -> list[Any]: ...
    def frame(self, value: Any) -> bytes: ...


def complete_reply(reply: list[ReplyEvent]) -> list[ReplyEvent]:
    """Adds the finish event that a real server sends, unless the reply has Finish, Fail or Bytes."""
    if any(isinstance(event, Finish | Fail | Bytes) for event in reply):
        return reply
    has_call = any(isinstance(event, Call) for event in reply)
    at = next((n for n, event in enumerate(reply) if isinstance(event, Counts)), len(reply))
    return [*reply[:at], Finish(reason="tool_calls" if has_call else "stop"), *reply[at:]]


def write_stream(
    request: ScriptedRequest, reply: list[ReplyEvent], dialect_writer: DialectWriter
) -> Iterator[StreamAction]:
    """The bytes of the stream in sending order, with the script's gates and pauses between them."""
    events = complete_reply(reply)
    is_raw = any(isinstance(event, Bytes) for event in events)
    if not is_raw:
        yield from _frames(dialect_writer, dialect_writer.begin(), is_delta=False)
    for event in events:
        match event:
            case Gate() | Pause():
                yield event
            case Bytes():
                yield WireBytes(data=event.data.encode())
            case Text():
                for piece in _pieces(event):
                    yield from _frames(dialect_writer, dialect_writer.event(Text(text=piece)))
            case Fail():
                yield from _frames(dialect_writer, dialect_writer.event(event))
                return
            case _:
                yield from _frames(dialect_writer, dialect_writer.event(event))
    if not is_raw:
        yield from _frames(dialect_writer, dialect_writer.end(), is_delta=False)


def call_id(event: Call, number: int) -> str:
    return event.id or f"call_{number}"


def arguments_text(event: Call) -> str:
    if isinstance(event.arguments, str):
        return event.arguments
    return msgspec.json.encode(event.arguments).decode()


def _frames(
    dialect_writer: DialectWriter, values: list[Any], *, is_delta: bool = True
) -> Iterator[WireBytes]:
    for value in values:
        yield WireBytes(data=dialect_writer.frame(value), is_delta=is_delta)


def _pieces(event: Text) -> list[str]:
    if event.pieces == 1 or not event.text:
        return [event.text]
    if event.pieces == 0:
        tokens = event.text.split(" ")
        return [word if n == 0 else " " + word for n, word in enumerate(tokens)]
    size = -(-len(event.text) // event.pieces)
    return [event.text[at : at + size] for at in range(0, len(event.text), size)]
