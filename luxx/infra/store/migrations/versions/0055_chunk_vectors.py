"""Vectors of the chunks of documents."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0055"
down_revision: str | None = "0054"


def upgrade() -> None:
    # SQLite adds a column with a foreign key only in this form.
    op.execute(
        "ALTER TABLE embeddings ADD COLUMN chunk_id INTEGER "
        "CONSTRAINT fk_embeddings_chunk_id REFERENCES chunks (id) ON DELETE CASCADE"
    )
    where = sa.text("chunk_id IS NOT NULL")
    op.create_index(
        "uq_embeddings_chunk_id_model_id", "embeddings", ["chunk_id", "model_id"], unique=True,
        sqlite_where=where, postgresql_where=where,
    )  # fmt: skip
