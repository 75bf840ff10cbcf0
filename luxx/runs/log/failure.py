"""The failure of a run that cannot be driven: its log cannot be read, its message cannot be stored, or it
crashed its process too often. Without it, processes would claim such a run again and again.
"""

from collections.abc import Callable, Mapping

import msgspec
from sqlalchemy import Connection, bindparam, insert, null, select

from luxx.domain.usage.reserve import charge_orphaned_reserve
from luxx.errors import LuxxError
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import mark_cancelled
from luxx.runs.log.events import LostRun, event_row, record_ending, stamped
from luxx.runs.log.retention import discard_call
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.event import Event
from luxx.wire.run import ENDED, RunKind, RunStatus, StopReason
from luxx.wire.turn import Usage


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that cannot be driven, as its row has it."""

    id: str
    subject_id: str
    message_id: str | None
    last_seq: int
    usage: Usage


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last events of a run that cannot be driven; paused, if it may be resumed."""

    events: list[Event]
    status: RunStatus


FailureWriter = Callable[[Connection, FailedRun, LuxxError], RunFailure]
"""Writes what the failure of a run of one kind changes in other rows; it closes questions that nobody needs
to answer any more."""


_runs = table_of(RunRow)
_owned_run = select(
    _runs.c.kind, _runs.c.subject_id, _runs.c.last_seq, _runs.c.message_id, _runs.c.usage
).where(_runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence"))


async def fail_run(
    store: Store, writers: Mapping[RunKind, FailureWriter], run_id: str, fence: int, error: LuxxError
) -> RunStatus | None:
    """Ends or pauses a run that cannot be driven, if it has this fence; its status then.

    Raises LostRun if another process claims it meanwhile.
    """
    return await store.write_rows(lambda connection: write_failure(connection, writers, run_id, fence, error))


def write_failure(
    connection: Connection,
    writers: Mapping[RunKind, FailureWriter],
    run_id: str,
    fence: int,
    error: LuxxError,
) -> RunStatus | None:
    """`fail_run` in a transaction of the caller."""
    row = connection.execute(_owned_run, {"run_id": run_id, "fence": fence}).one_or_none()
    if row is None:
        return None
    run = FailedRun(
        id=run_id,
        subject_id=row.subject_id,
        message_id=row.message_id,
        last_seq=row.last_seq,
        usage=msgspec.json.decode(row.usage, type=Usage),
    )
    failure = writers[RunKind(row.kind)](connection, run, error)
    rows = [
        event_row(seq, stamped(event, run_id)) for seq, event in enumerate(failure.events, run.last_seq + 1)
    ]
    connection.execute(insert(table_of(RunEventRow)), rows)
    has_ended = failure.status in ENDED
    if has_ended:
        record_ending(connection, run_id, fence, failure.status.value)
    ended = connection.execute(
        _runs.update()
        .where(_runs.c.id == run_id, _runs.c.fence == fence)
        .values(
            status=failure.status.value,
            phase=null(),
            stop_reason=StopReason.ERROR.value if has_ended else null(),
            error=error.message,
            last_seq=rows[-1]["seq"],
            owner=null(),
            stored_bytes=_runs.c.stored_bytes + sum(len(row["data"]) for row in rows),
            finished_at=utc_now() if has_ended else null(),
        )
    )
    if ended.rowcount != 1:
        raise LostRun(run_id)
    mark_cancelled(connection, RunRow.parent_run_id == run_id)
    charge_orphaned_reserve(connection, run_id, _runs)
    if has_ended:
        discard_call(connection, run_id)
    return failure.status
