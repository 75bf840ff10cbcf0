"""Skills of tenants and projects with their files, and which skills of the system a tenant changed."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Boolean, DateTime, Integer, LargeBinary, String, Text

revision: str = "0061"
down_revision: str | None = "0060"


def upgrade() -> None:
    make_skills()
    make_files()
    make_configs()


def make_skills() -> None:
    op.create_table(
        "skills",
        value("id", String(36)),
        value("tenant_id", Integer),
        optional("project_id", String(36)),
        optional("user_id", Integer),
        value("scope", String(10)),
        value("name", String(64)),
        optional("display_name", String(100)),
        value("description", Text),
        optional("license", Text),
        optional("category", String(100)),
        optional("version", String(100)),
        value("tags", Text),
        value("trigger_type", String(10)),
        value("triggers", Text),
        optional("tools", Text),
        optional("warning", Text),
        value("enabled", Boolean),
        value("digest", String(64)),
        value("origin", String(10)),
        optional("reviewed_digest", String(64)),
        optional("reviewed_by", Integer),
        optional("reviewed_at", DateTime),
        value("created_at", DateTime),
        value("updated_at", DateTime),
        parent("skills", "tenant_id", "tenants", "CASCADE"),
        parent("skills", "project_id", "projects", "CASCADE"),
        parent("skills", "user_id", "users", "SET NULL"),
        parent("skills", "reviewed_by", "users", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skills")),
    )
    op.create_index("ix_skills_tenant_id_project_id", "skills", ["tenant_id", "project_id"])
    for column in ("project_id", "user_id", "reviewed_by"):
        op.create_index(op.f(f"ix_skills_{column}"), "skills", [column])


def make_files() -> None:
    op.create_table(
        "skill_files",
        value("tenant_id", Integer),
        value("digest", String(64)),
        value("path", String(500)),
        value("content", LargeBinary),
        optional("unused_since", DateTime),
        parent("skill_files", "tenant_id", "tenants", "CASCADE"),
        sa.PrimaryKeyConstraint("tenant_id", "digest", "path", name=op.f("pk_skill_files")),
    )
    op.create_index(op.f("ix_skill_files_unused_since"), "skill_files", ["unused_since"])


def make_configs() -> None:
    op.create_table(
        "tenant_skill_configs",
        value("tenant_id", Integer),
        value("system_skill_key", String(64)),
        value("system_skill_name", String(64)),
        value("action", String(10)),
        optional("override_skill_id", String(36)),
        value("created_at", DateTime),
        parent("tenant_skill_configs", "tenant_id", "tenants", "CASCADE"),
        parent("tenant_skill_configs", "override_skill_id", "skills", "CASCADE"),
        sa.PrimaryKeyConstraint("tenant_id", "system_skill_key", name=op.f("pk_tenant_skill_configs")),
    )
    index = op.f("ix_tenant_skill_configs_override_skill_id")
    op.create_index(index, "tenant_skill_configs", ["override_skill_id"])


def value(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def optional(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def parent(table: str, column: str, target: str, on_delete: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}_{target}")
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete=on_delete)
