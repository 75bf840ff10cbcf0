"""The HTTP protocol of the server, with what uvicorn leaves unbounded: heads without end, clients that
take nothing.

Of a head that comes to its end `protection.py` judges the size, with an answer of the API's own kind. Here
it is what never ends: it is kept in memory until it does.
"""

import asyncio
import socket
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from luxx.api.envelope import Failure
from luxx.api.leaving import LEAVING, Leaving
from luxx.api.protection import HEAD_TOO_LARGE
from luxx.api.pushing import PIPE, Connection
from luxx.api.sending import CUT

MOST_HEAD = 256 * 1024
"""Bytes of an unfinished head, or of what follows a body; four times what a finished one may have."""

LINGER_SECONDS = 5.0
"""How long a refused client is listened to: a connection closed on its words would lose the answer too."""

TAKES_NOTHING_SECONDS = 120
"""After so long without taking a byte of what waits for it a client is dropped, whatever is being sent."""

SENTENCE = "the address and the headers of the request are larger than this server takes"
_REFUSAL = msgspec.json.encode(Failure(error=SENTENCE, code=431, detail={"kind": HEAD_TOO_LARGE}))
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\nx-content-type-options: nosniff\r\n\r\n%b"
) % (len(_REFUSAL), _REFUSAL)


class BoundedProtocol(HttpToolsProtocol):
    """Give it to uvicorn as `http`."""

    # Its parent has a dictionary; with three more names that would double.
    __slots__ = ("_is_refused", "_leaving", "_unread")

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unread = 0
        self._is_refused = False
        self._leaving = Leaving()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The system itself watches over what is sent: every answer and stream, and what is left of one."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = TAKES_NOTHING_SECONDS * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leaving.left()

    def data_received(self, data: bytes) -> None:
        """Counts what comes until the parser has made something of it."""
        if self._is_refused:
            return
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEAD:
            self._refuse()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[CUT], scope[LEAVING] = self.transport.abort, self._leaving
        scope[PIPE] = Connection(self.transport, self.flow, self._leaving)

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def _refuse(self) -> None:
        self._is_refused = True
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()  # An answer is under way; no other fits in between.
            return
        self.transport.write(_ANSWER)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
