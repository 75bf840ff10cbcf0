"""Rows of model providers and of the private addresses that an administrator allowed.

What a row means to a run (its key unsealed, its model chosen) is `service.py`'s.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.store.tables import Base, UtcDateTime


class ProviderRow(Base):
    """`api_key` is sealed, empty where there is none. A user has at most one default.

    `base_url` is empty for the embedded model: its address is known only while it runs. Ids are never
    given twice, so that nothing which remembers a deleted provider can meet another one in its place.
    """

    __tablename__ = "llm_providers"
    __table_args__ = (
        Index(
            "uq_llm_providers_default",
            "user_id",
            unique=True,
            sqlite_where=text("is_default"),
            postgresql_where=text("is_default"),
        ),
        Index("ix_llm_providers_tenant_id_is_shared", "tenant_id", "is_shared"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    provider_type: Mapped[str] = mapped_column(String(40))
    base_url: Mapped[str] = mapped_column(String(500), default="")
    api_key: Mapped[str] = mapped_column(Text, default="")
    default_model: Mapped[str] = mapped_column(String(200), default="")
    max_tokens: Mapped[int | None] = mapped_column()
    is_default: Mapped[bool] = mapped_column(default=False)
    is_shared: Mapped[bool] = mapped_column(default=False)
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ServerValueRow(Base):
    """A value of the whole server, such as the check of its secret key."""

    __tablename__ = "server_values"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class AllowedHostRow(Base):
    """A private `host:port` that may be reached; `allowed_by` is null once that user is gone."""

    __tablename__ = "allowed_hosts"

    host_port: Mapped[str] = mapped_column(String(300), primary_key=True)
    allowed_by: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
