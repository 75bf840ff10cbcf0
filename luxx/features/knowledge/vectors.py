"""How far the vectors of a knowledge base are, for the run that has indexed its documents. They are made in
the background (`features/memory/vectors/background.py`).
"""

from dataclasses import dataclass

import msgspec
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from luxx.errors import LuxxError
from luxx.features.knowledge.rows import CHUNKS, chunks, documents, payer
from luxx.features.memory.vectors.models import EmbeddingRow
from luxx.features.memory.vectors.source import EmbeddingSource, all_models, has_passed
from luxx.infra.store.tables import table_of

_vectors = table_of(EmbeddingRow)


class VectorCount(msgspec.Struct, frozen=True):
    """So many of all passages are done."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class VectorProgress:
    """One per process."""

    source: EmbeddingSource

    def of_base(self, base_id: str, user_id: int, session: Session) -> VectorCount | None:
        """The count of the passages of a base for which this user pays; None where no vectors are made for
        them now: no model is configured, it finds too little or fails, or the user may not use it."""
        source, connection = self.source, session.connection()
        if not source.config.model:
            return None
        row = source.configured_row(connection.execute(all_models).all())
        if row is not None and (row.problem is not None or (row.tested_at and not has_passed(row))):
            return None
        try:
            source.payer(session, user_id, source.provider_id, source.config.model)
        except LuxxError:
            return None
        of_user = select(func.count()).select_from(CHUNKS.source)
        of_user = of_user.where(documents.c.base_id == base_id, payer == user_id)
        total = session.scalar(of_user) or 0
        if row is None:
            return VectorCount(0, total)
        has_vector = exists().where(_vectors.c.chunk_id == chunks.c.id, _vectors.c.model_id == row.id)
        return VectorCount(session.scalar(of_user.where(has_vector)) or 0, total)
