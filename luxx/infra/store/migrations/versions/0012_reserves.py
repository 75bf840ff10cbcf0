"""What runs may spend, set aside before each call, and how long they were driven."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "usage_reserves",
        sa.Column("run_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("provider_id", sa.Integer(), nullable=True),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=True),
        sa.Column("made_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_usage_reserves_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_usage_reserves"),
    )
    op.create_index("ix_usage_reserves_user_id", "usage_reserves", ["user_id"], unique=False)
    op.add_column("runs", sa.Column("driven_seconds", sa.Float(), nullable=False, server_default="0"))
