"""Approved definitions of MCP tools, values of the server, and the storage that each run takes up.

The step has the number of the last of the steps that it replaces.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0015"

# A run's log with the output of its tools, its question and its answer. Texts count in characters.
COUNT_STORED_BYTES = """
UPDATE runs SET stored_bytes =
    COALESCE((SELECT SUM(LENGTH(data) + COALESCE(LENGTH(internal), 0))
              FROM run_events WHERE run_id = runs.id), 0)
  + COALESCE((SELECT SUM(LENGTH(output)) FROM run_results WHERE run_id = runs.id), 0)
  + COALESCE((SELECT SUM(LENGTH(content) + COALESCE(LENGTH(replay), 0))
              FROM messages WHERE messages.id = runs.question_id AND messages.run_id = runs.id), 0)
  + COALESCE((SELECT SUM(LENGTH(content) + COALESCE(LENGTH(replay), 0))
              FROM messages WHERE messages.id = runs.message_id), 0)
"""


def upgrade() -> None:
    op.create_table(
        "mcp_tools",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("tool", sa.String(length=64), nullable=False),
        sa.Column("approved", sa.Text(), nullable=False),
        sa.Column("approved_hash", sa.String(length=64), nullable=False),
        sa.Column("pending", sa.Text(), nullable=True),
        sa.Column("pending_hash", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("changed_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_mcp_tools_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_tools")),
        sa.UniqueConstraint("tenant_id", "server", "tool", name=op.f("uq_mcp_tools_tenant_id_server_tool")),
    )
    op.create_table(
        "server_values",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_server_values")),
    )
    op.add_column("runs", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(COUNT_STORED_BYTES)
