"""A TCP relay on uvloop without any parsing, as cheap as nginx: the baseline of the streams.

Run as `python -m tests.bench.pump PORT UPSTREAM_PORT`.
"""

import asyncio
import sys
from typing import Any

import uvloop


class _Far(asyncio.Protocol):
    def __init__(self, near: Any) -> None:
        self._near = near

    def data_received(self, data: bytes) -> None:
        self._near.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._near.close()


class _Near(asyncio.Protocol):
    def __init__(self, upstream_port: int) -> None:
        self._port = upstream_port
        self._waiting: list[bytes] = []
        self._transport: Any = None
        self._far: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._far, _ = await loop.create_connection(lambda: _Far(self._transport), "127.0.0.1", self._port)
        for data in self._waiting:
            self._far.write(data)

    def data_received(self, data: bytes) -> None:
        if self._far is None:
            self._waiting.append(data)
        else:
            self._far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._far is not None:
            self._far.close()


async def _main(port: int, upstream_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Near(upstream_port), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2])))
