"""Agents, and the columns that refer to them.

No earlier version stored an agent, so the columns are empty and are created anew with a foreign key.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"

REFERRING = (
    ("conversations", "ON DELETE SET NULL"),
    ("permission_rules", "ON DELETE CASCADE"),
    ("runs", "ON DELETE SET NULL"),
)


def parent(name: str, to: str, on_delete: str) -> sa.Column:
    key = sa.ForeignKey(f"{to}.id", name=op.f(f"fk_agents_{name}"), ondelete=on_delete)
    return sa.Column(name, sa.Integer(), key, nullable=True)


def optional(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def required(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "agents",
        required("id", sa.Integer()),
        parent("user_id", "users", "CASCADE"),
        parent("tenant_id", "tenants", "CASCADE"),
        optional("shipped_name", sa.String(40)),
        required("name", sa.String(100)),
        required("role", sa.String(500)),
        parent("provider_id", "llm_providers", "SET NULL"),
        optional("model", sa.String(200)),
        required("system_prompt", sa.Text()),
        required("color", sa.String(7)),
        optional("tools", sa.Text()),
        optional("skills", sa.Text()),
        optional("temperature", sa.Double()),
        optional("max_tokens", sa.Integer()),
        optional("max_iterations", sa.Integer()),
        optional("thinking_enabled", sa.Boolean()),
        required("fallbacks", sa.Text()),
        required("is_shared", sa.Boolean()),
        required("created_at", sa.DateTime()),
        required("updated_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sqlite_autoincrement=True,
    )
    for columns in (["user_id"], ["provider_id"], ["tenant_id", "is_shared"]):
        op.create_index(f"ix_agents_{'_'.join(columns)}", "agents", columns)
    is_shipped = sa.text("shipped_name IS NOT NULL")
    op.create_index(
        "uq_agents_shipped_name", "agents", ["shipped_name"], unique=True,
        sqlite_where=is_shipped, postgresql_where=is_shipped,
    )  # fmt: skip
    for table, on_delete in REFERRING:
        add_agent_id(table, on_delete)


def add_agent_id(table: str, on_delete: str) -> None:
    if table != "runs":
        op.drop_column(table, "agent_id")
    op.execute(
        f"ALTER TABLE {table} ADD COLUMN agent_id INTEGER "
        f"CONSTRAINT fk_{table}_agent_id REFERENCES agents (id) {on_delete}"
    )
    op.create_index(f"ix_{table}_agent_id", table, ["agent_id"])
