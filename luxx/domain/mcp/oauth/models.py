"""The tables of OAuth at MCP servers: clients, sign-ins that have begun, and the grants that they gave.

Deleting a server or a user deletes all of theirs. Backups and exports contain none of it.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.mcp.models import unique_where
from luxx.infra.store.tables import Base, UtcDateTime


class GrantState(StrEnum):
    """`needs_sign_in`: the tokens are gone or may have been used up; only a new sign-in helps."""

    READY = "ready"
    NEEDS_SIGN_IN = "needs_sign_in"


class McpClientRow(Base):
    """Luxx as it was registered at an authorization server, for one tenant and one address of this server.
    `client` is a sealed `ClientIdentity`."""

    __tablename__ = "mcp_clients"
    __table_args__ = (UniqueConstraint("tenant_id", "issuer", "redirect_uri"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    issuer: Mapped[str] = mapped_column(Text)
    redirect_uri: Mapped[str] = mapped_column(Text)
    client: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class McpGrantRow(Base):
    """What a user may do at a server; without a `user_id` all users share it. `signed_in_by`: who signed in.

    `url`: the server's when the user signed in; a token goes nowhere else. `secrets` are sealed
    `GrantSecrets`. `version` grows with each new token. `lease` is random while a
    process refreshes, until `lease_until`. `wanted`: scopes that the server asked for besides `scopes`;
    `asked`: how often it did since the first sign-in. Times are those of `database_time`.
    """

    __tablename__ = "mcp_grants"
    __table_args__ = (
        unique_where("mcp_grants", ["server_id"], "user_id IS NULL"),
        unique_where("mcp_grants", ["server_id", "user_id"], "user_id IS NOT NULL"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    server_id: Mapped[str] = mapped_column(ForeignKey("mcp_servers.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    signed_in_by: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    url: Mapped[str] = mapped_column(Text)
    issuer: Mapped[str] = mapped_column(Text)
    secrets: Mapped[str] = mapped_column(Text)
    scopes: Mapped[str] = mapped_column(Text)
    wanted: Mapped[str] = mapped_column(Text)
    asked: Mapped[int] = mapped_column()
    state: Mapped[str] = mapped_column(String(20))
    version: Mapped[int] = mapped_column()
    expires_at: Mapped[float | None] = mapped_column()
    lease: Mapped[str | None] = mapped_column(String(36))
    lease_until: Mapped[float | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class McpFlowRow(Base):
    """A sign-in that has begun: `user_id` began it, and only that user can complete it, once and before
    `expires_at`. `grant_user_id` null: the grant is shared. `secrets` is a sealed `FlowSecrets`."""

    __tablename__ = "mcp_flows"

    state_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    server_id: Mapped[str] = mapped_column(ForeignKey("mcp_servers.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    grant_user_id: Mapped[int | None] = mapped_column()
    url: Mapped[str] = mapped_column(Text)
    issuer: Mapped[str] = mapped_column(Text)
    secrets: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[float] = mapped_column(index=True)
    used_at: Mapped[float | None] = mapped_column()
