"""Transfer: the mark of conversations that an import is still writing."""

# pyright: basic
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    # Adding a column changes no row; a rebuilt table would take its messages along as it is dropped.
    op.add_column("conversations", sa.Column("import_id", sa.String(length=36), nullable=True))
    op.create_index(
        "ix_conversations_user_id_import_id_id",
        "conversations",
        ["user_id", "import_id", "id"],
        unique=False,
    )
    op.drop_index("ix_conversations_user_id_id", "conversations")
