"""Whether a member of a room has read its messages; those of before are taken to have."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0035"
down_revision: str | None = "0034"


def upgrade() -> None:
    column = sa.Column("is_new", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("subject_members", column)
