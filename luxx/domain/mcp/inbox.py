"""Splits the output of an MCP server into messages and checks them before they are parsed.

Answers to open requests are not limited in number; all other messages are. The time to parse a message grows
with the values in it, so messages with too many values are refused. Pure.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import msgspec

from luxx.infra.strict_json import without_lone_surrogates

MIB = 1024 * 1024
MOST_BYTES = 4 * MIB
"""The size limit of one message."""

MOST_PARTS = 50_000
"""Values in an answer: parsing this many blocks the event loop for about a twentieth of a second."""

MOST_UNASKED = 200
MOST_UNASKED_BYTES = MIB
"""Lines per second that answer no request, and their bytes; lines that are no messages count, too."""

MOST_ASKING_BYTES = 64 * 1024
MOST_ASKING_PARTS = 200
"""Limits of a server's request. A larger one is passed on without its parameters, so the SDK refuses it."""

MOST_LATE = 1_000
"""Cancelled requests that are remembered because their answers may still arrive."""

_CHANGED = "notifications/tools/list_changed"
"""The only notification that Luxx handles."""

_MOST_SHORT = 300
"""Bytes of an id or of a method's name."""


class ProtocolAbuse(Exception):
    """The server misuses the protocol; the message is a predicate that follows "it"."""


class McpMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the server wrote it. `answers`: the id of Luxx's request that it answers.

    `is_change`: the notification that the server's list of tools has changed; `text` is empty then.
    """

    text: bytes
    answers: int | None = None
    is_change: bool = False


_NOTHING = msgspec.Raw(b"null")


class _MessageHead(msgspec.Struct, frozen=True, kw_only=True):
    id: msgspec.Raw = _NOTHING
    method: msgspec.Raw = _NOTHING


class Inbox:
    """`clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._partial = bytearray()
        self._open: dict[int, str] = {}
        self._late: dict[int, None] = {}
        self.listed_bytes = 0
        self._second_began = clock()
        self._unasked = 0
        self._unasked_bytes = 0

    def expect_answer(self, number: int, method: str) -> None:
        """Record that Luxx sends a request with this id."""
        self._open[number] = method

    def forget(self, number: Any) -> None:
        """Record that this request is cancelled: its answer is dropped if it still arrives."""
        if type(number) is int and self._open.pop(number, None) is not None:
            self._late[number] = None
            if len(self._late) > MOST_LATE:
                del self._late[next(iter(self._late))]

    def take(self, piece: bytes) -> list[McpMessage]:
        """The messages to handle that this piece of output completes. Raises ProtocolAbuse."""
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
        head = _head(text)
        if head is None:
            text = without_lone_surrogates(text)
            head = _head(text)
        number, method = (None, None) if head is None else (_short_value(head.id), _short_value(head.method))
        if method is None and type(number) is int and (number in self._open or number in self._late):
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

    def _answer(self, number: int, text: bytes) -> McpMessage | None:
        if number in self._late:
            del self._late[number]
            return None
        if self._open.pop(number) == "tools/list":
            self.listed_bytes += len(text)
        return McpMessage(text=text, answers=number)

    def _count(self, size: int) -> None:
        now = self._clock()
        if now - self._second_began >= 1:
            self._second_began, self._unasked, self._unasked_bytes = now, 0, 0
        self._unasked += 1
        self._unasked_bytes += size
        if self._unasked > MOST_UNASKED:
            raise ProtocolAbuse(f"printed more than {MOST_UNASKED} lines in a second that answer no request")
        if self._unasked_bytes > MOST_UNASKED_BYTES:
            raise ProtocolAbuse(f"printed more than {MOST_UNASKED_BYTES // MIB} MiB that answer no request")


def parts(text: bytes) -> int:
    """About how many values a JSON text has, by its punctuation outside of strings. Some ms for a MiB."""
    if _value_marks(text) < MOST_ASKING_PARTS:
        return _value_marks(text)
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MOST_PARTS:
        # A value and its name have at most four quotes.
        return MOST_PARTS + 1
    return _value_marks(b"".join(plain.split(b'"')[::2]))


def _value_marks(text: bytes) -> int:
    """The number of `{`, `[` and `,`: about one for each value."""
    return text.count(b"{") + text.count(b"[") + text.count(b",")


def _short_value(raw: msgspec.Raw) -> Any:
    """The decoded value; None if it is longer than _MOST_SHORT bytes or invalid."""
    data = bytes(raw)
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(data) if len(data) <= _MOST_SHORT else None
    return None


def _head(text: bytes) -> _MessageHead | None:
    try:
        return msgspec.json.decode(text, type=_MessageHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


SHORTEST = 6
"""The minimum length of a value that is hidden; a shorter one may be part of ordinary text."""

_REPLACEMENT = "…"


class Secrets:
    """Hides the values of a server's environment in text. `env`: entries `NAME=value`."""

    def __init__(self, env: Iterable[str]) -> None:
        values = {variable.partition("=")[2] for variable in env}
        self._values = sorted((value for value in values if len(value) >= SHORTEST), key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """The text with each secret replaced."""
        for value in self._values:
            text = text.replace(value, _REPLACEMENT)
        return text

    def cut(self, text: str, most: int) -> str:
        """The text with each secret replaced, then shortened, so that no part of a secret remains."""
        return shortened(self.hidden(text), most)

    def occur_in(self, data: Any) -> bool:
        """Whether JSON data contain a secret."""
        return self.hidden_in(data) is not data

    def hidden_in(self, data: Any) -> Any:
        """JSON data with each secret replaced; the same object if they contain none."""
        if not self._values:
            return data
        replaced: Any = data
        if isinstance(data, str):
            replaced = self.hidden(data)
        elif isinstance(data, list):
            replaced = [self.hidden_in(item) for item in cast("list[Any]", data)]
        elif isinstance(data, dict):
            values = cast("dict[str, Any]", data)
            replaced = {self.hidden(name): self.hidden_in(value) for name, value in values.items()}
        return cast(Any, data) if replaced == data else replaced


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
