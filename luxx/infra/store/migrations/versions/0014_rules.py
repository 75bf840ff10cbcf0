"""Permission rules of tenants, users and projects."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "permission_rules",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("project_id", sa.String(length=36), nullable=True),
        sa.Column("agent_id", sa.Integer(), nullable=True),
        sa.Column("scope", sa.String(length=10), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=200), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=10), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_permission_rules_tenant_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_permission_rules_user_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_permission_rules_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_permission_rules")),
    )
    op.create_index(
        "ix_permission_rules_tenant_id_user_id", "permission_rules", ["tenant_id", "user_id"], unique=False
    )
    op.create_index("ix_permission_rules_user_id", "permission_rules", ["user_id"], unique=False)
    op.create_index("ix_permission_rules_project_id", "permission_rules", ["project_id"], unique=False)
