"""Conversations: the index that a list by last activity is read by."""

# pyright: basic
from collections.abc import Sequence

from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_index(
        "ix_conversations_user_id_updated_at", "conversations", ["user_id", "updated_at"], unique=False
    )
