"""The operations on runs of every kind: watch, list, steer, cancel and delete them, stop those of a
user.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Select, bindparam, delete, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import MessageRow
from luxx.errors import Conflict, InvalidInput, Unavailable
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.agent_use import AgentStats, StatsScope, read_stats
from luxx.runs.cancel import cancel_runs_of, is_caused_by, mark_cancelled
from luxx.runs.engine.driver import RunDriver
from luxx.runs.log.events import StoredEvent, read_page
from luxx.runs.log.retention import check_log, discard_call
from luxx.runs.models import RunFilter, RunRight, RunRow, find_run, is_unended, page_of_runs, run_view
from luxx.runs.slots import has_subagents
from luxx.runs.streams.sessions import SubjectTable, titles_of
from luxx.runs.streams.watch import RunWatch
from luxx.runs.turn.context import RunServices
from luxx.wire.run import ENDED, SIDE_KINDS, Run, RunStatus, TitledRun

CANCEL_SECONDS = 0.35
"""How long after its request `cancel` waits for the driver to write the end. A cancel must answer within
0.5 s, also if the driver is dead and no process may claim the run yet."""

PAUSE_SECONDS = 0.35
"""How long a pause waits, once it is stored, until no turn is in progress; it must answer within 0.5 s."""

PAUSED_OR_ENDED = ENDED | {RunStatus.PAUSED}

STOP_SECONDS = 15.0
"""How long `stop` waits. Another process ends its run at its next heartbeat or append; a dead process keeps
the run until its lease expires."""

MAX_STOP_SECONDS = 5.0
"""How long `stop_all_of` waits; another process ends its runs at the latest at its next heartbeat."""

STOP_POLL_SECONDS = 0.25

MAX_POLL_SECONDS = 1.0
"""Longest poll interval of `wait_for` for a run that is queued or driven elsewhere."""

POLL_SECONDS = 0.1
"""Poll interval for a run that another process drives."""

MIN_DRIVEN_POLL_SECONDS, MAX_DRIVEN_POLL_SECONDS = 1.0, 5.0
"""Poll interval of `wait_for` for a run that is driven here: a subagent of it may wait for a person."""

RUNS_AT_ONCE = 20
"""How many runs one transaction deletes; each has a log of hundreds of events."""

UNFINISHED = "the answer is not finished; follow its run"

T = TypeVar("T")
GivenTo = TypeVar("GivenTo", bound=str | None)


class RunService:
    """One per process. `subjects` are the tables of rooms and tasks."""

    def __init__(
        self,
        services: RunServices,
        engine: RunDriver,
        subjects: Sequence[SubjectTable],
    ) -> None:
        self._store = services.store
        self._hub = services.hub
        self._engine = engine
        self._subjects = subjects
        self._cancelling: set[asyncio.Task[Run]] = set()

    async def wait_for(self, run: Run, read: Callable[[Session], T | None]) -> T:
        """What `read` returns once it returns something; it is called when the run may have ended.

        Raises what `read` raises, and Unavailable if this server stops before.
        """
        hub_closed = asyncio.create_task(self._hub.closed.wait())
        began = time.monotonic()
        try:
            while True:
                waited = time.monotonic() - began
                seconds = min(max(MIN_DRIVEN_POLL_SECONDS, waited / 10), MAX_DRIVEN_POLL_SECONDS)
                is_driven_here = await self._is_driven_here(run.id, hub_closed, seconds)
                answer = await self._store.read(read)
                if answer is not None:
                    return answer
                if hub_closed.done():
                    raise Unavailable(UNFINISHED, kind="run_active", detail=run_detail(run))
                if is_driven_here:
                    continue
                # The run is queued, or another process drives it. Polling for its end needs no messages.
                waited = time.monotonic() - began
                await asyncio.wait(
                    {hub_closed}, timeout=min(max(POLL_SECONDS, waited / 10), MAX_POLL_SECONDS)
                )
        finally:
            hub_closed.cancel()

    async def _is_driven_here(self, run_id: str, hub_closed: asyncio.Task[Any], seconds: float) -> bool:
        """Waits for the drive to end, for the server to stop or for `seconds`; True if still driven."""
        drive_ended = asyncio.create_task(self._engine.wait(run_id, None))
        try:
            await asyncio.wait(
                {drive_ended, hub_closed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return not drive_ended.done()
        finally:
            drive_ended.cancel()

    async def watch(
        self, caller: Caller, run_id: str, *, after: int = 0, accumulated: bool = False
    ) -> RunWatch:
        """A watch of the caller's run, from the event after `after`."""
        run = await self._store.read(lambda session: run_view(self._logged(session, caller, run_id)))
        _check_position(run, after)
        return RunWatch(self._hub, self._store, run, after=after, accumulated=accumulated)

    async def get(self, caller: Caller, run_id: str, right: RunRight = RunRight.SEE) -> Run:
        """Raises NotFound if there is no such run, or if the caller lacks the right to it."""
        return await self._store.read(lambda session: run_view(find_run(session, caller, run_id, right)))

    async def get_titled(self, caller: Caller, run_id: str) -> TitledRun:
        """`get` with the title."""

        def read(session: Session) -> TitledRun:
            run = run_view(find_run(session, caller, run_id))
            return self._titled(session, caller, [run])[0]

        return await self._store.read(read)

    def _titled(self, session: Session, caller: Caller, runs: Sequence[Run]) -> list[TitledRun]:
        ids = list(dict.fromkeys(run.subject_id for run in runs))
        titles = titles_of(session.connection(), caller.user_id, ids, self._subjects)
        return [TitledRun(**msgspec.structs.asdict(run), title=titles.get(run.subject_id)) for run in runs]

    @staticmethod
    def _logged(session: Session, caller: Caller, run_id: str) -> RunRow:
        """The caller's run, if its log was not deleted. Raises NotFound or Gone."""
        row = find_run(session, caller, run_id)
        check_log(session.connection(), row)
        return row

    async def list_page(
        self, caller: Caller, run_filter: RunFilter, *, page: int, page_size: int
    ) -> tuple[list[TitledRun], int]:
        """A page of the caller's runs, newest first, and how many match."""
        offset = 0 if run_filter.before else (page - 1) * page_size

        def read(session: Session) -> tuple[list[TitledRun], int]:
            runs, total = page_of_runs(session, caller, run_filter, offset=offset, limit=page_size)
            return self._titled(session, caller, runs), total

        return await self._store.read(read)

    async def agent_stats(self, caller: Caller, agent_id: int, *, is_own: bool) -> AgentStats:
        """How an agent that the caller may see is used: by all of the tenant for its owner and an ADMIN, else
        by the caller."""
        scope = StatsScope.TENANT if is_own or caller.is_admin else StatsScope.OWN
        return await self._store.read_rows(lambda connection: read_stats(connection, caller, agent_id, scope))

    async def events(
        self, caller: Caller, run_id: str, *, after: int, limit: int
    ) -> tuple[list[StoredEvent], bool]:
        """Up to `limit` logged events after `after`, oldest first, and whether there are more."""

        def read_events(session: Session) -> tuple[list[StoredEvent], bool]:
            row = self._logged(session, caller, run_id)
            last_seq = row.last_seq
            _check_position(row, after)
            events = read_page(session, run_id, after, limit=limit)
            return events, bool(events) and events[-1].seq < last_seq

        return await self._store.read(read_events)

    async def cancel(self, caller: Caller, run_id: str) -> Run:
        """Cancels a run and keeps its text so far. Raises Conflict if it has already ended."""
        until = time.monotonic() + CANCEL_SECONDS
        run = await self.get(caller, run_id, RunRight.STEER)
        if run.status in ENDED:
            raise Conflict(f"this run has already ended: {run.status}", kind="run_ended")
        await self._store.write_rows(lambda connection: mark_cancelled(connection, RunRow.id == run_id))
        ending = asyncio.create_task(self._end_cancelled(caller, run_id, until), name=f"cancel {run_id}")
        self._cancelling.add(ending)
        ending.add_done_callback(self._forget_cancelling)
        await asyncio.wait({ending}, timeout=max(0.0, until - time.monotonic()))
        return ending.result() if ending.done() else run

    def _forget_cancelling(self, ending: asyncio.Task[Run]) -> None:
        self._cancelling.discard(ending)
        if not ending.cancelled():
            ending.exception()  # Retrieved: `cancel` may have answered before it.

    async def _end_cancelled(self, caller: Caller, run_id: str, until: float) -> Run:
        """Ends a run that is marked as cancelled; the run then, or its state at `until`."""
        await self._engine.cancel(run_id)
        return await self.settled(caller, run_id, max(0.0, until - time.monotonic()), ENDED)

    async def end_call(self, caller: Caller, run_id: str) -> None:
        """Deletes what a call was given and answered, once its client was served or is gone; cancels the call
        if it has not ended. What a slow cancel leaves is deleted within two minutes."""
        for is_cancelled in (False, True):
            if await self._store.write_rows(lambda connection: discard_call(connection, run_id)):
                return
            if not is_cancelled:
                with suppress(Conflict):  # It has ended since.
                    await self.cancel(caller, run_id)

    async def stop(self, caller: Caller, run_id: str) -> None:
        """Cancels a run if it has not ended, and waits until it and its subagents have ended.

        Raises Conflict after STOP_SECONDS.
        """
        until = time.monotonic() + STOP_SECONDS
        with suppress(Conflict):  # The run has ended already.
            await self.cancel(caller, run_id)
        run = await self.settled(caller, run_id, STOP_SECONDS, ENDED)
        while run.status not in ENDED or await self._store.read_rows(
            lambda connection: has_subagents(connection, run.subject_id)
        ):
            if time.monotonic() > until:
                raise Conflict("a run of this conversation is still stopping; try again", kind="run_active")
            await asyncio.sleep(POLL_SECONDS)

    async def give(self, give: Callable[[Session], GivenTo]) -> GivenTo:
        """Gives an input to a run: `give` stores it by `give_input`. Returns what `give` does, the id of the
        run; None: there is none to notify."""
        run_id = await self._store.write(give)
        if run_id is not None:
            self._engine.deliver(run_id)
        return run_id

    async def settled(
        self,
        caller: Caller,
        run_id: str,
        seconds: float = PAUSE_SECONDS,
        statuses: Collection[RunStatus] = PAUSED_OR_ENDED,
    ) -> Run:
        """The run once it is paused or has ended, or its state after `seconds`."""
        until = time.monotonic() + seconds
        await self._engine.wait(run_id, seconds)
        while (run := await self.get(caller, run_id)).status not in statuses:
            remaining = until - time.monotonic()
            if remaining <= 0:
                break
            await asyncio.sleep(min(POLL_SECONDS, remaining))
        return run


def run_detail(run: Run) -> dict[str, Any]:
    """The ids of the run and its message, for the detail of an error."""
    return {"run_id": run.id, "message_id": run.message_id}


def _check_position(run: Run | RunRow, after: int) -> None:
    if after > run.last_seq:
        raise InvalidInput(f"this run's log ends at {run.last_seq}; there is no event {after}")


_runs = table_of(RunRow)
_runs_of_subject = select(_runs.c.id).where(_runs.c.subject_id == bindparam("subject"))
_active_run = _runs_of_subject.where(is_unended, _runs.c.kind.not_in(SIDE_KINDS)).limit(1)
"""A side run ends with the row of its conversation: nobody waits for it."""

_next_runs = _runs_of_subject.order_by(_runs.c.id).limit(bindparam("limit"))
_delete_runs = delete(_runs).where(_runs.c.id.in_(bindparam("ids", expanding=True)))


def delete_runs_of(session: Session, messages: Select[str]) -> None:
    """Deletes the runs of deleted messages, because their logs hold the text."""
    runs = select(MessageRow.run_id).where(MessageRow.id.in_(messages), MessageRow.run_id.is_not(None))
    answering = select(RunRow.id).where(RunRow.id.in_(runs)).cte("answering", recursive=True)
    descendants = answering.union_all(
        select(RunRow.id).join(answering, RunRow.parent_run_id == answering.c.id)
    )
    # Subagents first: the query finds them by their parent runs.
    for condition in (
        RunRow.id.in_(select(descendants.c.id)), RunRow.id.in_(runs), RunRow.question_id.in_(messages)
    ):  # fmt: skip
        session.execute(delete(RunRow).where(condition).execution_options(synchronize_session=False))


def delete_runs(session: Session, subject_id: str) -> bool:
    """Deletes up to RUNS_AT_ONCE runs of a subject that is being deleted; True if there may be more.

    Raises Conflict if a run has not ended.
    """
    connection = session.connection()
    if connection.scalar(_active_run, {"subject": subject_id}) is not None:
        raise Conflict("a run was started here a moment ago; try again", kind="run_active")
    ids = list(connection.scalars(_next_runs, {"subject": subject_id, "limit": RUNS_AT_ONCE}))
    if ids:
        connection.execute(_delete_runs, {"ids": ids})
    return len(ids) == RUNS_AT_ONCE


@dataclass(frozen=True, slots=True)
class RunStopper:
    """Cancels runs. `engine` is None in a process that drives no runs; then other processes end them."""

    store: Store
    engine: RunDriver | None

    async def stop_all_of(self, user_id: int) -> None:
        """Cancels the user's runs; returns when they have ended, or after MAX_STOP_SECONDS."""
        await self.store.write(lambda session: cancel_runs_of(session, user_id))
        until = time.monotonic() + MAX_STOP_SECONDS
        unended = select(RunRow.id).where(is_caused_by(user_id), is_unended)
        running = await self.store.read(lambda session: session.scalars(unended).all())
        for run_id in running:
            if self.engine is not None:
                await self.engine.cancel(run_id)
        while running and time.monotonic() < until:
            await asyncio.sleep(STOP_POLL_SECONDS)
            running = await self.store.read(lambda session: session.scalars(unended).all())
