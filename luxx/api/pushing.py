"""Pieces of a streamed answer that are sent at once, past the server's `send`, which is a coroutine.

Only for an answer that has begun, without a length, and that nobody else writes to at the time.
"""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

from luxx.api.leaving import Leaving

PIPE = "luxx.pipe"
"""Where a request's scope has its `Connection`; see `heads.py`."""


class Connection:
    """A client's connection as a `Pipe` (`runs/watch.py`). One per request."""

    __slots__ = ("_flow", "_leaving", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, leaving: Leaving) -> None:
        self._transport = transport
        self._flow = flow
        self._leaving = leaving

    @property
    def is_clear(self) -> bool:
        """See `Pipe`."""
        return not (self._flow.write_paused or self._leaving.has_left or self._transport.is_closing())

    def push(self, data: bytes) -> None:
        """Sends a chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
