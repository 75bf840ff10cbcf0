"""Runs as read from their rows."""

import msgspec
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.errors import NotFound
from luxx.runs.models import RunRow
from luxx.wire.run import Run, RunKind, RunPhase, RunStatus
from luxx.wire.usage import Usage

_usage = msgspec.json.Decoder(Usage)


def run_view(row: RunRow) -> Run:
    """A run's row as a value."""
    return Run(
        id=row.id,
        kind=RunKind(row.kind),
        subject_id=row.subject_id,
        status=RunStatus(row.status),
        phase=None if row.phase is None else RunPhase(row.phase),
        parent_run_id=row.parent_run_id,
        message_id=row.message_id,
        stop_reason=row.stop_reason,
        error=row.error,
        usage=_usage.decode(row.usage),
        cost=row.cost,
        last_seq=row.last_seq,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def own_run(session: Session, caller: Caller, run_id: str) -> RunRow:
    """The caller's run of this id. Raises NotFound."""
    row = session.get(RunRow, run_id)
    if row is None or row.user_id != caller.user_id:
        raise NotFound("no run with this id", kind="run_not_found")
    return row


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list; None does not filter."""

    kind: RunKind | None = None
    subject_id: str | None = None
    status: RunStatus | None = None
    before: str | None = None


def page_of_runs(
    session: Session, caller: Caller, wanted: RunFilter, *, offset: int, limit: int
) -> tuple[list[Run], int]:
    """The caller's runs, newest first, and how many match in all."""
    query: Select[RunRow] = select(RunRow).where(RunRow.user_id == caller.user_id)
    if wanted.kind is not None:
        query = query.where(RunRow.kind == wanted.kind.value)
    if wanted.subject_id is not None:
        query = query.where(RunRow.subject_id == wanted.subject_id)
    if wanted.status is not None:
        query = query.where(RunRow.status == wanted.status.value)
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    if wanted.before is not None:
        query = query.where(RunRow.id < wanted.before)
    rows = session.scalars(query.order_by(RunRow.id.desc()).offset(offset).limit(limit))
    return [run_view(row) for row in rows], total
