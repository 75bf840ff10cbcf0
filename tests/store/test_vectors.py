"""Vectors of facts on both databases: for whom they are made, and a change of model that is killed midway."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from provider_service.services import ANN, BOB, EVE
from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.features.knowledge.chunks import Chunk
from luxx.features.knowledge.indexing import ChunkChanges, next_pending, words_of_chunks, write_changes
from luxx.features.knowledge.models import DocumentRow
from luxx.features.knowledge.rows import CHUNKS, NewDocument, store_document
from luxx.features.knowledge.search import ChunkSearch
from luxx.features.knowledge.service import BaseColumns, add_base
from luxx.features.memory.facts import Author, FactWriter
from luxx.features.memory.models import FactRow
from luxx.features.memory.retrieval import RecallQuery, recall
from luxx.features.memory.scopes import USER_SCOPE, stored_scope, visible_scopes
from luxx.features.memory.vectors.arm import Asked, VectorArm
from luxx.features.memory.vectors.background import EmbeddingWork
from luxx.features.memory.vectors.models import EmbeddingModelRow, EmbeddingRow
from luxx.features.memory.vectors.self_test import bilingual_set
from luxx.features.memory.vectors.source import EmbeddingSource, PaidBy
from luxx.features.memory.vectors.texts import FACTS
from luxx.features.memory.views import NewFact
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import EmbeddingConfig, LimitsConfig, LocalConfig, MemoryConfig, ProvidersConfig
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.addresses import AddressGuard
from luxx.providers.client import ModelClient
from luxx.providers.embedding import EmbeddingClient
from luxx.providers.local.embedder import Embedder
from luxx.providers.models import ProviderRow
from luxx.providers.scripted import Script, ScriptedProvider, Vectors
from luxx.providers.service import ProviderService
from luxx.providers.transport import Transport
from luxx.runs.engine.processes import ProcessKind, register, this_process, unregister
from store.test_memory import ADMIN, fill

COUNT = 640
PROCESS = this_process("process-2", ProcessKind.SERVE)
QUESTION, FACT = "Which cake harms my wife?", "Anna is allergic to walnuts."
ANSWERS = {each.text: bilingual_set().memories[each.expected].text for each in bilingual_set().questions}
GOOD = Vectors(dimensions=64, meanings={QUESTION: FACT, **ANSWERS})


@pytest.fixture
def store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    with Session(store.engine) as session, session.begin():
        fill(session)
    yield store
    store.close()


def remember(who: Caller, texts: list[str], connection: Connection) -> None:
    scope = stored_scope(connection, visible_scopes(connection, who), USER_SCOPE)
    writer, now = FactWriter(), utc_now()
    for text in texts:
        writer.add(connection, scope, NewFact(text=text), Author(user_id=who.user_id), now)


def add_document(owner: Caller, adder: Caller, texts: list[str], session: Session) -> int:
    """A document in a new base; its chunks are these texts. Returns the id of the scope of the base."""
    connection = session.connection()
    base = add_base(session, owner, BaseColumns(name="Handbook", is_shared=False))
    data = NewDocument(name="a.md", size=1, hash="", pieces=[b"a"])
    store_document(connection, base, adder.user_id, data, quota_mb=1)
    document = next_pending(connection, base.id, adder.user_id)
    assert document is not None
    chunks = [
        Chunk(position=position, text=text, hash=str(position), tokens=9)
        for position, text in enumerate(texts)
    ]
    words = words_of_chunks(connection.dialect.name, document.scope_id, chunks)
    write_changes(connection, document, ChunkChanges(new=chunks), words)
    return document.scope_id


async def first_passage(source: EmbeddingSource, scope_id: int) -> str:
    """The best passage for the question; without a vector none is found."""
    arm = VectorArm(MemoryConfig(embedding=source.config))
    arm.source = source
    search = ChunkSearch(source.store, MemoryConfig(), arm)
    found = await search.find(lambda _session: [scope_id], QUESTION, user_id=ANN.user_id, limit=1)
    return found.items[0].text if found.items else ""


@asynccontextmanager
async def embedding(store: Store, model: ScriptedProvider) -> AsyncIterator[dict[str, EmbeddingSource]]:
    """A source for each of two models of a provider that the administrator of a tenant shares with it."""
    config = ProvidersConfig(retries=0)
    guard = AddressGuard(store, [model.host_port])
    transport = Transport(config, guard)
    providers = ProviderService(store, Vault("s" * 32), ModelClient(transport, config), guard)
    now = utc_now()
    row = ProviderRow(
        name="vectors", user_id=ADMIN.user_id, tenant_id=1, provider_type="openai_compatible",
        base_url=f"{model.url}/v1", is_shared=True, created_at=now, updated_at=now,
    )  # fmt: skip

    def add(session: Session) -> int:
        session.add(row)
        session.flush()
        return row.id

    provider_id = await store.write(add)
    client = EmbeddingClient(transport, config)
    yield {
        name: EmbeddingSource(
            store=store,
            providers=providers,
            client=client,
            config=EmbeddingConfig(provider_id=provider_id, model=name),
            limits=LimitsConfig(),
            embedder=Embedder(LocalConfig(), Path()),
        )
        for name in ("first", "second")
    }
    await transport.aclose()


def work_of(source: EmbeddingSource, process_id: str) -> EmbeddingWork:
    return EmbeddingWork(source, process_id, (FACTS, CHUNKS))


async def counted(store: Store) -> dict[str, int]:
    """The vectors of each model."""
    query = (
        select(EmbeddingModelRow.name, func.count(EmbeddingRow.id))
        .outerjoin(EmbeddingRow, EmbeddingRow.model_id == EmbeddingModelRow.id)
        .group_by(EmbeddingModelRow.name)
    )
    return dict(await store.read_rows(lambda connection: connection.execute(query).all()))


async def first_answer(source: EmbeddingSource) -> tuple[str, list[str]]:
    """The model whose vectors are searched, and the arms that find the fact that answers the question."""
    store, config = source.store, MemoryConfig(embedding=source.config)
    arm = VectorArm(config)
    arm.source = source
    scopes = await store.read_rows(lambda connection: visible_scopes(connection, ANN))
    askable = await store.read(lambda session: arm.askable(session, ANN.user_id, scopes.ids))
    asked = await arm.ask(askable, QUESTION, PaidBy())
    assert isinstance(asked, Asked)
    wanted = RecallQuery(text=QUESTION, now=utc_now())
    item = await store.read_rows(
        lambda connection: recall(
            connection, scopes, wanted, config, arm.ranked(connection, scopes, wanted, asked)
        )[0]
    )
    assert item.text == FACT
    return asked.model.name, item.arms


async def test_another_model_takes_over_although_its_work_is_killed_midway(store: Store) -> None:
    anns = [FACT, *(f"Fact {number} is about machine {number * 7}." for number in range(1, COUNT))]
    await store.write_rows(lambda connection: remember(ANN, anns, connection))
    await store.write_rows(lambda connection: remember(EVE, ["Eve likes tea."], connection))
    await store.write(partial(add_document, EVE, EVE, [FACT]))
    passages = ["Bread is baked at night.", FACT, "Rye is milled on Monday."]
    scope_id = await store.write(partial(add_document, ANN, BOB, passages))
    async with (
        ScriptedProvider(Script(rules=[], embeddings=GOOD)) as model,
        embedding(store, model) as sources,
    ):
        await work_of(sources["first"], "process-1").look()
        assert await counted(store) == {"first": COUNT + len(passages)}, (
            "none of a tenant that may not use the provider"
        )
        assert await first_answer(sources["first"]) == ("first", ["vector"])
        assert await first_passage(sources["first"], scope_id) == FACT

        await store.write_rows(lambda connection: register(connection, PROCESS, 600.0))
        work = asyncio.create_task(work_of(sources["second"], PROCESS.id).look())
        await model.arrived(len(model.requests) + 5)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        midway = await counted(store)
        assert midway["first"] == COUNT + len(passages)
        assert 0 < midway["second"] < COUNT
        assert await first_answer(sources["second"]) == ("first", ["vector"])
        assert await first_passage(sources["second"], scope_id) == FACT

        await work_of(sources["second"], "process-3").look()
        assert await counted(store) == midway, "a process that is alive holds it"
        await store.write_rows(lambda connection: unregister(connection, PROCESS.id))
        sent = len(model.requests)
        await work_of(sources["second"], "process-3").look()
        assert await counted(store) == {"second": COUNT + len(passages)}
        texts = [text for request in model.requests[sent:] for text in request.json["input"]]
        assert len(texts) == len(set(texts)) == COUNT + len(passages) - midway["second"], (
            "nothing is made twice"
        )
        assert await first_answer(sources["second"]) == ("second", ["vector"])
        assert await first_passage(sources["second"], scope_id) == FACT

        changed = update(FactRow).where(FactRow.text == FACT).values(text="Anna eats nuts.")
        await store.write(lambda session: session.execute(changed))
        assert await counted(store) == {"second": COUNT + len(passages) - 1}
        await store.write(lambda session: session.execute(delete(FactRow)))
        assert await counted(store) == {"second": len(passages)}
        await store.write(lambda session: session.execute(delete(DocumentRow)))
        assert await counted(store) == {"second": 0}
