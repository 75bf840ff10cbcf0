"""Facts on both databases: what was true and known when, undoing, deletion, scopes of other people, and many
writers at once.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from provider_service.services import ANN, BOB, EVE, OTHER_ADMIN, caller
from sqlalchemy import Connection, func, select, text
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.backup.user_export import ImportedIds
from luxx.domain.conversations.models import ProjectRow
from luxx.errors import Conflict, InvalidInput, LuxxError, NotAllowed, NotFound
from luxx.features.memory.entities import NewEntity
from luxx.features.memory.facts import Author, FactWriter, retire
from luxx.features.memory.models import EntityRow, FactRow, MemoryScopeRow
from luxx.features.memory.retrieval import READ_FIRST, RecalledItem, RecallQuery, recall
from luxx.features.memory.scopes import USER_SCOPE, Place, parse_scope, visible_scopes
from luxx.features.memory.service import FactFilter, MemoryService, find_fact
from luxx.features.memory.user_export import add_memory, read_memory
from luxx.features.memory.views import FactChanges, NewFact
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.tables import Base
from luxx.runs.models import SubjectMemberRow
from luxx.wire.memory import FactCategory
from luxx.wire.tool import CommandPermission

ADMIN = caller(1, 1, CommandPermission.ADMIN)
PEOPLE = (ADMIN, ANN, BOB, OTHER_ADMIN, EVE)
PROJECT, ROOM = new_id(), new_id()
MEMORY_TABLES = (
    "facts", "fact_sources", "mentions", "entities", "memory_texts", "memory_changes", "communities"
)  # fmt: skip


def fill(session: Session) -> None:
    """Two tenants; Ann has a project and a room, in which Bob may watch."""
    now = utc_now()
    for tenant_id, name in ((1, "default"), (2, "other")):
        session.add(Tenant(id=tenant_id, name=name, is_default=tenant_id == 1, created_at=now))
    session.flush()
    for who in PEOPLE:
        session.add(
            User(
                id=who.user_id, tenant_id=who.tenant_id, username=who.username, username_key=who.username,
                password_hash="x", role="admin" if who.is_admin else "user",
                permission_level=int(who.permission_level), created_at=now,
            )
        )  # fmt: skip
    session.flush()
    session.add(ProjectRow(id=PROJECT, user_id=ANN.user_id, name="p", created_at=now, updated_at=now))
    session.add(
        ChatRoomRow(
            id=ROOM, user_id=ANN.user_id, tenant_id=1, title="r", task="t", policy='{"name":"round_robin"}',
            created_at=now, updated_at=now,
        )
    )  # fmt: skip
    session.add(
        SubjectMemberRow(
            subject_id=ROOM, user_id=BOB.user_id, owner_id=ANN.user_id, right="watch", created_at=now
        )
    )


@pytest.fixture
def store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    with Session(store.engine) as session, session.begin():
        fill(session)
    yield store
    store.close()


@pytest.fixture
def memory(store: Store) -> MemoryService:
    return MemoryService(store, FactWriter(), Path())


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


async def texts(memory: MemoryService, who: Caller, **wanted: Any) -> list[str]:
    found, total = await memory.list_page(who, FactFilter(**wanted), page=1, page_size=100)
    assert total == len(found)
    return sorted(fact.text for fact in found)


async def state(store: Store) -> dict[str, list[Any]]:
    """All of memory, except the list of changes and what numbers the rows."""

    def read(session: Session) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {}
        for name in ("facts", "fact_sources", "mentions", "entities", "memory_texts"):
            table = Base.metadata.tables[name]
            columns = [column for column in table.c if column.name != "id" or name == "facts"]
            found = [tuple(map(str, row)) for row in session.execute(select(*columns))]
            rows[name] = sorted(found)
        return rows

    return await store.read(read)


async def test_a_fact_is_stored_found_changed_undone_and_deleted(store: Store, memory: MemoryService) -> None:
    new = NewFact(
        text=" Anna marries Ben in Prague. ", subject="Anna", predicate="marries", object="Ben",
        entities=[NewEntity(name="Prague", type="place"), NewEntity(name="anna", type="person")],
        valid_at=day(12),
    )  # fmt: skip
    fact = await memory.create(ANN, new)
    assert (fact.text, fact.subject, fact.object) == ("Anna marries Ben in Prague.", "anna", "Ben")
    assert [(entity.name, entity.type) for entity in fact.entities] == [
        ("anna", "person"), ("Ben", "thing"), ("Prague", "place")
    ]  # fmt: skip
    assert [source.id for source in fact.sources] == [str(ANN.user_id)]
    assert await memory.get(ANN, fact.id) == fact
    for words in ("prague", "BEN", "january", "2026-01-12", "marr*"):
        assert await texts(memory, ANN, q=words) == [fact.text], words
    for words in ("berlin", "...", "prague berlin"):
        assert await texts(memory, ANN, q=words) == [], words
    before = await state(store)
    changed = await memory.change(
        ANN, fact.id, FactChanges(text="They marry in Brno.", object="Brno", entities=[])
    )
    assert (changed.id, changed.text, changed.object) == (fact.id, "They marry in Brno.", "Brno")
    assert changed.created_at > fact.created_at
    assert await texts(memory, ANN, q="prague") == []
    assert await texts(memory, ANN, q="prague", known_at=fact.created_at) == [fact.text]
    (change,), _ = await memory.changes(ANN, None, fact.id, page=1, page_size=10)
    assert (change.before["text"], change.after["text"]) == (fact.text, changed.text)
    await memory.undo(ANN, change.id)
    assert await memory.get(ANN, fact.id) == fact
    assert await state(store) == before
    with pytest.raises(Conflict):
        await memory.undo(ANN, change.id)
    await memory.change(ANN, fact.id, FactChanges(text="They marry in Ostrava.", pinned=True))
    await memory.delete(ANN, fact.id)
    for name in MEMORY_TABLES:
        counted = text(f"SELECT count(*) FROM {name}")
        assert await store.read(lambda session, counted=counted: session.scalar(counted)) == 0, name


async def test_only_the_newest_change_is_undone_and_a_retired_fact_comes_back(
    store: Store, memory: MemoryService
) -> None:
    fact = await memory.create(BOB, NewFact(text="The door is red."))
    before = await state(store)
    for colour in ("green", "blue"):
        await memory.change(BOB, fact.id, FactChanges(text=f"The door is {colour}."))
    (newest, oldest), _ = await memory.changes(BOB, None, None, page=1, page_size=10)
    with pytest.raises(Conflict) as refused:
        await memory.undo(BOB, oldest.id)
    assert refused.value.detail == {"change_id": newest.id}
    for change in (newest, oldest):
        await memory.undo(BOB, change.id)
    assert await state(store) == before

    def withdraw(session: Session) -> None:
        connection = session.connection()
        scopes = visible_scopes(connection, BOB)
        row = find_fact(connection, scopes, fact.id, is_locked=True)
        retire(connection, row, Author(user_id=BOB.user_id), utc_now())

    await store.write(withdraw)
    assert await texts(memory, BOB) == []
    with pytest.raises(Conflict):
        await memory.change(BOB, fact.id, FactChanges(text="x"))
    assert await memory.restore(BOB, fact.id) == fact
    assert await state(store) == before
    with pytest.raises(Conflict):
        await memory.restore(BOB, fact.id)
    ended = await memory.change(BOB, fact.id, FactChanges(invalid_at=day(5)))
    assert ended.invalid_at == day(5)
    assert (await memory.restore(BOB, fact.id)).invalid_at is None


async def test_people_read_and_write_only_their_scopes(store: Store, memory: MemoryService) -> None:
    project, room = f"project:{PROJECT}", f"room:{ROOM}"
    await memory.create(ANN, NewFact(text="own"))
    await memory.create(ANN, NewFact(text="project", scope=project))
    await memory.create(ANN, NewFact(text="room", scope=room))
    await memory.create(ADMIN, NewFact(text="tenant", scope="tenant"))
    await memory.create(OTHER_ADMIN, NewFact(text="other", scope="tenant"))
    read = {who.user_id: await texts(memory, who) for who in PEOPLE}
    assert read == {
        ADMIN.user_id: ["tenant"], ANN.user_id: ["own", "project", "room", "tenant"],
        BOB.user_id: ["room", "tenant"], OTHER_ADMIN.user_id: ["other"], EVE.user_id: ["other"],
    }  # fmt: skip
    facts, _ = await memory.list_page(ANN, FactFilter(), page=1, page_size=10)
    ids = {fact.text: fact.id for fact in facts}
    for who in PEOPLE:
        for fact_text, fact_id in ids.items():
            is_writer = (who is ANN and fact_text != "tenant") or (who is ADMIN and fact_text == "tenant")
            expected = NotFound if fact_text not in read[who.user_id] else NotAllowed
            if not is_writer:
                for attempt in (
                    memory.change(who, fact_id, FactChanges(text="x")),
                    memory.delete(who, fact_id),
                    memory.restore(who, fact_id),
                ):
                    with pytest.raises(expected):
                        await attempt
    for who, scope in ((BOB, project), (EVE, room), (BOB, f"room:{new_id()}")):
        with pytest.raises(NotFound):
            await memory.create(who, NewFact(text="x", scope=scope))
        with pytest.raises(NotFound):
            await memory.list_page(who, FactFilter(scope=scope), page=1, page_size=10)
    for who, scope in ((BOB, room), (EVE, "tenant"), (ANN, "tenant")):
        with pytest.raises(NotAllowed):
            await memory.create(who, NewFact(text="x", scope=scope))
    assert await memory.delete_many(BOB, None, "person") == 0
    assert await memory.delete_many(ANN, room, None) == 1
    assert await texts(memory, BOB) == ["tenant"]


async def test_a_place_restricts_the_scopes(store: Store) -> None:
    def names(session: Session, place: Place) -> set[str]:
        return {str(scope.name) for scope in visible_scopes(session.connection(), ANN, place)}

    project, room = f"project:{PROJECT}", f"room:{ROOM}"
    for place, expected in (
        (Place(), {"user", "tenant"}),
        (Place(project_id=PROJECT), {"user", "tenant", project}),
        (Place(room_id=ROOM), {"tenant", room}),
        (Place(is_shared=True), {"tenant"}),
        (Place(is_shared=True, project_id=PROJECT), {"tenant", project}),
        (Place(project_id=new_id()), {"user", "tenant"}),
    ):
        assert await store.read(lambda session, place=place: names(session, place)) == expected, place


async def test_many_writers_make_one_scope_and_one_entity(store: Store, memory: MemoryService) -> None:
    new = NewFact(text="Eve knows Zoë.", subject="Eve", object="Zoë", entities=[NewEntity(name="ZOË")])
    services = [memory, MemoryService(store, FactWriter(), Path())]
    await asyncio.gather(*(services[number % 2].create(EVE, new) for number in range(30)))

    def count(session: Session) -> list[int | None]:
        return [
            session.scalar(select(func.count()).select_from(row))
            for row in (MemoryScopeRow, EntityRow, FactRow)
        ]

    assert await store.read(count) == [1, 2, 30]


async def test_an_export_of_a_user_has_what_is_known(store: Store, memory: MemoryService) -> None:
    kiel = NewEntity(name="Kiel", type="city")
    new = NewFact(text="Anna owns a boat.", subject="Anna", object="boat", entities=[kiel])
    fact = await memory.create(ANN, new)
    await memory.change(ANN, fact.id, FactChanges(text="Anna owns a yacht.", valid_at=day(3)))
    await memory.create(ANN, NewFact(text="Of the project.", scope=f"project:{PROJECT}", pinned=True))
    await memory.create(BOB, NewFact(text="Anna owns a yacht."))
    exported = await store.read(lambda session: msgspec.to_builtins(read_memory(session, ANN, [PROJECT])))
    exported = msgspec.json.decode(msgspec.json.encode(exported))
    nothing, as_before = (ImportedIds(projects=ids, conversations={}) for ids in ([], [PROJECT]))
    assert await store.write(lambda session: add_memory(session, EVE, nothing, exported[:1])) == []
    (copy,), _ = await memory.list_page(EVE, FactFilter(), page=1, page_size=10)
    (kept,), _ = await memory.list_page(ANN, FactFilter(q="yacht"), page=1, page_size=10)
    for name in ("text", "subject", "object", "valid_at", "created_at", "category", "trusted"):
        assert getattr(copy, name) == getattr(kept, name), name
    assert [(entity.name, entity.type) for entity in copy.entities] == [
        (entity.name, entity.type) for entity in kept.entities
    ]
    assert copy.origin == "import"
    with pytest.raises(LuxxError):
        await store.write(lambda session: add_memory(session, EVE, nothing, exported))
    with pytest.raises(LuxxError):
        await store.write(lambda session: add_memory(session, EVE, nothing, [{"text": 5}]))
    for _ in range(2):  # Again: nothing is there twice.
        await store.write(lambda session: add_memory(session, ANN, as_before, exported))
    assert await texts(memory, ANN) == ["Anna owns a yacht.", "Of the project."]


async def test_a_full_scope_refuses_more(store: Store) -> None:
    memory = MemoryService(store, FactWriter(max_facts=20, max_entities=3), Path())
    for number in range(3):
        await memory.create(EVE, NewFact(text=f"fact {number}", subject=f"name {number}"))
    with pytest.raises(Conflict) as refused:
        await memory.create(EVE, NewFact(text="x", subject="one more"))
    assert "3 entities" in refused.value.message
    for number in range(3, 20):
        await memory.create(EVE, NewFact(text=f"fact {number}", subject="name 1"))
    with pytest.raises(Conflict) as refused:
        await memory.create(EVE, NewFact(text="x"))
    assert refused.value.kind == "memory_full"
    assert await memory.delete_many(EVE, "user", None) == 20
    await memory.create(EVE, NewFact(text="x"))


@pytest.mark.parametrize(
    "scope", ["", "users", "user:1", "project", "project:", "room", "tenant:x", "USER", "room:" + "x" * 60]
)
def test_a_wrong_scope_is_refused(scope: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_scope(scope)
    assert list(refused.value.fields) == ["scope"]


async def recalled(store: Store, who: Caller, text: str, **more: Any) -> list[RecalledItem]:
    def work(session: Session) -> list[RecalledItem]:
        connection = session.connection()
        query = RecallQuery(text=text, now=more.pop("now", utc_now()), **more)
        return recall(connection, visible_scopes(connection, who), query, MemoryConfig())

    return await store.read(work)


async def test_facts_are_recalled_by_words_and_by_what_they_are_connected_with(
    store: Store, memory: MemoryService
) -> None:
    for new in (
        NewFact(text="The wedding is in June.", subject="Anna", predicate="marries", object="Ben"),
        NewFact(
            text="Ben works at the Observatory.", subject="Ben", predicate="works at", object="Observatory"
        ),
        NewFact(text="The Observatory stands on a hill.", entities=[NewEntity(name="Observatory")]),
        NewFact(text="Carla prefers tea.", category=FactCategory.PREFERENCE, pinned=True),
        NewFact(text="Carla likes tea now.", category=FactCategory.PREFERENCE),
        NewFact(text="Carla likes tea now!"),
        NewFact(text="The old wedding was in May.", invalid_at=day(2)),
    ):
        await memory.create(ANN, new)
    await memory.create(EVE, NewFact(text="Eve's wedding is in July.", subject="Anna"))
    first, *rest = await recalled(store, ANN, "When are the weddings in June?")
    assert first.text == "The wedding is in June."
    assert (first.arms, first.reason) == (["keyword"], "words: weddings, June")
    assert "The old wedding was in May." not in [item.text for item in rest]
    by_graph = {item.text: item for item in await recalled(store, ANN, "What about Anna?")}
    assert by_graph["The wedding is in June."].reason == "words of its names or its day; connected with Anna"
    assert by_graph["Ben works at the Observatory."].reason == "connected with Ben"
    assert by_graph["Ben works at the Observatory."].arms == ["graph"]
    tea = await recalled(store, ANN, "tea, Carla?")
    assert [item.text for item in tea] == ["Carla prefers tea.", "Carla likes tea now!"]
    assert [item.text for item in await recalled(store, ANN, "tea", category=FactCategory.KNOWLEDGE)] == [
        "Carla likes tea now!"
    ]
    assert [item.text for item in await recalled(store, ANN, "old wedding", as_of=day(1), limit=1)] == [
        "The old wedding was in May."
    ]
    assert await recalled(store, ANN, "tea", known_at=day(1)) == []
    assert await recalled(store, EVE, "tea") == []
    for text_without_words in ("", "?!", '"', "*"):
        assert await recalled(store, ANN, text_without_words) == []


async def test_a_fact_behind_many_that_are_not_true_now_is_recalled(
    store: Store, memory: MemoryService
) -> None:
    await memory.create(ANN, NewFact(text="Oats are bought in Kiel."))
    later = utc_now() + timedelta(days=900)

    def add(connection: Connection) -> None:
        scope = visible_scopes(connection, ANN).named(USER_SCOPE)
        for number in range(2 * READ_FIRST):
            new = NewFact(text=f"Oats {number} are bought.", valid_at=later)
            FactWriter().add(connection, scope, new, Author(user_id=ANN.user_id), utc_now())

    await store.write_rows(add)
    [found] = await recalled(store, ANN, "Oats bought")
    assert found.text == "Oats are bought in Kiel."
    assert len(await recalled(store, ANN, "Oats bought", as_of=later, limit=50)) == 50
