"""Processes: which are up, and the queue of runs."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

assert op, sa


def upgrade() -> None:
    """Filled by its feature."""
