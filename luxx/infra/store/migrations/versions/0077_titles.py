"""The model that names conversations, and whether a conversation may still get another title."""

import sqlalchemy as sa
from alembic import op

revision: str = "0077"
down_revision: str | None = "0076"


def upgrade() -> None:
    for table in ("tenants", "user_settings"):
        op.add_column(table, sa.Column("title_provider_id", sa.Integer, nullable=True))
        op.add_column(table, sa.Column("title_model", sa.String(300), nullable=True))
    op.add_column("user_settings", sa.Column("titles", sa.String(10), nullable=True))
    op.add_column("conversations", sa.Column("title_from", sa.String(10), nullable=True))
