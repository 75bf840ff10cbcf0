"""The lists of models that providers have, with the time at which they were fetched."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0030"
down_revision: str | None = "0029"


def upgrade() -> None:
    op.add_column("llm_providers", sa.Column("models", sa.Text(), nullable=True))
    op.add_column("llm_providers", sa.Column("models_at", sa.DateTime(), nullable=True))
