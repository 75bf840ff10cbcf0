"""What an MCP server prints, cut into messages and looked at before anything is made of it.

Only answers to what was asked are let in without a limit to their number; the rest is counted. What is made
of a message takes a time that grows with its parts, so nothing of very many parts is let in. Pure.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import msgspec

from luxx.domain.mcp.schema import shortened

MIB = 1024 * 1024
MOST_BYTES = 4 * MIB
"""Of one message."""

MOST_PARTS = 50_000
"""Values in an answer: reading so many takes about a twentieth of a second, in which nothing else runs."""

MOST_UNASKED = 200
MOST_UNASKED_BYTES = MIB
"""Messages in a second that answer nothing, and their bytes; lines that are no messages are among them."""

MOST_ASKING_BYTES = 64 * 1024
MOST_ASKING_PARTS = 200
"""Of a request of the server; one with more is heard without its parameters, and so refused."""

MOST_LATE = 1_000
"""Requests given up whose answers may still come."""

_CHANGED = "notifications/tools/list_changed"
"""The notification that means something here; a server may send others."""

_MOST_WORD = 300
"""Bytes of an id or of a method's name."""


class ProtocolAbuse(Exception):
    """The server does what nobody has to bear, in words that follow "it"."""


class McpMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was written; `answers`: the id of the request of ours that it answers.

    `is_change`: all it says is that the server's tools are others now.
    """

    text: bytes
    answers: int | None = None
    is_change: bool = False


_NOTHING = msgspec.Raw(b"null")


class _MessageHead(msgspec.Struct, frozen=True, kw_only=True):
    id: msgspec.Raw = _NOTHING
    method: msgspec.Raw = _NOTHING


class Inbox:
    """`clock` in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._partial = bytearray()
        self._asked: dict[int, str] = {}
        self._late: dict[int, None] = {}
        self.listed_bytes = 0
        self._since = clock()
        self._unasked = 0
        self._unasked_bytes = 0

    def asked(self, number: int, method: str) -> None:
        """A request with this id goes out."""
        self._asked[number] = method

    def forget(self, number: Any) -> None:
        """Nobody waits for the answer to this request any more; it may come, and is let go."""
        if type(number) is int and self._asked.pop(number, None) is not None:
            self._late[number] = None
            if len(self._late) > MOST_LATE:
                del self._late[next(iter(self._late))]

    def take(self, piece: bytes) -> list[McpMessage]:
        """The messages that are whole with this piece and worth hearing. Raises Misbehaved."""
        first, *others = piece.split(b"\n")
        self._partial += first
        if len(self._partial) > MOST_BYTES:
            raise ProtocolAbuse(f"sent a message of more than {MOST_BYTES // MIB} MiB")
        if not others:
            return []
        lines = [bytes(self._partial), *others[:-1]]
        self._partial = bytearray(others[-1])
        return [message for line in lines if (message := self._checked_message(line)) is not None]

    def _checked_message(self, line: bytes) -> McpMessage | None:
        text = line.strip()
        head = _head(text) if text else None
        number, method = (
            (_short_value(head.id), _short_value(head.method)) if head is not None else (None, None)
        )
        if method is None and type(number) is int and self._is_answer(number):
            return self._answer(number, text)
        self._count(len(line))
        if head is None and b'"jsonrpc"' in text:
            raise ProtocolAbuse("sent a message that cannot be read")
        if not isinstance(method, str):
            return None
        if number is None:
            return McpMessage(text=b"", is_change=True) if method == _CHANGED else None
        if len(text) > MOST_ASKING_BYTES or parts(text) > MOST_ASKING_PARTS:
            text = msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method})
        return McpMessage(text=text)

    def _is_answer(self, number: int) -> bool:
        return number in self._asked or number in self._late

    def _answer(self, number: int, text: bytes) -> McpMessage | None:
        if number in self._late:
            del self._late[number]
            return None
        if self._asked.pop(number) == "tools/list":
            self.listed_bytes += len(text)
        return McpMessage(text=text, answers=number)

    def _count(self, size: int) -> None:
        now = self._clock()
        if now - self._since >= 1:
            self._since, self._unasked, self._unasked_bytes = now, 0, 0
        self._unasked += 1
        self._unasked_bytes += size
        if self._unasked > MOST_UNASKED:
            raise ProtocolAbuse(f"printed more than {MOST_UNASKED} lines in a second that answer nothing")
        if self._unasked_bytes > MOST_UNASKED_BYTES:
            raise ProtocolAbuse(f"printed more than {MOST_UNASKED_BYTES // MIB} MiB that answer nothing")


def parts(text: bytes) -> int:
    """How many values there are about, outside of texts. Takes some milliseconds for a MiB."""
    if _value_marks(text) < MOST_ASKING_PARTS:
        return _value_marks(text)
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MOST_PARTS:
        # A value and its name have no more than four.
        return MOST_PARTS + 1
    return _value_marks(b"".join(plain.split(b'"')[::2]))


def _value_marks(text: bytes) -> int:
    """What each value but the last of a list or an object is followed by, or begins with."""
    return text.count(b"{") + text.count(b"[") + text.count(b",")


def _short_value(raw: msgspec.Raw) -> Any:
    """What a short part of a message says; of a longer one nothing is made."""
    said = bytes(raw)
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(said) if len(said) <= _MOST_WORD else None
    return None


def _head(text: bytes) -> _MessageHead | None:
    try:
        return msgspec.json.decode(text, type=_MessageHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


SHORTEST = 6
"""Characters of a value that is taken out; a shorter one may be any word."""

_INSTEAD = "…"


class Secrets:
    """`env`: entries `NAME=value`."""

    def __init__(self, env: Iterable[str]) -> None:
        values = {one.partition("=")[2] for one in env}
        self._values = sorted((one for one in values if len(one) >= SHORTEST), key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, _INSTEAD)
        return text

    def cut(self, text: str, most: int) -> str:
        """The same, shortened: only afterwards, so that no half of one is left."""
        return shortened(self.hidden(text), most)

    def occur_in(self, data: Any) -> bool:
        """Whether JSON data say one anywhere."""
        return self.hidden_in(data) is not data

    def hidden_in(self, data: Any) -> Any:
        """JSON data without them; the same object where there are none in it."""
        if not self._values:
            return data
        found: Any = data
        if isinstance(data, str):
            found = self.hidden(data)
        elif isinstance(data, list):
            found = [self.hidden_in(one) for one in cast("list[Any]", data)]
        elif isinstance(data, dict):
            given = cast("dict[str, Any]", data)
            found = {self.hidden(name): self.hidden_in(one) for name, one in given.items()}
        return cast(Any, data) if found == data else found
