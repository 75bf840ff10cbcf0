"""How much a model thinks, beside the other settings of model calls."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0036"
down_revision: str | None = "0035"


def upgrade() -> None:
    for table in ("user_settings", "conversations", "agents", "room_agents"):
        op.add_column(table, sa.Column("reasoning_effort", sa.String(10), nullable=True))
