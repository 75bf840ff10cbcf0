"""What waits to be sent while something is being sent: for each receiver in order, within bounds.

Nothing here waits or knows a network. A receiver that is told more than is kept for it loses the oldest.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
import structlog

from luxx.bus.core import Make

MOST_WAITING = 4_000_000
"""Bytes kept for one receiver; a lone message may be longer."""

MOST_AT_ONCE = 256_000
"""Bytes given at once, about: what comes meanwhile waits for the next time."""

Message = tuple[str, bytes]
"""A topic and a payload."""

logger = structlog.get_logger()
_encode = msgspec.msgpack.Encoder().encode


class _Waiting:
    """What waits for one receiver."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.size = 0


class Outbox:
    """`filled` is set while there is something to take. `on_drop` is told how many messages were lost."""

    def __init__(self, on_drop: Callable[[int], None]) -> None:
        self.filled = asyncio.Event()
        self._on_drop = on_drop
        self._waiting: dict[str | None, _Waiting] = {}
        self._later: deque[tuple[str, Make, str | None]] = deque()

    def put(self, topic: str, payload: bytes, to: str | None) -> None:
        """Adds a message for one receiver, or for all (None)."""
        waiting = self._waiting.get(to)
        if waiting is None:
            waiting = self._waiting[to] = _Waiting()
        waiting.messages.append((topic, payload))
        waiting.size += len(payload)
        dropped = 0
        while waiting.size > MOST_WAITING and len(waiting.messages) > 1:
            waiting.size -= len(waiting.messages.popleft()[1])
            dropped += 1
        if dropped:
            self._on_drop(dropped)
        self.filled.set()

    def put_later(self, topic: str, make: Make, to: str | None) -> None:
        """Adds a message that is made when it is taken."""
        self._later.append((topic, make, to))
        self.filled.set()

    def take(self) -> list[tuple[str | None, bytes]]:
        """Receivers, and for each the encoded list of its messages; unsets `filled` where nothing is left."""
        room = MOST_AT_ONCE
        taken: dict[str | None, list[Message]] = {}
        for to in list(self._waiting):
            room -= self._take_for(to, taken.setdefault(to, []), room)
            if room <= 0:
                break
        # Only those that were there: who is asked may ask to be asked again.
        for _ in range(len(self._later)):
            if room <= 0:
                break
            topic, make, to = self._later.popleft()
            payload = _made(topic, make)
            if payload:
                taken.setdefault(to, []).append((topic, payload))
                room -= len(payload)
        if not self._waiting and not self._later:
            self.filled.clear()
        return [(to, _encode(messages)) for to, messages in taken.items() if messages]

    def forget(self) -> None:
        """Drops the messages; what is to be made later stays."""
        self._waiting.clear()
        if not self._later:
            self.filled.clear()

    def _take_for(self, to: str | None, taken: list[Message], room: int) -> int:
        waiting = self._waiting[to]
        size = 0
        while waiting.messages and size < room:
            message = waiting.messages.popleft()
            size += len(message[1])
            taken.append(message)
        waiting.size -= size
        if not waiting.messages:
            del self._waiting[to]
        return size


def _made(topic: str, make: Make) -> bytes:
    try:
        return make()
    except Exception:
        # Whatever one of them cannot say, the others are sent.
        logger.exception("bus_message_not_made", topic=topic)
        return b""
