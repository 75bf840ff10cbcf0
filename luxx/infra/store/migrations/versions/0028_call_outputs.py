"""Whole outputs of tool calls by hand, which are stored for an hour."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0028"
down_revision: str | None = "0027"


def upgrade() -> None:
    user = sa.ForeignKey("users.id", name=op.f("fk_call_outputs_user_id"), ondelete="CASCADE")
    op.create_table(
        "call_outputs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("user_id", sa.Integer(), user, nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_call_outputs")),
    )
    for name in ("user_id", "expires_at"):
        op.create_index(f"ix_call_outputs_{name}", "call_outputs", [name])
