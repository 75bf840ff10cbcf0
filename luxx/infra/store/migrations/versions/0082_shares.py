"""Links to conversations, rooms and results of tasks, and whether a tenant allows public ones."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import DateTime, Integer, String, Text

revision: str = "0082"
down_revision: str | None = "0081"

SUBJECTS = {"conversation_id": "conversations", "room_id": "chat_rooms", "task_id": "tasks"}
ONE_SUBJECT = " + ".join(f"CASE WHEN {name} IS NULL THEN 0 ELSE 1 END" for name in SUBJECTS) + " = 1"


def upgrade() -> None:
    allows = sa.Column("public_links", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tenants", allows)
    parents = {"user_id": "users", "tenant_id": "tenants", **SUBJECTS}
    op.create_table(
        "shares",
        sa.Column("id", String(36), nullable=False),
        sa.Column("user_id", Integer, nullable=False),
        sa.Column("tenant_id", Integer, nullable=False),
        *(sa.Column(name, String(36)) for name in SUBJECTS),
        sa.Column("token_hash", String(64), nullable=False),
        sa.Column("audience", String(10), nullable=False),
        sa.Column("title", String(300), nullable=False),
        sa.Column("is_live", sa.Boolean, nullable=False),
        sa.Column("snapshot", Text),
        sa.Column("ends_at", DateTime),
        sa.Column("created_at", DateTime, nullable=False),
        *(
            sa.ForeignKeyConstraint(
                [name], [f"{table}.id"], name=op.f(f"fk_shares_{name}_{table}"), ondelete="CASCADE"
            )
            for name, table in parents.items()
        ),
        sa.CheckConstraint(ONE_SUBJECT, name=op.f("ck_shares_one_subject")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shares")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_shares_token_hash")),
    )
    op.create_index("ix_shares_user_id_id", "shares", ["user_id", "id"])
    for name in ("tenant_id", *SUBJECTS):
        op.create_index(op.f(f"ix_shares_{name}"), "shares", [name])
