"""Learned patterns, and the switches that allow them."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Boolean, DateTime, Float, Integer, String, Text

revision: str = "0074"
down_revision: str | None = "0073"


def upgrade() -> None:
    learns = sa.Column("learn_patterns", Boolean, nullable=False, server_default=sa.false())
    op.add_column("tenants", learns)
    op.add_column("conversations", optional("record", Boolean))
    make_patterns()
    make_parts()


def make_patterns() -> None:
    op.create_table(
        "patterns",
        value("id", String(36)),
        value("user_id", Integer),
        value("tenant_id", Integer),
        value("is_shared", Boolean),
        value("name", String(200)),
        *(value(name, Text) for name in ("description", "signature")),
        value("status", String(10)),
        *(value(name, Text) for name in ("steps", "tool_chains")),
        value("success_rate", Float),
        *(value(name, Integer) for name in ("usage_count", "success_count", "failure_count")),
        *(value(name, Integer) for name in ("failures_in_row", "avg_execution_time_ms")),
        *(value(name, DateTime) for name in ("used_at", "created_at", "updated_at")),
        parent("patterns", "user_id", "users"),
        parent("patterns", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_patterns")),
    )
    op.create_index("ix_patterns_user_id_status", "patterns", ["user_id", "status"])
    op.create_index("ix_patterns_tenant_id_is_shared", "patterns", ["tenant_id", "is_shared"])
    op.create_index("ix_patterns_used_at", "patterns", ["used_at"])


def make_parts() -> None:
    op.create_table(
        "pattern_words",
        value("pattern_id", String(36)),
        value("word", String(50)),
        value("owner", String(20)),
        parent("pattern_words", "pattern_id", "patterns"),
        sa.PrimaryKeyConstraint("pattern_id", "word", name=op.f("pk_pattern_words")),
    )
    op.create_index("ix_pattern_words_owner_word", "pattern_words", ["owner", "word", "pattern_id"])
    op.create_table(
        "pattern_uses",
        value("pattern_id", String(36)),
        value("run_id", String(36)),
        value("kind", String(10)),
        optional("similarity", Float),
        value("outcome", String(10)),
        value("used_at", DateTime),
        parent("pattern_uses", "pattern_id", "patterns"),
        sa.PrimaryKeyConstraint("pattern_id", "run_id", name=op.f("pk_pattern_uses")),
    )
    op.create_index(op.f("ix_pattern_uses_run_id"), "pattern_uses", ["run_id"])
    op.create_table(
        "pattern_changes",
        value("id", Integer),
        value("pattern_id", String(36)),
        optional("user_id", Integer),
        optional("user_name", String(200)),
        value("before", Text),
        value("changed_at", DateTime),
        parent("pattern_changes", "pattern_id", "patterns"),
        parent("pattern_changes", "user_id", "users", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pattern_changes")),
    )
    for column in ("pattern_id", "user_id"):
        op.create_index(op.f(f"ix_pattern_changes_{column}"), "pattern_changes", [column])


def value(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def optional(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def parent(table: str, column: str, target: str, then: str = "CASCADE") -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete=then)
