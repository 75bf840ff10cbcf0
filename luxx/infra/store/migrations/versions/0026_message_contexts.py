"""How the prompt of an answer was made: what was left out of it, and its tokens."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"


def upgrade() -> None:
    op.add_column("messages", sa.Column("context", sa.Text(), nullable=True))
