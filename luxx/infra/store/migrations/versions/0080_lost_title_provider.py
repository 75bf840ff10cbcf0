"""The name of the provider that named conversations and is gone."""

import sqlalchemy as sa
from alembic import op

revision: str = "0080"
down_revision: str | None = "0077"


def upgrade() -> None:
    for table in ("tenants", "user_settings"):
        op.add_column(table, sa.Column("lost_title_provider", sa.String(100), nullable=True))
