"""Tasks with their steps and versions, and task templates."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"


def parent(table: str, name: str, to: str, on_delete: str, *, nullable: bool = False) -> sa.Column:
    is_number = to in ("users", "tenants", "llm_providers", "agents")
    key = sa.ForeignKey(f"{to}.id", name=op.f(f"fk_{table}_{name}"), ondelete=on_delete)
    return sa.Column(name, sa.Integer() if is_number else sa.String(36), key, nullable=nullable)


def optional(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def required(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    create_tasks()
    create_steps()
    op.create_table(
        "task_versions",
        parent("task_versions", "task_id", "tasks", "CASCADE"),
        required("number", sa.Integer()),
        required("steps", sa.Text()),
        required("created_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("task_id", "number", name=op.f("pk_task_versions")),
    )
    op.create_table(
        "task_templates",
        required("id", sa.String(36)),
        parent("task_templates", "user_id", "users", "CASCADE"),
        parent("task_templates", "tenant_id", "tenants", "CASCADE"),
        required("name", sa.String(200)),
        required("description", sa.Text()),
        required("document", sa.Text()),
        required("is_shared", sa.Boolean()),
        required("created_at", sa.DateTime()),
        required("updated_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task_templates")),
    )
    create_indexes("task_templates", "user_id", "tenant_id is_shared")


def create_indexes(table: str, *indexes: str) -> None:
    for columns in map(str.split, indexes):
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def create_tasks() -> None:
    op.create_table(
        "tasks",
        required("id", sa.String(36)),
        parent("tasks", "user_id", "users", "CASCADE"),
        parent("tasks", "tenant_id", "tenants", "CASCADE"),
        required("name", sa.String(200)),
        required("goal", sa.Text()),
        parent("tasks", "provider_id", "llm_providers", "SET NULL", nullable=True),
        parent("tasks", "agent_id", "agents", "SET NULL", nullable=True),
        parent("tasks", "project_id", "projects", "SET NULL", nullable=True),
        required("max_concurrent_steps", sa.Integer()),
        required("require_approval", sa.Boolean()),
        required("metadata", sa.Text()),
        optional("result", sa.Text()),
        parent("tasks", "run_id", "runs", "SET NULL", nullable=True),
        required("created_at", sa.DateTime()),
        required("updated_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    create_indexes("tasks", "user_id id", "tenant_id", "provider_id", "agent_id", "project_id", "run_id")


def create_steps() -> None:
    op.create_table(
        "task_steps",
        parent("task_steps", "task_id", "tasks", "CASCADE"),
        required("id", sa.String(64)),
        required("position", sa.Integer()),
        required("name", sa.String(200)),
        required("goal", sa.Text()),
        required("depends_on", sa.Text()),
        parent("task_steps", "agent_id", "agents", "SET NULL", nullable=True),
        optional("required_skills", sa.Text()),
        optional("required_tools", sa.Text()),
        optional("expected_output", sa.Text()),
        optional("thought_prompt", sa.Text()),
        required("require_approval", sa.Boolean()),
        optional("approved_at", sa.DateTime()),
        required("status", sa.String(20)),
        required("tool_calls", sa.Text()),
        optional("output", sa.Text()),
        optional("error", sa.Text()),
        required("attempts", sa.Integer()),
        required("usage", sa.Text()),
        optional("cost", sa.Double()),
        optional("duration_ms", sa.Integer()),
        optional("started_at", sa.DateTime()),
        optional("finished_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("task_id", "id", name=op.f("pk_task_steps")),
    )
    create_indexes("task_steps", "agent_id")
