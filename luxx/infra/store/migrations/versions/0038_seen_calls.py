"""What is known of a model call whose process died: the price of its answer, and how long it was alive."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0038"
down_revision: str | None = "0037"


def upgrade() -> None:
    op.add_column("usage_reserves", sa.Column("answer_price", sa.Float(), nullable=True))
    op.add_column("usage_reserves", sa.Column("seen_at", sa.DateTime(), nullable=True))
