"""Messages that wait in a conversation while an answer is made."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0045"
down_revision: str | None = "0044"


def upgrade() -> None:
    conversation = sa.ForeignKey(
        "conversations.id", name=op.f("fk_queued_messages_conversation_id"), ondelete="CASCADE"
    )
    user = sa.ForeignKey("users.id", name=op.f("fk_queued_messages_user_id"), ondelete="CASCADE")
    op.create_table(
        "queued_messages",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("conversation_id", sa.String(36), conversation, nullable=False),
        sa.Column("user_id", sa.Integer(), user, nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_queued_messages")),
    )
    op.create_index(
        "ix_queued_messages_conversation_id_position", "queued_messages", ["conversation_id", "position"]
    )
    op.create_index("ix_queued_messages_user_id", "queued_messages", ["user_id"])
    op.add_column(
        "conversations", sa.Column("queue_paused", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("conversations", sa.Column("queue_problem", sa.Text(), nullable=True))
