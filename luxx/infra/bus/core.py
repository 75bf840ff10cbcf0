"""What the bus promises, and the bus of a process that is alone.

A message is a hint: it may be lost (the bus was away, a process was slow), so whoever acts on one must
also find out without it, later. What has to be certain is a row of the database.
"""

from collections.abc import Callable
from typing import Protocol

MessageHandler = Callable[[str, bytes], None]
"""Takes the name of the process that spoke and what it said; on the event loop's thread, at once."""

PayloadFactory = Callable[[], bytes]
"""Makes a payload when there is room to send it; empty where there is nothing left to say."""


class Bus(Protocol):
    """One per process. All of it is used on the event loop's thread."""

    process: str
    """The name of this process, by which others can send to it alone; a new one at each start."""

    is_up: bool
    """Whether messages get through just now; a process that is alone has nobody to miss."""

    is_alone: bool
    """Whether there can be no other process: then nothing needs to be said."""

    def on(self, topic: str, handler: MessageHandler) -> None:
        """Calls `take` with each message of a topic that another process sends from now on."""
        ...

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        """Calls `take` whenever the bus is back after it was away: what was said meanwhile is lost."""
        ...

    def publish(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        """Sends to one process, or to all others. Returns at once; messages to one process keep their order.

        `payload` may be of any length; the bus cuts and joins. Lost where the bus is away.
        """
        ...

    def publish_later(self, topic: str, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        """Calls `make` once, when what was told before is on its way, and sends what it gives.

        For what is worth joining: all that comes while something is being sent makes one message. While the
        bus is away `make` waits with it.
        """
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class LocalBus:
    """The bus of a process that is alone: nobody hears it."""

    is_up = True
    is_alone = True

    def __init__(self, process: str) -> None:
        self.process = process

    def on(self, topic: str, handler: MessageHandler) -> None:
        """Nobody will ever send."""

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        """It is never away."""

    def publish(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        """Nobody is there."""

    def publish_later(self, topic: str, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        """Nobody is there."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...
