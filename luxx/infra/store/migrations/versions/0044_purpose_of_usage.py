"""What the model calls of the ledger were for."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0044"
down_revision: str | None = "0043"


def upgrade() -> None:
    purpose = sa.Column("purpose", sa.String(10), nullable=False, server_default="answer")
    op.add_column("usage_records", purpose)
