"""What people see of vectors: whether meaning is searched, how good the model is, and what is left to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import LuxxError
from luxx.features.memory.scopes import visible_scopes
from luxx.features.memory.vectors.models import EmbeddingRow
from luxx.features.memory.vectors.source import EmbeddingSource, all_models, has_passed
from luxx.features.memory.vectors.texts import EmbeddedTexts
from luxx.infra.store.tables import table_of

_vectors = table_of(EmbeddingRow)


class EmbeddingState(StrEnum):
    """`off`: no model is configured. `testing`: it was not tested yet. `below_words`: it finds less than
    words, so vectors are not searched. `embedding`: vectors are being made. `ready`: every text has one.
    `failed`: the model cannot be called, and it is tried again."""

    OFF = "off"
    TESTING = "testing"
    BELOW_WORDS = "below_words"
    EMBEDDING = "embedding"
    READY = "ready"
    FAILED = "failed"


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of the questions of the test whose answer is among the first five results."""

    words: float
    vectors: float


class EmbeddingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The model that makes vectors. `done` of the `total` facts and passages of documents that you may read
    have one. `reason`: why something does not work; null where all does."""

    state: EmbeddingState
    provider_id: int | None = None
    model: str | None = None
    hit_at_5: HitRates | None = None
    done: int = 0
    total: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingReport:
    """One per process."""

    source: EmbeddingSource
    kinds: Sequence[EmbeddedTexts]

    async def status(self, caller: Caller) -> EmbeddingStatus:
        """The state for a caller."""
        if not self.source.config.model:
            return EmbeddingStatus(state=EmbeddingState.OFF)

        def work(session: Session) -> EmbeddingStatus:
            source, connection = self.source, session.connection()
            row = source.configured_row(connection.execute(all_models).all())
            reason = None if row is None else row.problem
            if reason is None:
                reason = self._refusal(session, caller)
            done, total = self._counted(connection, caller, row)
            hits = None
            if row is not None and row.tested_at is not None:
                hits = HitRates(words=row.keyword_hit, vectors=row.vector_hit)
            return EmbeddingStatus(
                state=_state(row, has_problem=reason is not None, is_whole=done == total),
                provider_id=source.config.provider_id,
                model=source.config.model,
                hit_at_5=hits,
                done=done,
                total=total,
                reason=reason,
            )

        return await self.source.store.read(work)

    def _refusal(self, session: Session, caller: Caller) -> str | None:
        """Why nothing is embedded for this caller, if that is so."""
        config = self.source.config
        try:
            self.source.payer(session, caller.user_id, self.source.provider_id, config.model)
        except LuxxError as error:
            return error.message
        return None

    def _counted(self, connection: Connection, caller: Caller, row: Row[Any] | None) -> tuple[int, int]:
        scope_ids = visible_scopes(connection, caller).ids
        total = 0
        for kind in self.kinds:
            texts = select(func.count()).select_from(kind.table).where(kind.table.c.scope_id.in_(scope_ids))
            total += connection.scalar(texts) or 0
        if row is None:
            return 0, total
        made = select(func.count()).where(_vectors.c.scope_id.in_(scope_ids), _vectors.c.model_id == row.id)
        return connection.scalar(made) or 0, total


def _state(row: Row[Any] | None, *, has_problem: bool, is_whole: bool) -> EmbeddingState:
    if row is not None and row.tested_at is not None and not has_passed(row):
        return EmbeddingState.BELOW_WORDS
    if has_problem:
        return EmbeddingState.FAILED
    if row is None or row.tested_at is None:
        return EmbeddingState.TESTING
    return EmbeddingState.READY if is_whole else EmbeddingState.EMBEDDING
