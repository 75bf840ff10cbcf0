"""How many programs run at once and what memory they may take: of one workspace, and of all together."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


class Turns:
    """Others wait for a turn, in order.

    The programs of one workspace may take `memory_mb` together; one that may take more by itself runs alone.
    """

    def __init__(self, per_workspace: int, total: int, memory_mb: int) -> None:
        self._per_workspace = per_workspace
        self._memory_mb = memory_mb
        self._everybody = asyncio.Semaphore(total)
        self._shares: dict[Path | None, _Share] = {}

    @asynccontextmanager
    async def turn(self, workspace: Path | None, memory_mb: int) -> AsyncGenerator[None]:
        share = self._shares.setdefault(workspace, _Share(self._per_workspace, self._memory_mb))
        try:
            await share.take(memory_mb)
            try:
                async with self._everybody:
                    yield
            finally:
                share.give(memory_mb)
        finally:
            if share.is_unused:
                self._shares.pop(workspace, None)


class _Share:
    """What the programs of one workspace have taken, and who waits for it."""

    def __init__(self, programs: int, memory_mb: int) -> None:
        self._programs = programs
        self._memory_mb = memory_mb
        self._running = 0
        self._taken_mb = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def is_unused(self) -> bool:
        return not self._running and not self._waiting

    async def take(self, memory_mb: int) -> None:
        """Returns once there is enough left."""
        turn = asyncio.get_running_loop().create_future()
        entry = (turn, memory_mb)
        self._waiting.append(entry)
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._go_on()
            else:
                self.give(memory_mb)
            raise

    def give(self, memory_mb: int) -> None:
        self._running -= 1
        self._taken_mb -= memory_mb
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._has(self._waiting[0][1]):
            turn, memory_mb = self._waiting.popleft()
            self._running += 1
            self._taken_mb += memory_mb
            if not turn.done():
                turn.set_result(None)

    def _has(self, memory_mb: int) -> bool:
        if self._running == 0:
            return True
        return self._running < self._programs and self._taken_mb + memory_mb <= self._memory_mb
