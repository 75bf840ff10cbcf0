"""How messages of a chat are planned, and which runs of chats may have steps."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0043"
down_revision: str | None = "0042"


def upgrade() -> None:
    for table in ("user_settings", "conversations", "agents"):
        op.add_column(table, sa.Column("planning", sa.String(10), nullable=True))
    op.add_column("runs", sa.Column("is_planned", sa.Boolean(), nullable=False, server_default=sa.false()))
