"""What judges the answers of agents and the results of their tools, as JSON."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0046"
down_revision: str | None = "0045"


def upgrade() -> None:
    op.add_column("agents", sa.Column("checks", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("room_agents", sa.Column("checks", sa.Text(), nullable=True))
