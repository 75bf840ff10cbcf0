"""A TCP round robin in front of several servers: each connection goes to the next server that accepts it.

It does not parse HTTP and has no sticky sessions. A client without keep-alive reaches another server with
each request.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

PIECE = 64 * 1024
CONNECT_SECONDS = 2.0
STOP_SECONDS = 5.0


class RoundRobin:
    """`with` serves in a thread. `taken` counts the connections of each port."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self._ports: list[int] = []
        self._next = 0
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="round-robin", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def send_to(self, ports: Sequence[int]) -> None:
        """New connections go to these ports in turn from now on; may be called from any thread."""
        self._ports = list(ports)

    def __enter__(self) -> Self:
        self._thread.start()
        self._in_thread(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_thread(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()

    def _in_thread(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_SECONDS)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            server = await self._connect()
            if server is not None:
                await _join(reader, writer, *server)
        except asyncio.CancelledError:
            pass  # `_close` cancels this task; without the `except` the loop would report it as failed.
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the next server that accepts one; None if none does."""
        ports = self._ports
        for _ in ports:
            self._next += 1
            port = ports[self._next % len(ports)]
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    server = await asyncio.open_connection("127.0.0.1", port)
            except (OSError, TimeoutError):
                continue
            self.taken[port] = self.taken.get(port, 0) + 1
            return server
        return None


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server_reader: asyncio.StreamReader,
    server_writer: asyncio.StreamWriter,
) -> None:
    """Copies bytes in both directions until one side closes; then closes both."""
    ways = [
        asyncio.create_task(_carry(reader, server_writer)),
        asyncio.create_task(_carry(server_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        server_writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
