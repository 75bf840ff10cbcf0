"""Sandbox processes that are started before they are needed, each for one program.

After a call, a process for the same key starts and waits for the next one. No user's code has run in it. The
pool is small, and idle processes end.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog

from luxx.errors import ToolFailed
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import SandboxProcess

IDLE_SECONDS = 60.0
CLOSE_SECONDS = 15.0

logger = structlog.get_logger()


class PrewarmedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting process serves only calls with the same workspace, limits and proxy."""

    workspace: Path
    limits: ProgramLimits
    has_proxy: bool = False


K = TypeVar("K", bound=Hashable)


class PrewarmedPool(Generic[K]):
    """At most `most` processes wait, each at most `idle_seconds`; a new one evicts the oldest.

    A waiting process serves only calls with the key it was started for.
    """

    def __init__(
        self, start: Callable[[K], Awaitable[SandboxProcess]], most: int, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._start = start
        self._most = most
        self._idle_seconds = idle_seconds
        self._waiting: OrderedDict[K, tuple[SandboxProcess, asyncio.TimerHandle]] = OrderedDict()
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, key: K) -> SandboxProcess | None:
        """Remove and return the process that waits for this key, or None; the caller closes it."""
        entry = self._waiting.pop(key, None)
        if entry is None:
            return None
        process, timer = entry
        timer.cancel()
        if process.is_alive:
            return process
        self._end(process)
        return None

    def refill(self, key: K) -> None:
        """Start a process for the next call in the background, unless one waits already."""
        if not self._is_closed and self._most and key not in self._waiting and key not in self._tasks:
            task = asyncio.create_task(self._make(key))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def close(self) -> None:
        """End all waiting processes."""
        self._is_closed = True
        making = list(self._tasks.values())
        for task in making:
            task.cancel()
        if making:
            # A task that hangs runs no user's code; it must not delay the server's shutdown.
            await asyncio.wait(making, timeout=CLOSE_SECONDS)
        for key in list(self._waiting):
            self._drop(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _make(self, key: K) -> None:
        while len(self._waiting) >= self._most:
            self._drop(next(iter(self._waiting)))
        try:
            process = await self._start(key)
        except (ToolFailed, OSError) as error:
            logger.warning("sandbox_process_not_prewarmed", error=str(error))
            return
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._drop, key)
        self._waiting[key] = (process, timer)
        while len(self._waiting) > self._most:
            self._drop(next(iter(self._waiting)))

    def _drop(self, key: K) -> None:
        entry = self._waiting.pop(key, None)
        if entry is not None:
            process, timer = entry
            timer.cancel()
            self._end(process)

    def _end(self, process: SandboxProcess) -> None:
        task = asyncio.create_task(process.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
