"""Personal API keys, and tickets for sockets that a key asked for.

The table of the tickets is created anew, because SQLite cannot alter a column. A ticket is valid for seconds,
so the existing ones are not copied.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"

ID = sa.String(36)


def parent(table: str, name: str, to: str, type_: sa.types.TypeEngine, *, nullable: bool) -> sa.Column:
    key = sa.ForeignKey(f"{to}.id", name=op.f(f"fk_{table}_{name}"), ondelete="CASCADE")
    return sa.Column(name, type_, key, nullable=nullable)


def column(name: str, type_: sa.types.TypeEngine, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, type_, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        column("id", ID),
        parent("api_keys", "user_id", "users", sa.Integer(), nullable=False),
        column("name", sa.String(100)),
        column("name_key", sa.String(300)),
        column("prefix", sa.String(20)),
        column("key_hash", sa.String(64)),
        column("scopes", sa.String(40)),
        column("expires_at", sa.DateTime(), nullable=True),
        column("last_used_at", sa.DateTime(), nullable=True),
        column("created_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_index("uq_api_keys_user_id_name_key", "api_keys", ["user_id", "name_key"], unique=True)
    op.drop_table("tickets")
    op.create_table(
        "tickets",
        column("ticket_hash", sa.String(64)),
        parent("tickets", "sign_in_id", "sign_ins", ID, nullable=True),
        parent("tickets", "key_id", "api_keys", ID, nullable=True),
        column("expires_at", sa.DateTime()),
        sa.CheckConstraint("(sign_in_id IS NULL) <> (key_id IS NULL)", name=op.f("ck_tickets_credential")),
        sa.PrimaryKeyConstraint("ticket_hash", name=op.f("pk_tickets")),
    )
    for name in ("sign_in_id", "key_id", "expires_at"):
        op.create_index(f"ix_tickets_{name}", "tickets", [name])
