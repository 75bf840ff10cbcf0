"""Whether an agent asks models that do not think by themselves to think in their text."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0041"
down_revision: str | None = "0040"


def upgrade() -> None:
    op.add_column(
        "agents", sa.Column("prompted_thinking", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("room_agents", sa.Column("prompted_thinking", sa.Boolean(), nullable=True))
