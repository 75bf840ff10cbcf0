"""How many messages of a conversation its model reads, chosen by conversations and agents."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0047"
down_revision: str | None = "0046"


def upgrade() -> None:
    for table in ("conversations", "agents"):
        op.add_column(table, sa.Column("sliding_window", sa.Integer(), nullable=True))
