"""Leases: which process drives which run. A run is taken by one conditional UPDATE that raises its fence.

Every append names the fence it was taken with, so a process that lost a run cannot write to it.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from luxx.runs.models import RunRow
from luxx.wire.run import RunStatus

DRIVABLE = (RunStatus.QUEUED.value, RunStatus.RUNNING.value)


class Taken(msgspec.Struct, frozen=True):
    """A run that is ours now; `fence` above 1 means that somebody drove it before."""

    run_id: str
    fence: int


def renew(session: Session, owner: str, run_ids: Sequence[str], until: float) -> None:
    """Extends the leases of the runs that `owner` drives."""
    session.connection().execute(
        update(RunRow).where(RunRow.id.in_(run_ids), RunRow.owner == owner).values(lease_until=until)
    )


def cancelled(session: Session, run_ids: Sequence[str]) -> list[str]:
    """Those of the runs that a person has ended, perhaps through another process."""
    wanted = select(RunRow.id).where(RunRow.id.in_(run_ids), RunRow.is_cancelled)
    return list(session.scalars(wanted))


def take_lost(
    session: Session, owner: str, *, now: float, until: float, driven: Sequence[str], is_alone: bool
) -> list[Taken]:
    """Takes the runs that nobody drives any more. `is_alone`: no other process can hold a lease."""
    lost: ColumnElement[bool] = or_(RunRow.lease_until.is_(None), RunRow.lease_until < now)
    if is_alone:
        lost = or_(lost, RunRow.owner != owner)
    return _take(session, owner, and_(RunRow.id.not_in(driven), lost), until)


def take_one(session: Session, owner: str, run_id: str, *, now: float, until: float) -> list[Taken]:
    """Takes one run if nobody drives it."""
    lost = or_(RunRow.lease_until.is_(None), RunRow.lease_until < now, RunRow.owner.is_(None))
    return _take(session, owner, and_(RunRow.id == run_id, lost), until)


def _take(session: Session, owner: str, which: ColumnElement[bool], until: float) -> list[Taken]:
    drivable = RunRow.status.in_(DRIVABLE)
    found = session.scalars(select(RunRow.id).where(drivable, which)).all()
    taken: list[Taken] = []
    for run_id in found:
        row = session.execute(
            update(RunRow)
            .where(RunRow.id == run_id, drivable, which)
            .values(
                owner=owner,
                fence=RunRow.fence + 1,
                lease_until=until,
                status=RunStatus.RUNNING.value,
            )
            .returning(RunRow.id, RunRow.fence)
            .execution_options(synchronize_session=False)
        ).one_or_none()
        if row is not None:
            taken.append(Taken(row.id, row.fence))
    return taken


def release(session: Session, owner: str) -> None:
    """Gives up what `owner` still holds, so that another process need not wait for the leases to end."""
    session.connection().execute(
        update(RunRow)
        .where(RunRow.owner == owner, RunRow.status.in_(DRIVABLE))
        .values(owner=None, lease_until=None)
    )
