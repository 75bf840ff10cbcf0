"""The ledger: the tokens and cost of each completion, written once and summed.

Where a provider did not report them, they are estimated (`domain/context/tokens.py`).
"""

from datetime import datetime

import msgspec
from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Select,
    String,
    Table,
    func,
    insert,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.wire.run import RunKind
from luxx.wire.turn import Usage


class UsageRow(Base):
    """`cost` is in US dollars, null if the price of the model is unknown.

    A row stays after its conversation, provider, user or tenant is deleted, without their names. `kind` is
    the type of `subject_id`, or PROVIDER_TEST without a run and a subject. `purpose` is a CallPurpose.
    `is_estimated`: the provider reported no usage, or the completion was cut off before it did. `agent_id`:
    the agent whose turn it was.
    """

    __tablename__ = "usage_records"
    __table_args__ = (
        Index("ix_usage_records_user_id_created_at", "user_id", "created_at"),
        Index("ix_usage_records_tenant_id_created_at", "tenant_id", "created_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id", ondelete="SET NULL"))
    run_id: Mapped[str] = mapped_column(String(36), index=True)
    kind: Mapped[str] = mapped_column(String(10), default="chat")
    purpose: Mapped[str] = mapped_column(String(10), default="answer", server_default="answer")
    subject_id: Mapped[str] = mapped_column(String(36), index=True)
    agent_id: Mapped[int | None] = mapped_column(index=True)
    provider_id: Mapped[int | None] = mapped_column()
    model: Mapped[str] = mapped_column(String(200))
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    completion_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    cache_write_tokens: Mapped[int] = mapped_column(default=0)
    reasoning_tokens: Mapped[int] = mapped_column(default=0)
    cost: Mapped[float | None] = mapped_column()
    is_estimated: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


PROVIDER_TEST = "test"
"""The `kind` of the calls that test a provider."""

_insert = insert(table_of(UsageRow))


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, for the ledger. `is_estimated`: Luxx estimated the counts."""

    user_id: int
    tenant_id: int
    run_id: str
    subject_id: str
    provider_id: int | None
    model: str
    usage: Usage
    cost: float | None
    agent_id: int | None = None
    kind: RunKind | str = RunKind.CHAT
    purpose: str = "answer"
    is_estimated: bool = False


class SpentAmount(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over the ledger; `cost` includes only completions of known price."""

    tokens: int
    cost: float


def record(connection: Connection, entry: UsageEntry) -> None:
    """Adds a completion to the ledger, in the transaction that records its end."""
    row = asdict(entry) | asdict(entry.usage) | {"kind": str(entry.kind), "created_at": utc_now()}
    del row["usage"], row["total_tokens"]
    connection.execute(_insert, row)


def sums_of(rows: Table) -> tuple[ColumnElement[int], ColumnElement[float]]:
    """The columns that sum the tokens and the cost of a table's rows."""
    tokens = func.coalesce(func.sum(rows.c.prompt_tokens + rows.c.completion_tokens), 0)
    return tokens.label("tokens"), func.coalesce(func.sum(rows.c.cost), 0.0).label("cost")


def sum_rows(connection: Connection, sums: Select[int, float]) -> SpentAmount:
    """The result of a query with the columns of `sums_of`."""
    row = connection.execute(sums).one()
    return SpentAmount(tokens=int(row.tokens), cost=float(row.cost))


MAX_TOKENS = 100_000_000
"""More than any context window; larger counts of a provider are reduced to this."""


def clamped(usage: Usage) -> Usage:
    """The usage with counts that a database column can hold: the provider may send any number."""
    counts = {name: min(max(getattr(usage, name), 0), MAX_TOKENS) for name in usage.__struct_fields__}
    return Usage(**counts)


def add_cost(total: float | None, cost: float | None) -> float | None:
    """The cost of a run with one more completion; None (unknown) if that completion's cost is unknown."""
    return None if cost is None else (total or 0.0) + cost
