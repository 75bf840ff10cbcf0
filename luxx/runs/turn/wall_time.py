"""Limits the time that a run is driven to `limits.seconds_per_run`, across crashes and pauses.

At the limit the run's cancel signal fires; `ending.py` gives the run its ending.
"""

import asyncio
import time
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy import Connection, bindparam
from sqlalchemy.exc import SQLAlchemyError

from luxx.errors import LimitReached
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.engine.cancel import CancelSignal
from luxx.runs.models import RunRow
from luxx.wire.run import StopReason

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
    """Context manager around a drive. `earlier_seconds`: the time of earlier drives; `limit` 0: no limit."""

    def __init__(
        self,
        store: Store,
        signal: CancelSignal,
        *,
        run_id: str,
        fence: int,
        limit: float,
        earlier_seconds: float,
    ) -> None:
        self._store = store
        self._signal = signal
        self._key = {"b_id": run_id, "b_fence": fence}
        self._limit = limit
        self._started = time.monotonic() - earlier_seconds
        self._timer: asyncio.Task[None] | None = None
        self.is_expired = False
        """Whether the time limit fired the signal."""

    async def __aenter__(self) -> Self:
        if self._limit:
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

    async def save(self) -> None:
        """Saves the driven time, at the end of a drive that does not end the run."""
        if not self._limit:
            return
        values = {**self._key, "seconds": time.monotonic() - self._started}

        def write_time(connection: Connection) -> None:
            connection.execute(_save, values)

        try:
            await self._store.write_rows(write_time)
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
        while (remaining := self._limit - (time.monotonic() - self._started)) > 0:
            await asyncio.sleep(min(remaining, SAVE_SECONDS))
            if remaining > SAVE_SECONDS:
                await self.save()
        if not self._signal.is_fired:
            self.is_expired = True
            self._signal.fire()
