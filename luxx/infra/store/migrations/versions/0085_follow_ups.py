"""The switch for proposed next messages, and those of the newest answer of a conversation."""

import sqlalchemy as sa
from alembic import op

revision: str = "0085"
down_revision: str | None = "0082"


def upgrade() -> None:
    is_on = sa.Column("follow_ups", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("user_settings", is_on)
    op.add_column("conversations", sa.Column("follow_ups", sa.Text, nullable=True))
