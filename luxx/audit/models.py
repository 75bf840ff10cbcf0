"""The rows of the audit log. They outlive whom and what they tell of, so they point to nothing."""

from datetime import datetime

from sqlalchemy import Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.store.tables import Base, UtcDateTime


class AuditRow(Base):
    """`tenant_id` is the tenant that it concerns, null where nobody's is known; `detail` is JSON."""

    __tablename__ = "audit_log"
    __table_args__ = (
        Index("ix_audit_log_tenant_id_id", "tenant_id", "id"),
        Index("ix_audit_log_user_id_id", "user_id", "id"),
        Index("ix_audit_log_outcome_id", "outcome", "id"),
        Index("ix_audit_log_at", "at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    tenant_id: Mapped[int | None] = mapped_column(Integer)
    user_id: Mapped[int | None] = mapped_column(Integer)
    username: Mapped[str | None] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(40))
    target_type: Mapped[str | None] = mapped_column(String(40))
    target_id: Mapped[str | None] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(10))
    detail: Mapped[str] = mapped_column(Text, default="{}")
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(36))
