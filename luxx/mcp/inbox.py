"""What an MCP server prints, cut into messages and looked at before anything is made of it.

Only answers to what was asked are let in without a limit to their number; the rest is counted. Pure.
"""

from collections.abc import Callable
from typing import Any

import msgspec

MIB = 1024 * 1024
MOST_BYTES = 4 * MIB
"""Of one message."""

MOST_UNASKED = 200
MOST_UNASKED_BYTES = 4 * MIB
"""Messages in a second that answer nothing, and their bytes; lines that are no messages are among them."""

_HEARD = frozenset({"notifications/tools/list_changed"})
"""Notifications that mean something here; a server may send others."""


class Misbehaved(Exception):
    """The server does what nobody has to bear, in words that follow "it"."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was written; `answers`: the id of the request of ours that it answers."""

    text: bytes
    answers: int | None = None


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    jsonrpc: Any = None
    id: Any = None
    method: Any = None


class Inbox:
    """`clock` in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = bytearray()
        self._asked: set[int] = set()
        self._since = clock()
        self._unasked = 0
        self._unasked_bytes = 0

    def asked(self, number: int) -> None:
        """A request with this id goes out."""
        self._asked.add(number)

    def take(self, piece: bytes) -> list[Message]:
        """The messages that are whole with this piece and worth hearing. Raises Misbehaved."""
        first, *others = piece.split(b"\n")
        self._begun += first
        if len(self._begun) > MOST_BYTES:
            raise Misbehaved(f"sent a message of more than {MOST_BYTES // MIB} MiB")
        if not others:
            return []
        lines = [bytes(self._begun), *others[:-1]]
        self._begun = bytearray(others[-1])
        return [message for line in lines if (message := self._looked_at(line)) is not None]

    def _looked_at(self, line: bytes) -> Message | None:
        text = line.strip()
        head = _head(text) if text else None
        if head is not None and head.method is None and type(head.id) is int and head.id in self._asked:
            self._asked.discard(head.id)
            return Message(text=text, answers=head.id)
        self._count(len(line))
        if head is None and b'"jsonrpc"' in text:
            raise Misbehaved("sent a message that cannot be read")
        if head is None or not isinstance(head.method, str):
            return None
        is_request = head.id is not None
        return Message(text=text) if is_request or head.method in _HEARD else None

    def _count(self, size: int) -> None:
        now = self._clock()
        if now - self._since >= 1:
            self._since, self._unasked, self._unasked_bytes = now, 0, 0
        self._unasked += 1
        self._unasked_bytes += size
        if self._unasked > MOST_UNASKED:
            raise Misbehaved(f"printed more than {MOST_UNASKED} lines in a second that answer nothing")
        if self._unasked_bytes > MOST_UNASKED_BYTES:
            raise Misbehaved(f"printed more than {MOST_UNASKED_BYTES // MIB} MiB that answer nothing")


def _head(text: bytes) -> _Head | None:
    try:
        return msgspec.json.decode(text, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
