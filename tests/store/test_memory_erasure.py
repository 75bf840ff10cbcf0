"""What was deleted from memory, by whatever deletion, is in no table and no file after the job."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from provider_service.services import ANN
from sqlalchemy import Connection, delete, func, select, text, update
from sqlalchemy.orm import Session

from luxx.domain.conversations.models import ConversationRow, MessageRow, ProjectRow
from luxx.domain.knowledge_bases import KnowledgeBaseRow
from luxx.errors import NotFound
from luxx.features.knowledge.chunks import Chunk
from luxx.features.knowledge.deletion import CHUNKS_AT_ONCE, LEFT_AFTER, BaseDeletion, delete_piece, hide_base
from luxx.features.knowledge.indexing import (
    CHUNK_TEXTS,
    ERASED_TABLES,
    changes_of,
    end_document,
    next_pending,
    words_of_chunks,
    write_changes,
)
from luxx.features.knowledge.models import DocumentRow
from luxx.features.knowledge.rows import NewDocument, store_document
from luxx.features.knowledge.service import KnowledgeService, NewBase
from luxx.features.memory.erasure import Erasure
from luxx.features.memory.facts import Author, FactWriter, NewSource
from luxx.features.memory.scopes import USER_SCOPE, ScopeName, stored_scope, visible_scopes
from luxx.features.memory.service import FactFilter, MemoryService
from luxx.features.memory.views import FactChanges, NewFact, facts
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.maintenance import only_process
from luxx.infra.store.tables import Base, Lock, table_of
from luxx.wire.memory import EpisodeStatus, ScopeKind, SourceKind
from store.test_memory import PROJECT, fill

CANARY = "canaryxq"
MESSAGES = (new_id(), new_id())
DELETED_AT_ONCE = 300
TABLES = (
    "facts", "fact_sources", "mentions", "entities", "memory_texts", "memory_changes", "memory_deletions"
)  # fmt: skip


def add_messages(session: Session) -> None:
    now, conversation_id = utc_now(), new_id()
    session.add(
        ConversationRow(id=conversation_id, user_id=ANN.user_id, title="c", created_at=now, updated_at=now)
    )
    session.flush()
    for message_id in MESSAGES:
        session.add(
            MessageRow(
                id=message_id, user_id=ANN.user_id, conversation_id=conversation_id, role="user",
                content='{"text":"no word of it"}', created_at=now,
            )
        )  # fmt: skip


@pytest.fixture
def store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    with Session(store.engine) as session, session.begin():
        fill(session)
        add_messages(session)
    yield store
    store.close()


def add_extracted(connection: Connection, number: int, *message_ids: str) -> str:
    """Adds a fact that was taken from these messages; returns its id."""
    scope = stored_scope(connection, visible_scopes(connection, ANN), USER_SCOPE)
    sources = [
        NewSource(kind=SourceKind.MESSAGE, message_id=each, quote=f"{CANARY} {number}")
        for each in message_ids
    ]
    author = Author(user_id=ANN.user_id, sources=sources)
    new = NewFact(text=f"{CANARY} {number}", subject=f"{CANARY} subject {number}", object="kept")
    row_id = FactWriter().add(connection, scope, new, author, utc_now())
    return connection.execute(select(facts.c.uid).where(facts.c.id == row_id)).scalar_one()


def counts(connection: Connection) -> dict[str, int]:
    return {
        name: connection.execute(select(func.count()).select_from(Base.metadata.tables[name])).scalar_one()
        for name in TABLES
    }


def copies(folder: Path) -> list[str]:
    """The files that contain the canary."""
    return [path.name for path in folder.rglob("*") if CANARY.encode() in path.read_bytes().lower()]


def knowledge_of(store: Store) -> KnowledgeService:
    """The service, without its searches."""
    return KnowledgeService(store, cast(Any, None), BaseDeletion(store))


def delete_rows(row: type[Base], id_: str) -> Any:
    table = table_of(row)
    return lambda connection: connection.execute(delete(table).where(table.c.id == id_))


async def test_nothing_is_left_of_what_was_deleted(store: Store, tmp_path: Path) -> None:
    memory, erasure = MemoryService(store, FactWriter(), tmp_path), Erasure(store)
    await memory.create(ANN, NewFact(text="This stays.", subject="kept"))
    before = await store.read_rows(counts)
    by_hand = [
        await memory.create(
            ANN, NewFact(text=f"{CANARY} by hand {number}", subject=f"{CANARY} {number}", object="kept")
        )
        for number in range(20)
    ]
    await memory.change(ANN, by_hand[0].id, FactChanges(text=f"{CANARY} changed", subject="Someone else"))
    await memory.create(ANN, NewFact(text=f"{CANARY} of a project", scope=f"project:{PROJECT}"))
    for number, messages in enumerate((MESSAGES[:1], MESSAGES[1:])):
        uid = await store.write_rows(
            lambda connection, number=number, messages=messages: add_extracted(connection, number, *messages)
        )
        await memory.change(ANN, uid, FactChanges(text=f"{CANARY} edited {number}"))
    for fact in by_hand:
        await memory.delete(ANN, fact.id)
    await store.write_rows(delete_rows(ProjectRow, PROJECT))
    for message_id in MESSAGES:
        await store.write_rows(delete_rows(MessageRow, message_id))
    await erasure.erase_due()
    assert await store.read_rows(counts) == before
    assert copies(tmp_path) == []
    (left,), _ = await memory.list_page(ANN, FactFilter(), page=1, page_size=9)
    assert [entity.name for entity in left.entities] == ["kept"]


async def test_nothing_is_left_of_many_facts_that_were_deleted_at_once(store: Store, tmp_path: Path) -> None:
    """They move rows between pages, whose unused parts then have pieces of them."""
    memory = MemoryService(store, FactWriter(), tmp_path)

    def remember(connection: Connection) -> None:
        scope = stored_scope(connection, visible_scopes(connection, ANN), USER_SCOPE)
        by_hand, now = Author(user_id=ANN.user_id), utc_now()
        for number in range(DELETED_AT_ONCE):
            add_extracted(connection, number, MESSAGES[0])
            if number % 3 == 0:
                kept = NewFact(text=f"This stays, number {number}", subject=f"kept {number}", object="kept")
                FactWriter().add(connection, scope, kept, by_hand, now)

    await store.write_rows(remember)
    await store.write_rows(delete_rows(MessageRow, MESSAGES[0]))
    await Erasure(store).erase_due()
    assert copies(tmp_path) == []
    _, left = await memory.list_page(ANN, FactFilter(q="stays"), page=1, page_size=1)
    assert left == DELETED_AT_ONCE // 3


async def test_an_earlier_wording_goes_with_its_message_and_the_fact_stays(
    store: Store, tmp_path: Path
) -> None:
    memory = MemoryService(store, FactWriter(), tmp_path)
    uid = await store.write_rows(lambda connection: add_extracted(connection, 1, MESSAGES[0]))
    await memory.change(ANN, uid, FactChanges(text="It is said otherwise.", subject=None, object=None))

    def add_source(connection: Connection) -> None:
        table = Base.metadata.tables["fact_sources"]
        row_id = connection.execute(select(facts.c.id).where(facts.c.uid == uid)).scalar_one()
        connection.execute(table.insert().values(fact_id=row_id, kind="message", message_id=MESSAGES[1]))

    await store.write_rows(add_source)
    await memory.change(ANN, uid, FactChanges(text="It is said in a third way."))
    await store.write_rows(delete_rows(MessageRow, MESSAGES[0]))
    await Erasure(store).erase_due()
    assert (await memory.get(ANN, uid)).text == "It is said in a third way."
    changes, _ = await memory.changes(ANN, None, uid, page=1, page_size=9)
    assert [change.before["text"] for change in changes] == ["It is said otherwise."]
    assert copies(tmp_path) == []
    assert (await store.read_rows(counts))["entities"] == 0


async def test_nothing_is_left_of_the_documents_that_were_deleted_or_replaced(
    store: Store, tmp_path: Path
) -> None:
    base = await knowledge_of(store).create(ANN, NewBase(name="Bakery"))

    def add(connection: Connection, name: str, *texts: str) -> str:
        row = Session(connection).get_one(KnowledgeBaseRow, base.id)
        data = f"{CANARY} of {name}, {len(texts)}".encode()
        new = NewDocument(name=name, size=len(data), hash=f"{name}{len(texts)}", pieces=[data])
        document_id = store_document(connection, row, ANN.user_id, new, quota_mb=1)
        pending = next_pending(connection, base.id, ANN.user_id)
        assert pending is not None
        wanted = [Chunk(position=at, text=each, hash=each, tokens=9) for at, each in enumerate(texts)]
        changes = changes_of(connection, pending, wanted)
        words = words_of_chunks(connection.dialect.name, pending.scope_id, changes.new)
        write_changes(connection, pending, changes, words)
        end_document(connection, pending, EpisodeStatus.SYNCED, read=None, reason=None, count=len(texts))
        return document_id

    kept = await store.write_rows(lambda connection: add(connection, "kept", f"{CANARY} one", "Rye.", "Oat."))
    gone = await store.write_rows(
        lambda connection: add(connection, "gone", *[f"{CANARY} {n}" for n in range(50)])
    )
    assert copies(tmp_path) != [] or not store.is_sqlite
    await store.write_rows(delete_rows(DocumentRow, gone))
    await store.write_rows(lambda connection: add(connection, "kept", "Rye.", "Oat."))
    await store.write_rows(
        lambda connection: connection.execute(delete(Base.metadata.tables["document_pieces"]))
    )
    await Erasure(store, indexes=[CHUNK_TEXTS.full_text], tables=ERASED_TABLES).erase_due()
    assert copies(tmp_path) == []
    assert (await store.read_rows(counts))["memory_deletions"] == 0
    table = Base.metadata.tables["chunks"]
    rows = await store.read_rows(
        lambda connection: connection.execute(select(table.c.document_id, table.c.text)).all()
    )
    assert {tuple(row) for row in rows} == {(kept, "Rye."), (kept, "Oat.")}


async def test_a_deleted_base_is_hidden_at_once_and_deleted_in_pieces_also_after_a_kill(store: Store) -> None:
    knowledge = knowledge_of(store)
    base = await knowledge.create(ANN, NewBase(name="Bakery"))
    other = await knowledge.create(ANN, NewBase(name="Mill"))
    tables = {
        name: Base.metadata.tables[name] for name in ("chunks", "documents", "document_pieces", "facts")
    }

    def add(connection: Connection, base_id: str) -> None:
        row = Session(connection).get_one(KnowledgeBaseRow, base_id)
        new = NewDocument(name="a", size=9, hash="a", pieces=[b"a"] * 20)
        store_document(connection, row, ANN.user_id, new, quota_mb=1)
        pending = next_pending(connection, base_id, ANN.user_id)
        assert pending is not None
        wanted = [Chunk(position=at, text="Rye.", hash=str(at), tokens=9) for at in range(CHUNKS_AT_ONCE + 1)]
        write_changes(connection, pending, changes_of(connection, pending, wanted), ["rye"] * len(wanted))
        scope = visible_scopes(connection, ANN).named(ScopeName(ScopeKind.BASE, base_id))
        FactWriter().add(connection, scope, NewFact(text="Rye."), Author(user_id=ANN.user_id), utc_now())

    def left(connection: Connection) -> list[int]:
        return [connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables.values()]

    for each in (base, other):
        await store.write_rows(lambda connection, each=each: add(connection, each.id))
    one = [count // 2 for count in await store.read_rows(left)]

    # A process hides it and is killed after its first piece.
    await store.write(lambda session: hide_base(session, session.get_one(KnowledgeBaseRow, base.id)))
    assert [item.id for item in (await knowledge.list_page(ANN, None, page=1, page_size=9))[0]] == [other.id]
    with pytest.raises(NotFound):
        await knowledge.get(ANN, base.id)
    assert ScopeName(ScopeKind.BASE, base.id) not in {
        scope.name for scope in await store.read_rows(lambda connection: [*visible_scopes(connection, ANN)])
    }
    again = await knowledge.create(ANN, NewBase(name="Bakery"))
    assert await store.write_rows(partial(delete_piece, base.id))
    assert (await store.read_rows(left))[0] == 2 * one[0] - CHUNKS_AT_ONCE

    deletion = BaseDeletion(store)
    await deletion.finish_due()  # It may be a request that goes on.
    assert (await store.read_rows(left))[0] == 2 * one[0] - CHUNKS_AT_ONCE
    aged = update(KnowledgeBaseRow).where(KnowledgeBaseRow.deleted_at.is_not(None))
    await store.write_rows(
        lambda connection: connection.execute(aged.values(deleted_at=utc_now() - 2 * LEFT_AFTER))
    )
    await deletion.finish_due()
    assert await store.read_rows(left) == one
    for each in (other, again):
        await knowledge.delete(ANN, each.id)
    assert await store.read_rows(left) == [0] * len(tables)
    bases = select(func.count()).select_from(KnowledgeBaseRow)
    assert await store.read(lambda session: session.scalar(bases)) == 0


async def test_one_process_erases_at_a_time_and_a_long_read_delays_it(store: Store, tmp_path: Path) -> None:
    memory, erasure = MemoryService(store, FactWriter(), tmp_path), Erasure(store)
    fact = await memory.create(ANN, NewFact(text=CANARY))
    with store.reading.connect() as reader:
        reader.execute(text("SELECT count(*) FROM facts")).scalar()
        await memory.delete(ANN, fact.id)
        if store.is_sqlite:
            await erasure.erase_due()
        else:
            with only_process(store.engine, Lock.MEMORY_ERASURE) as other:
                assert other is not None
                await erasure.erase_due()
        assert (await store.read_rows(counts))["memory_deletions"] > 0
    await asyncio.gather(erasure.erase_due(), Erasure(store).erase_due())
    await erasure.erase_due()
    assert (await store.read_rows(counts))["memory_deletions"] == 0
    assert copies(tmp_path) == []
