"""Vectors of the texts of memory and of knowledge bases, made in the background: the test of a model, then 64
texts a step.

What a step made is stored with it, so a process that is killed costs one step, and the next one goes on. One
process works at a time: it holds the row of the model, and another one takes over when it is dead or does not
renew that. The vectors of an earlier model are searched, and deleted last, when the new one has all.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import (
    Connection,
    Delete,
    Row,
    Update,
    and_,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.errors import LuxxError, NotFound, ProviderError, ProviderRefused
from luxx.features.memory.vectors.models import EmbeddingModelRow, EmbeddingRow
from luxx.features.memory.vectors.search import packed
from luxx.features.memory.vectors.self_test import bilingual_set, result_of
from luxx.features.memory.vectors.source import (
    EmbeddingSource,
    Free,
    PaidBy,
    Payer,
    all_models,
    has_passed,
)
from luxx.features.memory.vectors.texts import TEXTS_AT_ONCE, EmbeddedTexts, TextToEmbed
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.engine.processes import alive_process_ids

LOOK_SECONDS = 1.0
"""How often a process looks for new texts."""

SWEEP_SECONDS = 60.0
"""How often it looks for texts that have lost their vector, besides."""

LOOK_AGAIN_SECONDS = 10.0
"""How long it makes vectors before it looks for texts of others."""

HELD_SECONDS = 180.0
"""How long a process may take for one step; then another one takes over."""

DELETED_AT_ONCE = 1_000
FIRST_WAIT, LONGEST_WAIT = 10.0, 600.0
"""Seconds until it is tried again after a failure."""

TEST_AGAIN = timedelta(days=1)
"""When a model that found too little is tested again: its server may have another one by then."""

TOO_LITTLE = "it finds less than words do, so only words are searched"
USUAL_TEXT = "Bread is baked in the morning."
BACKGROUND = PaidBy()
_REFUSED = (400, 413, 422)

_models, _vectors = table_of(EmbeddingModelRow), table_of(EmbeddingRow)

_insert = insert(_vectors)

logger = structlog.get_logger()


class OtherHolder(Exception):
    """Another process has taken the work over."""


@dataclass(slots=True, repr=False)
class _Queue:
    """The texts of one scope for which one user pays. `after`: the last one whose vector was made. `waits`:
    the user may not pay for more now."""

    texts: EmbeddedTexts
    user_id: int
    values: dict[str, int]
    after: int = 0
    waits: bool = False


@dataclass(slots=True, repr=False)
class EmbeddingWork:
    """One per process."""

    source: EmbeddingSource
    process_id: str
    kinds: Sequence[EmbeddedTexts]
    _seen: object = None
    _swept: float = 0.0
    _waits_until: float = 0.0
    _failures: int = 0
    _barred: dict[int, float] = field(default_factory=dict[int, float])
    """Until when a user has no budget, or no access to the provider."""

    async def look(self) -> None:
        """Makes the vectors that are missing. Raises nothing but cancellation."""
        if time.monotonic() < self._waits_until:
            return
        try:
            if await self._is_due():
                await self._work()
                self._failures = 0
        except LuxxError as error:
            await self._note(error.message)
        except OtherHolder:
            self._seen = None
        except SQLAlchemyError as error:
            logger.warning("embedding_failed", error=str(error))
            self._wait()
        except Exception:
            logger.exception("embedding_failed")
            self._wait()

    def _wait(self) -> None:
        self._waits_until = time.monotonic() + min(LONGEST_WAIT, FIRST_WAIT * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self._seen = None

    async def _note(self, problem: str) -> None:
        """Remembers why it cannot go on, for the status."""
        self._wait()
        logger.warning("embedding_failed", error=problem)
        await self._set(problem=problem, held_until=None)

    async def _is_due(self) -> bool:
        """Whether a text may have no vector: there are new ones, or it was not looked for a while."""
        queries = [each.newest for each in self.kinds]
        newest = await self.source.store.read_rows(
            lambda connection: [connection.execute(query).first() for query in queries]
        )
        now = time.monotonic()
        if newest == self._seen and now - self._swept < SWEEP_SECONDS:
            return False
        self._seen, self._swept = newest, now
        return True

    async def _work(self) -> None:
        store = self.source.store
        row = await store.write_rows(self._claim)
        if row is None:
            self._seen = None  # Another process works; it may stop before it has made all.
            return
        if row.tested_at is None or (not has_passed(row) and utc_now() - row.tested_at > TEST_AGAIN):
            row = await self._test(row)
        if has_passed(row) and await self._embed_all(row.id):
            await self._finish(row)
        await self._set(held_until=None)

    def _claim(self, connection: Connection) -> Row[Any] | None:
        """The row of the configured model, which this process holds from now on; None: another one does."""
        source, now = self.source, utc_now()
        row = source.configured_row(connection.execute(all_models.with_for_update()).all())
        if row is None:
            names = {"provider_id": source.provider_id, "name": source.config.model}
            connection.execute(insert(_models).values(**names))
            [row] = filter(source.is_configured, connection.execute(all_models).all())
        is_held = row.held_until is not None and row.held_until > now and row.holder != self.process_id
        if is_held and row.holder in connection.scalars(alive_process_ids(connection)).all():
            return None
        values = {"holder": self.process_id, "held_until": now + timedelta(seconds=HELD_SECONDS)}
        connection.execute(update(_models).where(_models.c.id == row.id).values(**values))
        return row

    async def _set(self, **values: Any) -> None:
        config = self.source.config
        is_it = and_(_models.c.provider_id == self.source.provider_id, _models.c.name == config.model)
        await self._execute(update(_models).where(is_it).values(**values))

    async def _execute(self, statement: Update | Delete) -> int:
        return await self.source.store.write_rows(lambda connection: connection.execute(statement).rowcount)

    async def _test(self, row: Row[Any]) -> Row[Any]:
        """Tests the model, in the budget of the provider's owner, and stores the result."""
        store, texts = self.source.store, bilingual_set()
        payer = await store.read(self._owner)
        memories = [memory.text for memory in texts.memories]
        questions = [question.text for question in texts.questions]
        found = await self._embed(payer, memories, is_query=False)
        asked = await self._embed(payer, questions, is_query=True)
        if len(found[0]) != len(asked[0]):
            raise ProviderRefused("The provider's embeddings differ in length.")
        result = await asyncio.to_thread(result_of, found, asked)
        values: dict[str, Any] = {
            "dimensions": len(found[0]),
            "keyword_hit": result.words,
            "vector_hit": result.vectors,
            "floor": result.floor,
            "tested_at": utc_now(),
            "problem": None if result.vectors >= result.words else TOO_LITTLE,
        }
        await self._set(**values)
        logger.info("embedding_model_tested", words=result.words, vectors=result.vectors)
        query = all_models.where(_models.c.id == row.id)
        return await store.read_rows(lambda connection: connection.execute(query).one())

    def _owner(self, session: Session) -> Payer | Free:
        found = self.source.servers(session.connection())
        if not found:
            raise NotFound(
                f"there is no provider {self.source.provider_id} any more; set memory.embedding to another",
                kind="provider_not_found",
            )
        return self._payer(found[0].user_id, session)

    def _payer(self, user_id: int, session: Session) -> Payer | Free:
        return self.source.payer(session, user_id, self.source.provider_id, self.source.config.model)

    async def _embed(
        self, payer: Payer | Free, texts: list[str], *, is_query: bool, paid_by: PaidBy = BACKGROUND
    ) -> list[list[float]]:
        vectors: list[list[float]] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            vectors += await self.source.embed(payer, some, paid_by, is_query=is_query)
        return vectors

    async def _embed_all(self, model_id: int) -> bool:
        """Makes the vectors of all texts, a step of each queue in turn, so that a fact does not wait for a
        large document; False: not all, because who pays may not or has no budget."""
        while True:
            found = await self.source.store.read_rows(partial(self._queues, model_id))
            queues, until = found, time.monotonic() + LOOK_AGAIN_SECONDS
            while queues and time.monotonic() < until:
                queues = [queue for queue in queues if await self._step(model_id, queue)]
            if not queues:
                return not any(queue.waits for queue in found)

    def _queues(self, model_id: int, connection: Connection) -> list[_Queue]:
        queues: list[_Queue] = []
        for server in self.source.servers(connection):
            # Who pays may depend on these.
            owner = {"provider_tenant": server.tenant_id, "provider_owner": server.user_id}
            queues += (
                _Queue(texts, row.payer, owner | {"scope": row.scope_id, "payer": row.payer})
                for texts in self.kinds
                for row in connection.execute(texts.waiting(model_id, server), owner)
            )
        return queues

    async def _step(self, model_id: int, queue: _Queue) -> bool:
        """Makes the next vectors of a queue; False: there are none to make now."""
        store = self.source.store
        if self._barred.get(queue.user_id, 0.0) > time.monotonic():
            queue.waits = True
            return False
        try:
            payer = await store.read(partial(self._payer, queue.user_id))
            values = queue.values | {"model": model_id, "after": queue.after}
            texts = await store.read_rows(partial(queue.texts.next_texts, values))
            if texts:
                vectors = await self._vectors_of(payer, texts, PaidBy(kind=queue.texts.kind))
                await store.write_rows(partial(self._store, model_id, queue, texts, vectors))
                queue.after = texts[-1].id
        except ProviderError:
            raise
        except LuxxError as error:
            self._barred[queue.user_id] = time.monotonic() + SWEEP_SECONDS
            logger.info("embedding_waits", user_id=queue.user_id, kind=error.kind)
            queue.waits = True
            return False
        return len(texts) == TEXTS_AT_ONCE

    async def _vectors_of(
        self, payer: Payer | Free, texts: Sequence[TextToEmbed], paid_by: PaidBy
    ) -> list[bytes | None]:
        """The vectors of one step. A text that the model refuses alone has none."""
        try:
            found = await self._embed(payer, [each.text for each in texts], is_query=False, paid_by=paid_by)
        except ProviderRefused as error:
            if error.status not in _REFUSED:
                raise
            return await self._one_by_one(payer, texts, paid_by)
        return await asyncio.to_thread(lambda: [packed(vector) for vector in found])

    async def _one_by_one(
        self, payer: Payer | Free, texts: Sequence[TextToEmbed], paid_by: PaidBy
    ) -> list[bytes | None]:
        found: list[bytes | None] = []
        for each in texts:
            try:
                [vector] = await self._embed(payer, [each.text], is_query=False, paid_by=paid_by)
                found.append(packed(vector))
            except ProviderRefused as error:
                if error.status not in _REFUSED:
                    raise
                found.append(None)
        if not any(found):
            # Is it these texts, or does it refuse whatever it is asked?
            await self._embed(payer, [USUAL_TEXT], is_query=False, paid_by=paid_by)
        return found

    def _store(
        self,
        model_id: int,
        queue: _Queue,
        texts: Sequence[TextToEmbed],
        vectors: Sequence[bytes | None],
        connection: Connection,
    ) -> None:
        """Stores a step, without texts that have changed meanwhile, and goes on holding the model."""
        now = utc_now()
        held = update(_models).where(_models.c.id == model_id, _models.c.holder == self.process_id)
        values = {"held_until": now + timedelta(seconds=HELD_SECONDS), "problem": None}
        if connection.execute(held.values(**values)).rowcount != 1:
            raise OtherHolder
        kind, scope_id = queue.texts, queue.values["scope"]
        unchanged = kind.unchanged_texts(connection, [each.id for each in texts], scope_id)
        rows = [
            {"model_id": model_id, "scope_id": scope_id, kind.subject: each.id, "vector": vector}
            for each, vector in zip(texts, vectors, strict=True)
            if unchanged.get(each.id) == each.text
        ]
        if rows:
            connection.execute(_insert, rows)

    async def _finish(self, row: Row[Any]) -> None:
        """All texts have a vector: earlier models and their vectors are deleted."""
        if row.ready_at is None:
            await self._set(ready_at=utc_now(), problem=None)
        old = select(_vectors.c.id).where(_vectors.c.model_id != row.id).limit(DELETED_AT_ONCE)
        while await self._execute(delete(_vectors).where(_vectors.c.id.in_(old))):
            pass
        await self._execute(delete(_models).where(_models.c.id != row.id))
