"""The ledger: the tokens and cost of each completion, written once and summed for limits."""

from datetime import datetime

import msgspec
from sqlalchemy import Connection, Float, ForeignKey, Index, String, func, insert, select
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.wire.delta import Usage
from luxx.wire.run import RunKind


class UsageRow(Base):
    """`cost` is in US dollars, null if the price of the model is unknown.

    A row stays after its conversation, provider, user or tenant is deleted, without their names. `kind` is
    the type of `subject_id`. `is_estimated`: the provider reported no usage, or the completion was cut off
    before it did.
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
    subject_id: Mapped[str] = mapped_column(String(36), index=True)
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


class ReserveRow(Base):
    """The worst case of a run's current model call, reserved until its row is in the ledger.

    A run makes one call at a time. `model` and `provider_id` are for the ledger row of a call whose process
    died. `user_id` is no foreign key, which saves a lock; `run_id` already deletes the row with the user.
    """

    __tablename__ = "usage_reserves"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[int] = mapped_column(index=True)
    provider_id: Mapped[int | None] = mapped_column()
    model: Mapped[str] = mapped_column(String(200))
    prompt_tokens: Mapped[int] = mapped_column()
    completion_tokens: Mapped[int] = mapped_column()
    cost: Mapped[float | None] = mapped_column(Float)
    made_at: Mapped[datetime] = mapped_column(UtcDateTime)


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
    kind: RunKind = RunKind.CHAT
    is_estimated: bool = False


class SpentAmount(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over the ledger; `cost` includes only completions of known price."""

    tokens: int
    cost: float


def record(connection: Connection, entry: UsageEntry) -> None:
    """Adds a completion to the ledger, in the transaction that records its end."""
    usage = entry.usage
    connection.execute(
        _insert,
        {
            "user_id": entry.user_id,
            "tenant_id": entry.tenant_id,
            "run_id": entry.run_id,
            "kind": entry.kind.value,
            "subject_id": entry.subject_id,
            "provider_id": entry.provider_id,
            "model": entry.model,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cost": entry.cost,
            "is_estimated": entry.is_estimated,
            "created_at": utc_now(),
        },
    )


def spent_since(connection: Connection, user_id: int, since: datetime) -> SpentAmount:
    """The tokens and cost of a user's completions since `since`, inclusive."""
    row = connection.execute(
        select(
            func.coalesce(func.sum(UsageRow.prompt_tokens + UsageRow.completion_tokens), 0),
            func.coalesce(func.sum(UsageRow.cost), 0.0),
        ).where(UsageRow.user_id == user_id, UsageRow.created_at >= since)
    ).one()
    return SpentAmount(tokens=int(row[0]), cost=float(row[1] or 0.0))
