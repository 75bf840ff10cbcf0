"""What an agent is for and which requests ask for it, and whether it may be used."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0059"
down_revision: str | None = "0057"


def upgrade() -> None:
    for column in (
        sa.Column("display_name", sa.String(100), nullable=False, server_default=""),
        sa.Column("description", sa.Text(), nullable=False, server_default=""),
        sa.Column("trigger_type", sa.String(10), nullable=False, server_default="hybrid"),
        sa.Column("trigger_patterns", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.true()),
    ):
        op.add_column("agents", column)
