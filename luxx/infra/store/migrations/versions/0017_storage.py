"""A check of the secret key, and how much the runs and messages of a user take up."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

# A run's log with what its tools put out, its question and its answer. Texts count in characters.
_COUNT = """
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
        "server_values",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_server_values")),
    )
    op.add_column("runs", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(_COUNT)
