"""Artifacts with their versions, the texts of pages, and files that were made of them."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Boolean, DateTime, Integer, LargeBinary, String, Text

revision: str = "0072"
down_revision: str | None = "0071"


def upgrade() -> None:
    make_artifacts()
    make_versions()
    make_parts()
    make_renders()


def make_artifacts() -> None:
    op.create_table(
        "artifacts",
        value("id", String(36)),
        value("tenant_id", Integer),
        value("user_id", Integer),
        value("type", String(10)),
        value("name", String(200)),
        optional("conversation_id", String(36)),
        optional("room_id", String(36)),
        optional("task_id", String(36)),
        optional("step_id", String(64)),
        value("head", Integer),
        value("stored_bytes", Integer),
        sa.Column("is_tainted", Boolean, nullable=False, server_default=sa.false()),
        optional("run_id", String(36)),
        value("created_at", DateTime),
        value("updated_at", DateTime),
        parent("artifacts", "tenant_id", "tenants", "CASCADE"),
        parent("artifacts", "user_id", "users", "CASCADE"),
        parent("artifacts", "conversation_id", "conversations", "SET NULL"),
        parent("artifacts", "room_id", "chat_rooms", "SET NULL"),
        parent("artifacts", "task_id", "tasks", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
    )
    op.create_index("ix_artifacts_user_id_id", "artifacts", ["user_id", "id"])
    for column in ("tenant_id", "conversation_id", "room_id", "task_id"):
        op.create_index(op.f(f"ix_artifacts_{column}"), "artifacts", [column])


def make_versions() -> None:
    op.create_table(
        "artifact_versions",
        value("artifact_id", String(36)),
        value("number", Integer),
        value("pages", Text),
        value("settings", Text),
        value("pages_changed", Text),
        value("problems", Text),
        value("author_kind", String(10)),
        optional("author_id", Integer),
        value("author_name", String(200)),
        optional("run_id", String(36)),
        optional("call_id", String(200)),
        value("note", String(500)),
        value("created_at", DateTime),
        parent("artifact_versions", "artifact_id", "artifacts", "CASCADE"),
        parent("artifact_versions", "author_id", "users", "SET NULL"),
        sa.PrimaryKeyConstraint("artifact_id", "number", name=op.f("pk_artifact_versions")),
    )
    op.create_index(
        "uq_artifact_versions_run_id_call_id", "artifact_versions", ["run_id", "call_id"], unique=True
    )
    op.create_index(op.f("ix_artifact_versions_author_id"), "artifact_versions", ["author_id"])


def make_parts() -> None:
    op.create_table(
        "artifact_parts",
        value("artifact_id", String(36)),
        value("sha256", String(64)),
        value("media_type", String(100)),
        value("data", LargeBinary),
        parent("artifact_parts", "artifact_id", "artifacts", "CASCADE"),
        sa.PrimaryKeyConstraint("artifact_id", "sha256", name=op.f("pk_artifact_parts")),
    )


def make_renders() -> None:
    op.create_table(
        "artifact_renders",
        value("artifact_id", String(36)),
        value("version", Integer),
        value("format", String(10)),
        value("page", Integer),
        value("width", Integer),
        value("renderer", String(200)),
        value("sha256", String(64)),
        value("size", Integer),
        value("info", Text),
        value("data", LargeBinary),
        value("used_at", DateTime),
        parent("artifact_renders", "artifact_id", "artifacts", "CASCADE"),
        sa.PrimaryKeyConstraint(
            "artifact_id", "version", "format", "page", "width", name=op.f("pk_artifact_renders")
        ),
    )
    op.create_index("ix_artifact_renders_used_at", "artifact_renders", ["used_at"])


def value(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def optional(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def parent(table: str, column: str, target: str, on_delete: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete=on_delete)
