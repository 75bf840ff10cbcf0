"""Vectors of the texts of memory, made in the background: the test of a model, then 64 texts a step.

What a step made is stored with it, so a process that is killed costs one step, and the next one goes on. One
process works at a time: it holds the row of the model, and another one takes over when it stops renewing
that. The vectors of an earlier model are searched, and deleted last, when the new one has all.
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
    Select,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.conversations.models import ProjectRow
from luxx.errors import LuxxError, NotFound, ProviderError, ProviderRefused
from luxx.features.memory.models import FactRow, MemoryScopeRow
from luxx.features.memory.vectors.models import EmbeddingModelRow, EmbeddingRow
from luxx.features.memory.vectors.search import packed
from luxx.features.memory.vectors.self_test import bilingual_set, result_of
from luxx.features.memory.vectors.source import EmbeddingSource, PaidBy, Payer, all_models, has_passed
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.providers.models import ProviderRow
from luxx.wire.memory import ScopeKind
from luxx.wire.model_settings import MemoryMode

LOOK_SECONDS = 1.0
"""How often a process looks for new texts."""

SWEEP_SECONDS = 60.0
"""How often it looks for texts that have lost their vector, besides."""

TEXTS_AT_ONCE = 64
HELD_SECONDS = 180.0
"""How long a process may take for one step; then another one takes over."""

DELETED_AT_ONCE = 1_000
FIRST_WAIT, LONGEST_WAIT = 10.0, 600.0
"""Seconds until it is tried again after a failure."""

TEST_AGAIN = timedelta(days=1)
"""When a model that found too little is tested again: its server may have another one by then."""

TOO_LITTLE = "it finds less than words do, so only words are searched"
_REFUSED = (400, 413, 422)

_models, _vectors = table_of(EmbeddingModelRow), table_of(EmbeddingRow)
_facts, _scopes = table_of(FactRow), table_of(MemoryScopeRow)
_users, _settings = table_of(User), table_of(UserSettings)
_projects, _rooms, _providers = table_of(ProjectRow), table_of(ChatRoomRow), table_of(ProviderRow)

_pending = (
    select(_facts.c.id, _facts.c.text)
    .outerjoin(_vectors, and_(_vectors.c.fact_id == _facts.c.id, _vectors.c.model_id == bindparam("model")))
    .where(_facts.c.scope_id == bindparam("scope"), _facts.c.id > bindparam("after"), _vectors.c.id.is_(None))
    .order_by(_facts.c.id)
    .limit(TEXTS_AT_ONCE)
)
_unchanged = select(_facts.c.id, _facts.c.text).where(_facts.c.id.in_(bindparam("ids", expanding=True)))
_insert = insert(_vectors)
_newest = select(func.max(_facts.c.id))

logger = structlog.get_logger()


class OtherHolder(Exception):
    """Another process has taken the work over."""


def pending_of(model_id: int) -> Select[Any]:
    """The facts without a vector of the model, in any scope."""
    has_vector = (
        select(_vectors.c.id)
        .where(_vectors.c.fact_id == _facts.c.id, _vectors.c.model_id == model_id)
        .exists()
    )
    return select(_facts.c.id).where(~has_vector)


@dataclass(slots=True, repr=False)
class EmbeddingWork:
    """One per process."""

    source: EmbeddingSource
    process_id: str
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
        newest = await self.source.store.read_rows(lambda connection: connection.scalar(_newest))
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
        if has_passed(row):
            is_whole = True
            for scope in await store.read_rows(partial(self._scopes, row.id)):
                is_whole &= await self._embed_scope(row.id, scope.id, scope.payer)
            if is_whole:
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
        if is_held:
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

    def _owner(self, session: Session) -> Payer:
        owner = session.scalar(select(_providers.c.user_id).where(_providers.c.id == self.source.provider_id))
        if owner is None:
            raise NotFound(
                f"there is no provider {self.source.provider_id} any more; set memory.embedding to another",
                kind="provider_not_found",
            )
        return self._payer(owner, session)

    def _payer(self, user_id: int, session: Session) -> Payer:
        return self.source.payer(session, user_id, self.source.provider_id, self.source.config.model)

    async def _embed(self, payer: Payer, texts: list[str], *, is_query: bool) -> list[list[float]]:
        vectors: list[list[float]] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            vectors += await self.source.embed(payer, some, PaidBy(), is_query=is_query)
        return vectors

    def _scopes(self, model_id: int, connection: Connection) -> Sequence[Row[int, int]]:
        """The scopes with facts that have no vector, with who pays for them."""
        ids = select(_facts.c.scope_id).where(_facts.c.id.in_(pending_of(model_id))).distinct()
        provider = connection.execute(
            select(_providers).where(_providers.c.id == self.source.provider_id)
        ).one_or_none()
        if provider is None:
            return []
        return connection.execute(_paid_scopes(provider).where(_scopes.c.id.in_(ids))).all()

    async def _embed_scope(self, model_id: int, scope_id: int, user_id: int) -> bool:
        """Makes the vectors of a scope; False: not all, because who pays may not or has no budget."""
        store, after = self.source.store, 0
        if self._barred.get(user_id, 0.0) > time.monotonic():
            return False
        try:
            payer = await store.read(partial(self._payer, user_id))
            while texts := await store.read_rows(partial(_next_texts, model_id, scope_id, after)):
                vectors = await self._vectors_of(payer, texts)
                await store.write_rows(partial(self._store, model_id, scope_id, texts, vectors))
                after = texts[-1].id
                payer = await store.read(partial(self._payer, user_id))
        except ProviderError:
            raise
        except LuxxError as error:
            self._barred[user_id] = time.monotonic() + SWEEP_SECONDS
            logger.info("embedding_waits", user_id=user_id, kind=error.kind)
            return False
        return True

    async def _vectors_of(self, payer: Payer, texts: Sequence[Row[int, str]]) -> list[bytes | None]:
        """The vectors of one step. A text that the model refuses alone has none."""
        try:
            found = await self._embed(payer, [row.text for row in texts], is_query=False)
        except ProviderRefused as error:
            if len(texts) == 1 or error.status not in _REFUSED:
                raise
            return await self._one_by_one(payer, texts, error)
        return await asyncio.to_thread(lambda: [packed(vector) for vector in found])

    async def _one_by_one(
        self, payer: Payer, texts: Sequence[Row[int, str]], first: ProviderRefused
    ) -> list[bytes | None]:
        found: list[bytes | None] = []
        for row in texts:
            try:
                [vector] = await self._embed(payer, [row.text], is_query=False)
                found.append(packed(vector))
            except ProviderRefused as error:
                if error.status not in _REFUSED:
                    raise
                found.append(None)
        if not any(found):
            raise first
        return found

    def _store(
        self,
        model_id: int,
        scope_id: int,
        texts: Sequence[Row[int, str]],
        vectors: Sequence[bytes | None],
        connection: Connection,
    ) -> None:
        """Stores a step, without texts that have changed meanwhile, and goes on holding the model."""
        now = utc_now()
        held = update(_models).where(_models.c.id == model_id, _models.c.holder == self.process_id)
        values = {"held_until": now + timedelta(seconds=HELD_SECONDS), "problem": None}
        if connection.execute(held.values(**values)).rowcount != 1:
            raise OtherHolder
        ids = [row.id for row in texts]
        unchanged = dict(connection.execute(_unchanged.with_for_update(), {"ids": ids}).all())
        rows = [
            {"model_id": model_id, "scope_id": scope_id, "fact_id": row.id, "vector": vector}
            for row, vector in zip(texts, vectors, strict=True)
            if unchanged.get(row.id) == row.text
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


def _next_texts(model_id: int, scope_id: int, after: int, connection: Connection) -> Sequence[Row[int, str]]:
    values = {"model": model_id, "scope": scope_id, "after": after}
    return connection.execute(_pending, values).all()


def _paid_scopes(provider: Row[Any]) -> Select[int, int]:
    """The scopes whose texts a provider may read, with the user who pays: the user themselves, the owner of
    the project or room, for a tenant the owner of the provider. Nothing is sent of users who turned memory
    off."""
    is_of_tenant = and_(_scopes.c.kind == ScopeKind.TENANT.value, _scopes.c.tenant_id == provider.tenant_id)
    payer = func.coalesce(
        _scopes.c.user_id, _projects.c.user_id, _rooms.c.user_id, case((is_of_tenant, provider.user_id))
    )
    may_use = _users.c.id == provider.user_id
    if provider.is_shared:
        may_use = or_(may_use, _users.c.tenant_id == provider.tenant_id)
    return (
        select(_scopes.c.id, _users.c.id.label("payer"))
        .outerjoin(_projects, _projects.c.id == _scopes.c.project_id)
        .outerjoin(_rooms, _rooms.c.id == _scopes.c.room_id)
        .join(_users, _users.c.id == payer)
        .outerjoin(_settings, _settings.c.user_id == _users.c.id)
        .where(
            _users.c.is_active,
            or_(_settings.c.memory.is_(None), _settings.c.memory != MemoryMode.OFF.value),
            may_use,
        )
        .order_by(_scopes.c.id)
    )
