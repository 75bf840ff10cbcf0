"""Questions that runs ask people."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "questions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("run_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("due_at", sa.DateTime(), nullable=True),
        sa.Column("answered_at", sa.DateTime(), nullable=True),
        sa.Column("answered_by", sa.String(length=20), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        *(
            sa.ForeignKeyConstraint(
                [f"{parent}_id"],
                [f"{parent}s.id"],
                name=op.f(f"fk_questions_{parent}_id"),
                ondelete="CASCADE",
            )
            for parent in ("run", "user", "tenant")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_questions")),
    )
    for columns in (["run_id"], ["tenant_id"], ["user_id", "status", "id"], ["status", "due_at"]):
        op.create_index(f"ix_questions_{'_'.join(columns)}", "questions", columns, unique=False)
