"""The ledger's rows: one for each completion that ended."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from luxx.store.tables import Base, UtcDateTime


class UsageRow(Base):
    """`cost` in US dollars, null where the price of the model is not known."""

    __tablename__ = "usage_records"
    __table_args__ = (Index("ix_usage_records_user_id_created_at", "user_id", "created_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[str] = mapped_column(String(36), index=True)
    subject_id: Mapped[str] = mapped_column(String(36), index=True)
    provider_id: Mapped[int | None] = mapped_column()
    model: Mapped[str] = mapped_column(String(200))
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    completion_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    reasoning_tokens: Mapped[int] = mapped_column(default=0)
    cost: Mapped[float | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
