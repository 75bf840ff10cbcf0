"""The graph of memory on both databases: entities are merged only by people, which can be undone; pictures,
and files.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from provider_service.services import ANN, BOB, EVE
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.memory.facts import FactWriter
from luxx.features.memory.graph import GraphQuery, GraphService
from luxx.features.memory.graph_export import GraphFormat
from luxx.features.memory.service import MemoryService
from luxx.features.memory.views import NewFact
from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.test_memory import PROJECT, fill

DIFFERENT_NAMES = [
    ("张伟", "张威"), ("Release 4.1", "Release 4.2"), ("Anna Meyer", "Anna Mayer"), ("C", "C++"),
    ("Java", "JavaScript"), ("Building 7", "Building 17"), ("2025 budget", "2026 budget"),
]  # fmt: skip


class Memory:
    """Ann's memory: what she stores, and its graph."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.facts = MemoryService(store, FactWriter(), folder)
        self.graph = GraphService(store, folder)

    async def knows(self, *pairs: tuple[str, str], scope: str = "user") -> dict[str, str]:
        """Stores that one knows the other; returns the ids of the entities by name."""
        ids: dict[str, str] = {}
        for subject, object_ in pairs:
            text = f"{subject} knows {object_}."
            new = NewFact(text=text, subject=subject, predicate="knows", object=object_, scope=scope)
            fact = await self.facts.create(ANN, new)
            ids |= {entity.name: entity.id for entity in fact.entities}
        return ids

    async def names(self, query: str) -> list[Any]:
        return [row[0] for row in (await self.graph.query(ANN, GraphQuery(query=query))).rows]

    async def exported(self, format_: GraphFormat = GraphFormat.JSON, person: Caller = ANN) -> str:
        file, size = await self.graph.export(person, None, format_)
        with file:
            text = file.read()
        assert len(text) == size
        return text.decode()


@pytest.fixture
def memory(ready_url: str, tmp_path: Path) -> Iterator[Memory]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    with Session(store.engine) as session, session.begin():
        fill(session)
    memory = Memory(store, tmp_path)
    yield memory
    memory.graph.close()
    store.close()


async def test_a_split_restores_what_was_before_a_merge_and_both_can_be_undone(memory: Memory) -> None:
    ids = await memory.knows(("Ann", "Ben"), ("Anna", "Carl"), ("A.", "Dora"))
    before = await memory.exported()
    for one, into in (("A.", "Anna"), ("Anna", "Ann")):
        await memory.graph.merge(ANN, ids[one], ids[into])
    merged = await memory.exported()
    friends = "MATCH (:Entity {name: 'Ann'})-[:RELATES_TO]->(b) RETURN b.name ORDER BY b.name"
    assert await memory.names(friends) == ["Ben", "Carl", "Dora"]
    shown = await memory.graph.entity(ANN, ids["Ann"])
    assert [part.name for part in shown.merged] == ["Anna", "A."]
    assert len(shown.facts) == 3
    assert (await memory.graph.split(ANN, ids["Ann"], ids["Anna"])).merged_into is None
    assert await memory.names(friends) == ["Ben"]
    changes, _ = await memory.facts.changes(ANN, None, None, page=1, page_size=10)
    assert [change.kind for change in changes] == ["split", "merge", "merge"]
    await memory.facts.undo(ANN, changes[0].id)
    assert await memory.exported() == merged
    for change in changes[1:]:
        await memory.facts.undo(ANN, change.id)
    assert await memory.exported() == before


async def test_wrong_merges_are_refused(memory: Memory) -> None:
    ids = await memory.knows(("Ann", "Ben"), ("Anna", "Carl"))
    other = await memory.knows(("Ann", "Prague"), scope=f"project:{PROJECT}")
    merge = memory.graph.merge
    for error, attempt in (
        (InvalidInput, merge(ANN, ids["Ann"], ids["Ann"])),
        (InvalidInput, merge(ANN, ids["Ann"], other["Ann"])),
        (NotFound, merge(EVE, ids["Ann"], ids["Anna"])),
        (NotFound, merge(BOB, ids["Ann"], ids["Anna"])),
        (NotFound, memory.graph.entity(EVE, ids["Ann"])),
        (Conflict, memory.graph.split(ANN, ids["Ann"], ids["Anna"])),
    ):
        with pytest.raises(error):
            await attempt
    await merge(ANN, ids["Anna"], ids["Ann"])
    for one, into in (("Anna", "Ben"), ("Ben", "Anna")):
        with pytest.raises(Conflict):
            await merge(ANN, ids[one], ids[into])


async def test_different_names_are_different_entities(memory: Memory) -> None:
    await memory.knows(*DIFFERENT_NAMES)
    names = {name for pair in DIFFERENT_NAMES for name in pair}
    assert set(await memory.names("MATCH (n:Entity) RETURN n.name")) == names


async def test_a_picture_has_the_nodes_around_one_and_says_what_it_leaves_out(memory: Memory) -> None:
    ids = await memory.knows(("a", "b"), ("b", "c"), ("c", "d"), ("b", "a"))
    near = await memory.graph.overview(ANN, None, ids["a"], depth=1, limit=10)
    assert [node.name for node in near.nodes] == ["a", "b"]
    assert sorted(near.edges) == [(0, 1, 1), (1, 0, 1)]
    assert not near.truncated
    far = await memory.graph.overview(ANN, None, ids["a"], depth=3, limit=10)
    assert sorted(node.name for node in far.nodes) == ["a", "b", "c", "d"]
    first = await memory.graph.overview(ANN, None, None, depth=1, limit=2)
    assert [node.name for node in first.nodes] == ["b", "a"]
    assert first.truncated
    assert (await memory.graph.overview(EVE, None, None, depth=1, limit=10)).nodes == []


async def test_files_of_the_graph_can_be_read_by_others(memory: Memory) -> None:
    await memory.knows(('O\'Neil "the" <b>', "\\back; {x: 1}"))
    exported = json.loads(await memory.exported())
    assert {node["name"] for node in exported["nodes"]} == {'O\'Neil "the" <b>', "\\back; {x: 1}"}
    xml = ElementTree.fromstring(await memory.exported(GraphFormat.GRAPHML))
    assert len(xml.findall(".//{*}node")) == 2
    assert len(xml.findall(".//{*}edge")) == 1
    assert (await memory.exported(GraphFormat.CYPHER, EVE)).count("CREATE (") == 0


async def test_others_are_answered_while_a_query_takes_its_two_seconds(memory: Memory) -> None:
    await memory.knows(*((f"n{number}", f"n{number + 1}") for number in range(12)))
    slow = GraphQuery(query=f"MATCH {', '.join(f'({name}:Entity)' for name in 'abcdefghi')} RETURN count(*)")
    running = asyncio.gather(*(memory.graph.query(ANN, slow) for _ in range(2)), return_exceptions=True)
    await asyncio.sleep(0)
    found, _ = await asyncio.wait_for(memory.graph.entities(ANN, None, "N1", None, page=1, page_size=20), 1)
    assert [entity.name for entity in found] == ["n1", "n10", "n11", "n12"]
    assert not running.done()
    assert [getattr(error, "kind", None) for error in await running] == ["query_timeout"] * 2
