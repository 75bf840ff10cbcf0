"""Runs that have ended, until what follows from that was done."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0039"
down_revision: str | None = "0038"


def upgrade() -> None:
    run = sa.ForeignKey("runs.id", name=op.f("fk_run_ended_run_id"), ondelete="CASCADE")
    op.create_table(
        "run_ended",
        sa.Column("run_id", sa.String(36), run, nullable=False),
        sa.Column("reader", sa.String(20), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("subject_id", sa.String(36), nullable=False),
        sa.Column("parent_run_id", sa.String(36), nullable=True),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("process", sa.String(64), nullable=True),
        sa.Column("ended_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "reader", name=op.f("pk_run_ended")),
    )
