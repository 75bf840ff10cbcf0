"""The prompt cache of the scripted provider. Like the real servers', that of Anthropic ends at the blocks
that a request marks; others cache the longest prefix that they have seen.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from luxx.providers.adapter import CACHE_MARK
from luxx.providers.parsing import json_objects
from luxx.providers.scripted.script import BYTES_PER_TOKEN, ScriptedRequest

MAX_MARKS = 4
LOOKED_BACK = 20
"""Blocks before a mark, itself included, at which Anthropic looks for the end of a cached prefix."""


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt that were read from the cache and written to it; `marks`: how many it has."""

    read: int
    written: int
    marks: int

    def scaled(self, tokens: int, before: int) -> "CacheUse":
        """The same of a prompt that has so many tokens, where `before` were counted."""
        read = min(tokens, self.read * tokens // max(1, before))
        return CacheUse(
            read=read,
            written=min(tokens - read, self.written * tokens // max(1, before)),
            marks=self.marks,
        )


NO_CACHE = CacheUse(read=0, written=0, marks=0)


class _Prefix(msgspec.Struct, frozen=True):
    """The prompt up to the end of a block: its hash, its size in bytes, and whether the block is marked."""

    digest: bytes
    size: int
    is_marked: bool


class PromptCache:
    """Remembers the prefixes of the prompts of one server."""

    def __init__(self) -> None:
        self._stored: set[bytes] = set()

    def use(self, request: ScriptedRequest, body: bytes) -> CacheUse:
        """What this prompt reads and writes; it is stored."""
        fields = msgspec.json.decode(body, type=dict[str, Any])
        by_marks = request.dialect == "anthropic"
        prefixes = list(_prefixes(fields, request.model, by_marks=by_marks))
        ends = [at for at, prefix in enumerate(prefixes) if prefix.is_marked or not by_marks]
        read = max((self._read_before(prefixes, end, by_marks=by_marks) for end in ends), default=0)
        last = prefixes[ends[-1]].size if ends else 0
        self._stored.update(prefixes[end].digest for end in ends)
        return CacheUse(
            read=read // BYTES_PER_TOKEN,
            written=last // BYTES_PER_TOKEN - read // BYTES_PER_TOKEN if by_marks else 0,
            marks=len(ends) if by_marks else 0,
        )

    def _read_before(self, prefixes: list[_Prefix], end: int, *, by_marks: bool) -> int:
        first = max(0, end - LOOKED_BACK + 1) if by_marks else 0
        found = (prefixes[at] for at in range(end, first - 1, -1))
        return next((prefix.size for prefix in found if prefix.digest in self._stored), 0)


def _prefixes(fields: dict[str, Any], model: str, *, by_marks: bool) -> Iterator[_Prefix]:
    digest, size = hashlib.sha256(model.encode()), 0
    for context, block in _blocks(fields, by_marks=by_marks):
        unmarked = _without_mark(block)
        encoded = msgspec.json.encode(unmarked)
        digest.update(msgspec.json.encode(context) + encoded)
        size += len(encoded)
        yield _Prefix(digest.copy().digest(), size, unmarked != block)


def _blocks(fields: dict[str, Any], *, by_marks: bool) -> Iterator[tuple[object, object]]:
    """The blocks of a prompt in the order in which they are cached: tools, system, messages.

    With each block comes what else its prefix depends on.
    """
    for tool in json_objects(fields.get("tools")):
        yield "tools", tool
    system = fields.get("system") or fields.get("systemInstruction") or fields.get("instructions")
    if system:
        for block in cast("list[object]", system) if isinstance(system, list) else [system]:
            yield "system", block
    # Messages are cached together with what switches thinking and the choice of tools.
    switches = [fields.get("thinking"), fields.get("tool_choice")] if by_marks else []
    for message in json_objects(fields.get("messages") or fields.get("contents") or fields.get("input")):
        content = message.get("content") if by_marks else None
        blocks = cast("list[object]", content) if isinstance(content, list) else [message]
        for block in blocks:
            yield [message.get("role"), *switches], block


def _without_mark(block: object) -> object:
    if not isinstance(block, dict):
        return block
    return {name: value for name, value in cast("dict[str, Any]", block).items() if name != CACHE_MARK}


def too_many_marks(use: CacheUse) -> dict[str, Any] | None:
    """The body of Anthropic's error for more marks than it allows; None if there are not too many."""
    if use.marks <= MAX_MARKS:
        return None
    message = f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {use.marks}."
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
