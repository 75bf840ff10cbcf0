"""Which process drives which run. A run is taken by one conditional UPDATE that raises its fence.

It belongs to its owner for as long as that process is alive (`processes.py`). Every append names the fence
it was taken with, so a process that lost a run cannot write to it.
"""

import os
import socket
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from luxx import __version__
from luxx.domain.accounts.caller import Caller
from luxx.infra.clock import utc_now
from luxx.infra.store.clock import database_time
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import ProcessRow, RunRow
from luxx.wire.run import Run, RunKind, RunPhase, RunStatus

HOST_LENGTH = 255


class ProcessKind(StrEnum):
    """`serve` answers clients and drives runs, `worker` only drives runs."""

    SERVE = "serve"
    WORKER = "worker"


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who a process is. `id` is new at each start and owns the runs that it drives."""

    id: str
    kind: ProcessKind
    host: str
    pid: int
    version: str
    started_at: datetime


class ProcessView(ProcessInfo, frozen=True, kw_only=True):
    """A process as operators see it. `runs`: how many it drives. One that is not alive is about to go."""

    is_alive: bool
    runs: int


def this_process(process_id: str, kind: ProcessKind) -> ProcessInfo:
    """The process that asks."""
    return ProcessInfo(
        id=process_id,
        kind=kind,
        host=socket.gethostname()[:HOST_LENGTH],
        pid=os.getpid(),
        version=__version__,
        started_at=utc_now(),
    )


_processes = table_of(ProcessRow)
_runs = table_of(RunRow)
_delete_process = delete(_processes).where(_processes.c.id == bindparam("b_id"))


def register(connection: Connection, process: ProcessInfo, lease_seconds: float | None) -> None:
    """Makes the process known. Without `lease_seconds` it is alone: no other can be alive, nothing ends."""
    if lease_seconds is None:
        connection.execute(delete(_processes))
    until = None if lease_seconds is None else database_time(connection) + lease_seconds
    values = msgspec.structs.asdict(process) | {"kind": process.kind.value, "lease_until": until}
    connection.execute(insert(_processes).values(values))


def renew(connection: Connection, process: ProcessInfo, lease_seconds: float) -> bool:
    """Extends the process's lease. False where it had been declared dead: then it is known again."""
    renewed = connection.execute(
        update(_processes)
        .where(_processes.c.id == process.id)
        .values(lease_until=database_time(connection) + lease_seconds)
    )
    if renewed.rowcount == 1:
        return True
    register(connection, process, lease_seconds)
    return False


def delete_expired(connection: Connection) -> None:
    """Forgets processes whose lease is over; one that still lives makes itself known again."""
    connection.execute(delete(_processes).where(_processes.c.lease_until < database_time(connection)))


def unregister(connection: Connection, process_id: str) -> None:
    """The process ends by itself."""
    connection.execute(_delete_process, {"b_id": process_id})


def alive_process_ids(connection: Connection) -> Select[str]:
    """The ids of processes that are alive, as SQL."""
    return select(_processes.c.id).where(_is_alive(connection))


def has_workers(connection: Connection) -> bool:
    """Whether a `luxx worker` is alive."""
    worker = alive_process_ids(connection).where(_processes.c.kind == ProcessKind.WORKER.value).limit(1)
    return connection.scalar(worker) is not None


class ProcessService:
    """One per process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ProcessView], int]:
        """The processes of this database, newest first, and how many there are. Raises NotAllowed."""
        caller.require_operator()
        all_processes = await self._store.read(read_processes)
        begin = (page - 1) * page_size
        return all_processes[begin : begin + page_size], len(all_processes)


def read_processes(session: Session) -> list[ProcessView]:
    """All that are known, newest first. For operators: of users it tells but how many runs there are."""
    connection = session.connection()
    driven = (
        select(_runs.c.owner, func.count().label("runs"))
        .where(_runs.c.status == RunStatus.RUNNING.value, _runs.c.owner.is_not(None))
        .group_by(_runs.c.owner)
        .subquery()
    )
    rows = connection.execute(
        select(
            _processes, _is_alive(connection).label("is_alive"), func.coalesce(driven.c.runs, 0).label("runs")
        )
        .outerjoin(driven, driven.c.owner == _processes.c.id)
        .order_by(_processes.c.started_at.desc(), _processes.c.id.desc())
    )
    return [
        ProcessView(
            id=row.id,
            kind=ProcessKind(row.kind),
            host=row.host,
            pid=row.pid,
            version=row.version,
            started_at=row.started_at,
            is_alive=bool(row.is_alive),
            runs=row.runs,
        )
        for row in rows
    ]


def _is_alive(connection: Connection) -> ColumnElement[bool]:
    return or_(_processes.c.lease_until.is_(None), _processes.c.lease_until >= database_time(connection))


UNDRIVEN = (RunStatus.QUEUED.value, RunStatus.WAITING.value, RunStatus.PAUSED.value)
"""Statuses in which no process drives a run, so that any may take it."""

_is_running = _runs.c.status == RunStatus.RUNNING.value


class ClaimedRun(msgspec.Struct, frozen=True):
    """A run that is ours now; `fence` above 1 means that somebody drove it before, `losses` how often a
    process that drove it was lost."""

    run_id: str
    fence: int
    losses: int = 0


class OwnedRun(msgspec.Struct, frozen=True):
    """A run that a process drives, as its row has it."""

    run_id: str
    fence: int
    is_cancelled: bool


def owned_by(connection: Connection, owner: str) -> list[OwnedRun]:
    """What the database calls driven by `owner`."""
    rows = connection.execute(
        select(_runs.c.id, _runs.c.fence, _runs.c.is_cancelled).where(_is_running, _runs.c.owner == owner)
    )
    return [OwnedRun(row.id, row.fence, row.is_cancelled) for row in rows]


def lost_to_others(connection: Connection, owner: str, run_ids: Collection[str]) -> set[str]:
    """Those of the runs that `owner` drove and that another drives or will drive now, or that are gone."""
    if not run_ids:
        return set()
    rows = connection.execute(
        select(_runs.c.id, _runs.c.status, _runs.c.owner).where(_runs.c.id.in_(list(run_ids)))
    )
    still_owned = {row.id for row in rows if row.owner == owner or row.status != RunStatus.RUNNING.value}
    return set(run_ids) - still_owned


def find_lost(
    connection: Connection, owner: str, kinds: Collection[RunKind], *, is_alone: bool
) -> list[ClaimedRun]:
    """Running runs that nobody drives, oldest first, with the fence they have.

    `is_alone`: whoever else is named cannot be alive.
    """
    rows = connection.execute(
        select(_runs.c.id, _runs.c.fence)
        .where(_is_running, _of_kinds(kinds), _is_lost(connection, owner, is_alone=is_alone))
        .order_by(_runs.c.id)
    )
    return [ClaimedRun(row.id, row.fence) for row in rows]


def claim(connection: Connection, owner: str, lost_runs: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Takes running runs whose fence is still the one that was found; nobody else can have them then."""
    claimed: list[ClaimedRun] = []
    for run in lost_runs:
        losses = connection.execute(
            update(_runs)
            .where(_runs.c.id == run.run_id, _runs.c.fence == run.fence, _is_running)
            .values(owner=owner, fence=run.fence + 1, losses=_runs.c.losses + 1)
            .returning(_runs.c.losses)
        ).scalar()
        if losses is not None:
            claimed.append(ClaimedRun(run.run_id, run.fence + 1, losses))
    return claimed


def claim_undriven(connection: Connection, owner: str, run_id: str) -> list[ClaimedRun]:
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
    return [] if row is None else [ClaimedRun(row.id, row.fence)]


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


def claim_one(connection: Connection, owner: str, run_id: str, *, is_alone: bool) -> list[ClaimedRun]:
    """Takes one run if nobody drives it."""
    claimed = claim_undriven(connection, owner, run_id)
    if claimed:
        return claimed
    lost = connection.execute(
        select(_runs.c.id, _runs.c.fence).where(
            _runs.c.id == run_id, _is_running, _is_lost(connection, owner, is_alone=is_alone)
        )
    )
    return claim(connection, owner, [ClaimedRun(row.id, row.fence) for row in lost])


def release(connection: Connection, owner: str) -> None:
    """Gives up what `owner` still holds, so that another process need not wait until it counts as dead."""
    connection.execute(update(_runs).where(_is_running, _runs.c.owner == owner).values(owner=None))


def _of_kinds(kinds: Collection[RunKind]) -> ColumnElement[bool]:
    return _runs.c.kind.in_([kind.value for kind in kinds])


def _is_lost(connection: Connection, owner: str, *, is_alone: bool) -> ColumnElement[bool]:
    # What is its own a process knows itself, whatever has become of its lease.
    others = _runs.c.owner != owner
    if not is_alone:
        others = and_(others, _runs.c.owner.not_in(alive_process_ids(connection)))
    return or_(_runs.c.owner.is_(None), others)


class RunEngine(Protocol):
    """Who drives runs (`durable.py`)."""

    process: str
    """The name of this process, which owns the runs that it drives."""

    is_open: bool
    """Whether it takes anything more."""

    admission_lock: AbstractAsyncContextManager[object]
    """For whatever counts places: where processes share a database, one at a time in each of them. A frozen
    one then stands in the line for the lock once, and not with every message that it was sent."""

    async def begin(self, run: Run) -> None:
        """Drives a run that was admitted just now, or sees to it that it is driven in its turn."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Fires the cancel signal of a run that a person has ended, wherever it is driven.

        One that nobody drives is driven to its end here.
        """
        ...

    def wake(self) -> None:
        """A run waits for a place: somebody is to look."""
        ...

    async def wait(self, run_id: str, seconds: float | None) -> None:
        """Returns when the run is no longer driven in this process, or after `seconds`."""
        ...

    async def wait_for_start(self, run_id: str, seconds: float) -> None:
        """Returns once the run is driven in this process, or after `seconds`. For one waiter at a time."""
        ...
