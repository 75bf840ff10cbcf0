"""How sockets are spoken to uvicorn: bounds on what one client can make the server hold, before any of our
code sees it. What is said on a socket is in `sockets.py`.
"""

import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

MOST_BYTES = 16 * 1024
"""Of one message."""

MOST_FRAGMENTS = 64
"""Of one message: empty ones add no bytes and could go on for ever."""

MOST_AFTER_CLOSE = 64 * 1024
"""What a client may still be sending when it is told that the socket is closed."""

LINGER_SECONDS = 5.0
"""How long a client has to take its leave once the server has."""

PING_SECONDS = 20.0
"""How often a client is asked for a sign of life, and how long it is waited for."""


class BoundedSocketProtocol(WebSocketsSansIOProtocol):
    """Takes nothing from a client that does not read: it would be answered, and the answers pile up."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # A line for everybody who knocks would be an access log, which there is none of.
        self.logger = self.conn.logger = logging.getLogger("uvicorn.sockets")
        self._after_close = 0
        self.on_lost: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        """Cuts off who talks on after the end: uvicorn would read it all, for as long as it comes."""
        if self.close_sent:
            self._after_close += len(data)
            if self._after_close > MOST_AFTER_CLOSE:
                self.transport.abort()
                return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self.handshake_complete and not self.close_sent and self.conn.close_rcvd is None:
            # Not even a close was taken: the connection would stay until the client has read what was before.
            self.transport.abort()

    async def receive(self) -> Any:
        """As uvicorn's, but reading goes on only where writing does."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self.writable.is_set():
                self.transport.resume_reading()
        return message

    async def send(self, message: Any) -> None:
        was_open = not self.close_sent
        await super().send(message)
        if was_open and self.close_sent:
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        if self.initial_response is not None and self.close_sent:
            # Refused with an answer: uvicorn would complain that there was no handshake.
            self.handshake_complete = True

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MOST_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)


def socket_options() -> dict[str, Any]:
    """For `uvicorn.Config`. Not compressed: short messages gain nothing, and each socket would keep 64 kB."""
    return {
        "ws": BoundedSocketProtocol,
        "ws_max_size": MOST_BYTES,
        "ws_ping_interval": PING_SECONDS,
        "ws_ping_timeout": PING_SECONDS,
        "ws_per_message_deflate": False,
    }
