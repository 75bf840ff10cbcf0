"""Calls of rooms name their room and the member who made them, instead of a membership of their own."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0032"
down_revision: str | None = "0031"


def upgrade() -> None:
    op.add_column("runs", sa.Column("called_room_id", sa.String(36), nullable=True))
    op.execute(
        "ALTER TABLE runs ADD COLUMN called_by INTEGER "
        "CONSTRAINT fk_runs_called_by REFERENCES users (id) ON DELETE SET NULL"
    )
    for name in ("called_room_id", "called_by"):
        condition = sa.text(f"{name} IS NOT NULL")
        op.create_index(f"ix_runs_{name}", "runs", [name], sqlite_where=condition, postgresql_where=condition)
    op.execute("DELETE FROM subject_members WHERE subject_id IN (SELECT id FROM runs WHERE subject_id = id)")
