"""The chunks of the Gemini dialect as Structs, and the splitter for a body that is one JSON array.

Chunks are decoded strictly, or field by field if a server breaks the schema. `adapter.py` interprets them.
"""

import json
import re
from typing import Any, cast

import msgspec

from luxx.errors import MalformedStream
from luxx.providers.parsing import MAX_EVENT_BYTES


class CandidateContent(msgspec.Struct):
    """`parts` are not decoded further: some are sent back unchanged."""

    parts: list[dict[str, Any]] | None = None


class Candidate(msgspec.Struct, rename="camel"):
    index: int | None = None
    content: CandidateContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


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
    try:
        return [_decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data)


def _decode_leniently(data: bytes) -> list[GeminiChunk]:
    try:
        value = _replace_surrogates(json.loads(data.decode("utf-8", "replace"), strict=False))
    except (ValueError, RecursionError) as error:
        preview = data[:80].decode("utf-8", "replace")
        raise MalformedStream(f"The provider sent invalid JSON: {preview!r}") from error
    if value is None:
        return []
    items = _objects(cast("object", value) if isinstance(value, list) else [value])
    if not items and value != []:
        raise MalformedStream(
            f"The provider sent JSON that is not an object: {str(cast('object', value))[:80]!r}"
        )
    return [_chunk(item) for item in items]


def _replace_surrogates(value: Any) -> Any:
    # Some servers send lone surrogates, which cannot be encoded in UTF-8.
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _chunk(fields: dict[str, Any]) -> GeminiChunk:
    feedback = _object(fields.get("promptFeedback"))
    usage = _object(fields.get("usageMetadata"))
    return GeminiChunk(
        candidates=[_candidate(item) for item in _objects(fields.get("candidates"))],
        prompt_feedback=PromptFeedback(
            block_reason=_text(feedback.get("blockReason")),
            block_reason_message=_text(feedback.get("blockReasonMessage")),
        ),
        usage_metadata=UsageCounts(
            **{
                name: _number(usage.get(encoded_name))
                for name, encoded_name in zip(
                    UsageCounts.__struct_fields__, UsageCounts.__struct_encode_fields__, strict=True
                )
            }
        ),
        error=fields.get("error"),
    )


def _candidate(fields: dict[str, Any]) -> Candidate:
    content = fields.get("content")
    return Candidate(
        index=_number(fields.get("index")),
        content=CandidateContent(parts=_objects(_object(content).get("parts")))
        if content is not None
        else None,
        finish_reason=_text(fields.get("finishReason")),
        finish_message=_text(fields.get("finishMessage")),
    )


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    if isinstance(value, int | float) and value == value and abs(value) < 2**53:
        return int(value)
    return None


_DELIMITERS = re.compile(rb'["{}\[\]]')
_STRING_DELIMITERS = re.compile(rb'["\\]')


class ArraySplitter:
    """Splits `[{…},{…}]`, or a single `{…}`, into the bytes of its objects, fed in pieces of any size.

    `is_done`: the array or the single object has ended. `is_within`: an object has begun and not ended.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._depth = 0
        self._in_array = False
        self._in_string = False
        self.is_done = False

    @property
    def is_within(self) -> bool:
        return self._depth > 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The objects completed by this piece. Raises MalformedStream for an object past the size bound."""
        if self.is_done:
            return []
        self._buffer += piece
        objects: list[bytes] = []
        while not self.is_done and (delimiter := self._next_delimiter()):
            self._read_delimiter(delimiter, objects)
        if not self.is_within:
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
