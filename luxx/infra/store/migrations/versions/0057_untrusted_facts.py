"""An index of the facts that are not trusted, of which tools of the graph ask at each call whether there are
any."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0057"
down_revision: str | None = "0055"


def upgrade() -> None:
    op.create_index(
        "ix_facts_untrusted",
        "facts",
        ["scope_id"],
        sqlite_where=sa.text("trusted = 0"),
        postgresql_where=sa.text("NOT trusted"),
    )
