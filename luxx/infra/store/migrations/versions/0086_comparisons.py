"""Conversations whose last message two models answer, until one of the answers is kept."""

import sqlalchemy as sa
from alembic import op

revision: str = "0086"
down_revision: str | None = "0085"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("comparing_id", sa.String(36), nullable=True))
