"""Answers of repeatable, read-only tools, kept for a while per user. Memory only, bounded.

They are kept whole: where one is cut, the note in it names the call to read on in, which each has its own.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock
from typing import Any

import msgspec

from luxx.wire.tool import ToolResult

_MAX_ENTRIES = 1000
_MAX_BYTES = 32 * 1024 * 1024
# One answer may take at most this share, or a single big one would drive out all the others.
_MAX_ENTRY_BYTES = _MAX_BYTES // 32


class CacheKey(msgspec.Struct, frozen=True):
    """`digest` stands for the tool's name and its arguments with sorted keys."""

    user_id: int
    digest: bytes


def cache_key(tool: str, arguments: dict[str, Any], user_id: int) -> CacheKey:
    """The same for the same tool, user and arguments, in whatever order these are written."""
    text = msgspec.json.encode([tool, arguments], order="sorted")
    return CacheKey(user_id, blake2b(text, digest_size=32).digest())


class ResultCache:
    """Least recently used goes first. Safe across threads. `ttl` in seconds, `clock` monotonic."""

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
        """Keeps a copy; an answer over 1 MB is not kept, nor one that is no valid JSON before it is cut."""
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
        """Forget one user's answers, or all; how many these were."""
        with self._lock:
            keys = [key for key in self._entries if user_id is None or key.user_id == user_id]
            for key in keys:
                self._drop(key)
        return len(keys)

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[1])
