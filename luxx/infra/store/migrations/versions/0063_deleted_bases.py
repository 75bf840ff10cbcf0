"""Knowledge bases that are deleted: nobody sees them, and their rows go piece by piece."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0063"
down_revision: str | None = "0062"


def upgrade() -> None:
    op.add_column("knowledge_bases", sa.Column("deleted_at", sa.DateTime()))
