"""Turns: the tool calls, reserves and questions of runs with several turns, and what is given to such a run.

The rows of earlier versions belong to chats, whose turn is empty.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"

TURN = sa.String(80)
KEYS = {"tool_calls": ("run_id", "turn", "step_index"), "usage_reserves": ("run_id", "turn")}
"""The new primary keys."""


def upgrade() -> None:
    op.create_table(
        "run_inputs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_inputs_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_inputs")),
    )
    op.create_index("ix_run_inputs_run_id", "run_inputs", ["run_id"])
    op.add_column("questions", sa.Column("rule_agents", sa.Text(), nullable=False, server_default="[0]"))
    for table, key in KEYS.items():
        if op.get_bind().dialect.name == "sqlite":
            rebuild(table, key)
        else:
            op.add_column(table, sa.Column("turn", TURN, nullable=False, server_default=""))
            op.drop_constraint(f"pk_{table}", table)
            op.create_primary_key(f"pk_{table}", table, list(key))


def rebuild(table: str, key: tuple[str, ...]) -> None:
    """Gives a table of SQLite the column `turn` and another primary key, which SQLite cannot alter."""
    with op.batch_alter_table(table, recreate="always") as batch:
        batch.add_column(sa.Column("turn", TURN, nullable=False, server_default=""))
        batch.drop_constraint(f"pk_{table}", type_="primary")
        batch.create_primary_key(f"pk_{table}", list(key))
