"""Processes: which are up. A run is held by its process and has no lease of its own any more."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_processes")),
    )
    op.drop_index("ix_runs_status_lease_until", table_name="runs")
    # Not as a batch: it would copy the table, and dropping the old one would take all event logs with it.
    op.drop_column("runs", "lease_until")
    op.create_index("ix_runs_status_owner", "runs", ["status", "owner"], unique=False)
