"""Jails that are ready before they are needed: one for a user who has just used one, for one program each.

Their programs have begun and wait; nothing of anybody has run in them. They are few, and end by themselves.
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
    """What a waiting jail was made for; no other workspace and no other limits may have it."""

    workspace: Path
    limits: ProgramLimits
    has_proxy: bool = False


K = TypeVar("K", bound=Hashable)
"""What a waiting jail is good for; nothing else may have it."""


class PrewarmedPool(Generic[K]):
    """At most `most` jails wait, each for at most `idle_seconds`; the one that waits longest goes first."""

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
        """The jail that waits for just this; it is the caller's now."""
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
        """Have a jail made for the next call, unless there is one. Returns at once."""
        if not self._is_closed and self._most and key not in self._waiting and key not in self._tasks:
            task = asyncio.create_task(self._make(key))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def close(self) -> None:
        """End all that wait."""
        self._is_closed = True
        making = list(self._tasks.values())
        for task in making:
            task.cancel()
        if making:
            # One that does not end has nothing running; it shall not keep the server.
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
            logger.warning("jail_not_prewarmed", error=str(error))
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
