"""Processes with their leases, and the runs that they own.

One conditional UPDATE claims a run and raises its fence. The run belongs to its owner while that process has
a lease. Every append names the fence of its claim, so a process that lost a run cannot write to it.
"""

import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
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
from luxx.domain.usage.reserve import see_reserves
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import database_time, table_of
from luxx.runs.models import ProcessRow, RunRow
from luxx.wire.run import RunKind, RunPhase, RunStatus

HOST_LENGTH = 255


class ProcessKind(StrEnum):
    """`serve` answers clients and drives runs, `worker` only drives runs."""

    SERVE = "serve"
    WORKER = "worker"


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a process. `id` is new at each start; runs name it as their owner."""

    id: str
    kind: ProcessKind
    host: str
    pid: int
    version: str
    started_at: datetime


class ProcessView(ProcessInfo, frozen=True, kw_only=True):
    """A process as operators see it. `runs`: how many it drives. A dead process is soon deleted."""

    is_alive: bool
    runs: int


def this_process(process_id: str, kind: ProcessKind) -> ProcessInfo:
    """The ProcessInfo of the current process."""
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
    """Inserts the process. Without `lease_seconds` it is the only one and its lease has no end."""
    if lease_seconds is None:
        connection.execute(delete(_processes))
    until = None if lease_seconds is None else database_time(connection) + lease_seconds
    values = msgspec.structs.asdict(process) | {"kind": process.kind.value, "lease_until": until}
    connection.execute(insert(_processes).values(values))


def renew(connection: Connection, process: ProcessInfo, lease_seconds: float) -> bool:
    """Extends the process's lease. False if its row was deleted as expired; then it is inserted again."""
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
    """Deletes processes with an expired lease; one that is still alive inserts itself again in `renew`."""
    connection.execute(delete(_processes).where(_processes.c.lease_until < database_time(connection)))


def unregister(connection: Connection, process_id: str) -> None:
    """Deletes the process when it stops."""
    connection.execute(_delete_process, {"b_id": process_id})


def alive_process_ids(connection: Connection) -> Select[str]:
    """A query of the ids of processes that are alive."""
    return select(_processes.c.id).where(_is_alive(connection))


def has_workers(connection: Connection) -> bool:
    """Whether a `luxx worker` is alive."""
    worker = alive_process_ids(connection).where(_processes.c.kind == ProcessKind.WORKER.value).limit(1)
    return connection.scalar(worker) is not None


@dataclass(frozen=True, slots=True)
class ProcessService:
    """Lists the processes for operators."""

    store: Store

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ProcessView], int]:
        """A page of the processes, newest first, and how many there are. Raises NotAllowed for others."""
        caller.require_operator()
        all_processes = await self.store.read(read_processes)
        begin = (page - 1) * page_size
        return all_processes[begin : begin + page_size], len(all_processes)


def read_processes(session: Session) -> list[ProcessView]:
    """All processes, newest first, with the number of runs of each."""
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
    return [msgspec.convert(row, ProcessView, from_attributes=True) for row in rows]


def _is_alive(connection: Connection) -> ColumnElement[bool]:
    return or_(_processes.c.lease_until.is_(None), _processes.c.lease_until >= database_time(connection))


UNDRIVEN = (RunStatus.QUEUED.value, RunStatus.WAITING.value, RunStatus.PAUSED.value)
"""Statuses in which no process drives a run, so that any process may claim it."""

_is_running = _runs.c.status == RunStatus.RUNNING.value

_first_slots = case((_runs.c.parent_run_id.is_(None), 1), else_=0)
"""The slots of a run at the start of a drive (`slots.py`); its turns take more."""


class ClaimedRun(msgspec.Struct, frozen=True):
    """A run that this process owns. `fence` above 1: it was driven before. `losses`: how often its process
    was lost."""

    run_id: str
    fence: int
    losses: int = 0


class OwnedRun(msgspec.Struct, frozen=True):
    """A run that a process drives according to its row."""

    run_id: str
    fence: int
    is_cancelled: bool


def owned_by(connection: Connection, owner: str) -> list[OwnedRun]:
    """The runs that `owner` drives according to the database."""
    rows = connection.execute(
        select(_runs.c.id, _runs.c.fence, _runs.c.is_cancelled).where(_is_running, _runs.c.owner == owner)
    )
    return [OwnedRun(row.id, row.fence, row.is_cancelled) for row in rows]


def see_calls(connection: Connection, process: ProcessInfo) -> None:
    """Notes on the reserves of model calls that their process is alive."""
    driven = select(_runs.c.id).where(_is_running, _runs.c.owner == process.id)
    see_reserves(connection, driven, process.started_at)


def lost_to_others(connection: Connection, owner: str, run_ids: Collection[str]) -> set[str]:
    """Those of the runs that no longer belong to `owner`: claimed by another process, lost or deleted."""
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
    """Running runs whose owner is dead, oldest first, with their current fence.

    `is_alone`: no other process is alive.
    """
    rows = connection.execute(
        select(_runs.c.id, _runs.c.fence)
        .where(
            _is_running,
            _runs.c.kind.in_([kind.value for kind in kinds]),
            _is_lost(connection, owner, is_alone=is_alone),
        )
        .order_by(_runs.c.id)
    )
    return [ClaimedRun(row.id, row.fence) for row in rows]


def claim(connection: Connection, owner: str, lost_runs: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Claims those of the runs whose fence has not changed; so only one process can claim a run."""
    claimed: list[ClaimedRun] = []
    for run in lost_runs:
        losses = connection.execute(
            update(_runs)
            .where(_runs.c.id == run.run_id, _runs.c.fence == run.fence, _is_running)
            .values(owner=owner, fence=run.fence + 1, losses=_runs.c.losses + 1, slots=_first_slots)
            .returning(_runs.c.losses)
        ).scalar()
        if losses is not None:
            claimed.append(ClaimedRun(run.run_id, run.fence + 1, losses))
    return claimed


def claim_undriven(connection: Connection, owner: str, run_id: str) -> list[ClaimedRun]:
    """Claims a run that is queued, paused or waits for a person; an empty list if it has another status."""
    row = connection.execute(
        update(_runs)
        .where(_runs.c.id == run_id, _runs.c.status.in_(UNDRIVEN))
        .values(
            owner=owner,
            fence=_runs.c.fence + 1,
            slots=_first_slots,
            status=RunStatus.RUNNING.value,
            phase=RunPhase.THINKING.value,
            started_at=func.coalesce(_runs.c.started_at, utc_now()),
        )
        .returning(_runs.c.id, _runs.c.fence)
    ).one_or_none()
    return [] if row is None else [ClaimedRun(row.id, row.fence)]


def find_cancelled(connection: Connection) -> list[str]:
    """Cancelled runs that no process drives; a drive must end them."""
    # The first two are the condition of the partial index `ix_runs_cancelled`.
    conditions = (_runs.c.is_cancelled, _runs.c.finished_at.is_(None), _runs.c.status.in_(UNDRIVEN))
    return list(connection.scalars(select(_runs.c.id).where(*conditions)))


def claim_one(connection: Connection, owner: str, run_id: str, *, is_alone: bool) -> list[ClaimedRun]:
    """Claims one run if no process drives it."""
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
    """Releases the runs of `owner`, so that other processes can claim them before its lease expires."""
    connection.execute(update(_runs).where(_is_running, _runs.c.owner == owner).values(owner=None))


def _is_lost(connection: Connection, owner: str, *, is_alone: bool) -> ColumnElement[bool]:
    # A process checks its own runs in memory, even if its lease has expired.
    others = _runs.c.owner != owner
    if not is_alone:
        others = and_(others, _runs.c.owner.not_in(alive_process_ids(connection)))
    return or_(_runs.c.owner.is_(None), others)
