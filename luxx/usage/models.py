"""The ledger's rows, one for each completion that a provider may bill, and what is set aside before."""

from datetime import datetime

from sqlalchemy import Float, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from luxx.store.tables import Base, UtcDateTime


class UsageRow(Base):
    """`cost` in US dollars, null where the price of the model is not known.

    Money that was spent stays spent: a row outlives its conversation, its provider, its user and its
    tenant, without their names. `kind` says what `subject_id` is the id of. `is_estimated`: the provider
    did not tell, or the completion was cut before it could.
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
    """The most that a run's model call under way can take, set aside until its line is in the ledger.

    A run makes one call at a time. `model` and `provider_id` are for the line of a call that ended with its
    process. There is no key to the user: the run's own goes with them, and a lock less is taken.
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
