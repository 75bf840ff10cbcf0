"""The arm of vectors: the vector of what is asked, made within a bounded time, and the facts or other
texts that are similar to it.

Without a vector, words and the graph are searched alone, and the reason is known.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from itertools import islice

import msgspec
import structlog
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.errors import LuxxError
from luxx.features.memory.retrieval import CANDIDATES, MAX_QUERY, Arm, RecallQuery, allowed_facts
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.vectors.search import Similar, VectorSearch
from luxx.features.memory.vectors.source import EmbeddingSource, Free, PaidBy, Payer, VectorModel
from luxx.features.memory.vectors.texts import FACTS
from luxx.infra.config.schema import MemoryConfig

QUERY_SECONDS = 2.0
"""How long a search waits for the vector of what is asked."""

QUIET_SECONDS = 30.0
"""After a failure, no vector is asked for so long, so that not every message waits in vain."""

NAME = "vector"

logger = structlog.get_logger()


class Askable(msgspec.Struct, frozen=True, kw_only=True):
    """That some of the scopes have vectors, and who pays for the one of the question."""

    model: VectorModel
    payer: Payer | Free


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of what is asked, of length 1."""

    model: VectorModel
    vector: list[float]


class NotAsked(msgspec.Struct, frozen=True):
    """Why vectors are not searched; empty: there are none here."""

    reason: str = ""


class VectorArm:
    """One per process. `source` is set when the providers are there; without one there are no vectors."""

    def __init__(self, config: MemoryConfig) -> None:
        self._config = config
        self._search = VectorSearch()
        self._quiet_until = 0.0
        self._failure = ""
        self.source: EmbeddingSource | None = None

    @property
    def is_on(self) -> bool:
        """Whether a model is configured; else nothing here is called."""
        return self.source is not None and self._config.embedding.model != ""

    def askable(
        self, session: Session, user_id: int, scope_ids: Collection[int], subject: str = FACTS.subject
    ) -> Askable | NotAsked:
        """Whether vectors can be searched in these scopes for a user. `subject`: of what they are."""
        source, connection = self.source, session.connection()
        if source is None or not self._config.vector_weight:
            return NotAsked()
        model = source.searched_model(connection)
        if model is None or not self._search.has_any(connection, subject, model.id, scope_ids):
            return NotAsked()
        if time.monotonic() < self._quiet_until:
            return NotAsked(self._failure)
        try:
            payer = source.payer(session, user_id, model.provider_id, model.name)
        except LuxxError as error:
            return NotAsked(error.message)
        return Askable(model=model, payer=payer)

    async def ask(self, found: Askable | NotAsked, text: str, paid_by: PaidBy) -> Asked | NotAsked:
        """The vector of a text, within `QUERY_SECONDS`; else the reason why there is none."""
        if isinstance(found, NotAsked) or self.source is None or not text.strip():
            return found if isinstance(found, NotAsked) else NotAsked()
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                [vector] = await self.source.embed(
                    found.payer, [text[:MAX_QUERY]], paid_by, is_query=True, has_retries=False
                )
        except TimeoutError:
            return self._failed(f"its model did not answer within {QUERY_SECONDS:g} s")
        except LuxxError as error:
            return self._failed(error.message)
        return Asked(model=found.model, vector=vector)

    def _failed(self, reason: str) -> NotAsked:
        self._quiet_until, self._failure = time.monotonic() + QUIET_SECONDS, reason
        logger.warning("query_not_embedded", error=reason)
        return NotAsked(reason)

    def ranked(
        self, connection: Connection, scopes: Scopes, query: RecallQuery, asked: Asked | NotAsked
    ) -> list[Arm]:
        """The facts that are similar to what is asked, as an arm of `recall`; none without a vector."""
        if isinstance(asked, NotAsked):
            return []
        found = self.similar(connection, FACTS.subject, scopes.ids, asked)
        allowed = allowed_facts(connection, scopes, query, [each.subject_id for each in found])
        return [self.arm_of(each for each in found if each.subject_id in allowed)]

    def similar(
        self, connection: Connection, subject: str, scope_ids: Collection[int], asked: Asked
    ) -> list[Similar]:
        """What is similar to what is asked in these scopes, the best first, without those that have
        nothing to do with it."""
        found = self._search.nearest(connection, subject, asked.model.id, scope_ids, asked.vector)
        return [each for each in found if each.cosine >= asked.model.floor]

    def arm_of(self, found: Iterable[Similar]) -> Arm:
        """The arm with the first of these."""
        ranked = [
            (each.subject_id, f"similar in meaning ({each.cosine:.2f})") for each in islice(found, CANDIDATES)
        ]
        return Arm(name=NAME, weight=self._config.vector_weight, ranked=ranked)


def note_of(asked: Asked | NotAsked) -> dict[str, str]:
    """For a model: why a search was by words only, if there is a reason."""
    if isinstance(asked, NotAsked) and asked.reason:
        return {"note": f"searched by words only: {asked.reason}"}
    return {}
