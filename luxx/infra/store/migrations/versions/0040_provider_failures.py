"""When calls of a model failed for good at its provider, so that a fallback made them."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0040"
down_revision: str | None = "0039"


def upgrade() -> None:
    provider = sa.ForeignKey(
        "llm_providers.id", name=op.f("fk_provider_failures_provider_id"), ondelete="CASCADE"
    )
    op.create_table(
        "provider_failures",
        sa.Column("provider_id", sa.Integer(), provider, nullable=False),
        sa.Column("model", sa.String(300), nullable=False),
        sa.Column("failed_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("provider_id", "model", name=op.f("pk_provider_failures")),
    )
