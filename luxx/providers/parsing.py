"""What the adapters of all dialects share: framing, bounds, decoding of JSON that breaks a schema.

No dialect and no network here.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from luxx.errors import MalformedStream, ProviderError, ProviderFailed, StreamInterrupted
from luxx.infra.strict_json import SMALL_BYTES, check_size
from luxx.providers.failures import as_provider_error, read_error_body, truncate
from luxx.wire.turn import Delta, FinishDelta, FinishReason, TextDelta, ThinkingDelta, ToolCallDelta

MAX_RETAINED_BYTES = 32 * 1024 * 1024
MAX_BLANK_BYTES = 64 * 1024
MAX_UNPARSED_BYTES = 64 * 1024
MAX_EVENT_BYTES = 8 * 1024 * 1024  # A generated image in base64 is about 3 MB.
MAX_EVENT_LINES = 50_000  # Some servers send no blank line between the events of an answer.

SseEvent = tuple[bytes, bytes]
"""The event's name (empty if not given) and its data, lines joined by a line feed."""

_BOM = b"\xef\xbb\xbf"
_LINE_FEED = 0x0A
_JSON = b"{["
_JSON_STARTS = (b"{", b"[")

_StructT = TypeVar("_StructT", bound=msgspec.Struct)


class RetainedBytes:
    """Bounds the bytes of events that a parser keeps.

    The parser sets `event_bytes` per event; `retain_event` counts them once, however often it is called.
    """

    __slots__ = ("_bytes", "event_bytes")

    def __init__(self) -> None:
        self.event_bytes = 0
        self._bytes = 0

    def retain_event(self) -> None:
        """Counts the current event. Raises MalformedStream past the bound."""
        self._bytes += self.event_bytes
        self.event_bytes = 0
        if self._bytes > MAX_RETAINED_BYTES:
            raise MalformedStream(
                f"The provider's response contains more than {MAX_RETAINED_BYTES} bytes besides its text."
            )


CHARACTERS_PER_TOKEN = 16  # More than an answer has on average: usual text has about four.

REPEATED = ((48, 6), (240, 3))
"""An answer repeats itself if its last characters, this many, have occurred this often without overlap."""

REPETITION_WINDOW = 8_192
REPETITION_STEP = 64
"""How many characters of an answer are compared, and after how many new ones again."""


class OutputBounds:
    """Ends a completion that its provider does not end: far beyond its limit of tokens or, with
    `ends_repetition`, where it repeats itself."""

    __slots__ = ("_characters_left", "_compared_text", "_new_text")

    def __init__(self, max_tokens: int | None, *, ends_repetition: bool = False) -> None:
        self._characters_left = None if max_tokens is None else max_tokens * CHARACTERS_PER_TOKEN
        self._compared_text = "" if ends_repetition else None
        self._new_text = ""

    def cut(self, deltas: list[Delta]) -> list[Delta] | None:
        """The deltas up to the one that exceeds a bound, with the end of the completion; None: none does."""
        if self._characters_left is None and self._compared_text is None:
            return None
        for index, delta in enumerate(deltas):
            if (reason := self._exceeded_by(delta)) is not None:
                return [*deltas[: index + 1], FinishDelta(reason=reason, is_cut=True)]
        return None

    def _exceeded_by(self, delta: Delta) -> FinishReason | None:
        match delta:
            case TextDelta(text=text) | ThinkingDelta(text=text) | ToolCallDelta(arguments=text):
                if self._characters_left is not None:
                    self._characters_left -= len(text)
                    if self._characters_left < 0:
                        return FinishReason.LENGTH
                if self._compared_text is not None and self._repeats(self._compared_text, text):
                    return FinishReason.LENGTH
            case _:
                pass
        return None

    def _repeats(self, compared: str, text: str) -> bool:
        self._new_text += text
        if len(self._new_text) < REPETITION_STEP:
            return False
        compared = self._compared_text = (compared + self._new_text)[-REPETITION_WINDOW:]
        self._new_text = ""
        return any(
            len(compared) >= length * most and compared.count(compared[-length:]) >= most
            for length, most in REPEATED
        )


class FramingDetector:
    """Detects by the first byte whether a body is an event stream (`is_events`) or JSON (`is_json`).

    It drops leading whitespace. A JSON body begins with a brace or a bracket; an event stream never does.
    """

    def __init__(self) -> None:
        self.is_events = False
        self.is_json = False
        self.body = bytearray()
        self._blank_bytes = 0

    def read(self, piece: bytes) -> bytes:
        """The piece without leading whitespace. Raises MalformedStream for whitespace past the bound."""
        if self.is_events or self.is_json:
            return piece
        data = piece.lstrip()
        if data:
            self.is_json = data[0] in _JSON
            self.is_events = not self.is_json
            return data
        self._blank_bytes += len(piece)
        if self._blank_bytes > MAX_BLANK_BYTES:
            raise MalformedStream(
                f"The provider sent more than {MAX_BLANK_BYTES} blank bytes before its response."
            )
        return b""

    def gather(self, piece: bytes) -> bytes:
        """The part of the piece that belongs to an event stream; a JSON body is collected in `body`.

        Raises MalformedStream for a body past the bound.
        """
        data = self.read(piece)
        if not self.is_json:
            return data
        self.body += data
        if len(self.body) > MAX_RETAINED_BYTES:
            raise MalformedStream(f"The provider sent a response of more than {MAX_RETAINED_BYTES} bytes.")
        return b""


def check_values(document: bytes) -> None:
    """Raises MalformedStream for JSON of so many values that other work would wait while it is decoded."""
    if len(document) > SMALL_BYTES:
        try:
            check_size(document)
        except ValueError as error:
            raise MalformedStream("The provider sent too many values at once, or a long number.") from error


class SseSplitter:
    """Takes pieces in order and returns each event once it is complete. Not reusable.

    `unparsed` has the first lines that are not SSE fields: some servers end a stream with a bare JSON error.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()
        self._after_cr = False
        self._at_start = True
        self._unparsed = bytearray()

    @property
    def unparsed(self) -> bytes:
        return bytes(self._unparsed)

    def single_event(self, piece: bytes, head: bytes = b"data: ") -> bytes | None:
        """The data of a piece that is exactly one event, as nearly all are, with this text before its data.

        None for any other piece, which must then be fed.
        """
        if (
            piece.startswith(head)
            and piece.find(b"\n", len(head)) == len(piece) - 2
            and piece[-1] == _LINE_FEED
            and not (self._buffer or self._after_cr or self._at_start)
            and b"\r" not in piece
        ):
            return piece[len(head) : -2]
        return None

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events completed by this piece. Raises MalformedStream for an event past the size bound."""
        if self._after_cr or b"\r" in piece:
            piece = self._unify_line_ends(piece)
        buffer = self._buffer
        if self._at_start:
            piece = self._without_bom(piece)
        scanned_to = max(0, len(buffer) - 1)
        if b"\n" not in piece:
            buffer += piece
            self._check_size()
            return []
        if buffer:
            buffer += piece
            if buffer.find(b"\n\n", scanned_to) < 0:
                # Only the new bytes are scanned, so an event of many lines is not copied per line.
                self._check_size()
                return []
            blocks = bytes(buffer).split(b"\n\n")
            buffer.clear()
        else:
            blocks = piece.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            buffer += rest
            self._check_size()
        events: list[SseEvent] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append((b"", block[6:]))
            else:
                self._read_block(block, events)
        return events

    def finish(self) -> list[SseEvent]:
        """The last event if the stream ended without a blank line; it may be truncated."""
        events: list[SseEvent] = []
        block = bytes(self._buffer)
        self._buffer.clear()
        self._read_block(block, events)
        return events

    def _unify_line_ends(self, piece: bytes) -> bytes:
        # CR, LF and CRLF all end a line; a CRLF may be cut between its two bytes.
        if not piece:
            return piece
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, piece: bytes) -> bytes:
        start = bytes(self._buffer) + piece
        if len(start) < len(_BOM) and _BOM.startswith(start):
            return piece
        self._at_start = False
        self._buffer.clear()
        return start.removeprefix(_BOM)

    def _check_size(self) -> None:
        if len(self._buffer) > self._max_event_bytes:
            raise MalformedStream(f"The provider sent an event of more than {self._max_event_bytes} bytes.")

    def _read_block(self, block: bytes, events: list[SseEvent]) -> None:
        name = b""
        data: list[bytes] = []
        if block.count(b"\n") > MAX_EVENT_LINES:
            raise MalformedStream(f"The provider sent an event of more than {MAX_EVENT_LINES} lines.")
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field not in (b"", b"id", b"retry") and len(self._unparsed) < MAX_UNPARSED_BYTES:
                self._unparsed += line[:MAX_UNPARSED_BYTES] + b"\n"
        if data:
            events.append((name, b"\n".join(data)))


def incomplete_error(
    unparsed: bytes, *, has_begun: bool, error_starts: tuple[bytes, ...] = (b"{", b"error:")
) -> ProviderError:
    """The error for an event stream that ended before its completion did.

    `unparsed` has the lines that are no events; one of `error_starts` marks them as the provider's error.
    """
    unparsed = unparsed.strip()
    if unparsed.startswith(error_starts):
        return as_provider_error(read_error_body(unparsed.removeprefix(b"error:")))
    if has_begun:
        return StreamInterrupted("The provider's stream ended in the middle of the response.")
    if unparsed and not any(field.startswith(unparsed[:5]) for field in (b"data:", b"event:")):
        preview = truncate(unparsed.decode("utf-8", "replace"))[:80]
        return MalformedStream(f"The provider's response is not a completion: {preview!r}")
    return StreamInterrupted("The provider's stream ended before the response began.")


def trailing_error(unparsed: bytes) -> ProviderError | None:
    """The error that a server wrote as bare JSON after its events, whatever they said of the end; or None."""
    unparsed = unparsed.strip()
    if not unparsed.startswith(_JSON_STARTS) or b'"error"' not in unparsed:
        return None
    return as_provider_error(read_error_body(unparsed))


def unknown_finish(raw: str) -> ProviderError:
    """The error for a completion without content that ended for a reason which its dialect does not know."""
    return ProviderFailed(f"The provider ended its response without an answer: {truncate(raw)}")


def decode_body(decode: Callable[[bytes], _StructT], body: bytes) -> _StructT:
    """A body that is one JSON value. Raises MalformedStream, or StreamInterrupted if its end is missing."""
    try:
        return decode(body)
    except MalformedStream as error:
        if body.rstrip().endswith((b"}", b"]")):
            raise
        raise StreamInterrupted("The provider's response ended in the middle.") from error


def finish_reason(reasons: Mapping[str, FinishReason], raw: str, *, has_calls: bool) -> FinishReason:
    """The reason for a dialect's name; many servers report a normal end although the model called tools."""
    reason = reasons.get(raw, FinishReason.UNKNOWN)
    is_end = reason in (FinishReason.STOP, FinishReason.UNKNOWN)
    return FinishReason.TOOL_CALLS if has_calls and is_end else reason


def parse_objects(data: bytes) -> list[dict[str, Any]]:
    """The objects in JSON that is one object, an array or null; invalid UTF-8 is replaced.

    Raises MalformedStream if `data` is not JSON or contains no object.
    """
    preview = data[:80].decode("utf-8", "replace")
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False)
        # Some servers send lone surrogates, which cannot be encoded in UTF-8.
        text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        value = json.loads(text.decode("utf-16", "replace"))
    except (ValueError, RecursionError) as error:
        raise MalformedStream(f"The provider sent invalid JSON: {preview!r}") from error
    objects = [cast("dict[str, Any]", value)] if isinstance(value, dict) else json_objects(value)
    if not objects and value not in (None, []):
        raise MalformedStream(f"The provider sent JSON that is not an object: {preview!r}")
    return objects


def decode_leniently(data: bytes, struct: type[_StructT]) -> list[_StructT]:
    """The structs in JSON that breaks their schema, without what does not fit. Raises MalformedStream."""
    return [_fit(each, _type_of(struct)) for each in parse_objects(data)]


@cache
def _type_of(struct: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(struct)


def _fit(value: Any, kind: inspect.Type) -> Any:
    """`value` as a value of this type, or None if it does not fit; items that do not fit are left out."""
    match kind:
        case inspect.UnionType():
            fitting = (_fit(value, each) for each in kind.types)
            return next((each for each in fitting if each is not None), None)
        case inspect.StructType() if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            fitted = {each.name: _fit(fields.get(each.encode_name), each.type) for each in kind.fields}
            return kind.cls(**{name: each for name, each in fitted.items() if each is not None})
        case inspect.ListType() if isinstance(value, list):
            items = (_fit(item, kind.item_type) for item in cast("list[Any]", value))
            return [item for item in items if item is not None]
        case inspect.StrType() if isinstance(value, str):
            return value
        case inspect.StrType() if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        case inspect.IntType() if isinstance(value, str) and value.isdecimal() and len(value) < 16:
            return int(value)
        case inspect.IntType() if isinstance(value, int | float) and abs(value) < 2**53:
            return int(value)
        case inspect.DictType() if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        case inspect.AnyType():
            return value
        case _:
            return None


def json_objects(value: object) -> list[dict[str, Any]]:
    """The objects in a JSON array; empty for any other value."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]


CUT_ARGUMENTS = "{"
"""The arguments of a call whose own did not arrive: no valid JSON, so the call is answered with an error."""


def parse_arguments(arguments: str) -> dict[str, Any]:
    """The object that a tool call's arguments are; empty if they are not a JSON object."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
