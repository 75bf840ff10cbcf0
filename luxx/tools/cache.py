"""An in-memory, bounded cache, per user, for results of repeatable, read-only tools.

It stores results uncut, because the note in a cut result names the id of one call.
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
# Limit for one result, so that a single big one does not evict all others.
_MAX_ENTRY_BYTES = _MAX_BYTES // 32


class CacheKey(msgspec.Struct, frozen=True):
    """`digest` is the hash of the tool's name and its arguments with sorted keys."""

    user_id: int
    digest: bytes


def cache_key(tool: str, arguments: dict[str, Any], user_id: int) -> CacheKey:
    """The key for this tool, user and arguments, independent of the order of the arguments."""
    text = msgspec.json.encode([tool, arguments], order="sorted")
    return CacheKey(user_id, blake2b(text, digest_size=32).digest())


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
            keys = [key for key in self._entries if user_id is None or key.user_id == user_id]
            for key in keys:
                self._drop(key)
        return len(keys)

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[1])
