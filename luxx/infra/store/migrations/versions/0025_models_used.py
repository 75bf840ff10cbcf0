"""Which provider and model answered, on messages, runs and steps of tasks; and why an answer ended.

Nothing is known of older rows: they stay null.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"


def upgrade() -> None:
    for table in ("messages", "runs", "task_steps"):
        op.add_column(table, sa.Column("provider_id", sa.Integer(), nullable=True))
        op.add_column(table, sa.Column("provider_name", sa.String(100), nullable=True))
        op.add_column(table, sa.Column("model", sa.String(300), nullable=True))
    op.add_column("messages", sa.Column("finish", sa.String(20), nullable=True))
