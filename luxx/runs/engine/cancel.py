"""The cancel signal of one drive. It interrupts waits on the network or on tools, but never an append.

`RunCancelled` is a signal, not an error: as a BaseException it passes through `except Exception`.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class RunCancelled(BaseException):
    """The cancel signal fired: a person cancelled the run, or its time is up."""


class CancelSignal:
    """Fire it from the event loop's thread; only the drive's own task may call `wait`."""

    def __init__(self) -> None:
        self.is_fired = False
        self._task: asyncio.Task[object] | None = None

    def fire(self) -> None:
        """Interrupts the current `wait`, if any; later ones raise at once. Firing again does nothing."""
        if self.is_fired:
            return
        self.is_fired = True
        if self._task is not None:
            self._task.cancel()

    async def wait(self, awaitable: Coroutine[Any, Any, T]) -> T:
        """The awaitable's result. Raises RunCancelled as soon as the signal fires."""
        task = asyncio.current_task()
        if self.is_fired or task is None:
            awaitable.close()
            raise RunCancelled
        self._task = task
        try:
            result = await awaitable
        except asyncio.CancelledError:
            if self.is_fired and task.uncancel() == 0:
                raise RunCancelled from None
            raise
        except BaseException:
            await self._take_pending_cancel(task)
            raise
        finally:
            self._task = None
        await self._take_pending_cancel(task)
        return result

    async def _take_pending_cancel(self, task: asyncio.Task[object]) -> None:
        """Raises a pending cancellation now, not at the next await."""
        self._task = None
        if not task.cancelling():
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.is_fired and task.uncancel() == 0:
                raise RunCancelled from None
            raise

    async def shield(self, awaitable: Awaitable[T]) -> T:
        """The awaitable's result; the signal does not interrupt it inside a `wait`."""
        task, self._task = self._task, None
        try:
            return await awaitable
        finally:
            self._task = task
            if task is not None and self.is_fired:
                task.cancel()


async def run_in_own_task(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work in its own task: each token wakes only this task, not the deep stack that awaits it."""
    task = asyncio.create_task(work)
    try:
        await task
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # Retrieved, so that asyncio does not log it after a simultaneous cancellation.
