"""A proxy that breaks event streams, for tests of clients that attach again."""

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from screen_terminal import PATIENCE_SECONDS

UNCUT = sys.maxsize


@contextmanager
def breaking_proxy(
    url: str, cut: int = UNCUT, answer_seconds: float = 0.0
) -> Iterator[tuple[str, list[str]]]:
    """A proxy to the server that cuts every stream, each after more bytes than the one before.

    It keeps answers to questions for `answer_seconds`, and loses them if their client leaves meanwhile.
    """
    streams: list[str] = []
    host, _, port = url.removeprefix("http://").partition(":")

    carrying: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        try:
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            if answer_seconds and re.match(rb"POST /runs/[^ ]+/answer ", head):
                with suppress(TimeoutError):
                    async with asyncio.timeout(answer_seconds):
                        await reader.read(1)
                    return
            up_writer.write(re.sub(rb"(?i)connection: [^\r]*", b"connection: close", head) + body)
            left = UNCUT
            if re.match(rb"POST /messages/stream|GET /runs/[^/ ]+/events", head):
                streams.append(head.split(b"\r\n")[0].decode())
                left = cut * len(streams) if len(streams) < 6 else left
            while left > 0 and (piece := await up_reader.read(min(left, 65536))):
                left -= len(piece)
                writer.write(piece)
                await writer.drain()
        finally:
            up_writer.close()

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying.add(task := asyncio.create_task(carry(reader, writer)))
        # The client may have left, or the connection ends.
        await asyncio.gather(task, return_exceptions=True)
        carrying.discard(task)
        writer.close()

    async def end() -> None:
        line.close()
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
        # The loop closes the rest on its next turns.
        await asyncio.sleep(0.05)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def in_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_SECONDS)

    line = in_loop(asyncio.start_server(taken, "127.0.0.1", 0))
    try:
        yield f"http://127.0.0.1:{line.sockets[0].getsockname()[1]}", streams
    finally:
        in_loop(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()
