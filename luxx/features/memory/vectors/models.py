"""Rows of the vectors of texts and of the models that made them."""

from datetime import datetime

from sqlalchemy import Float, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime

SUBJECTS = ("fact_id", "episode_id", "community_id", "chunk_id")
"""The columns of what a vector is of; one of them is set."""


class EmbeddingModelRow(Base):
    """A model that makes vectors, with the result of its test.

    `keyword_hit` and `vector_hit` are shares of questions (`self_test.py`); `floor` is the similarity below
    which texts have nothing to do with each other. `ready_at`: every text had a vector then. `holder` is the
    process that works on it until `held_until`; `problem` is why it cannot go on. Vectors of an id that was
    deleted must not be taken for those of another model, so ids are never reused.
    """

    __tablename__ = "embedding_models"
    __table_args__ = (UniqueConstraint("provider_id", "name"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    provider_id: Mapped[int] = mapped_column()
    name: Mapped[str] = mapped_column(String(200))
    dimensions: Mapped[int | None] = mapped_column()
    keyword_hit: Mapped[float | None] = mapped_column(Float)
    vector_hit: Mapped[float | None] = mapped_column(Float)
    floor: Mapped[float | None] = mapped_column(Float)
    tested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ready_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    problem: Mapped[str | None] = mapped_column(Text)
    holder: Mapped[str | None] = mapped_column(String(36))
    held_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class EmbeddingRow(Base):
    """The vector of one text by one model, as float16 numbers of a vector of length 1; null where the model
    refuses the text.

    The database deletes it with its text, and triggers when the text changes. Ids only grow, so that what was
    added since a search is what has a higher one.
    """

    __tablename__ = "embeddings"
    __table_args__ = (
        Index("ix_embeddings_scope_id_model_id_id", "scope_id", "model_id", "id"),
        Index("ix_embeddings_model_id_id", "model_id", "id"),
        *(
            Index(
                f"uq_embeddings_{name}_model_id",
                name,
                "model_id",
                unique=True,
                sqlite_where=text(f"{name} IS NOT NULL"),
                postgresql_where=text(f"{name} IS NOT NULL"),
            )
            for name in SUBJECTS
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("embedding_models.id", ondelete="CASCADE"))
    scope_id: Mapped[int] = mapped_column(ForeignKey("memory_scopes.id", ondelete="CASCADE"))
    fact_id: Mapped[int | None] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"))
    episode_id: Mapped[int | None] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"))
    community_id: Mapped[int | None] = mapped_column(ForeignKey("communities.id", ondelete="CASCADE"))
    chunk_id: Mapped[int | None] = mapped_column(ForeignKey("chunks.id", ondelete="CASCADE"))
    vector: Mapped[bytes | None] = mapped_column(LargeBinary)
