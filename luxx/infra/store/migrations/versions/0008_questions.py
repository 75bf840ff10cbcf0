"""Runs: the message that a run answers, so that all runs that answered one message are found."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    # Earlier runs stay without it: they are found by the messages that name them, as they were.
    op.add_column("runs", sa.Column("question_id", sa.String(length=36), nullable=True))
    op.create_index("ix_runs_question_id", "runs", ["question_id"], unique=False)
