"""How much an agent is used: its turns in rooms and tasks, which have no runs of their own, and the sums over
these, its runs and the ledger.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Select,
    String,
    Table,
    case,
    extract,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.usage.ledger import UsageRow
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.runs.models import RunRow
from luxx.wire.run import RunStatus

COST_DIGITS = 10
"""Decimal places of a cost, so that 0.1 + 0.2 is 0.3."""


class AgentTurnRow(Base):
    """A turn of an agent that ended, of a room or of a step of a task. The id of the agent may outlive it."""

    __tablename__ = "agent_turns"
    __table_args__ = (Index("ix_agent_turns_agent_id", "agent_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    agent_id: Mapped[int] = mapped_column()
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    status: Mapped[str] = mapped_column(String(20))
    duration_ms: Mapped[int] = mapped_column()
    ended_at: Mapped[datetime] = mapped_column(UtcDateTime)


_runs, _turns, _ledger = table_of(RunRow), table_of(AgentTurnRow), table_of(UsageRow)
_insert_turn = insert(_turns)


class StatsScope(StrEnum):
    """Whose use is counted: the caller's, or that of everybody in the tenant."""

    OWN = "own"
    TENANT = "tenant"


class AgentStats(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent was used. `success_rate`, from 0 to 1: of the invocations that were not cancelled and have
    ended; null: there are none."""

    scope: StatsScope
    total_invocations: int
    failures: int
    success_rate: float | None
    avg_execution_time_ms: int | None
    total_tokens: int
    total_cost: float | None
    last_used_at: datetime | None


class _Used(msgspec.Struct, frozen=True):
    """Sums over runs or turns. `ended` of them `took` this many milliseconds together."""

    count: int
    completed: int
    failed: int
    ended: int
    took: float
    last: datetime | None


def record_turn(
    connection: Connection, run_id: str, agent_id: int, status: RunStatus, seconds: float
) -> None:
    """Counts a turn for its agent, in the transaction that ends it."""
    row = {"agent_id": agent_id, "run_id": run_id, "status": status.value, "ended_at": utc_now()}
    connection.execute(_insert_turn, row | {"duration_ms": round(seconds * 1000)})


def read_stats(connection: Connection, caller: Caller, agent_id: int, scope: StatsScope) -> AgentStats:
    """The sums over the runs of an agent, chats and subagents, over its turns in rooms and tasks, and over
    what the ledger has for it."""
    used = _of_runs(connection, caller, agent_id, scope), _of_turns(connection, caller, agent_id, scope)
    failed, done = sum(one.failed for one in used), sum(one.completed + one.failed for one in used)
    ended = sum(one.ended for one in used)
    tokens = func.coalesce(func.sum(_ledger.c.prompt_tokens + _ledger.c.completion_tokens), 0)
    query = select(tokens, func.sum(_ledger.c.cost)).where(
        _ledger.c.agent_id == agent_id, *_used_by(_ledger, caller, scope)
    )
    total_tokens, cost = connection.execute(query).one()
    return AgentStats(
        scope=scope,
        total_invocations=sum(one.count for one in used),
        failures=failed,
        success_rate=round((done - failed) / done, 4) if done else None,
        avg_execution_time_ms=round(sum(one.took for one in used) / ended) if ended else None,
        total_tokens=int(total_tokens),
        total_cost=None if cost is None else round(float(cost), COST_DIGITS),
        last_used_at=max((one.last for one in used if one.last is not None), default=None),
    )


def _of_runs(connection: Connection, caller: Caller, agent_id: int, scope: StatsScope) -> _Used:
    begun, ended = _runs.c.started_at, _runs.c.finished_at
    if connection.dialect.name == "postgresql":
        took = extract("epoch", ended - begun) * 1000
    else:
        took = (func.julianday(ended) - func.julianday(begun)) * 86_400_000
    query = _sums(_runs.c.status, took, _runs.c.created_at).where(_runs.c.agent_id == agent_id)
    return _read(connection, query.select_from(_runs), caller, scope)


def _of_turns(connection: Connection, caller: Caller, agent_id: int, scope: StatsScope) -> _Used:
    query = _sums(_turns.c.status, _turns.c.duration_ms, _turns.c.ended_at).where(
        _turns.c.agent_id == agent_id
    )
    joined = query.select_from(_turns.join(_runs, _runs.c.id == _turns.c.run_id))
    return _read(connection, joined, caller, scope)


def _sums(status: Any, took: Any, at: Any) -> Any:
    """A query of the columns of _Used, in its order. `took`: in milliseconds, null of what has not ended."""
    return select(
        func.count(),
        func.coalesce(func.sum(case((status == RunStatus.COMPLETED.value, 1), else_=0)), 0),
        func.coalesce(func.sum(case((status == RunStatus.FAILED.value, 1), else_=0)), 0),
        func.count(took),
        func.coalesce(func.sum(took), 0),
        func.max(at),
    )


def _read(connection: Connection, query: Select[Any], caller: Caller, scope: StatsScope) -> _Used:
    row: Any = connection.execute(query.where(*_used_by(_runs, caller, scope))).one()
    return _Used(*row)


def _used_by(rows: Table, caller: Caller, scope: StatsScope) -> list[ColumnElement[bool]]:
    """Whose rows count."""
    is_own = [rows.c.user_id == caller.user_id] if scope == StatsScope.OWN else []
    return [rows.c.tenant_id == caller.tenant_id, *is_own]
