"""The processes that serve a database or work for it: which there are, and which of them are alive.

A row is a lease that its process renews at each beat. What a process drives is in the rows of runs.
"""

import os
import socket
from datetime import datetime
from enum import StrEnum

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from luxx import __version__
from luxx.accounts.caller import Caller
from luxx.clock import utc_now
from luxx.runs.models import ProcessRow, RunRow
from luxx.store.clock import database_time
from luxx.store.engine import Store
from luxx.store.tables import table_of
from luxx.wire.run import RunStatus

HOST_LENGTH = 255


class ProcessKind(StrEnum):
    """`serve` answers clients and drives runs, `worker` only drives runs."""

    SERVE = "serve"
    WORKER = "worker"


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Who a process is. `id` is new at each start and owns the runs that it drives."""

    id: str
    kind: ProcessKind
    host: str
    pid: int
    version: str
    started_at: datetime


class ProcessView(Process, frozen=True, kw_only=True):
    """A process as operators see it. `runs`: how many it drives. One that is not alive is about to go."""

    is_alive: bool
    runs: int


def this_process(process_id: str, kind: ProcessKind) -> Process:
    """The process that asks."""
    return Process(
        id=process_id,
        kind=kind,
        host=socket.gethostname()[:HOST_LENGTH],
        pid=os.getpid(),
        version=__version__,
        started_at=utc_now(),
    )


_processes = table_of(ProcessRow)
_runs = table_of(RunRow)
_forget = delete(_processes).where(_processes.c.id == bindparam("b_id"))


def register(connection: Connection, process: Process, lease_seconds: float | None) -> None:
    """Makes the process known. Without `lease_seconds` it is alone: no other can be alive, nothing ends."""
    if lease_seconds is None:
        connection.execute(delete(_processes))
    until = None if lease_seconds is None else database_time(connection) + lease_seconds
    values = msgspec.structs.asdict(process) | {"kind": process.kind.value, "lease_until": until}
    connection.execute(insert(_processes).values(values))


def renew(connection: Connection, process: Process, lease_seconds: float) -> bool:
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


def sweep(connection: Connection) -> None:
    """Forgets processes whose lease is over; one that still lives makes itself known again."""
    connection.execute(delete(_processes).where(_processes.c.lease_until < database_time(connection)))


def forget(connection: Connection, process_id: str) -> None:
    """The process ends by itself."""
    connection.execute(_forget, {"b_id": process_id})


def living(connection: Connection) -> Select[str]:
    """The ids of processes that are alive, as SQL."""
    return select(_processes.c.id).where(_is_alive(connection))


def has_workers(connection: Connection) -> bool:
    """Whether a `luxx worker` is alive."""
    worker = living(connection).where(_processes.c.kind == ProcessKind.WORKER.value).limit(1)
    return connection.scalar(worker) is not None


class ProcessService:
    """One per process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ProcessView], int]:
        """The processes of this database, newest first, and how many there are. Raises NotAllowed."""
        caller.require_operator()
        known = await self._store.read(read_processes)
        begin = (page - 1) * page_size
        return known[begin : begin + page_size], len(known)


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
