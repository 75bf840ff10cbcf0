"""A TCP server that the tools in `samples/` call: a test sees each call begin and decides when it ends."""

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Self

SAMPLES = Path(__file__).parent / "samples"
CONTROLLED_TOOLS = {
    "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "0",
    "LUXX_TOOLS__MODULES": "controlled_tools",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(SAMPLES), os.environ.get("PYTHONPATH")])),
}
"""The settings of a server that has the tools of `samples/`, and no limit that many clients would reach."""


class Visit:
    """One execution of a tool, seen from the controller's side of the socket."""

    def __init__(
        self, tool: str, key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.tool = tool
        self.key = key
        self._reader = reader
        self._writer = writer

    def answer(self, text: str) -> None:
        """Makes the tool return this text."""
        self._writer.write(text.encode() + b"\n")

    async def stopped(self, timeout: float) -> None:
        """Returns when the tool has ended without an answer; raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._reader.read()


class ToolController:
    """With `answers`, every visit is answered at once by `done <key>`; without, the test answers it."""

    def __init__(self, *, answers: bool = False) -> None:
        self.visits: list[Visit] = []
        self.port = 0
        self._answers = answers
        self._visit_began = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def wait_for_visit(self, count: int = 1, timeout: float = 20.0) -> Visit:
        """The visit of this number, counted from 1, when it has begun; raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while len(self.visits) < count:
                self._visit_began.clear()
                await self._visit_began.wait()
        return self.visits[count - 1]

    def keys_seen(self) -> list[str]:
        return [visit.key for visit in self.visits]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        line = (await reader.readline()).decode().split()
        if len(line) != 2:
            return
        visit = Visit(line[0], line[1], reader, writer)
        self.visits.append(visit)
        self._visit_began.set()
        if self._answers:
            visit.answer(f"done {visit.key}")
