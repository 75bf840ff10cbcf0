"""Turns of agents in rooms and tasks, the agent of each completion in the ledger, and rules of agents that
belong to no tenant because they come with Luxx.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0062"
down_revision: str | None = "0061"


def upgrade() -> None:
    op.create_table(
        "agent_turns",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("agent_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(36), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=False),
    )
    op.create_index("ix_agent_turns_agent_id", "agent_turns", ["agent_id"])
    op.create_index("ix_agent_turns_run_id", "agent_turns", ["run_id"])
    op.add_column("usage_records", sa.Column("agent_id", sa.Integer()))
    op.create_index("ix_usage_records_agent_id", "usage_records", ["agent_id"])
    # Of chats and subagents the runs know the agent.
    op.execute(
        "UPDATE usage_records SET agent_id = "
        "(SELECT agent_id FROM runs WHERE runs.id = usage_records.run_id) "
        "WHERE run_id IN (SELECT id FROM runs WHERE agent_id IS NOT NULL)"
    )
    with op.batch_alter_table("permission_rules", copy_from=rules()) as batch:
        batch.alter_column("tenant_id", existing_type=sa.Integer(), nullable=True)


def rules() -> sa.Table:
    """The table as it is: what SQLite says of it lacks a rule about deletions."""
    return sa.Table(
        "permission_rules",
        sa.MetaData(),
        sa.Column("id", sa.Integer(), nullable=False),
        parent("tenant_id", "tenants", sa.Integer(), nullable=False),
        parent("user_id", "users", sa.Integer()),
        parent("project_id", "projects", sa.String(36)),
        sa.Column("scope", sa.String(10), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(200), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("action", sa.String(10), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        parent("agent_id", "agents", sa.Integer()),
        sa.PrimaryKeyConstraint("id", name="pk_permission_rules"),
        sa.Index("ix_permission_rules_tenant_id_user_id", "tenant_id", "user_id"),
        *(sa.Index(f"ix_permission_rules_{name}", name) for name in ("user_id", "project_id", "agent_id")),
    )


def parent(name: str, to: str, type_: sa.types.TypeEngine, *, nullable: bool = True) -> sa.Column:
    key = sa.ForeignKey(f"{to}.id", name=f"fk_permission_rules_{name}", ondelete="CASCADE")
    return sa.Column(name, type_, key, nullable=nullable)
