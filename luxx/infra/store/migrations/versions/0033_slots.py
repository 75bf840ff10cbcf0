"""Slots of runs: how many of their turns work at once."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0033"
down_revision: str | None = "0032"


def upgrade() -> None:
    op.add_column("runs", sa.Column("slots", sa.Integer(), server_default="1", nullable=False))
