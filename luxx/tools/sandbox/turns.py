"""How many jails are at work at once: of one workspace, so that nobody takes all, and of all together."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


class Turns:
    """Others wait for a turn, in order."""

    def __init__(self, per_workspace: int, total: int) -> None:
        self._per_workspace = per_workspace
        self._everybody = asyncio.Semaphore(total)
        self._one: dict[Path | None, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, workspace: Path | None) -> AsyncGenerator[None]:
        gate, users = self._one.get(workspace, (asyncio.Semaphore(self._per_workspace), 0))
        self._one[workspace] = (gate, users + 1)
        try:
            async with gate, self._everybody:
                yield
        finally:
            gate, users = self._one.pop(workspace)
            if users > 1:
                self._one[workspace] = (gate, users - 1)
