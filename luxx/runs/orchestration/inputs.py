"""What people give to a run with several turns while it works: rows that its drive logs, oldest first.

Only the drive writes the log of a run. So a message of a person in a room, or an answer while other turns go
on, is stored as an input in the transaction of the request; the drive logs it and deletes the row in one
transaction. An input is therefore logged exactly once, whatever crashes.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select

from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import wake
from luxx.runs.models import RunInputRow, RunRow, is_unended

_inputs, _runs = table_of(RunInputRow), table_of(RunRow)
_insert = insert(_inputs)
_of_run = (
    select(_inputs.c.id, _inputs.c.kind, _inputs.c.data)
    .where(_inputs.c.run_id == bindparam("run_id"))
    .order_by(_inputs.c.id)
    .limit(bindparam("limit"))
)
_delete = delete(_inputs).where(_inputs.c.id.in_(bindparam("ids", expanding=True)))
_lock = select(_runs.c.status).where(_runs.c.id == bindparam("run_id"), is_unended).with_for_update()

INPUTS_AT_ONCE = 100


class InputKind(StrEnum):
    """`answer`: of a question, while the run works. `message`: a person speaks. `pause`: after the turns in
    progress are cut. `skip`: cuts turns in progress, or leaves out a step. `floor`: a person chooses who is
    next. `finish`: a person ends the run. `approve`: a task or its steps may be carried out."""

    ANSWER = "answer"
    MESSAGE = "message"
    PAUSE = "pause"
    SKIP = "skip"
    FLOOR = "floor"
    FINISH = "finish"
    APPROVE = "approve"


class RunInput(msgspec.Struct, frozen=True, kw_only=True):
    """One input; `data` is JSON, as its kind and the run's kind define it."""

    id: int
    kind: InputKind
    data: str


def give_input(connection: Connection, run_id: str, kind: InputKind, data: str = "{}") -> bool:
    """Stores an input for a run that has not ended, and queues the run if it waits for a person.

    False, with nothing stored, if the run has ended. Call `RunDriver.deliver` after the transaction.
    """
    # The lock orders this with the drive's change to `waiting`, which looks for inputs.
    if connection.execute(_lock, {"run_id": run_id}).scalar() is None:
        return False
    connection.execute(_insert, {"run_id": run_id, "kind": kind.value, "data": data, "created_at": utc_now()})
    wake(connection, RunRow.id == run_id)
    return True


def read_inputs(connection: Connection, run_id: str, limit: int = INPUTS_AT_ONCE) -> list[RunInput]:
    """The oldest inputs of the run that are not logged yet."""
    rows = connection.execute(_of_run, {"run_id": run_id, "limit": limit})
    return [RunInput(id=row.id, kind=InputKind(row.kind), data=row.data) for row in rows]


def deleting_inputs(
    ids: list[int], write: Callable[[Connection], None] | None = None
) -> Callable[[Connection], None]:
    """What the transaction that logs inputs also does: deletes them, after `write`."""

    def both(connection: Connection) -> None:
        if write is not None:
            write(connection)
        connection.execute(_delete, {"ids": ids})

    return both
