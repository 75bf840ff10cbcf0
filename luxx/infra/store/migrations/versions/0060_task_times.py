"""The priority of tasks, and when they start, are due and are shown again."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0060"
down_revision: str | None = "0059"


def upgrade() -> None:
    for column in (
        sa.Column("priority", sa.Integer(), nullable=False, server_default="3"),
        sa.Column("start_at", sa.DateTime(), nullable=True),
        sa.Column("due_at", sa.DateTime(), nullable=True),
        sa.Column("snoozed_until", sa.DateTime(), nullable=True),
        sa.Column("is_start_due", sa.Boolean(), nullable=False, server_default=sa.false()),
    ):
        op.add_column("tasks", column)
    op.create_index("ix_tasks_is_start_due_start_at", "tasks", ["is_start_due", "start_at"])
