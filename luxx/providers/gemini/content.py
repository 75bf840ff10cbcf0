"""The content of the Gemini dialect: chunks as Structs, bodies that are one JSON array, function calls.

A function call is complete in one part, or streamed as values at JSON paths: it starts with its name and
`willContinue`, continues with `partialArgs`, and ends with a fragment without `willContinue`, often an empty
one. Ids are often missing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from luxx.errors import MalformedStream
from luxx.providers.parsing import MAX_EVENT_BYTES, check_values, decode_leniently
from luxx.wire.turn import Delta, ToolCallDelta

MAX_DEPTH = 64
MAX_PATH_CHARACTERS = 10_000
MAX_GAPS = 100
"""How many array items may be skipped in total; models write them in order."""

MAX_OPEN_CALLS = 128
"""Each fragment is searched for among the open calls; models write calls one after the other."""

_DELIMITERS = re.compile(rb'["{}\[\]]')
_STRING_DELIMITERS = re.compile(rb'["\\]')
_PATH_SEGMENT = re.compile(
    r"""\.(?P<name>[^.\[\]]+) | \[\s*(?P<index>\d{1,9})\s*\]
      | \[\s*'(?P<single>(?:[^'\\]|\\.)*)'\s*\] | \[\s*"(?P<double>(?:[^"\\]|\\.)*)"\s*\]""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")


class CandidateContent(msgspec.Struct):
    """`parts` are not decoded further: some are sent back unchanged."""

    parts: list[dict[str, Any]] | None = None


class GroundingMetadata(msgspec.Struct, rename="camel"):
    """Each chunk is a source: a page (`web`), a place (`maps`) or a document (`retrievedContext`)."""

    grounding_chunks: list[dict[str, Any]] | None = None
    web_search_queries: list[str] | None = None


class CitationMetadata(msgspec.Struct, rename="camel"):
    """The sources of what the answer recites: `citationSources`, at Vertex AI `citations`."""

    citation_sources: list[dict[str, Any]] | None = None
    citations: list[dict[str, Any]] | None = None


class Candidate(msgspec.Struct, rename="camel"):
    index: int | None = None
    content: CandidateContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    continuation_token: str | None = None
    grounding_metadata: GroundingMetadata | None = None
    citation_metadata: CitationMetadata | None = None


class PromptFeedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class UsageCounts(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None


class GeminiChunk(msgspec.Struct, rename="camel"):
    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageCounts | None = None
    error: Any = None


_decode = msgspec.json.Decoder(GeminiChunk).decode


def decode_chunks(data: bytes) -> list[GeminiChunk]:
    """One chunk, or those of an array. Raises MalformedStream if it is not JSON or contains no object."""
    check_values(data)
    try:
        return [_decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_leniently(data, GeminiChunk)


class ArraySplitter:
    """Splits `[{…},{…}]`, or a single `{…}`, into the bytes of its objects, fed in pieces of any size.

    `is_done`: the array or the single object has ended. `is_in_object`: an object has begun and not ended.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._depth = 0
        self._in_array = False
        self._in_string = False
        self.is_done = False

    @property
    def is_in_object(self) -> bool:
        return self._depth > 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The objects completed by this piece. Raises MalformedStream for an object past the size bound."""
        if self.is_done:
            return []
        self._buffer += piece
        objects: list[bytes] = []
        while not self.is_done and (delimiter := self._next_delimiter()):
            self._read_delimiter(delimiter, objects)
        if not self.is_in_object:
            del self._buffer[: self._at]
            self._at = 0
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise MalformedStream(f"The provider sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return objects

    def _next_delimiter(self) -> bytes:
        """Returns the next delimiter and moves past it; empty if the pieces so far have none."""
        match = (_STRING_DELIMITERS if self._in_string else _DELIMITERS).search(self._buffer, self._at)
        if match is None:
            self._at = len(self._buffer)
            return b""
        if match[0] == b"\\" and match.end() == len(self._buffer):
            # The escaped character is in the next piece.
            self._at = match.start()
            return b""
        self._at = match.end() + (match[0] == b"\\")
        return match[0]

    def _read_delimiter(self, delimiter: bytes, objects: list[bytes]) -> None:
        if delimiter == b'"':
            self._in_string = not self._in_string
        elif delimiter in b"{[":
            if self._depth == 0:
                if delimiter == b"[" and not self._in_array:
                    self._in_array = True
                    return
                del self._buffer[: self._at - 1]
                self._at = 1
            self._depth += 1
        elif delimiter in b"}]":
            if self._depth == 0:
                self.is_done = True
                return
            self._depth -= 1
            if self._depth == 0:
                objects.append(bytes(self._buffer[: self._at]))
                self.is_done = not self._in_array


class PartialArguments:
    """Builds the arguments. Strings at one path are joined; any other value replaces the earlier one.

    `is_broken`: a path was invalid, so the object is not what the model meant.
    """

    def __init__(self) -> None:
        self._root: list[Any] = [{}]
        self._gaps = 0
        self.is_broken = False
        self.has_values = False

    def merge(self, values: dict[str, Any]) -> None:
        """Adds arguments that were sent as an object."""
        self.has_values = True
        if isinstance(self._root[0], dict):
            cast("dict[str, Any]", self._root[0]).update(values)

    def put(self, item: dict[str, Any]) -> None:
        """Adds one item of `partialArgs`; an item without a value only marks its path as complete."""
        self.has_values = True
        kind = next((kind for kind in _VALUES if kind in item), None)
        segments = _parse_path(item.get("jsonPath"))
        if segments is None:
            self.is_broken = True
        elif kind is not None:
            self._put(segments, _value(kind, item[kind]))

    def text(self) -> str:
        """The JSON text of the arguments so far."""
        return msgspec.json.encode(self._root[0], enc_hook=_join_text).decode()

    def _put(self, segments: list[str | int], value: Any) -> None:
        container: Any = self._root
        key: str | int = 0
        for segment in segments:
            child: Any = _get(container, key)
            if not isinstance(child, list if isinstance(segment, int) else dict):
                child = [] if isinstance(segment, int) else {}
                if not self._set(container, key, child):
                    return
            container, key = cast("Any", child), segment
        old = _get(container, key)
        if not isinstance(value, str):
            self._set(container, key, value)
        elif isinstance(old, _PartialString):
            old.pieces.append(value)
        else:
            self._set(container, key, _PartialString([old, value] if isinstance(old, str) else [value]))

    def _set(self, container: Any, key: str | int, value: Any) -> bool:
        if isinstance(key, int) and key >= len(container):
            gap = key - len(container)
            if self._gaps + gap > MAX_GAPS:
                self.is_broken = True
                return False
            self._gaps += gap
            container.extend([None] * (gap + 1))
        container[key] = value
        return True


class _PartialString:
    """A string that arrives in pieces; it is joined once, when the arguments are encoded."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces


def _join_text(text: object) -> str:
    assert isinstance(text, _PartialString)
    return "".join(text.pieces)


def _parse_path(path: object) -> list[str | int] | None:
    """`$.a.b[0]['c d']` as `["a", "b", 0, "c d"]`; None for an invalid path."""
    if not isinstance(path, str) or len(path) > MAX_PATH_CHARACTERS:
        return None
    rest = path.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = "." + rest
    segments: list[str | int] = []
    at = 0
    while at < len(rest):
        segment = _PATH_SEGMENT.match(rest, at)
        if segment is None or len(segments) >= MAX_DEPTH:
            return None
        if segment["index"] is not None:
            segments.append(int(segment["index"]))
        elif segment["name"] is not None:
            segments.append(segment["name"])
        else:
            quoted = segment["single"] if segment["single"] is not None else segment["double"]
            segments.append(_ESCAPED.sub(r"\1", quoted))
        at = segment.end()
    return segments


def _value(kind: str, value: Any) -> Any:
    if kind == "nullValue":
        return None
    if kind == "numberValue" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        # The API sends only doubles; a tool that expects an integer must get one.
        return int(value)
    return value


def _get(container: Any, key: str | int) -> Any:
    if isinstance(key, int):
        return container[key] if key < len(container) else None
    return container.get(key)


class FunctionCallReader:
    """Turns `functionCall` parts into ToolCallDeltas; `new_id` makes the id of a call that has none.

    A streamed call is emitted when it starts, and its arguments when they are complete: paths may come
    in any order, so no prefix of the JSON text is final before.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._ids: set[str] = set()
        self._open_calls: list[_GeminiCall] = []
        self._slots = 0

    @property
    def has_calls(self) -> bool:
        return self._slots > 0

    def read(self, fragment: dict[str, Any], out: list[Delta]) -> str:
        """Reads one fragment; returns the id of its call, empty if it belongs to none."""
        given_id, name = _string(fragment.get("id")), _string(fragment.get("name"))
        args, partial = fragment.get("args"), fragment.get("partialArgs")
        will_continue = fragment.get("willContinue") is True
        call = self._find_open_call(given_id, name, fragment)
        if call is None:
            if not (name or given_id or args or partial):
                return ""
            call = self._begin(given_id, name)
            if not (will_continue or partial):
                # The usual case: a complete call in one part.
                complete = cast("dict[str, Any]", args) if isinstance(args, dict) else {}
                out.append(call.delta(msgspec.json.encode(complete).decode()))
                return call.call_id
            if len(self._open_calls) == MAX_OPEN_CALLS:
                raise MalformedStream(
                    f"The provider started more than {MAX_OPEN_CALLS} tool calls without finishing any."
                )
            self._open_calls.append(call)
            out.append(call.delta(""))
        if isinstance(args, dict):
            call.arguments.merge(cast("dict[str, Any]", args))
        for item in cast("list[object]", partial) if isinstance(partial, list) else []:
            if isinstance(item, dict):
                call.arguments.put(cast("dict[str, Any]", item))
        if not will_continue:
            self._close_call(call, out, is_complete=True)
        return call.call_id

    def close(self, out: list[Delta], *, is_complete: bool) -> None:
        """Ends calls that are still open. Truncated ones get invalid JSON, so that they are not executed."""
        for call in tuple(self._open_calls):
            self._close_call(call, out, is_complete=is_complete)

    def _find_open_call(self, given_id: str, name: str, fragment: dict[str, Any]) -> "_GeminiCall | None":
        if given_id:
            call = next((call for call in self._open_calls if call.given_id == given_id), None)
            if call is not None:
                return call
        last = self._open_calls[-1] if self._open_calls else None
        if last is None or (given_id and last.given_id) or (name and name != last.name):
            return None
        if name and last.arguments.has_values and not fragment.get("partialArgs"):
            # The same name again starts a second call, unless this fragment only ends the first one.
            return last if "args" not in fragment and not fragment.get("willContinue") else None
        return last

    def _begin(self, given_id: str, name: str) -> "_GeminiCall":
        call_id = given_id
        if not call_id or call_id in self._ids:
            # The same id for two calls would make their results indistinguishable.
            call_id = f"call_{self._new_id().replace('-', '')}"
        self._ids.add(call_id)
        call = _GeminiCall(slot=self._slots, call_id=call_id, given_id=given_id, name=name)
        self._slots += 1
        return call

    def _close_call(self, call: "_GeminiCall", out: list[Delta], *, is_complete: bool) -> None:
        self._open_calls.remove(call)
        text = call.arguments.text()
        out.append(call.delta(text if is_complete and not call.arguments.is_broken else text[:-1]))


@dataclass(slots=True, kw_only=True)
class _GeminiCall:
    slot: int
    call_id: str
    given_id: str
    name: str
    arguments: PartialArguments = field(default_factory=PartialArguments)

    def delta(self, arguments: str) -> ToolCallDelta:
        return ToolCallDelta(slot=self.slot, call_id=self.call_id, name=self.name, arguments=arguments)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
