"""How often a run was lost, and indexes of the few rows that every beat asks for."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("losses", sa.Integer(), nullable=False, server_default="0"))
    op.create_index(
        "ix_runs_cancelled",
        "runs",
        ["status"],
        unique=False,
        sqlite_where=sa.text("is_cancelled = 1 AND finished_at IS NULL"),
        postgresql_where=sa.text("is_cancelled AND finished_at IS NULL"),
    )
    op.create_index(
        "ix_conversations_run_id",
        "conversations",
        ["run_id"],
        unique=False,
        sqlite_where=sa.text("run_id IS NOT NULL"),
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
