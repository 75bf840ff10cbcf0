"""Whether the words of messages choose skills and agents."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0064"
down_revision: str | None = "0063"


def upgrade() -> None:
    for table in ("user_settings", "conversations", "agents"):
        op.add_column(table, sa.Column("routing", sa.String(10), nullable=True))
