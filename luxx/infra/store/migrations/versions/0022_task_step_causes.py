"""Steps of tasks: which step made them skipped, and which tool tainted their result."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"


def upgrade() -> None:
    op.add_column("task_steps", sa.Column("skipped_because", sa.String(64), nullable=True))
    op.add_column("task_steps", sa.Column("tainted_by", sa.String(200), nullable=True))
