"""The process that has a stateful connection to an MCP server, and the calls over it."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Boolean, DateTime, Integer, String, Text

revision: str = "0073"
down_revision: str | None = "0072"


def upgrade() -> None:
    stateful = sa.Column("is_stateful", Boolean, nullable=False, server_default=sa.false())
    op.add_column("mcp_manifests", stateful)
    make_connections()
    make_calls()


def make_connections() -> None:
    op.create_table(
        "mcp_connections",
        value("id", String(100)),
        optional("server_id", String(36)),
        optional("user_id", Integer),
        optional("owner", String(64)),
        value("fence", BigInteger),
        parent("mcp_connections", "server_id", "mcp_servers"),
        parent("mcp_connections", "user_id", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_connections")),
    )
    for column in ("server_id", "user_id"):
        op.create_index(op.f(f"ix_mcp_connections_{column}"), "mcp_connections", [column])


def make_calls() -> None:
    op.create_table(
        "mcp_calls",
        value("id", String(64)),
        optional("connection_id", String(100)),
        optional("run_id", String(36)),
        value("user_id", Integer),
        value("tool", Text),
        value("arguments", Text),
        value("is_read_only", Boolean),
        value("mirrors_arguments", Boolean),
        optional("workspace", Text),
        value("status", String(10)),
        optional("fence", BigInteger),
        value("is_repeated", Boolean),
        value("is_cancelled", Boolean),
        value("caller", String(64)),
        optional("asked", Text),
        optional("answer", Text),
        optional("result", Text),
        value("created_at", DateTime),
        optional("ended_at", DateTime),
        parent("mcp_calls", "connection_id", "mcp_connections"),
        parent("mcp_calls", "run_id", "runs"),
        parent("mcp_calls", "user_id", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_calls")),
    )
    for column in ("connection_id", "run_id", "user_id", "ended_at"):
        op.create_index(op.f(f"ix_mcp_calls_{column}"), "mcp_calls", [column])


def value(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def optional(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def parent(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete="CASCADE")
