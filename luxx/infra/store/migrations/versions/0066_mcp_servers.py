"""MCP servers that people add, what these listed, and the servers of approved definitions."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Boolean, DateTime, Integer, String, Text

revision: str = "0066"
down_revision: str | None = "0065"


def upgrade() -> None:
    make_servers()
    make_manifests()
    # SQLite adds a column with its foreign key only in this form.
    op.execute(
        "ALTER TABLE mcp_tools ADD COLUMN server_id VARCHAR(36) "
        "CONSTRAINT fk_mcp_tools_server_id REFERENCES mcp_servers (id) ON DELETE CASCADE"
    )
    op.create_index(op.f("ix_mcp_tools_server_id"), "mcp_tools", ["server_id"])


def make_servers() -> None:
    op.create_table(
        "mcp_servers",
        value("id", String(36)),
        value("tenant_id", Integer),
        optional("user_id", Integer),
        optional("project_id", String(36)),
        value("name", String(20)),
        value("transport", String(10)),
        *(value(name, Text) for name in ("url", "command", "args", "reads")),
        value("credential", String(10)),
        optional("oauth", Text),
        value("secrets", Text),
        value("trusted", Boolean),
        value("level", Integer),
        value("enabled", Boolean),
        value("revision", Integer),
        value("created_at", DateTime),
        value("updated_at", DateTime),
        parent("mcp_servers", "tenant_id", "tenants"),
        parent("mcp_servers", "user_id", "users"),
        parent("mcp_servers", "project_id", "projects"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_servers")),
    )
    unique_where("mcp_servers", ["tenant_id", "name"], "user_id IS NULL")
    unique_where("mcp_servers", ["user_id", "name"], "user_id IS NOT NULL")
    op.create_index(op.f("ix_mcp_servers_project_id"), "mcp_servers", ["project_id"])


def make_manifests() -> None:
    op.create_table(
        "mcp_manifests",
        value("id", String(36)),
        value("server_id", String(36)),
        optional("user_id", Integer),
        optional("tools", Text),
        optional("digest", String(64)),
        value("status", String(20)),
        value("problem", Text),
        value("checked_at", DateTime),
        parent("mcp_manifests", "server_id", "mcp_servers"),
        parent("mcp_manifests", "user_id", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_manifests")),
    )
    unique_where("mcp_manifests", ["server_id"], "user_id IS NULL")
    unique_where("mcp_manifests", ["server_id", "user_id"], "user_id IS NOT NULL")
    op.create_index(op.f("ix_mcp_manifests_user_id"), "mcp_manifests", ["user_id"])


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
