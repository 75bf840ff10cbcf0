"""Tickets that open a socket."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "tickets",
        sa.Column("ticket_hash", sa.String(length=64), nullable=False),
        sa.Column("sign_in_id", sa.String(length=36), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sign_in_id"], ["sign_ins.id"], name=op.f("fk_tickets_sign_in_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("ticket_hash", name=op.f("pk_tickets")),
    )
    op.create_index("ix_tickets_sign_in_id", "tickets", ["sign_in_id"], unique=False)
    op.create_index("ix_tickets_expires_at", "tickets", ["expires_at"], unique=False)
