"""The HTTP protocol of the server, with what uvicorn leaves unbounded: connections, requests that do not
end or wait in line, clients that take nothing.

Of a head that comes to its end `protection.py` judges the size, with an answer of the API's own kind. What
is kept in memory or open for a client before that is bounded here. Nothing else in Luxx depends on how
uvicorn works inside.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from luxx.api.http.connections import ConnectionBounds, closing_answer
from luxx.api.http.files import CUT
from luxx.api.http.protection import HEAD_TOO_LARGE, MOST_HEADERS
from luxx.api.http.streaming import LEAVING, PIPE, Connection, Leaving
from luxx.infra.config.schema import ServerConfig

MOST_BYTES = 16 * 1024
"""Of one message."""

MOST_FRAGMENTS = 64
"""Of one message: empty ones add no bytes and could go on for ever."""

MOST_AFTER_CLOSE = 64 * 1024
"""What a client may still be sending when it is told that the socket is closed."""

SOCKET_LINGER_SECONDS = 5.0
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
            self.loop.call_later(SOCKET_LINGER_SECONDS, self.transport.abort)
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


MOST_HEAD = 256 * 1024
"""Bytes of an unfinished head, or of what follows a body; four times what a finished one may have."""

MOST_PIPELINED = 20
"""Requests of one connection that wait while another is answered; of more, the rest is not read."""

LINGER_SECONDS = 5.0
"""How long a refused client is listened to: a connection closed on its words would lose the answer too."""

TAKES_NOTHING_SECONDS = 120
"""After so long without taking a byte of what waits for it a client is dropped, whatever is being sent."""

LARGE_HEAD = closing_answer(
    "431 Request Header Fields Too Large",
    HEAD_TOO_LARGE,
    "the address and the headers of the request are larger than this server takes",
)


HEAD, BODY, NOTHING = "head", "body", "nothing"
"""What of a request is still to come."""


SILENT = logging.Logger("silent", logging.CRITICAL)


class PipelineFull(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """Give it to uvicorn as `http`, with `bounded` where the bounds are not the default ones."""

    # Its parent has a dictionary; with more names that would double.
    __slots__ = (
        "_answered",
        "_bounds",
        "_is_refused",
        "_last_piece",
        "_leaving",
        "_network",
        "_received",
        "_since",
        "_taken_by",
        "_unread",
        "_waits_for",
    )

    def __init__(self, *given: Any, bounds: ConnectionBounds | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self._bounds = bounds or ConnectionBounds(ServerConfig())
        self._network = ""
        self._answered: RequestResponseCycle | None = None
        self._unread = 0
        self._is_refused = False
        self._leaving = Leaving()
        self._waits_for = HEAD
        self._since = self._last_piece = self.loop.time()
        self._received = 0
        self._taken_by = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The system itself watches over what is sent: every answer and stream, and what is left of one."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        address = self.client[0] if self.client else ""
        admitted = self._bounds.admit(address, len(self.connections))
        if isinstance(admitted, bytes):
            self._is_refused = True
            self._bounds.log_refused(address, self.loop.time())
            transport.write(admitted)
            transport.close()
            return
        self._network = admitted
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = TAKES_NOTHING_SECONDS * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leaving.left()
        # uvicorn tells the request that came last, which may not be the one that is answered.
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        # They lead back here: all that was read would stay until the collector comes by.
        self.pipeline.clear()
        self.cycle = self.scope = self._answered = cast("Any", None)
        self._release()

    def data_received(self, data: bytes) -> None:
        """Counts what comes until the parser has made something of it."""
        if self._is_refused:
            return
        if self._waits_for is NOTHING:
            self._waits_for = HEAD
            self._since = self.loop.time()
        elif self._waits_for is BODY:
            self._last_piece = self.loop.time()
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEAD:
            self._refuse(LARGE_HEAD)

    def send_400_response(self, msg: str) -> None:
        """uvicorn takes a parser that was stopped for one that found a mistake."""
        if not self._is_refused:
            super().send_400_response(msg)

    def handle_websocket_upgrade(self) -> None:
        """The connection goes on as another protocol's, and is counted until that one loses it."""
        super().handle_websocket_upgrade()
        successor = self.transport.get_protocol()
        if isinstance(successor, BoundedSocketProtocol):
            successor.on_lost = self._release

    # What the parser finds

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._waits_for is NOTHING:
            # It came together with what was before it.
            self._waits_for = HEAD
            self._since = self.loop.time()
            self._unread = 1
        scope = cast("dict[str, Any]", self.scope)
        scope[CUT], scope[LEAVING] = self.transport.abort, self._leaving
        scope[PIPE] = Connection(self.transport, self.flow, self._leaving)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more than are allowed is enough to refuse them all."""
        if len(self.headers) <= MOST_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unread = 0
        self._waits_for = BODY
        self._since = self._last_piece = self.loop.time()
        self._received = 0
        if len(self.pipeline) >= MOST_PIPELINED:
            # What came before is answered; then the connection ends, and its client asks again for the rest.
            self.cycle.keep_alive = False
            self._is_refused = True
            # What stops the parser would be logged as a request that is invalid.
            self.logger = SILENT
            raise PipelineFull
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._waits_for = NOTHING
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    # What takes too long

    def check(self, now: float) -> None:
        """Ends the connection where its client is late with a request, or with taking an answer."""
        cycle = self._answered
        self._check_taking(now)
        if self._is_refused:
            return
        if self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            # The server does not read just now, or has not asked for the body yet.
            self._since = self._last_piece = now
            self._received = 0
        elif self._waits_for is HEAD and now - self._since > self._bounds.head_seconds:
            self._refuse(self._bounds.late_head if self._unread else b"")
        elif self._waits_for is BODY and self._bounds.is_late(
            idle=now - self._last_piece, whole=now - self._since, received=self._received
        ):
            self._give_up_body()

    def _check_taking(self, now: float) -> None:
        """An answer that is whole must be taken; streams see to it themselves."""
        left = self.transport.get_write_buffer_size()
        if not left or self._answered is None or not self._answered.response_complete:
            self._taken_by = 0.0
        elif not self._taken_by:
            self._taken_by = now + self._bounds.transfer_seconds(left)
        elif now > self._taken_by:
            self.transport.abort()

    def _give_up_body(self) -> None:
        cycle = self._answered
        if cycle is None or cycle.response_complete:
            self._refuse(b"")
        elif cycle.response_started:
            self.transport.abort()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._answered = None
            self._refuse(self._bounds.late_body)

    def _refuse(self, answer: bytes) -> None:
        self._is_refused = True
        if self.transport.is_closing():
            return
        # What was read of it.
        self.headers, self.url, self.parser = [], b"", cast("Any", None)
        if self._answered is not None and not self._answered.response_complete:
            self.transport.abort()  # An answer is under way; no other fits in between.
            return
        self.transport.write(answer)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _release(self) -> None:
        network, self._network = self._network, ""
        if network:
            self._bounds.release(network)


class _Flow(FlowControl):
    """Nothing is read while requests wait in line: uvicorn reads on with each that is answered."""

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


def bounded(bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    """The protocol with these bounds, as what uvicorn takes for a class."""
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, bounds=bounds))


def check_deadlines(connections: Iterable[object], now: float) -> None:
    """Looks at each; call it about once a second, by the loop's clock."""
    for connection in tuple(connections):
        if isinstance(connection, BoundedProtocol):
            connection.check(now)
