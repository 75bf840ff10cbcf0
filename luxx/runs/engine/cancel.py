"""The cancel signal of one drive. It reaches a wait on the network or on a tool at once, and never an append.

`RunCancelled` is a signal, not an error: it passes through everything that does not mean to catch it.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class RunCancelled(BaseException):
    """A person ended the run."""


class CancelSignal:
    """Fire it from the event loop's thread; only the drive's own task may wait on it."""

    def __init__(self) -> None:
        self.is_fired = False
        self._task: asyncio.Task[object] | None = None

    def fire(self) -> None:
        """Ends the wait in progress, if any, and refuses the next. Firing again does nothing."""
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
        """Takes a cancellation that came while the last work was held: here, not at the next await."""
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
        """The awaitable's result, which the signal does not interrupt although it is inside a `wait`."""
        task, self._task = self._task, None
        try:
            return await awaitable
        finally:
            self._task = task
            if task is not None and self.is_fired:
                task.cancel()


async def run_in_own_task(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work in a task of its own: every token wakes it, and what waits for it is deep."""
    task = asyncio.create_task(work)
    try:
        await task
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # Seen, also where a cancellation came at the same moment.
