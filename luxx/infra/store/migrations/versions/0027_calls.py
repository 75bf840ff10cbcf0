"""An index of the calls of `/v1` whose content is not deleted."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0027"
down_revision: str | None = "0026"

CONDITION = "subject_id = id AND request <> '{}'"


def upgrade() -> None:
    op.create_index(
        "ix_runs_calls",
        "runs",
        ["finished_at"],
        sqlite_where=sa.text(CONDITION),
        postgresql_where=sa.text(CONDITION),
    )
