"""How often a tenant has used its skills and agents."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Integer, String

revision: str = "0075"
down_revision: str | None = "0074"


def upgrade() -> None:
    op.create_table(
        "routed_uses",
        sa.Column("tenant_id", Integer, nullable=False),
        sa.Column("kind", String(10), nullable=False),
        sa.Column("name", String(64), nullable=False),
        sa.Column("uses", Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_routed_uses_tenant_id_tenants"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "kind", "name", name=op.f("pk_routed_uses")),
    )
