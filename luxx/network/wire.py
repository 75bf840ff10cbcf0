"""The connection below HTTP, read in small pieces: nobody's answer keeps the event loop for itself.

The parser hands out all that one read brought without a pause, and what it makes of 64 KiB of crumbs takes
half a second. So a read is small, others get their turn before each, and the head of an answer is bounded
with all that comes before it.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import cast

import httpcore

READ_BYTES = 4096
HEAD_BYTES = 128 * 1024
"""What may come before the body: preliminary answers, and a head that may have 100 KB."""


class Wire(httpcore.AsyncNetworkBackend):
    """For the connection of one request."""

    def __init__(self) -> None:
        # Its type is that of a stand-in, for where the library's own library is missing.
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())
        self._before_body = 0
        self._has_head = False

    def head_came(self) -> None:
        """What comes from now on is the body, which others bound."""
        self._has_head = True

    def took(self, size: int) -> None:
        """Raises RemoteProtocolError where too much comes without a body."""
        self._before_body += size
        if not self._has_head and self._before_body > HEAD_BYTES:
            raise httpcore.RemoteProtocolError("too much before the body")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(inner, self)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # What has come already is handed over without a pause.
        await asyncio.sleep(0)
        data = await self._inner.read(min(max_bytes, READ_BYTES), timeout)
        self._wire.took(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._wire)

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)
