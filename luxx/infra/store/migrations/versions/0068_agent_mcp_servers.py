"""The MCP servers whose tools an agent has."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0068"
down_revision: str | None = "0067"


def upgrade() -> None:
    op.add_column("agents", sa.Column("mcp_servers", sa.Text(), nullable=True))
