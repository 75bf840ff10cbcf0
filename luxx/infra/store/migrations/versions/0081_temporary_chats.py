"""Temporary chats: conversations that are deleted after some minutes without use."""

import sqlalchemy as sa
from alembic import op

revision: str = "0081"
down_revision: str | None = "0080"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("temporary_minutes", sa.Integer, nullable=True))
    is_temporary = sa.text("temporary_minutes IS NOT NULL")
    op.create_index(
        "ix_conversations_temporary_minutes",
        "conversations",
        ["temporary_minutes"],
        sqlite_where=is_temporary,
        postgresql_where=is_temporary,
    )
