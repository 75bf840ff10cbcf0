"""Retention: deletes the logs, tool calls and tool outputs of runs that ended long ago, the content of calls
that store nothing, and the rows of endings whose notifications were sent.

The rows of the runs and the messages stay. A log is deleted from its beginning in small transactions, so that
other writers are not blocked.
"""

import asyncio
import time
from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import BindParameter, Connection, bindparam, delete, func, select, text
from sqlalchemy.orm import Session

from luxx.errors import Gone
from luxx.infra.clock import id_at
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.log.endings import NOTICES, RunEndedRow
from luxx.runs.log.page_sources import RunSourceRow
from luxx.runs.models import (
    DISCARDED,
    UNDISCARDED_CALL,
    QuestionRow,
    RunEventRow,
    RunResultRow,
    RunRow,
    ToolCallRow,
    is_unended,
)
from luxx.wire.event import ENDING_EVENT_TYPES
from luxx.wire.run import ENDED

EVENTS_AT_ONCE = 500
"""How many events one transaction deletes; other writers wait for it."""

_events = table_of(RunEventRow)
_runs = table_of(RunRow)
_ended = [status.value for status in ENDED]

_next_log = (
    select(_events.c.run_id)
    .where(_events.c.run_id > bindparam("after"), _events.c.run_id < bindparam("before"))
    .order_by(_events.c.run_id)
    .limit(1)
)
"""The next run with a log: one index seek per run, not per event."""

_is_over = select(_runs.c.id).where(
    _runs.c.id == bindparam("b_id"), _runs.c.status.in_(_ended), _runs.c.finished_at < bindparam("until")
)
_of_run: BindParameter[str] = bindparam("b_run")
_first = (
    select(_events.c.seq).where(_events.c.run_id == _of_run).order_by(_events.c.seq).limit(EVENTS_AT_ONCE)
)
_delete_events = delete(_events).where(_events.c.run_id == _of_run, _events.c.seq <= bindparam("last"))
_delete_rest = [
    delete(table).where(table.c.run_id == _of_run)
    for table in (table_of(ToolCallRow), table_of(RunResultRow), table_of(RunSourceRow))
]
_of_log = select(
    func.sum(func.length(_events.c.data) + func.coalesce(func.length(_events.c.internal), 0))
).where(_events.c.run_id == _of_run, _events.c.seq <= bindparam("last"))
_results = table_of(RunResultRow)
_of_results = select(func.sum(func.length(_results.c.output))).where(_results.c.run_id == _of_run)
_sources = table_of(RunSourceRow)
_of_sources = select(func.sum(func.length(_sources.c.text))).where(_sources.c.run_id == _of_run)
_shrink = (
    _runs.update()
    .where(_runs.c.id == bindparam("b_id"))
    .values(stored_bytes=_runs.c.stored_bytes - bindparam("size"))
)
_has_first_event = select(_events.c.seq).where(_events.c.run_id == _of_run, _events.c.seq == 1)


class _LoggedRun(msgspec.Struct, frozen=True):
    """A run with a log. `is_over`: it ended long enough ago to delete the log."""

    run_id: str
    is_over: bool


async def delete_old_logs(store: Store, now: datetime, *, days: int) -> int:
    """Deletes the logs of runs that ended more than `days` ago. Returns the number of deleted logs."""
    until = now - timedelta(days=days)
    # Run ids are ordered by time of creation, so no newer run can have ended before `until`.
    before = id_at(max(0, int(until.timestamp() * 1000)), 0)
    deleted, after = 0, ""
    while True:
        run = await store.read(lambda session, a=after: _next_logged_run(session, a, before, until))
        if run is None:
            return deleted
        after = run.run_id
        if run.is_over:
            await _delete_log(store, run.run_id)
            deleted += 1


async def _delete_log(store: Store, run_id: str) -> None:
    may_be_more = True
    while may_be_more:
        began = time.monotonic()
        may_be_more = await store.write(lambda session: _delete_batch(session, run_id))
        # Pause as long as the deletion took, so that other writers get half of the time.
        await asyncio.sleep(time.monotonic() - began)


def _next_logged_run(session: Session, after: str, before: str, until: datetime) -> _LoggedRun | None:
    connection = session.connection()
    run_id = connection.scalar(_next_log, {"after": after, "before": before})
    if run_id is None:
        return None
    is_over = connection.scalar(_is_over, {"b_id": run_id, "until": until}) is not None
    return _LoggedRun(run_id, is_over)


def _delete_batch(session: Session, run_id: str) -> bool:
    connection = session.connection()
    seqs = list(connection.scalars(_first, {"b_run": run_id}))
    if seqs:
        # Subtracts the size of these events, of all tool outputs and pages from that of the run.
        key = {"b_run": run_id, "last": seqs[-1]}
        size = sum(int(connection.scalar(part, key) or 0) for part in (_of_log, _of_results, _of_sources))
        connection.execute(_shrink, {"b_id": run_id, "size": size})
        connection.execute(_delete_events, {"b_run": run_id, "last": seqs[-1]})
    for statement in _delete_rest:
        connection.execute(statement, {"b_run": run_id})
    return len(seqs) == EVENTS_AT_ONCE


DISCARD_SECONDS = 60.0
"""How long after its end a call is discarded whose client could not be served to the end: another process may
still read its log."""

CALLS_AT_ONCE = 100

_kept = (*sorted(ENDING_EVENT_TYPES), "error")
"""What stays of the log of a call: that it ended, and the error that ended it."""

_of_call = select(_runs.c.id).where(_runs.c.subject_id == bindparam("call"))
_unended_of_call = _of_call.where(is_unended).limit(1)
_delete_of_call = [
    delete(_events).where(_events.c.run_id.in_(_of_call), _events.c.type.not_in(_kept)),
    *(
        delete(table).where(table.c.run_id.in_(_of_call))
        for table in (table_of(ToolCallRow), table_of(RunResultRow), table_of(QuestionRow), _sources)
    ),
]
_kept_size = (
    select(func.coalesce(func.sum(func.length(_events.c.data)), 0))
    .where(_events.c.run_id == _runs.c.id)
    .scalar_subquery()
)
_empty_call = (
    _runs.update()
    .where(_runs.c.subject_id == bindparam("call"))
    .values(request=DISCARDED, stored_bytes=_kept_size, called_by=None)
)
_ended_call = select(_runs.c.id).where(
    _runs.c.id == bindparam("call"), _runs.c.subject_id == bindparam("call"), ~is_unended
)
_old_calls = (
    select(_runs.c.id)
    .where(text(UNDISCARDED_CALL), _runs.c.finished_at < bindparam("until"))
    .limit(CALLS_AT_ONCE)
)


def discard_call(connection: Connection, run_id: str) -> bool:
    """Deletes what a call was given and what it answered, if it has ended; whether it has."""
    if connection.scalar(_ended_call, {"call": run_id}) is None:
        return False
    delete_content(connection, run_id)
    return True


def delete_content(connection: Connection, call: str) -> None:
    """Deletes what a call that ends or has ended was given and answered, in its subagents too.

    While a subagent has not ended, the call counts as not discarded; `discard_old_calls` finds it later.
    """
    for statement in _delete_of_call:
        connection.execute(statement, {"call": call})
    if connection.scalar(_unended_of_call, {"call": call}) is None:
        connection.execute(_empty_call, {"call": call})


async def discard_old_calls(store: Store, now: datetime) -> None:
    """Discards the calls that ended more than DISCARD_SECONDS ago: those that a killed process served."""
    until = now - timedelta(seconds=DISCARD_SECONDS)
    calls = await store.read_rows(lambda connection: list(connection.scalars(_old_calls, {"until": until})))
    for call in calls:
        await store.write_rows(lambda connection, call=call: discard_call(connection, call))


UNNOTIFIED_SECONDS = 600.0
"""How long it is kept that a run has ended whose user has no open socket."""

_endings = table_of(RunEndedRow)
_is_notice = _endings.c.reader == NOTICES
_delete_own = delete(_endings).where(
    _is_notice, _endings.c.process == bindparam("process"), _endings.c.ended_at < bindparam("until")
)
_delete_notified = delete(_endings).where(_is_notice, _endings.c.run_id == bindparam("b_run"))
_is_unnotified = (_is_notice, _endings.c.ended_at < bindparam("until"))
_has_unnotified, _delete_unnotified = (
    select(_endings.c.run_id).where(*_is_unnotified),
    delete(_endings).where(*_is_unnotified),
)


def delete_notified_endings(
    connection: Connection, process: str, until: datetime, notified: Collection[str]
) -> None:
    """Deletes the endings whose notifications were sent: those of this process before `until`, which it
    announced to all processes at once, and these runs of any process."""
    connection.execute(_delete_own, {"process": process, "until": until})
    if notified:
        connection.execute(_delete_notified, [{"b_run": run_id} for run_id in notified])


async def delete_old_endings(store: Store, now: datetime) -> None:
    """Deletes the endings that nobody could be notified of for UNNOTIFIED_SECONDS."""
    values = {"until": now - timedelta(seconds=UNNOTIFIED_SECONDS)}
    if await store.read_rows(lambda connection: connection.execute(_has_unnotified.limit(1), values).first()):
        await store.write_rows(lambda connection: connection.execute(_delete_unnotified, values))


def check_log(connection: Connection, run: RunRow) -> None:
    """Raises Gone if the log of the run was deleted."""
    if run.status not in ENDED or not run.last_seq:
        return
    if connection.scalar(_has_first_event, {"b_run": run.id}) is None:
        raise Gone(
            "the log of this run was deleted: runs.retention_days have passed, or it was a call that stores "
            "nothing; its status is still available",
            kind="log_deleted",
        )
