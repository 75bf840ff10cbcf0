"""The interface of the bus between processes, and the bus of a single process.

A message is a hint and may be lost (the bus was down, a process was slow). A receiver must therefore also
find out later without it. Facts that must not be lost are rows in the database.
"""

from collections.abc import Callable
from typing import Protocol

MessageHandler = Callable[[str, bytes], None]
"""Called with the name of the sending process and the payload, on the event loop's thread."""

PayloadFactory = Callable[[], bytes]
"""Makes the payload when there is capacity to send it; returns b"" if there is nothing left to send."""


class Bus(Protocol):
    """One per process. Use it only on the event loop's thread."""

    process: str
    """The name of this process, used to send to it alone; new at each start."""

    is_up: bool
    """Whether messages can be sent now; always true for a single process."""

    is_alone: bool
    """Whether no other process can exist, so that publishing can be skipped."""

    def on(self, topic: str, handler: MessageHandler) -> None:
        """Calls `handler` with each message of a topic that another process sends from now on."""
        ...

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        """Calls `handler` whenever the bus reconnects: messages sent while it was down are lost."""
        ...

    def publish(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        """Sends to one process, or to all others. Returns at once; messages to one process keep their order.

        `payload` may have any length; the bus splits and joins it. The message is lost if the bus is down.
        """
        ...

    def publish_later(self, topic: str, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        """Calls `make_payload` once, when earlier messages have been sent, and sends what it returns.

        Use it for data that can be joined: all that arrives during a send becomes one message. While the bus
        is down, `make_payload` is not called.
        """
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class LocalBus:
    """The bus of a single process: it has no receivers."""

    is_up = True
    is_alone = True

    def __init__(self, process: str) -> None:
        self.process = process

    def on(self, topic: str, handler: MessageHandler) -> None:
        """Does nothing: no other process sends."""

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        """Does nothing: this bus never disconnects."""

    def publish(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        """Does nothing: there is no receiver."""

    def publish_later(self, topic: str, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        """Does nothing: there is no receiver."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...
