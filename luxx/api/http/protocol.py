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

from luxx.api.http.connections import ConnectionBounds, closing_response
from luxx.api.http.files import ABORT_KEY
from luxx.api.http.protection import HEAD_TOO_LARGE, MAX_HEADERS
from luxx.api.http.streaming import DISCONNECT_KEY, PIPE_KEY, ChunkedConnection, ClientDisconnect
from luxx.infra.config.schema import ServerConfig

MAX_MESSAGE_BYTES = 16 * 1024
"""Of one message."""

MAX_FRAGMENTS = 64
"""Of one message: empty ones add no bytes and could go on for ever."""

MAX_BYTES_AFTER_CLOSE = 64 * 1024
"""What a client may still be sending when it is told that the socket is closed."""

SOCKET_LINGER_SECONDS = 5.0
"""How long a client has to take its leave once the server has."""

PING_SECONDS = 20.0
"""How often a client is asked for a sign of life, and how long it is waited for."""


class BoundedSocketProtocol(WebSocketsSansIOProtocol):
    """Takes nothing from a client that does not read: it would be answered, and the answers pile up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A line for everybody who knocks would be an access log, which there is none of.
        self.logger = self.conn.logger = logging.getLogger("uvicorn.sockets")
        self._bytes_after_close = 0
        self.on_lost: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        """Cuts off who talks on after the end: uvicorn would read it all, for as long as it comes."""
        if self.close_sent:
            self._bytes_after_close += len(data)
            if self._bytes_after_close > MAX_BYTES_AFTER_CLOSE:
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
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)


def socket_options() -> dict[str, Any]:
    """For `uvicorn.Config`. Not compressed: short messages gain nothing, and each socket would keep 64 kB."""
    return {
        "ws": BoundedSocketProtocol,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_SECONDS,
        "ws_ping_timeout": PING_SECONDS,
        "ws_per_message_deflate": False,
    }


MAX_HEAD_BYTES = 256 * 1024
"""Bytes of an unfinished head, or of what follows a body; four times what a finished one may have."""

MAX_PIPELINED = 20
"""Requests of one connection that wait while another is answered; of more, the rest is not read."""

LINGER_SECONDS = 5.0
"""How long a refused client is listened to: a connection closed on its words would lose the answer too."""

STALLED_CLIENT_SECONDS = 120
"""After so long without taking a byte of what waits for it a client is dropped, whatever is being sent."""

HEAD_TOO_LARGE_RESPONSE = closing_response(
    "431 Request Header Fields Too Large",
    HEAD_TOO_LARGE,
    "the address and the headers of the request are larger than this server takes",
)


EXPECT_HEAD, EXPECT_BODY, EXPECT_NOTHING = "head", "body", "nothing"
"""What of a request is still to come."""


SILENT_LOGGER = logging.Logger("silent", logging.CRITICAL)


class PipelineFull(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """Give it to uvicorn as `http`, with `bounded` where the bounds are not the default ones."""

    # Its parent has a dictionary; with more names that would double.
    __slots__ = (
        "_active_cycle",
        "_body_received",
        "_bounds",
        "_disconnect",
        "_expected",
        "_expected_since",
        "_is_refused",
        "_last_data_at",
        "_network",
        "_unparsed",
        "_write_deadline",
    )

    def __init__(self, *args: Any, bounds: ConnectionBounds | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds or ConnectionBounds(ServerConfig())
        self._network = ""
        self._active_cycle: RequestResponseCycle | None = None
        self._unparsed = 0
        self._is_refused = False
        self._disconnect = ClientDisconnect()
        self._expected = EXPECT_HEAD
        self._expected_since = self._last_data_at = self.loop.time()
        self._body_received = 0
        self._write_deadline = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The system itself watches over what is sent: every answer and stream, and what is left of one."""
        super().connection_made(transport)
        self.flow = _PipelineFlowControl(transport, self.pipeline)
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
            milliseconds = STALLED_CLIENT_SECONDS * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disconnect.left()
        # uvicorn tells the request that came last, which may not be the one that is answered.
        if self._active_cycle is not None and not self._active_cycle.response_complete:
            self._active_cycle.disconnected = True
            self._active_cycle.message_event.set()
        # They lead back here: all that was read would stay until the collector comes by.
        self.pipeline.clear()
        self.cycle = self.scope = self._active_cycle = cast("Any", None)
        self._release()

    def data_received(self, data: bytes) -> None:
        """Counts what comes until the parser has made something of it."""
        if self._is_refused:
            return
        if self._expected is EXPECT_NOTHING:
            self._expected = EXPECT_HEAD
            self._expected_since = self.loop.time()
        elif self._expected is EXPECT_BODY:
            self._last_data_at = self.loop.time()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE_RESPONSE)

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
        if self._expected is EXPECT_NOTHING:
            # It came together with what was before it.
            self._expected = EXPECT_HEAD
            self._expected_since = self.loop.time()
            self._unparsed = 1
        scope = cast("dict[str, Any]", self.scope)
        scope[ABORT_KEY], scope[DISCONNECT_KEY] = self.transport.abort, self._disconnect
        scope[PIPE_KEY] = ChunkedConnection(self.transport, self.flow, self._disconnect)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more than are allowed is enough to refuse them all."""
        if len(self.headers) <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._expected = EXPECT_BODY
        self._expected_since = self._last_data_at = self.loop.time()
        self._body_received = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            # What came before is answered; then the connection ends, and its client asks again for the rest.
            self.cycle.keep_alive = False
            self._is_refused = True
            # What stops the parser would be logged as a request that is invalid.
            self.logger = SILENT_LOGGER
            raise PipelineFull
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expected = EXPECT_NOTHING
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active_cycle = cycle
        super()._start_asgi_task(cycle, app)

    # What takes too long

    def check_deadline(self, now: float) -> None:
        """Ends the connection where its client is late with a request, or with taking an answer."""
        cycle = self._active_cycle
        self._check_write_deadline(now)
        if self._is_refused:
            return
        if self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            # The server does not read just now, or has not asked for the body yet.
            self._expected_since = self._last_data_at = now
            self._body_received = 0
        elif self._expected is EXPECT_HEAD and now - self._expected_since > self._bounds.head_seconds:
            self._refuse(self._bounds.head_timeout_response if self._unparsed else b"")
        elif self._expected is EXPECT_BODY and self._bounds.is_too_slow(
            idle=now - self._last_data_at, total=now - self._expected_since, received=self._body_received
        ):
            self._refuse_late_body()

    def _check_write_deadline(self, now: float) -> None:
        """An answer that is whole must be taken; streams see to it themselves."""
        left = self.transport.get_write_buffer_size()
        if not left or self._active_cycle is None or not self._active_cycle.response_complete:
            self._write_deadline = 0.0
        elif not self._write_deadline:
            self._write_deadline = now + self._bounds.transfer_seconds(left)
        elif now > self._write_deadline:
            self.transport.abort()

    def _refuse_late_body(self) -> None:
        cycle = self._active_cycle
        if cycle is None or cycle.response_complete:
            self._refuse(b"")
        elif cycle.response_started:
            self.transport.abort()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._active_cycle = None
            self._refuse(self._bounds.body_timeout_response)

    def _refuse(self, answer: bytes) -> None:
        self._is_refused = True
        if self.transport.is_closing():
            return
        # What was read of it.
        self.headers, self.url, self.parser = [], b"", cast("Any", None)
        if self._active_cycle is not None and not self._active_cycle.response_complete:
            self.transport.abort()  # An answer is under way; no other fits in between.
            return
        self.transport.write(answer)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _release(self) -> None:
        network, self._network = self._network, ""
        if network:
            self._bounds.release(network)


class _PipelineFlowControl(FlowControl):
    """Nothing is read while requests wait in line: uvicorn reads on with each that is answered."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


def bounded_protocol(bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    """The protocol with these bounds, as what uvicorn takes for a class."""
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, bounds=bounds))


def check_deadlines(connections: Iterable[object], now: float) -> None:
    """Looks at each; call it about once a second, by the loop's clock."""
    for connection in tuple(connections):
        if isinstance(connection, BoundedProtocol):
            connection.check_deadline(now)
