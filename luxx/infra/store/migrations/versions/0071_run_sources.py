"""The numbered web pages that runs read."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0071"
down_revision: str | None = "0068"


def upgrade() -> None:
    op.create_table(
        "run_sources",
        sa.Column("run_id", sa.String(36), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("subject_id", sa.String(36), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("title", sa.String(300), nullable=False),
        sa.Column("text", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_run_sources_subject_id_number", "run_sources", ["subject_id", "number"])
