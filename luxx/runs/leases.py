"""Which process drives which run. A run is taken by one conditional UPDATE that raises its fence.

It belongs to its owner for as long as that process is alive (`processes.py`). Every append names the fence
it was taken with, so a process that lost a run cannot write to it.
"""

from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from luxx.clock import utc_now
from luxx.runs.models import RunRow
from luxx.runs.processes import living
from luxx.store.tables import table_of
from luxx.wire.run import RunKind, RunPhase, RunStatus

UNDRIVEN = (RunStatus.QUEUED.value, RunStatus.WAITING.value, RunStatus.PAUSED.value)
"""Statuses in which no process drives a run, so that any may take it."""

_runs = table_of(RunRow)
_is_running = _runs.c.status == RunStatus.RUNNING.value


class Taken(msgspec.Struct, frozen=True):
    """A run that is ours now; `fence` above 1 means that somebody drove it before, `losses` how often a
    process that drove it was lost."""

    run_id: str
    fence: int
    losses: int = 0


class Owned(msgspec.Struct, frozen=True):
    """A run that a process drives, as its row has it."""

    run_id: str
    fence: int
    is_cancelled: bool


def owned_by(connection: Connection, owner: str) -> list[Owned]:
    """What the database calls driven by `owner`."""
    rows = connection.execute(
        select(_runs.c.id, _runs.c.fence, _runs.c.is_cancelled).where(_is_running, _runs.c.owner == owner)
    )
    return [Owned(row.id, row.fence, row.is_cancelled) for row in rows]


def taken_from(connection: Connection, owner: str, run_ids: Collection[str]) -> set[str]:
    """Those of the runs that `owner` drove and that another drives or will drive now, or that are gone."""
    if not run_ids:
        return set()
    rows = connection.execute(
        select(_runs.c.id, _runs.c.status, _runs.c.owner).where(_runs.c.id.in_(list(run_ids)))
    )
    kept = {row.id for row in rows if row.owner == owner or row.status != RunStatus.RUNNING.value}
    return set(run_ids) - kept


def find_lost(
    connection: Connection, owner: str, kinds: Collection[RunKind], *, is_alone: bool
) -> list[Taken]:
    """Running runs that nobody drives, oldest first, with the fence they have.

    `is_alone`: whoever else is named cannot be alive.
    """
    rows = connection.execute(
        select(_runs.c.id, _runs.c.fence)
        .where(_is_running, _of_kinds(kinds), _is_lost(connection, owner, is_alone=is_alone))
        .order_by(_runs.c.id)
    )
    return [Taken(row.id, row.fence) for row in rows]


def take(connection: Connection, owner: str, found: Sequence[Taken]) -> list[Taken]:
    """Takes running runs whose fence is still the one that was found; nobody else can have them then."""
    taken: list[Taken] = []
    for run in found:
        losses = connection.execute(
            update(_runs)
            .where(_runs.c.id == run.run_id, _runs.c.fence == run.fence, _is_running)
            .values(owner=owner, fence=run.fence + 1, losses=_runs.c.losses + 1)
            .returning(_runs.c.losses)
        ).scalar()
        if losses is not None:
            taken.append(Taken(run.run_id, run.fence + 1, losses))
    return taken


def begin(connection: Connection, owner: str, run_id: str) -> list[Taken]:
    """Takes a run that is queued, waits for a person or is paused."""
    row = connection.execute(
        update(_runs)
        .where(_runs.c.id == run_id, _runs.c.status.in_(UNDRIVEN))
        .values(
            owner=owner,
            fence=_runs.c.fence + 1,
            status=RunStatus.RUNNING.value,
            phase=RunPhase.THINKING.value,
            started_at=func.coalesce(_runs.c.started_at, utc_now()),
        )
        .returning(_runs.c.id, _runs.c.fence)
    ).one_or_none()
    return [] if row is None else [Taken(row.id, row.fence)]


def find_cancelled(connection: Connection) -> list[str]:
    """Runs that a person ended while nobody drove them, and that must be driven to their end."""
    return list(
        connection.scalars(
            select(_runs.c.id).where(
                # As the index of these few rows has it.
                _runs.c.is_cancelled,
                _runs.c.finished_at.is_(None),
                _runs.c.status.in_(UNDRIVEN),
            )
        )
    )


def take_one(connection: Connection, owner: str, run_id: str, *, is_alone: bool) -> list[Taken]:
    """Takes one run if nobody drives it."""
    begun = begin(connection, owner, run_id)
    if begun:
        return begun
    lost = connection.execute(
        select(_runs.c.id, _runs.c.fence).where(
            _runs.c.id == run_id, _is_running, _is_lost(connection, owner, is_alone=is_alone)
        )
    )
    return take(connection, owner, [Taken(row.id, row.fence) for row in lost])


def release(connection: Connection, owner: str) -> None:
    """Gives up what `owner` still holds, so that another process need not wait until it counts as dead."""
    connection.execute(update(_runs).where(_is_running, _runs.c.owner == owner).values(owner=None))


def _of_kinds(kinds: Collection[RunKind]) -> ColumnElement[bool]:
    return _runs.c.kind.in_([kind.value for kind in kinds])


def _is_lost(connection: Connection, owner: str, *, is_alone: bool) -> ColumnElement[bool]:
    # What is its own a process knows itself, whatever has become of its lease.
    others = _runs.c.owner != owner
    if not is_alone:
        others = and_(others, _runs.c.owner.not_in(living(connection)))
    return or_(_runs.c.owner.is_(None), others)
