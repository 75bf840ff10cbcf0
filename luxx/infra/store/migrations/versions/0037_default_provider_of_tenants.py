"""The default provider of each tenant: so far the oldest shared default of its users, enabled first."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0037"
down_revision: str | None = "0036"

IN_FORCE = """
UPDATE tenants SET default_provider_id = (
    SELECT p.id FROM llm_providers AS p
    WHERE p.tenant_id = tenants.id AND p.is_shared AND p.is_default AND p.provider_type <> 'demo'
    ORDER BY p.enabled DESC, p.id LIMIT 1
)
"""


def upgrade() -> None:
    op.add_column("tenants", sa.Column("default_provider_id", sa.Integer(), nullable=True))
    op.execute(IN_FORCE)
    op.execute("UPDATE tenants SET lost_default_provider = NULL WHERE default_provider_id IS NOT NULL")
