"""Vectors of the texts of memory, and the models that make them."""

# pyright: basic
import sqlalchemy as sa
from alembic import op
from sqlalchemy import DateTime, Float, Integer, LargeBinary, String, Text

revision: str = "0052"
down_revision: str | None = "0051"

PARENTS = {
    "model_id": "embedding_models",
    "scope_id": "memory_scopes",
    "fact_id": "facts",
    "episode_id": "episodes",
    "community_id": "communities",
}
SUBJECTS = ("fact_id", "episode_id", "community_id")
TEXTS = {"facts": ("fact_id", ("text",)), "communities": ("community_id", ("name", "summary"))}
"""By table: the column of its vectors, and the columns that are its text."""


def upgrade() -> None:
    make_models()
    make_vectors()
    for table, (subject, columns) in TEXTS.items():
        delete_after_changes(table, subject, columns)


def make_models() -> None:
    op.create_table(
        "embedding_models",
        sa.Column("id", Integer, nullable=False),
        sa.Column("provider_id", Integer, nullable=False),
        sa.Column("name", String(200), nullable=False),
        sa.Column("dimensions", Integer, nullable=True),
        *(sa.Column(name, Float, nullable=True) for name in ("keyword_hit", "vector_hit", "floor")),
        *(sa.Column(name, DateTime, nullable=True) for name in ("tested_at", "ready_at")),
        sa.Column("problem", Text, nullable=True),
        sa.Column("holder", String(36), nullable=True),
        sa.Column("held_until", DateTime, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_embedding_models")),
        sa.UniqueConstraint("provider_id", "name", name=op.f("uq_embedding_models_provider_id_name")),
        sqlite_autoincrement=True,
    )


def make_vectors() -> None:
    op.create_table(
        "embeddings",
        sa.Column("id", Integer, nullable=False),
        *(
            sa.Column(
                name,
                Integer,
                sa.ForeignKey(f"{table}.id", name=op.f(f"fk_embeddings_{name}"), ondelete="CASCADE"),
                nullable=name in SUBJECTS,
            )
            for name, table in PARENTS.items()
        ),
        sa.Column("vector", LargeBinary, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_embeddings")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_embeddings_scope_id_model_id_id", "embeddings", ["scope_id", "model_id", "id"])
    op.create_index("ix_embeddings_model_id_id", "embeddings", ["model_id", "id"])
    for name in SUBJECTS:
        where = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"uq_embeddings_{name}_model_id",
            "embeddings",
            [name, "model_id"],
            unique=True,
            sqlite_where=where,
            postgresql_where=where,
        )


def delete_after_changes(table: str, subject: str, columns: tuple[str, ...]) -> None:
    """A text that changes loses its vector in the same transaction."""
    connection = op.get_bind()
    trigger = f"{table}_text_updated"
    event = f"AFTER UPDATE OF {', '.join(columns)} ON {table}"
    changed = " OR ".join(f"old.{column} <> new.{column}" for column in columns)
    deletion = f"DELETE FROM embeddings WHERE {subject} = old.id"
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"CREATE TRIGGER {trigger} {event} WHEN {changed} BEGIN {deletion}; END")
        return
    connection.exec_driver_sql(
        f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {deletion}; RETURN NULL; END $$"
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {trigger} {event} FOR EACH ROW WHEN ({changed}) EXECUTE FUNCTION {trigger}()"
    )
