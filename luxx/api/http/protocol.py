"""The HTTP and WebSocket protocols of the server: uvicorn's, with limits that uvicorn lacks.

They limit connections, unfinished and pipelined requests, and clients that do not read. `security.py`
limits the size of a complete request head. Only this module depends on uvicorn's internals.
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

from luxx.api.http.connection_limits import ConnectionBounds, closing_response
from luxx.api.http.event_streams import (
    ABORT_KEY,
    CONNECTION_KEY,
    DISCONNECT_KEY,
    ChunkedConnection,
    ClientDisconnect,
)
from luxx.api.http.security import HEAD_TOO_LARGE, MAX_HEADERS
from luxx.infra.config.schema import ServerConfig

MAX_MESSAGE_BYTES = 16 * 1024
MAX_FRAGMENTS = 64
"""Of one message of a client. MAX_MESSAGE_BYTES does not limit the number of empty fragments."""

MAX_BYTES_AFTER_CLOSE = 64 * 1024
"""Bytes that a client may still send after the server's close frame."""

SOCKET_LINGER_SECONDS = 5.0
"""How long the server waits for the client's close frame after its own."""

PING_SECONDS = 20.0
"""The interval of pings, and how long the server waits for each pong."""


class BoundedSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol. Stops reading from a client that does not read its answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn logs a line for each connection here; Luxx writes no access log.
        self.logger = self.conn.logger = logging.getLogger("uvicorn.sockets")
        self._bytes_after_close = 0
        self.on_lost: Callable[[], None] | None = None  # Called when the connection is lost.

    def data_received(self, data: bytes) -> None:
        """Aborts a connection that sends too much after the close. uvicorn reads without a limit."""
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
            # The close frame could not be sent: the connection would stay until the client reads.
            self.transport.abort()

    async def receive(self) -> Any:
        """Like uvicorn's, but resumes reading only if the transport is writable."""
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
            # After a refusal with an HTTP response, uvicorn would log an error about the missing handshake.
            self.handshake_complete = True

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)


def socket_options() -> dict[str, Any]:
    """Options for `uvicorn.Config`. No compression: 64 kB per socket, and no gain for short messages."""
    return {
        "ws": BoundedSocketProtocol,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_SECONDS,
        "ws_ping_timeout": PING_SECONDS,
        "ws_per_message_deflate": False,
    }


MAX_HEAD_BYTES = 256 * 1024
"""Bytes of an unfinished request head, or of data after a body: four times the limit of a complete head."""

MAX_PIPELINED = 20
"""Requests of one connection that wait while another is answered. The server does not read further ones."""

LINGER_SECONDS = 5.0
"""How long the server reads from a refused client before it closes. Closing at once would reset the
connection while the client sends, and the client would lose the response."""

STALLED_CLIENT_SECONDS = 120
"""The system closes a connection whose client acknowledges no sent data for so long."""

HEAD_TOO_LARGE_RESPONSE = closing_response(
    "431 Request Header Fields Too Large",
    HEAD_TOO_LARGE,
    "the URL and the headers of the request are larger than this server accepts",
)
INVALID_HTTP_RESPONSE = closing_response(
    "400 Bad Request", "invalid_input", "the request is not valid HTTP; check its first line and its headers"
)
MAX_PARSED_URL_BYTES = 65_535
"""The parser fails on longer URLs. `security.py` refuses far shorter ones, with an answer that says why."""


EXPECT_HEAD, EXPECT_BODY, EXPECT_NOTHING = "head", "body", "nothing"
"""The part of a request that the server waits for."""

WITHOUT_BODY = ("GET", "HEAD")
SILENT_LOGGER = logging.Logger("silent", logging.CRITICAL)


class PipelineFull(Exception):
    """Stops the parser: raised in a callback, it makes the parser drop the rest of the data."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits, for its `http` option; `bounded_protocol` binds the bounds."""

    # The parent class has a `__dict__`, which would double in size with these names.
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
        "_unparsed_bytes",
        "_write_deadline",
    )

    def __init__(self, *args: Any, bounds: ConnectionBounds | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds or ConnectionBounds(ServerConfig())
        # What `ConnectionBounds.release` takes; empty if it does not count this connection.
        self._network = ""
        self._active_cycle: RequestResponseCycle | None = None
        self._unparsed_bytes = 0
        self._is_refused = False
        self._disconnect = ClientDisconnect()
        self._expected = EXPECT_HEAD
        self._expected_since = self._last_data_at = self.loop.time()
        self._body_received = 0
        self._write_deadline = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits or refuses the connection. TCP_USER_TIMEOUT ends connections of clients that do not read."""
        super().connection_made(transport)
        self.flow = _PipelineFlowControl(transport, self.pipeline)
        address = self.client[0] if self.client else ""
        network_or_refusal = self._bounds.admit(address, len(self.connections))
        if isinstance(network_or_refusal, bytes):
            self._is_refused = True
            self._bounds.log_refused(address, self.loop.time())
            transport.write(network_or_refusal)
            transport.close()
            return
        self._network = network_or_refusal
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = STALLED_CLIENT_SECONDS * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disconnect.notify()
        # uvicorn notifies the last request, which may not be the active one.
        if self._active_cycle is not None and not self._active_cycle.response_complete:
            self._active_cycle.disconnected = True
            self._active_cycle.message_event.set()
        # These refer back to the protocol; without the cycle, reference counting frees the read data at once.
        self.pipeline.clear()
        self.cycle = self.scope = self._active_cycle = cast("Any", None)
        self._release()

    def data_received(self, data: bytes) -> None:
        """Counts the bytes that the parser has not yet turned into a head or a body."""
        if self._is_refused:
            return
        if self._expected is EXPECT_NOTHING:
            self._expected = EXPECT_HEAD
            self._expected_since = self.loop.time()
        elif self._expected is EXPECT_BODY:
            self._last_data_at = self.loop.time()
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE_RESPONSE)

    def send_400_response(self, msg: str) -> None:
        """Answers in JSON. Sends nothing after a refusal: for uvicorn, a stopped parser is a parse error."""
        if not self._is_refused:
            self._refuse(INVALID_HTTP_RESPONSE)

    def handle_websocket_upgrade(self) -> None:
        """Gives the connection to the WebSocket protocol. The bounds count it until it is lost."""
        super().handle_websocket_upgrade()
        socket_protocol = self.transport.get_protocol()
        if isinstance(socket_protocol, BoundedSocketProtocol):
            socket_protocol.on_lost = self._release

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._expected is EXPECT_NOTHING:
            # The request arrived in the same data as the one before.
            self._expected = EXPECT_HEAD
            self._expected_since = self.loop.time()
            self._unparsed_bytes = 1  # Not 0, which means that the client has sent nothing of a request.
        # For event streams and file responses, which write, abort and watch the connection themselves.
        scope = cast("dict[str, Any]", self.scope)
        scope[ABORT_KEY], scope[DISCONNECT_KEY] = self.transport.abort, self._disconnect
        scope[CONNECTION_KEY] = ChunkedConnection(self.transport, self.flow, self._disconnect)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps one header more than allowed, enough for `security.py` to refuse the request."""
        if len(self.headers) <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._expected = EXPECT_BODY
        self._expected_since = self._last_data_at = self.loop.time()
        self._body_received = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            # The server answers the requests so far and closes; the client must send the others again.
            self.cycle.keep_alive = False
            self._is_refused = True
            # uvicorn would log the exception that stops the parser as an invalid request.
            self.logger = SILENT_LOGGER
            raise PipelineFull
        self.url = self.url[:MAX_PARSED_URL_BYTES]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        self._body_received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expected = EXPECT_NOTHING
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active_cycle = cycle
        if cycle.scope["method"] not in WITHOUT_BODY:
            cycle.transport = cast("Any", _LingeringTransport(self))
        super()._start_asgi_task(cycle, app)

    def close_after_response(self) -> None:
        """Closes. If the client is still sending the body, it is read and dropped for LINGER_SECONDS."""
        if self._expected is not EXPECT_BODY or self.transport.is_closing():
            self.transport.close()
            return
        self._is_refused = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # Deadlines

    def check_deadline(self, now: float) -> None:
        """Ends the connection if the client sends a request or reads a response too slowly."""
        cycle = self._active_cycle
        self._check_write_deadline(now)
        if self._is_refused:
            return
        if self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            # The server is not reading, or has not yet sent "100 Continue".
            self._expected_since = self._last_data_at = now
            self._body_received = 0
        elif self._expected is EXPECT_HEAD and now - self._expected_since > self._bounds.head_seconds:
            self._refuse(self._bounds.head_timeout_response if self._unparsed_bytes else b"")
        elif self._expected is EXPECT_BODY and self._bounds.is_too_slow(
            idle=now - self._last_data_at, total=now - self._expected_since, received=self._body_received
        ):
            self._refuse_late_body()

    def _check_write_deadline(self, now: float) -> None:
        """Aborts if the client does not read a complete response in time. Streams have their own limit."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or self._active_cycle is None or not self._active_cycle.response_complete:
            self._write_deadline = 0.0
        elif not self._write_deadline:
            self._write_deadline = now + self._bounds.transfer_seconds(unsent)
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
        """Stops parsing, sends the complete response `answer` if none is in progress, and closes."""
        self._is_refused = True
        if self.transport.is_closing():
            return
        # Free the data of the request.
        self.headers, self.url, self.parser = [], b"", cast("Any", None)
        if self._active_cycle is not None and not self._active_cycle.response_complete:
            self.transport.abort()  # Another response is not complete, so none can be sent.
            return
        self.transport.write(answer)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _release(self) -> None:
        network, self._network = self._network, ""
        if network:
            self._bounds.release(network)


class _LingeringTransport:
    """What a request with a body uses of the transport: its response may be complete before the body is."""

    __slots__ = ("_protocol", "is_closing", "write")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_after_response()


class _PipelineFlowControl(FlowControl):
    """Does not resume reading while pipelined requests wait. uvicorn resumes after each response."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


def bounded_protocol(bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, bounds=bounds))


def check_deadlines(connections: Iterable[object], now: float) -> None:
    """Checks each connection; call it about once a second. `now`: the event loop's clock."""
    for connection in tuple(connections):
        if isinstance(connection, BoundedProtocol):
            connection.check_deadline(now)
