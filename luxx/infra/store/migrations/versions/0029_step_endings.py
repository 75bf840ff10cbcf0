"""Why the last model call of a task's step ended. Nothing is known of older rows: they stay null."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0029"
down_revision: str | None = "0028"


def upgrade() -> None:
    op.add_column("task_steps", sa.Column("finish", sa.String(20), nullable=True))
