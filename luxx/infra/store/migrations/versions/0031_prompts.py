"""Prompts of users."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0031"
down_revision: str | None = "0030"


def owner(name: str, to: str) -> sa.Column:
    key = sa.ForeignKey(f"{to}.id", name=op.f(f"fk_prompts_{name}"), ondelete="CASCADE")
    return sa.Column(name, sa.Integer(), key, nullable=False)


def column(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "prompts",
        column("id", sa.String(36)),
        owner("user_id", "users"),
        owner("tenant_id", "tenants"),
        column("name", sa.String(40)),
        column("title", sa.String(200)),
        column("description", sa.Text()),
        column("content", sa.Text()),
        column("is_shared", sa.Boolean()),
        column("created_at", sa.DateTime()),
        column("updated_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prompts")),
    )
    op.create_index("uq_prompts_user_id_name", "prompts", ["user_id", "name"], unique=True)
    op.create_index("ix_prompts_tenant_id_is_shared", "prompts", ["tenant_id", "is_shared"])
