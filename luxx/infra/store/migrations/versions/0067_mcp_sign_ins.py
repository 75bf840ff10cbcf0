"""OAuth at MCP servers: clients, sign-ins that have begun, and the grants that they gave."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import DateTime, Double, Integer, String, Text

revision: str = "0067"
down_revision: str | None = "0066"


def upgrade() -> None:
    make_clients()
    make_grants()
    make_flows()


def make_clients() -> None:
    op.create_table(
        "mcp_clients",
        value("id", String(36)),
        value("tenant_id", Integer),
        *(value(name, Text) for name in ("issuer", "redirect_uri", "client")),
        value("created_at", DateTime),
        parent("mcp_clients", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_clients")),
        sa.UniqueConstraint(
            "tenant_id", "issuer", "redirect_uri", name=op.f("uq_mcp_clients_tenant_id_issuer_redirect_uri")
        ),
    )


def make_grants() -> None:
    op.create_table(
        "mcp_grants",
        value("id", String(36)),
        value("server_id", String(36)),
        optional("user_id", Integer),
        optional("signed_in_by", Integer),
        *(value(name, Text) for name in ("url", "issuer", "secrets", "scopes", "wanted")),
        value("asked", Integer),
        value("state", String(20)),
        value("version", Integer),
        optional("expires_at", Double),
        optional("lease", String(36)),
        optional("lease_until", Double),
        value("created_at", DateTime),
        value("updated_at", DateTime),
        parent("mcp_grants", "server_id", "mcp_servers"),
        parent("mcp_grants", "user_id", "users"),
        parent("mcp_grants", "signed_in_by", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_grants")),
    )
    unique_where("mcp_grants", ["server_id"], "user_id IS NULL")
    unique_where("mcp_grants", ["server_id", "user_id"], "user_id IS NOT NULL")
    for column in ("user_id", "signed_in_by"):
        op.create_index(op.f(f"ix_mcp_grants_{column}"), "mcp_grants", [column])


def make_flows() -> None:
    op.create_table(
        "mcp_flows",
        value("state_hash", String(64)),
        value("server_id", String(36)),
        value("user_id", Integer),
        optional("grant_user_id", Integer),
        *(value(name, Text) for name in ("url", "issuer", "secrets")),
        value("expires_at", Double),
        optional("used_at", Double),
        parent("mcp_flows", "server_id", "mcp_servers"),
        parent("mcp_flows", "user_id", "users"),
        sa.PrimaryKeyConstraint("state_hash", name=op.f("pk_mcp_flows")),
    )
    for column in ("server_id", "user_id", "expires_at"):
        op.create_index(op.f(f"ix_mcp_flows_{column}"), "mcp_flows", [column])


def unique_where(table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    name = op.f(f"uq_{table}_{'_'.join(columns)}")
    op.create_index(name, table, columns, unique=True, sqlite_where=where, postgresql_where=where)


def value(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def optional(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def parent(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete="CASCADE")
