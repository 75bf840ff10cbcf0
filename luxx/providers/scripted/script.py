"""The script of the scripted provider: rules, replies and faults; matching requests to rules.

`write_stream` turns a reply into the bytes and pauses of a stream. `provider.py` serves it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

from luxx.errors import InvalidInput

BYTES_PER_TOKEN = 4


class Thinking(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    text: str


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """`pieces` deltas of about equal length; 0 means one per word."""

    text: str
    pieces: int = 0


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call"):
    """`arguments` is an object, or its JSON text, which may be invalid."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0
    cache_write: int = 0


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """`reason` is stop, tool_calls or length, and the client gets its dialect's name for it; or another name,
    which it gets unchanged."""

    reason: str = "stop"


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error object inside the stream, after status 200. The stream ends after it."""

    message: str
    kind: str = "server_error"
    code: int | str = 500


class Bytes(msgspec.Struct, frozen=True, kw_only=True, tag="raw"):
    """Sent unchanged, in UTF-8; a reply with raw bytes gets no generated beginning or end."""

    data: str


class Gate(msgspec.Struct, frozen=True, kw_only=True, tag="gate"):
    """Waits until the test releases the gate of this name."""

    name: str


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    seconds: float


ReplyEvent = Thinking | Text | Call | Counts | Finish | Fail | Bytes | Gate | Pause


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All given conditions must be true. `system`, `user` and `model` are regular expressions, searched in
    the system prompt (the agent; all of a list), the last user message and the model's name; `call` is the
    number, from 1, of the request among those that match the other conditions.
    """

    system: str | list[str] | None = None
    user: str | None = None
    model: str | None = None
    has_tool_result: bool | None = None
    call: int | None = None


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults in the bytes of a reply; offsets count the body's bytes.

    `split`: at most this many bytes per write. `drop_at`: the socket closes. `stall_at`: nothing more is
    sent, the socket stays open. `garble_at`: eight bytes are overwritten. `never_start`: nothing is sent,
    not even a status line. `keep_open`: the body does not end.
    """

    split: int = 0
    drop_at: int | None = None
    stall_at: int | None = None
    garble_at: int | None = None
    never_start: bool = False
    keep_open: bool = False


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first matching rule replies, at most `times` times. Every rule must be used at least once.

    With a `status` of 400 or more, the reply is `body`, or an error of the dialect with `message`.
    """

    name: str = ""
    when: When = When()
    reply: list[ReplyEvent] = []
    status: int = 200
    headers: dict[str, str] = {}
    message: str = "scripted failure"
    body: str | None = None
    delay: float = 0.0
    crlf: bool = False
    faults: Faults = Faults()
    times: int | None = None


class Vectors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Embeddings, in which texts with common words are similar. `meanings`: texts that count as another one,
    so that texts without common words are similar, too. `random`: no texts are similar. With a
    `status` of 400 or more, requests fail; `gate`: each waits for it."""

    dimensions: int = 256
    meanings: dict[str, str] = {}
    random: bool = False
    status: int = 200
    gate: str = ""


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With a `window`, a prompt takes a token per four bytes of its request: one that leaves no room in the
    window for the longest answer (`max_tokens`) is refused as the dialect does, and replies report the usage.
    With `caches`, they also report which part of the prompt a prompt cache had, see `PromptCache`.
    `embeddings`: requests for embeddings need no rule.
    """

    rules: list[Rule]
    window: int | None = None
    caches: bool = False
    models: list[str] = msgspec.field(default_factory=lambda: ["scripted"])
    models_status: int = 200
    embeddings: Vectors | None = None


class ScriptedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of any dialect, with the fields that rules match."""

    dialect: str
    model: str = ""
    system: str = ""
    user: str = ""
    has_tool_result: bool = False
    stream: bool = False
    tokens: int = 0
    max_tokens: int = 0


class RuleMatcher:
    """Finds the rule for a request and counts the uses of each rule. Patterns are searched in the first
    `searched_characters` of a text."""

    def __init__(self, rules: Sequence[Rule], searched_characters: int | None = None) -> None:
        self._searched = slice(searched_characters)
        self._rules = list(rules)
        self._matched = [0] * len(self._rules)
        self._used = [0] * len(self._rules)

    def find_rule(self, request: ScriptedRequest) -> Rule | None:
        """The rule for this request, counted as used; None if there is none."""
        request = msgspec.structs.replace(
            request, system=request.system[self._searched], user=request.user[self._searched]
        )
        matching = [at for at, rule in enumerate(self._rules) if _matches(rule.when, request)]
        for at in matching:
            self._matched[at] += 1
        for at in matching:
            rule = self._rules[at]
            is_due = rule.when.call is None or rule.when.call == self._matched[at]
            if is_due and (rule.times is None or self._used[at] < rule.times):
                self._used[at] += 1
                return rule
        return None

    def unused(self) -> list[str]:
        """The names of the rules that no request used."""
        return [rule.name or f"rule {at + 1}" for at, rule in enumerate(self._rules) if not self._used[at]]


def load_script(path: Path) -> Script:
    """Loads a script from a YAML file. Raises InvalidInput, which says what is wrong and where."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text("utf-8")), Script)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path}: {error}", kind="script_invalid") from error


def _matches(when: When, request: ScriptedRequest) -> bool:
    if when.has_tool_result is not None and when.has_tool_result != request.has_tool_result:
        return False
    system = when.system if isinstance(when.system, list) else [when.system]
    wanted = [(when.user, request.user), (when.model, request.model)]
    wanted += [(pattern, request.system) for pattern in system]
    return all(pattern is None or re.search(pattern, text) for pattern, text in wanted)


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


Counter = Callable[[str], int]
"""Counts the tokens of a text."""


def usual_count(text: str) -> int:
    """A token per four characters."""
    return -(-len(text) // BYTES_PER_TOKEN)


def counted_reply(
    reply: list[ReplyEvent], prompt_tokens: int, cached: int, cache_write: int, count: Counter
) -> list[ReplyEvent]:
    """The reply with its usage, unless the script has one."""
    if any(isinstance(event, Counts | Fail | Bytes) for event in reply):
        return reply
    said = "".join(event.text for event in reply if isinstance(event, Text | Thinking))
    counts = Counts(prompt=prompt_tokens, completion=count(said), cached=cached, cache_write=cache_write)
    return [*reply, counts]


def arguments_text(call: Call) -> str:
    """The JSON text of a call's arguments."""
    return call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()


def complete_reply(reply: list[ReplyEvent]) -> list[ReplyEvent]:
    """Adds the finish event that a real server sends, unless the reply has Finish, Fail or Bytes."""
    if any(isinstance(event, Finish | Fail | Bytes) for event in reply):
        return reply
    has_call = any(isinstance(event, Call) for event in reply)
    at = next((n for n, event in enumerate(reply) if isinstance(event, Counts)), len(reply))
    return [*reply[:at], Finish(reason="tool_calls" if has_call else "stop"), *reply[at:]]


def write_stream(reply: list[ReplyEvent], dialect_writer: DialectWriter) -> Iterator[StreamAction]:
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
