"""What happens to the output of a tool: it is cut for the model, and kept in a cache for repeated calls.

A cut output has 50 KiB and lines of 2,000 characters; the rest is stored separately. Sizes are those of the
JSON text, because the model gets JSON. The cache is bounded, in memory, and separate for each user. It keeps
results uncut, because the note in a cut result names the id of one call.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any, cast

import msgspec

from luxx.tools.core import Approved
from luxx.wire.source import Source, citable, normalized
from luxx.wire.tool import ToolResult

MAX_OUTPUT_BYTES = 50 * 1024
MAX_LINE_LENGTH = 2000
MAX_ERROR_BYTES = 1000
MAX_READ_ON_BYTES = 1000
MAX_WHOLE_BYTES = 128 * 1024
"""Limit for a result that a program reads."""
MAX_REF = 200
"""Length of the reference to a stored output: the first characters of the call id."""

# Reserved for the error and for the note that says how to read on.
_NOTE_BYTES = 2560
# Texts up to this many characters are never shortened.
_MIN_SHORTENED_TEXT = 64
# Indentation can expand a short, deeply nested value to gigabytes; above this limit it is left out.
_MAX_INDENT_BYTES = 8 * 1024 * 1024


class CutOutput(msgspec.Struct, frozen=True, kw_only=True):
    """`full` is the whole output if something was cut: a text unchanged, other data as JSON text."""

    result: ToolResult
    full: str | None = None


def cut_output(
    result: ToolResult, read_on_hint: str, *, keeps_lines: bool = False, is_for_program: bool = False
) -> CutOutput:
    """The result for the model. `read_on_hint` is the sentence that says how to get the rest.

    A text is cut at its end. Other data keeps its structure if shorter texts in it are enough; otherwise the
    result is the beginning of its JSON text. With `keeps_lines` only output over 50 KiB is cut, with
    `is_for_program` only output over 128 KiB.
    """
    try:
        if is_for_program and len(msgspec.json.encode(result)) <= MAX_WHOLE_BYTES:
            return CutOutput(result=result)
        return _cut(result, read_on_hint, keeps_lines)
    except UnicodeEncodeError:
        data, error = _replace_surrogates([result.data, result.error])
        repaired = ToolResult(success=result.success, data=data, error=error)
        return _cut(repaired, read_on_hint, keeps_lines)
    except RecursionError:
        return CutOutput(result=ToolResult.fail("the tool's answer is nested too deeply"))


def _cut(result: ToolResult, read_on_hint: str, keeps_lines: bool) -> CutOutput:
    size = len(msgspec.json.encode(result))
    if size <= MAX_LINE_LENGTH:
        return CutOutput(result=result)
    if size <= MAX_OUTPUT_BYTES and (keeps_lines or not _has_long_line([result.data, result.error])):
        return CutOutput(result=result)
    data, error, full_data = result.data, result.error, result.data
    if error is not None and len(msgspec.json.encode(error)) - 2 > MAX_ERROR_BYTES:
        full_data = {"data": data, "error": error}
        error = truncate_to_bytes(error, MAX_ERROR_BYTES) + "…"
    note = f"{size:,} bytes in all. {truncate_to_bytes(read_on_hint, MAX_READ_ON_BYTES)}"
    if len(msgspec.json.encode(data)) > MAX_LINE_LENGTH:
        if isinstance(data, str):
            data = truncate_to_bytes(cut_lines(data), MAX_OUTPUT_BYTES - _NOTE_BYTES)
            data += f"\n[output cut: {note}]"
        else:
            data = _cut_value(data, note)
    return CutOutput(
        result=ToolResult(success=result.success, data=data, error=error), full=_full_text(full_data)
    )


def cut_lines(text: str) -> str:
    """The text with each line over 2,000 characters cut and marked."""
    if len(text) <= MAX_LINE_LENGTH:
        return text
    return "\n".join(_cut_line(line) for line in text.split("\n"))


def truncate_to_bytes(text: str, budget: int) -> str:
    """The longest prefix of `text` that takes at most `budget` bytes inside a JSON text."""
    low, high = 0, min(len(text), max(budget, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if len(msgspec.json.encode(text[:middle])) - 2 <= budget:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def indented_size(data: Any, text: bytes, indent: int) -> int:
    """An upper bound of the bytes that `data`, with the JSON text `text`, takes with `indent`."""
    depth, level = 0, [data]
    while level:
        depth += 1
        level = [item for value in level for item in _children(value)]
    lines = text.count(b",") + 2 * (text.count(b"[") + text.count(b"{"))
    return len(text) + lines * (1 + indent * depth)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []


def _cut_line(line: str) -> str:
    if len(line) <= MAX_LINE_LENGTH:
        return line
    return f"{line[:MAX_LINE_LENGTH]}… [line cut: {len(line) - MAX_LINE_LENGTH:,} more characters]"


def _cut_value(data: Any, note: str) -> dict[str, Any]:
    fields = cast(dict[str, Any], data) if isinstance(data, dict) else {"items": data}
    cut = {"output_cut": f"Output cut: {note}"}
    # Citations refer to the sources, so the sources are not shortened.
    sources_fields = _sources_of(fields)
    budget = MAX_OUTPUT_BYTES - _NOTE_BYTES - len(msgspec.json.encode(sources_fields))
    rest = {key: item for key, item in fields.items() if key not in sources_fields}
    shortened = _shortened(rest, budget)
    if shortened is None:
        return {"beginning": truncate_to_bytes(_full_text(data), budget), **sources_fields, **cut}
    return {**shortened, **sources_fields, **cut}


def _shortened(value: dict[str, Any], budget: int) -> dict[str, Any] | None:
    """The value with its texts shortened to fit into `budget` bytes; None if that is not enough."""
    if takes_more_than(budget, value, _MIN_SHORTENED_TEXT):
        return None
    texts: list[tuple[str, str]] = []

    def collect(text: str) -> str:
        if len(text) <= _MIN_SHORTENED_TEXT:
            return text
        texts.append((text, cut_lines(text)))
        return ""

    # The size of everything but the long texts does not depend on where these are cut.
    budget -= len(msgspec.json.encode(_map_text(value, collect)))
    limit = MAX_OUTPUT_BYTES
    while limit >= _MIN_SHORTENED_TEXT:
        if (short := _shorten_all(texts, limit, budget)) is not None:
            return _map_text(value, partial(_next_or_same, iter(short)))
        limit = limit * 3 // 4
    return None


def _next_or_same(short: Iterator[str], text: str) -> str:
    return text if len(text) <= _MIN_SHORTENED_TEXT else next(short)


def _shorten_all(texts: list[tuple[str, str]], limit: int, budget: int) -> list[str] | None:
    """At most `limit` characters of each text; None if over the budget. `texts`: original, with cut lines."""
    shortened: list[str] = []
    for original, text in texts:
        short = text if len(text) <= limit else f"{text[:limit]}… [cut: {len(original) - limit:,} more]"
        budget -= len(msgspec.json.encode(short)) - 2
        if budget < 0:
            return None
        shortened.append(short)
    return shortened


def takes_more_than(budget: int, value: Any, longest: int = MAX_OUTPUT_BYTES) -> bool:
    """Whether the JSON text of `value` is certainly longer than `budget` bytes. Stops as soon as it is.

    Counts only the first `longest` characters of each text, and one byte per character.
    """
    pending = [value]
    while pending and budget >= 0:
        item = pending.pop()
        if isinstance(item, str):
            budget -= min(len(item), longest) + 2
        elif isinstance(item, dict):
            inner = cast(dict[str, Any], item)
            budget -= 1 + 4 * len(inner)
            if budget >= 0:
                budget -= sum(map(len, inner))
                pending.extend(inner.values())
        elif isinstance(item, list):
            inner = cast(list[Any], item)
            budget -= 1 + len(inner)
            if budget >= 0:
                pending.extend(inner)
        else:
            budget -= 1
    return budget < 0


def _sources_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The field `sources`, if it is a list of Source: the first ones that fit into half of the limit."""
    try:
        sources = msgspec.convert(fields.get("sources"), list[Source])
    except msgspec.ValidationError:
        return {}
    if not all(source.url or source.document_id for source in sources):
        return {}
    remaining_bytes = MAX_OUTPUT_BYTES // 2
    kept: list[Source] = []
    for source in citable(*map(normalized, sources)):
        remaining_bytes -= len(msgspec.json.encode(source)) + 1
        if remaining_bytes < 0:
            break
        kept.append(source)
    return {"sources": msgspec.to_builtins(kept)}


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to all texts except URLs, because a part of a URL is another address."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_text(item, change) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {
            key: item if key == "url" and isinstance(item, str) else _map_text(item, change)
            for key, item in cast(dict[str, Any], value).items()
        }
    return value


def _replace_surrogates(value: Any) -> Any:
    """The value with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(text.decode("utf-16", "replace"))


def _has_long_line(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > MAX_LINE_LENGTH and any(len(line) > MAX_LINE_LENGTH for line in value.split("\n"))
    if isinstance(value, list):
        return any(_has_long_line(item) for item in cast(list[Any], value))
    if isinstance(value, dict):
        return any(_has_long_line(item) for item in cast(dict[str, Any], value).values())
    return False


def _full_text(data: Any) -> str:
    if isinstance(data, str):
        return data
    text = msgspec.json.encode(data)
    if indented_size(data, text, 2) > len(text) + _MAX_INDENT_BYTES:
        return text.decode()
    return msgspec.json.format(text, indent=2).decode()


_MAX_INLINE_BYTES = 32 * 1024
"""Bytes of JSON that are processed on the event loop."""


async def cut_output_async(
    result: ToolResult, read_on_hint: str, *, keeps_lines: bool = False, is_for_program: bool = False
) -> CutOutput:
    """Like `cut_output`; cuts a large result in a thread."""
    cut = partial(cut_output, result, read_on_hint, keeps_lines=keeps_lines, is_for_program=is_for_program)
    if takes_more_than(_MAX_INLINE_BYTES, [result.data, result.error]):
        return await asyncio.to_thread(cut)
    return cut()


# Characters of edited arguments in a note; the model knows the rest from its own call.
_MAX_SHOWN_ARGUMENTS = 4000


def approval_note(approved: Approved) -> str | None:
    """The note for the model about a user's approval; None if the user changed and said nothing."""
    comment = "" if approved.note is None else f" They say: {approved.note}"
    if approved.is_edited:
        return (
            "The person whom you work for changed the arguments before this call was made; it was made with "
            f"{_arguments_text(approved.arguments)} and this is its result.{comment}"
        )
    return f"The person whom you work for allowed this call.{comment}" if comment else None


def denied_edit_note(approved: Approved) -> str:
    """The note for the model about a call that was denied with the arguments that the user edited."""
    return (
        f"The person whom you work for changed the arguments to {_arguments_text(approved.arguments)}, "
        "and with these the call is denied."
    )


def _arguments_text(arguments: dict[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode()[:_MAX_SHOWN_ARGUMENTS]


_MAX_ENTRIES = 1000
_MAX_BYTES = 32 * 1024 * 1024
# Limit for one result, so that a single big one does not evict all others.
_MAX_ENTRY_BYTES = _MAX_BYTES // 32


CacheKey = tuple[int, bytes]
"""The user id, and the hash of the tool's name and its arguments with sorted keys."""


def cache_key(tool: str, arguments: dict[str, Any], user_id: int) -> CacheKey:
    """The key for this tool, user and arguments, independent of the order of the arguments."""
    text = msgspec.json.encode([tool, arguments], order="sorted")
    return user_id, blake2b(text, digest_size=32).digest()


class ResultCache:
    """An LRU cache, thread-safe. `ttl` in seconds, `clock` monotonic."""

    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        self._ttl = ttl
        self._clock = clock
        self._lock = Lock()
        self._entries: OrderedDict[CacheKey, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, key: CacheKey) -> ToolResult | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            expires_at, text = entry
            if self._clock() >= expires_at:
                self._drop(key)
                return None
            self._entries.move_to_end(key)
        return msgspec.json.decode(text, type=ToolResult)

    def put(self, key: CacheKey, result: ToolResult) -> None:
        """Store a copy. Skips results over 1 MB and results that cannot be encoded as JSON."""
        try:
            text = msgspec.json.encode(result)
        except (UnicodeEncodeError, RecursionError):
            return
        if len(text) > _MAX_ENTRY_BYTES:
            return
        with self._lock:
            self._drop(key)
            self._entries[key] = (self._clock() + self._ttl, text)
            self._bytes += len(text)
            while self._bytes > _MAX_BYTES or len(self._entries) > _MAX_ENTRIES:
                self._drop(next(iter(self._entries)))

    def clear(self, user_id: int | None = None) -> int:
        """Remove one user's results, or all; return how many."""
        with self._lock:
            keys = [key for key in self._entries if user_id is None or key[0] == user_id]
            for key in keys:
                self._drop(key)
        return len(keys)

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[1])
