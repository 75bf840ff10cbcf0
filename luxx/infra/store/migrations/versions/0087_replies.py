"""A message of a room may answer another one."""

import sqlalchemy as sa
from alembic import op

revision: str = "0087"
down_revision: str | None = "0086"


def upgrade() -> None:
    op.add_column("messages", sa.Column("reply_to", sa.String(36)))
