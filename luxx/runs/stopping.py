"""Cancels all runs of a user when an administrator disables, moves or deletes the user."""

import asyncio
import time

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from luxx.infra.store.engine import Store
from luxx.runs.engine.processes import RunEngine
from luxx.runs.models import RunRow
from luxx.runs.question_rows import wake
from luxx.wire.run import ENDED

MAX_WAIT_SECONDS = 5.0
"""How long `stop_all_of` waits; another process ends its runs at the latest at its next heartbeat."""

POLL_SECONDS = 0.25

_not_ended = RunRow.status.not_in([status.value for status in ENDED])


class RunStopper:
    """Cancels runs. `engine` is None in a process that drives no runs; then other processes end them."""

    def __init__(self, store: Store, engine: RunEngine | None) -> None:
        self._store = store
        self._engine = engine

    async def stop_all_of(self, user_id: int) -> None:
        """Cancels the user's runs; returns when they have ended, or after MAX_WAIT_SECONDS."""
        await self._store.write(lambda session: cancel_runs_of(session, user_id))
        until = time.monotonic() + MAX_WAIT_SECONDS
        running = await self._store.read(lambda session: _running(session, user_id))
        for run_id in running:
            if self._engine is not None:
                await self._engine.cancel(run_id)
        while running and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            running = await self._store.read(lambda session: _running(session, user_id))


def cancel_runs_of(session: Session, user_id: int) -> None:
    """Marks the user's runs as cancelled; their processes see that at the next heartbeat."""
    session.execute(
        update(RunRow)
        .where(RunRow.user_id == user_id, _not_ended)
        .values(is_cancelled=True)
        .execution_options(synchronize_session=False)
    )
    wake(session.connection(), RunRow.user_id == user_id)


def _running(session: Session, user_id: int) -> list[str]:
    return list(session.scalars(select(RunRow.id).where(RunRow.user_id == user_id, _not_ended)))
