"""Cancelling runs: the rows of cancelled runs, the signal that interrupts a drive, and the limit of time.

The signal interrupts waits on the network or on tools, but never an append. `RunCancelled` is a signal, not
an error: as a BaseException it passes through `except Exception`.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog
from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.errors import LimitReached
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow, is_call, is_unended
from luxx.wire.run import RunStatus, StopReason

T = TypeVar("T")


class RunCancelled(BaseException):
    """The cancel signal fired: a person cancelled the run, or its time is up."""


class CancelSignal:
    """Fire it from the event loop's thread; only one task may call `wait`, the drive's or the turn's own.

    `on_fire` is called when it fires, `on_input` when the run was given an input (`orchestration/inputs.py`).
    `has_input`: it may have been given one, or a chat a message that steers it.
    """

    def __init__(self) -> None:
        self.is_fired = self.has_input = False
        self.on_fire: Callable[[], None] | None = None
        self.on_input: Callable[[], None] | None = None
        self._task: asyncio.Task[object] | None = None

    def fire(self) -> None:
        """Interrupts the current `wait`, if any; later ones raise at once. Firing again does nothing."""
        if self.is_fired:
            return
        self.is_fired = True
        if self._task is not None:
            self._task.cancel()
        if self.on_fire is not None:
            self.on_fire()

    def give_input(self) -> None:
        """The run was given an input."""
        self.has_input = True
        if self.on_input is not None:
            self.on_input()

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


async def run_in_own_task(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `work` in its own task: each token wakes only this task, not the deep stack that awaits it.

    `work` is called when this is awaited, so that a refused `CancelSignal.wait` leaves no coroutine behind.
    """
    task = asyncio.create_task(work())
    try:
        await task
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # Retrieved, so that asyncio does not log it after a simultaneous cancellation.


SAVE_SECONDS = 5.0
"""How often the driven time is saved; a crash loses at most this much."""

_runs = table_of(RunRow)
_save = (
    _runs.update()
    .where(_runs.c.id == bindparam("b_id"), _runs.c.fence == bindparam("b_fence"))
    .values(driven_seconds=bindparam("seconds"))
)
logger = structlog.get_logger()


class WallTime:
    """Context manager around a drive. `earlier_seconds`: the time of earlier drives; `limit` 0: no limit.

    `is_recorded`: the time is saved even without a limit.
    """

    def __init__(
        self,
        store: Store,
        signal: CancelSignal,
        *,
        run_id: str,
        fence: int,
        limit: float,
        earlier_seconds: float,
        is_recorded: bool = False,
    ) -> None:
        self._store = store
        self._signal = signal
        self._key = {"b_id": run_id, "b_fence": fence}
        self._limit = limit
        self._is_recorded = is_recorded or limit > 0
        self._started = time.monotonic() - earlier_seconds
        self._timer: asyncio.Task[None] | None = None
        self.is_expired = False
        """Whether the time limit fired the signal."""

    async def __aenter__(self) -> Self:
        if self._is_recorded:
            self._timer = asyncio.create_task(self._run_timer())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        if isinstance(error, asyncio.CancelledError):
            # The server stops; another process continues the run.
            await self.save()

    def seconds(self) -> float:
        """The driven time so far, with that of earlier drives."""
        return time.monotonic() - self._started

    def left(self) -> float:
        """Seconds until the limit; infinity without one."""
        return (self._limit or math.inf) - self.seconds()

    async def save(self) -> None:
        """Saves the driven time, at the end of a drive that does not end the run."""
        if not self._is_recorded:
            return
        values = {**self._key, "seconds": self.seconds()}
        try:
            await self._store.write_rows(lambda connection: connection.execute(_save, values))
        except SQLAlchemyError as error:
            logger.warning("driven_time_not_saved", run_id=self._key["b_id"], error=str(error))

    def limit_error(self) -> LimitReached:
        """The error with which the run ends."""
        return LimitReached(
            f"This run has reached its limit of {self._limit:g} seconds; what it produced is kept. "
            "Ask for less at once, or ask an administrator to raise limits.seconds_per_run.",
            kind="seconds_per_run",
            stop_reason=StopReason.TIME,
        )

    async def _run_timer(self) -> None:
        while (remaining := self.left()) > 0:
            await asyncio.sleep(min(remaining, SAVE_SECONDS))
            if remaining > SAVE_SECONDS:
                await self.save()
        if not self._signal.is_fired:
            self.is_expired = True
            self._signal.fire()


_mark_cancelled = _runs.update().where(is_unended).values(is_cancelled=True).returning(_runs.c.id)


def is_caused_by(user_id: int) -> ColumnElement[bool]:
    """The condition on the runs of a user, and on their calls of the rooms of others."""
    return or_(_runs.c.user_id == user_id, _runs.c.called_by == user_id)


def cancel_runs_of(session: Session, user_id: int) -> None:
    """Marks the runs and calls of a user as cancelled; their processes see that at the next heartbeat."""
    mark_cancelled(session.connection(), is_caused_by(user_id))


def cancel_calls(session: Session, room_id: str, called_by: int | None = None) -> list[str]:
    """Marks the calls of a room as cancelled, with `called_by` only those of this member; returns the ids of
    their runs."""
    condition = and_(is_call, _runs.c.called_room_id == room_id)
    if called_by is not None:
        condition = and_(condition, _runs.c.called_by == called_by)
    return mark_cancelled(session.connection(), condition)


def mark_cancelled(connection: Connection, condition: ColumnElement[bool]) -> list[str]:
    """Marks the matching runs that have not ended as cancelled; returns their ids."""
    cancelled_ids = list(connection.execute(_mark_cancelled.where(condition)).scalars())
    # A run that waits for a person is driven once more, so that it ends.
    wake(connection, condition)
    return cancelled_ids


def wake(connection: Connection, condition: ColumnElement[bool]) -> None:
    """Queues the runs that match `condition` and wait for a person."""
    connection.execute(
        update(_runs)
        .where(condition, _runs.c.status == RunStatus.WAITING.value)
        .values(status=RunStatus.QUEUED.value, phase=None, owner=None)
    )
