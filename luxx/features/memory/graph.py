"""The graph of memory for people: a picture of it, entities and communities, merging, and queries."""

import asyncio
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, func, or_, select

from luxx.domain.accounts.caller import Caller
from luxx.errors import TooMany
from luxx.features.memory.cypher.parser import MAX_CHARACTERS
from luxx.features.memory.facts import Author
from luxx.features.memory.graph_export import GraphFormat, export_graph
from luxx.features.memory.graph_picture import (
    Graph,
    best_connected,
    entities_around,
    picture_of,
)
from luxx.features.memory.graph_query import MAX_ROWS, QueryResult, run_query
from luxx.features.memory.lexical import memory_name
from luxx.features.memory.merging import entities, find_entity, merge, split
from luxx.features.memory.models import CommunityRow, FactRow, MentionRow
from luxx.features.memory.scopes import Scopes, parse_scope, visible_scopes
from luxx.features.memory.views import NOW, Fact, FactTime, ScopeText, read_facts
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of

T = TypeVar("T")

MAX_NODES = 2_000
MAX_DEPTH = 4
SHOWN_FACTS = 100
"""Facts that an entity shows, newest first; `graph_query` finds the others."""

QUERIES_AT_ONCE = 2
MAX_WAITING_QUERIES = 16

_facts, _mentions = table_of(FactRow), table_of(MentionRow)
_communities = table_of(CommunityRow)


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity in lists."""

    id: str
    name: str
    type: str
    aliases: list[str]
    summary: str
    scope: str


class MergedEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity that was merged into another."""

    id: str
    name: str
    type: str


class EntityDetails(msgspec.Struct, frozen=True, kw_only=True):
    """An entity with those merged into it, the one it was merged into, and its newest facts."""

    id: str
    name: str
    type: str
    aliases: list[str]
    summary: str
    scope: str
    merged_into: str | None
    merged: list[MergedEntity]
    facts: list[Fact]


class Community(msgspec.Struct, frozen=True, kw_only=True):
    """Entities that facts connect closely."""

    id: str
    name: str
    summary: str
    scope: str
    member_count: int


class MergeTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of the entity that another is merged into."""

    into: Annotated[str, Meta(max_length=36)]


class SplitPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of the entity that is split off."""

    merged_id: Annotated[str, Meta(max_length=36)]


class GraphQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query in a read-only subset of openCypher. `parameters` are strings, numbers, booleans, null, and
    lists of these."""

    query: Annotated[str, Meta(max_length=MAX_CHARACTERS)]
    parameters: dict[str, Any] = {}
    scope: ScopeText | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = MAX_ROWS


class GraphService:
    """One per process."""

    def __init__(self, store: Store, data_dir: Path) -> None:
        self._store = store
        self._data_dir = data_dir
        # In threads of their own, so that slow queries leave the store's threads to others.
        self._threads = ThreadPoolExecutor(QUERIES_AT_ONCE, thread_name_prefix="graph-query")
        self._waiting = 0

    def close(self) -> None:
        """Waits for the queries that run. May block."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def query(self, caller: Caller, wanted: GraphQuery) -> QueryResult:
        """The rows of a query of what the caller may see, or of one scope of it. Raises QueryRefused,
        QueryTimeout, NotFound, InvalidInput, and TooMany while many others wait."""

        def work(connection: Connection) -> QueryResult:
            scopes = _scopes(connection, caller, wanted.scope, "$.scope")
            return run_query(connection, wanted.query, wanted.parameters, scopes.ids, wanted.limit)

        return await self.read_slowly(work)

    async def read_slowly(self, work: Callable[[Connection], T]) -> T:
        """The result of a read that may take seconds. Raises TooMany while many others wait."""
        if self._waiting >= MAX_WAITING_QUERIES:
            raise TooMany("too many graph queries run at the same time; try again", retry_after=5)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, partial(self._store.read_rows_now, work))
        finally:
            self._waiting -= 1

    async def overview(
        self,
        caller: Caller,
        scope: str | None,
        center: str | None,
        time: FactTime = NOW,
        *,
        depth: int,
        limit: int,
    ) -> Graph:
        """The entities with the most facts, or those around one, with their communities and the episodes that
        mention them. Raises NotFound and InvalidInput."""

        def work(connection: Connection) -> Graph:
            scopes = _scopes(connection, caller, scope)
            if center is None:
                found = best_connected(connection, scopes, time, limit + 1)
            else:
                start = find_entity(connection, scopes, center, field="center")
                main = start.canonical_id or start.id
                found = entities_around(connection, scopes, time, main, depth, limit + 1)
            return picture_of(connection, scopes, time, found[:limit], limit, truncated=len(found) > limit)

        return await self.read_slowly(work)

    async def entities(
        self,
        caller: Caller,
        scope: str | None,
        q: str | None,
        type_: str | None,
        *,
        page: int,
        page_size: int,
    ) -> tuple[list[Entity], int]:
        """A page of the entities, by name, and their number. `q`: a part of the name."""

        def work(connection: Connection) -> tuple[list[Entity], int]:
            scopes = _scopes(connection, caller, scope)
            query = select(*entities.c).where(
                entities.c.scope_id.in_(scopes.ids), entities.c.canonical_id.is_(None)
            )
            if q is not None:
                query = query.where(entities.c.folded.contains(memory_name(q), autoescape=True))
            if type_ is not None:
                query = query.where(func.lower(entities.c.type) == type_.lower())
            total = connection.scalar(select(func.count()).select_from(query.subquery())) or 0
            query = query.order_by(entities.c.folded, entities.c.id)
            rows = connection.execute(query.limit(page_size).offset((page - 1) * page_size))
            return [_entity(row, scopes) for row in rows], total

        return await self._store.read_rows(work)

    async def entity(self, caller: Caller, entity_id: str, time: FactTime = NOW) -> EntityDetails:
        """Raises NotFound, and InvalidInput for a time that the calendar does not have."""

        def work(connection: Connection) -> EntityDetails:
            scopes = visible_scopes(connection, caller)
            return entity_details(connection, scopes, find_entity(connection, scopes, entity_id), time)

        return await self._store.read_rows(work)

    async def merge(self, caller: Caller, entity_id: str, into: str) -> EntityDetails:
        """Merges an entity into another, which it returns. Raises NotFound, NotAllowed, InvalidInput and
        Conflict."""
        return await self._change(caller, partial(merge, entity_id=entity_id, into_id=into))

    async def split(self, caller: Caller, entity_id: str, merged_id: str) -> EntityDetails:
        """Splits an entity off another and returns it. Raises NotFound, NotAllowed and Conflict."""
        return await self._change(caller, partial(split, into_id=entity_id, merged_id=merged_id))

    async def _change(self, caller: Caller, change: Any) -> EntityDetails:
        def work(connection: Connection) -> EntityDetails:
            scopes = visible_scopes(connection, caller)
            key = change(connection, scopes, author=Author(user_id=caller.user_id), now=utc_now())
            row = connection.execute(select(*entities.c).where(entities.c.id == key)).one()
            return entity_details(connection, scopes, row)

        return await self._store.write_rows(work)

    async def communities(
        self, caller: Caller, scope: str | None, *, page: int, page_size: int
    ) -> tuple[list[Community], int]:
        """A page of the communities, by name, and their number."""

        def work(connection: Connection) -> tuple[list[Community], int]:
            scopes = _scopes(connection, caller, scope)
            visible = _communities.c.scope_id.in_(scopes.ids)
            total = connection.scalar(select(func.count()).where(visible)) or 0
            members = (
                select(func.count())
                .where(entities.c.community_id == _communities.c.id, entities.c.canonical_id.is_(None))
                .scalar_subquery()
            )
            query = select(*_communities.c, members.label("members")).where(visible)
            query = query.order_by(_communities.c.name, _communities.c.id)
            rows = connection.execute(query.limit(page_size).offset((page - 1) * page_size))
            return [
                Community(
                    id=row.uid,
                    name=row.name,
                    summary=row.summary,
                    scope=str(scopes.by_id[row.scope_id].name),
                    member_count=row.members,
                )
                for row in rows
            ], total

        return await self._store.read_rows(work)

    async def export(self, caller: Caller, scope: str | None, format_: GraphFormat) -> tuple[IO[bytes], int]:
        """A file with the graph in this format, and its size; the receiver closes it. Raises NotFound,
        InvalidInput, and TooMany while many queries wait."""

        def work(connection: Connection) -> tuple[IO[bytes], int]:
            scopes = _scopes(connection, caller, scope)
            with ExitStack() as undo:
                # It has no name: nothing is left of it when it is closed.
                file = undo.enter_context(tempfile.TemporaryFile(dir=self._data_dir))
                export_graph(connection, scopes, format_, file)
                size = file.tell()
                file.seek(0)
                undo.pop_all()
            return file, size

        return await self.read_slowly(work)


def _scopes(connection: Connection, caller: Caller, scope: str | None, field: str = "scope") -> Scopes:
    return visible_scopes(connection, caller).only(None if scope is None else parse_scope(scope, field))


def _entity(row: Row[Any], scopes: Scopes) -> Entity:
    return Entity(
        id=row.uid,
        name=row.name,
        type=row.type,
        aliases=msgspec.json.decode(row.aliases),
        summary=row.summary,
        scope=str(scopes.by_id[row.scope_id].name),
    )


def entity_details(
    connection: Connection, scopes: Scopes, row: Row[Any], time: FactTime = NOW
) -> EntityDetails:
    """An entity of one of these scopes, with the facts of this time that name it or what was merged into
    it."""
    shown = _entity(row, scopes)
    into = connection.scalar(select(entities.c.uid).where(entities.c.id == row.canonical_id))
    merged = connection.execute(
        select(*entities.c).where(entities.c.canonical_id == row.id).order_by(entities.c.id)
    ).all()
    keys = [row.id, *(part.id for part in merged)]
    named = select(_mentions.c.fact_id).where(
        _mentions.c.entity_id.in_(keys), _mentions.c.fact_id.is_not(None)
    )
    found = connection.scalars(
        select(_facts.c.id)
        .where(
            or_(_facts.c.id.in_(named), _facts.c.subject_id.in_(keys), _facts.c.object_id.in_(keys)),
            _facts.c.scope_id == row.scope_id,
            *time.facts(),
        )
        .order_by(_facts.c.id.desc())
        .limit(SHOWN_FACTS)
    ).all()
    return EntityDetails(
        id=shown.id,
        name=shown.name,
        type=shown.type,
        aliases=shown.aliases,
        summary=shown.summary,
        scope=shown.scope,
        merged_into=into,
        merged=[MergedEntity(id=part.uid, name=part.name, type=part.type) for part in merged],
        facts=read_facts(connection, scopes, found),
    )
