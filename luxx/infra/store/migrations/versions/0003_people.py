"""People, the rest: what administrators change, and the record of who did what."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    # Columns are added one by one: making `tenants` or `users` anew would drop the old table, and on
    # SQLite that deletes all that belongs to them.
    op.add_column("tenants", sa.Column("default_agent_id", sa.Integer(), nullable=True))
    op.add_column(
        "tenants", sa.Column("allow_registration", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column(
        "tenants", sa.Column("allow_own_providers", sa.Boolean(), server_default=sa.true(), nullable=False)
    )
    op.add_column(
        "users", sa.Column("has_default_password", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    # Until now people could register, and only the published default had to be changed.
    op.execute("UPDATE tenants SET allow_registration = true WHERE is_default")
    op.execute("UPDATE users SET has_default_password = must_change_password")
    _audit_log()


def _audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=True),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("username", sa.String(length=64), nullable=True),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("target_type", sa.String(length=40), nullable=True),
        sa.Column("target_id", sa.String(length=64), nullable=True),
        sa.Column("outcome", sa.String(length=10), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("request_id", sa.String(length=36), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index("ix_audit_log_tenant_id_id", "audit_log", ["tenant_id", "id"], unique=False)
    op.create_index("ix_audit_log_user_id_id", "audit_log", ["user_id", "id"], unique=False)
    op.create_index("ix_audit_log_outcome_id", "audit_log", ["outcome", "id"], unique=False)
    op.create_index("ix_audit_log_at", "audit_log", ["at"], unique=False)
