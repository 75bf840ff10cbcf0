"""Statements on the rows of stateful connections and of the calls over them.

One conditional UPDATE claims a connection and raises its fence; it belongs to its owner while that process
has a lease. The result of a call is written only under the fence with which it began, so a process that lost
a connection cannot write to it. Not here: who waits and who carries calls out (`service`).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    column,
    delete,
    insert,
    or_,
    select,
    table,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from luxx.domain.mcp.models import CallState, McpCallRow, McpConnectionRow
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepFile

KEPT = timedelta(hours=1)
"""How long an ended call is kept whose run has ended or that belongs to none."""

AliveProcesses = Callable[[Connection], Select[str]]
"""A query of the ids of processes that are alive."""

_connections, _calls = table_of(McpConnectionRow), table_of(McpCallRow)
_runs = table("runs", column("id"), column("finished_at"))
_add_connection = {
    "sqlite": sqlite.insert(_connections).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(_connections).on_conflict_do_nothing(),
}


class CallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended: with a `result`, with `failed` (why it could not be made), or because its user has to
    sign in first. `is_lost`: its owner ended before the answer. `files`: images of the result. `asked`: it
    has not ended, and its server waits for this (an `AskedOfUser`)."""

    result: ToolResult | None = None
    files: list[StepFile] = []
    failed: str = ""
    needs_sign_in: bool = False
    is_lost: bool = False
    asked: str = ""


LOST = CallEnd(is_lost=True)
_encode = msgspec.json.Encoder().encode
_end = msgspec.json.Decoder(CallEnd)
_LOST_TEXT = _encode(LOST).decode()


class NewOwnerCall(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a new call that follow from what is called."""

    id: str
    run_id: str | None
    user_id: int
    tool: str
    arguments: str
    is_read_only: bool
    mirrors_arguments: bool
    workspace: str | None


class OwnerCall(NewOwnerCall, frozen=True, kw_only=True):
    """A call that this process carries out now."""

    connection_id: str
    server_id: str | None
    holder: int | None
    fence: int
    caller: str


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its caller sees it. `has_owner`: a process that is alive has the connection; `asked`: what
    its server waits for, while that has no answer."""

    status: CallState
    owner: str | None
    has_owner: bool
    result: str | None
    asked: str | None

    @property
    def end(self) -> CallEnd | None:
        return None if self.result is None else _end.decode(self.result)


def call_key(run_id: str, call_id: str) -> str:
    """The id of the row of a run's call."""
    return sha256(f"{run_id} {call_id}".encode("utf-8", "surrogatepass")).hexdigest()


def ensure_connection(connection: Connection, key: str, server_id: str | None, user_id: int | None) -> None:
    """Adds the row of a connection, if there is none."""
    if connection.scalar(select(_connections.c.id).where(_connections.c.id == key)) is None:
        values = {"id": key, "server_id": server_id, "user_id": user_id, "owner": None, "fence": 0}
        connection.execute(_add_connection[connection.dialect.name], values)


def claim(
    connection: Connection,
    key: str,
    process: str,
    alive: AliveProcesses,
    may_claim: Callable[[Connection], bool],
) -> str | None:
    """The living owner of a connection, which is this process if it could claim it; None: there is none."""
    owned = _connections.c.owner.in_(alive(connection)).label("has_owner")
    row = connection.execute(
        select(_connections.c.owner, _connections.c.fence, owned).where(_connections.c.id == key)
    ).first()
    if row is None or row.has_owner:
        return None if row is None else row.owner
    if not may_claim(connection):
        return None
    same = and_(_connections.c.id == key, _connections.c.fence == row.fence)
    claimed = connection.execute(update(_connections).where(same).values(owner=process, fence=row.fence + 1))
    if claimed.rowcount != 1:
        return None
    _settle(connection, key, row.fence + 1)
    return process


def _settle(connection: Connection, key: str, fence: int) -> None:
    """Ends the calls whose owner was lost; one that only reads is made once more."""
    began = and_(
        _calls.c.connection_id == key,
        _calls.c.status.in_((CallState.RUNNING.value, CallState.ASKING.value)),
        _calls.c.fence < fence,
    )
    again = and_(_calls.c.is_read_only, _calls.c.is_repeated.is_(False), _calls.c.is_cancelled.is_(False))
    waits = {"status": CallState.WAITING.value, "is_repeated": True, "answer": None}
    connection.execute(update(_calls).where(began, again).values(waits))
    ended = {"status": CallState.ENDED.value, "result": _LOST_TEXT, "ended_at": utc_now(), "answer": None}
    connection.execute(update(_calls).where(began).values(ended))


def add_call(connection: Connection, key: str | None, new: NewOwnerCall, process: str) -> None:
    """Adds a call that waits for its owner, in place of an earlier one with its id."""
    if new.run_id is not None:
        connection.execute(delete(_calls).where(_calls.c.id == new.id))
    values = msgspec.structs.asdict(new) | {
        "connection_id": key,
        "status": CallState.WAITING.value,
        "is_repeated": False,
        "is_cancelled": False,
        "caller": process,
        "created_at": utc_now(),
    }
    connection.execute(insert(_calls).values(values))


def take(connection: Connection, call_id: str, process: str) -> OwnerCall | None:
    """Begins a waiting call of a connection of this process. None if it is no such call any more."""
    query = (
        select(_calls, _connections.c.server_id, _connections.c.user_id.label("holder"), _connections.c.fence)
        .join(_connections, _connections.c.id == _calls.c.connection_id)
        .where(_calls.c.id == call_id, _connections.c.owner == process)
    )
    # Nobody takes the connection before the call has begun.
    row = connection.execute(query.with_for_update(read=True, of=_connections)).first()
    if row is None or row.status != CallState.WAITING.value or row.is_cancelled:
        return None
    fields = {name: getattr(row, name) for name in OwnerCall.__struct_fields__ if name != "fence"}
    taken = OwnerCall(**fields, fence=row[-1])
    began = connection.execute(
        update(_calls)
        .where(_calls.c.id == call_id, _calls.c.status == CallState.WAITING.value)
        .values(status=CallState.RUNNING.value, fence=taken.fence)
    )
    return taken if began.rowcount == 1 else None


def finish(connection: Connection, call: OwnerCall, end: CallEnd) -> bool:
    """Writes how a call ended, unless another process has taken the connection."""
    written = connection.execute(
        update(_calls)
        .where(is_begun(call))
        .values(answer=None, status=CallState.ENDED.value, result=_encode(end).decode(), ended_at=utc_now())
    )
    return written.rowcount == 1


def is_begun(call: OwnerCall) -> ColumnElement[bool]:
    return and_(
        _calls.c.id == call.id, _calls.c.fence == call.fence, _calls.c.status != CallState.ENDED.value
    )


def see_call(connection: Connection, call_id: str, alive: AliveProcesses) -> CallView | None:
    """A call as its caller sees it; None if it does not exist."""
    owned = _connections.c.owner.in_(alive(connection)).label("has_owner")
    query = (
        select(_calls.c.status, _calls.c.result, _calls.c.asked, _calls.c.answer, _connections.c.owner, owned)
        .outerjoin(_connections, _connections.c.id == _calls.c.connection_id)
        .where(_calls.c.id == call_id)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    return CallView(
        status=CallState(row.status),
        owner=row.owner,
        has_owner=bool(row.has_owner),
        result=row.result,
        asked=row.asked if row.status == CallState.ASKING.value and row.answer is None else None,
    )


def await_call(connection: Connection, call_id: str, process: str, *, is_resumed: bool) -> bool:
    """Makes this process the one that waits for a call. False if there is none that was begun: an earlier
    process began it, or it has asked its user something."""
    is_begun = (
        _calls.c.id == call_id if is_resumed else and_(_calls.c.id == call_id, _calls.c.asked.is_not(None))
    )
    return connection.execute(update(_calls).where(is_begun).values(caller=process)).rowcount == 1


def cancel_call(connection: Connection, call_id: str) -> str | None:
    """Marks a call as cancelled; it ends at once if no process has begun it. Returns its owner, if it has
    one."""
    unended = and_(_calls.c.id == call_id, _calls.c.status != CallState.ENDED.value)
    connection.execute(update(_calls).where(unended).values(is_cancelled=True))
    ended = {"status": CallState.ENDED.value, "ended_at": utc_now()}
    connection.execute(
        update(_calls).where(unended, _calls.c.status == CallState.WAITING.value).values(ended)
    )
    owner = select(_connections.c.owner).join(_calls, _calls.c.connection_id == _connections.c.id)
    return connection.scalar(owner.where(unended))


def delete_call(connection: Connection, call_id: str) -> None:
    connection.execute(delete(_calls).where(_calls.c.id == call_id))


class OwnerLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a process finds at a look: its connections, those whose owner is lost, calls that wait for it, and
    its calls that were cancelled."""

    own: list[str]
    lost: list[str]
    waiting: list[str]
    cancelled: list[str]


def look(connection: Connection, process: str, alive: AliveProcesses, *, may_claim: bool) -> OwnerLook:
    """`may_claim`: whether this process takes connections without a living owner."""
    living = alive(connection)
    is_own = _connections.c.owner == process
    no_owner = or_(_connections.c.owner.is_(None), _connections.c.owner.not_in(living))
    waiting = (
        select(_calls.c.id)
        .join(_connections, _connections.c.id == _calls.c.connection_id)
        .where(_calls.c.status == CallState.WAITING.value, or_(is_own, no_owner) if may_claim else is_own)
        .order_by(_calls.c.created_at)
        .limit(1000)
    )
    cancelled = (
        select(_calls.c.id)
        .join(_connections, _connections.c.id == _calls.c.connection_id)
        .where(is_own, _calls.c.is_cancelled, _calls.c.status != CallState.ENDED.value)
    )
    lost = select(_connections.c.id).where(_connections.c.owner.is_not(None), no_owner)
    return OwnerLook(
        own=list(connection.scalars(select(_connections.c.id).where(is_own))),
        lost=list(connection.scalars(lost)) if may_claim else [],
        waiting=list(connection.scalars(waiting)),
        cancelled=list(connection.scalars(cancelled)),
    )


def connection_of(connection: Connection, call_id: str) -> str | None:
    """The connection of a call."""
    return connection.scalar(select(_calls.c.connection_id).where(_calls.c.id == call_id))


def release(connection: Connection, process: str, keys: Sequence[str] | None = None) -> None:
    """Gives up connections of this process, with None all; calls that it had begun end as after its loss."""
    own = _connections.c.owner == process
    if keys is not None:
        own = and_(own, _connections.c.id.in_(keys))
    for row in connection.execute(select(_connections.c.id, _connections.c.fence).where(own)).all():
        _settle(connection, row.id, row.fence + 1)
    connection.execute(update(_connections).where(own).values(owner=None))


def owner_of(connection: Connection, key: str, alive: AliveProcesses) -> str | None:
    """The process that has a connection, if it is alive."""
    is_owned = _connections.c.owner.in_(alive(connection))
    return connection.scalar(select(_connections.c.owner).where(_connections.c.id == key, is_owned))


def delete_old_calls(connection: Connection) -> None:
    """Deletes ended calls after KEPT, unless a run may still read their result; those without a connection
    end with their run."""
    goes_on = select(_runs.c.id).where(_runs.c.id == _calls.c.run_id, _runs.c.finished_at.is_(None))
    before = utc_now() - KEPT
    is_old = or_(
        _calls.c.ended_at < before, and_(_calls.c.connection_id.is_(None), _calls.c.created_at < before)
    )
    connection.execute(delete(_calls).where(is_old, or_(_calls.c.run_id.is_(None), ~goes_on.exists())))


def as_json(value: Any) -> str:
    return _encode(value).decode()
