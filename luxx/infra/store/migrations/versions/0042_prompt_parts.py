"""The beginning of the prompts of runs in progress: their tools and skills."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0042"
down_revision: str | None = "0041"


def upgrade() -> None:
    tenant = sa.ForeignKey("tenants.id", name=op.f("fk_prompt_parts_tenant_id"), ondelete="CASCADE")
    op.create_table(
        "prompt_parts",
        sa.Column("tenant_id", sa.Integer(), tenant, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "sha256", name=op.f("pk_prompt_parts")),
    )
    run = sa.ForeignKey("runs.id", name=op.f("fk_run_prompt_parts_run_id"), ondelete="CASCADE")
    op.create_table(
        "run_prompt_parts",
        sa.Column("run_id", sa.String(36), run, nullable=False),
        sa.Column("turn", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "turn", "kind", name=op.f("pk_run_prompt_parts")),
    )
    op.create_index("ix_run_prompt_parts_sha256", "run_prompt_parts", ["sha256"])
