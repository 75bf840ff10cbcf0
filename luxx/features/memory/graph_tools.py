"""The tools of the graph for models: queries, and looking an entity up.

They read the scopes of the place of their run, and nothing where memory is off. What they return taints the
run if those scopes have facts of turns that had read untrusted content: a query may show such a fact in any
form.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, Select, or_, select

from luxx.errors import InvalidInput
from luxx.features.memory.cypher.parser import MAX_CHARACTERS
from luxx.features.memory.graph import MAX_DEPTH, EntityDetails, GraphService, entity_details
from luxx.features.memory.graph_picture import entities_around
from luxx.features.memory.graph_query import MAX_ROWS, run_query
from luxx.features.memory.lexical import entities_by_word, memory_name, name_word, ranked_entities
from luxx.features.memory.merging import entities, find_entity
from luxx.features.memory.models import NAME_LENGTH, FactRow
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.tools import answer_for_model, used_scopes
from luxx.features.memory.views import NOW
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.tools.core import ToolContext
from luxx.tools.factory import ToolFunction, tool

MAX_MATCHES = 3
"""Entities of one name, of several scopes or types, that a look-up shows."""

MAX_FACTS = 30
MAX_NEIGHBOURS = 30
MAX_SIMILAR = 10

Query = Annotated[
    str, Meta(min_length=1, max_length=MAX_CHARACTERS, description="MATCH … WHERE … RETURN …; it only reads")
]
Parameters = Annotated[dict[str, Any], Meta(description="Values of $names in the query")] | None
Rows = Annotated[int, Meta(ge=1, le=MAX_ROWS, description="How many rows at most")]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH, description="Its name")] | None
EntityId = Annotated[str, Meta(min_length=1, max_length=36, description="Its id, instead of a name")] | None
Depth = Annotated[int, Meta(ge=1, le=MAX_DEPTH, description="How many facts away neighbours may be")]

_facts = table_of(FactRow)


class GraphTools:
    """Makes the tools. One per process."""

    def __init__(self, store: Store, graph: GraphService) -> None:
        self._store = store
        self._graph = graph

    def all(self) -> list[ToolFunction]:
        return [self._query_tool(), self._lookup_tool()]

    def _query_tool(self) -> ToolFunction:
        @tool(name="graph_query", category="memory")
        async def graph_query(
            context: ToolContext, query: Query, parameters: Parameters = None, limit: Rows = 50
        ) -> dict[str, Any]:
            """Query the graph of remembered facts in a subset of openCypher that only reads:
            MATCH, OPTIONAL MATCH, WHERE, WITH, RETURN, ORDER BY, SKIP, LIMIT; paths up to *1..4.
            (:Entity {name, type, summary})-[:RELATES_TO {fact, predicate, valid_at, invalid_at}]->(:Entity),
            (:Episodic {name, happened_at})-[:MENTIONS]->(:Entity), (:Entity)-[:BELONGS_TO]->(:Community).
            Example: MATCH (a:Entity {name: 'Anna'})-[r:RELATES_TO]-(b) RETURN b.name, r.fact"""

            def work(connection: Connection) -> dict[str, Any]:
                scopes = _scopes(connection, context)
                result = run_query(connection, query, parameters or {}, scopes.ids, limit)
                return msgspec.structs.asdict(result)

            return await answer_for_model(self._graph.read_slowly(work))

        return graph_query

    def _lookup_tool(self) -> ToolFunction:
        @tool(name="entity_lookup", category="memory")
        async def entity_lookup(
            context: ToolContext, name: Name = None, id: EntityId = None, depth: Depth = 1
        ) -> dict[str, Any]:
            """Look up a person or thing of the graph by its name or id: what is known about it, and what it
            is connected with. If nothing has exactly this name, similar names are returned."""
            if (name is None) == (id is None):
                raise InvalidInput("give either a name or an id")

            def work(connection: Connection) -> dict[str, Any]:
                scopes = _scopes(connection, context)
                if id is not None:
                    found = [_main(connection, scopes, find_entity(connection, scopes, id))]
                else:
                    found = _named(connection, scopes, name or "")
                answer: dict[str, Any] = {
                    "entities": [_shown(connection, scopes, row, depth) for row in found]
                }
                return answer if found else answer | {"similar": _similar(connection, scopes, name or "")}

            return await answer_for_model(self._store.read_rows(work))

        return entity_lookup


def _scopes(connection: Connection, context: ToolContext) -> Scopes:
    """The scopes of the call, which is marked if something in them is not trusted."""
    _, scopes = used_scopes(connection, context)
    context.metadata.is_untrusted = connection.scalar(untrusted_fact(scopes.ids)) is not None
    return scopes


def untrusted_fact(scope_ids: Sequence[int]) -> Select[int]:
    """Selects a fact of these scopes that is not trusted; an index has such facts only."""
    return select(_facts.c.id).where(_facts.c.scope_id.in_(scope_ids), ~_facts.c.trusted).limit(1)


def _main(connection: Connection, scopes: Scopes, row: Row[Any]) -> Row[Any]:
    """The entity that it was merged into, or itself."""
    if row.canonical_id is None:
        return row
    query = select(*entities.c).where(entities.c.id == row.canonical_id, entities.c.scope_id.in_(scopes.ids))
    return connection.execute(query).one()


def _named(connection: Connection, scopes: Scopes, name: str) -> list[Row[Any]]:
    """The entities that have this name or alias, also those that such a one was merged into."""
    keys: dict[int, None] = {}
    for scope_id in scopes.ids:
        for row in entities_by_word(connection, scope_id, name_word(name)):
            keys[row.canonical_id or row.id] = None
    query = select(*entities.c).where(
        or_(entities.c.id.in_(list(keys)), entities.c.folded == memory_name(name)),
        entities.c.scope_id.in_(scopes.ids),
        entities.c.canonical_id.is_(None),
    )
    return [*connection.execute(query.order_by(entities.c.id).limit(MAX_MATCHES)).all()]


def _similar(connection: Connection, scopes: Scopes, name: str) -> list[str]:
    """The names of entities whose names have words of this one, the best first."""
    found = list(dict.fromkeys(each.main for each in ranked_entities(connection, scopes.ids, name)))
    query = select(entities.c.id, entities.c.name).where(entities.c.id.in_(found[:MAX_SIMILAR]))
    names = dict(connection.execute(query).all())
    return [names[key] for key in found[:MAX_SIMILAR]]


def _shown(connection: Connection, scopes: Scopes, row: Row[Any], depth: int) -> dict[str, Any]:
    details = entity_details(connection, scopes, row)
    only = scopes.only(scopes.by_id[row.scope_id].name)
    near = entities_around(connection, only, NOW, row.id, depth, MAX_NEIGHBOURS + 1)
    query = select(entities.c.id, entities.c.uid, entities.c.name, entities.c.type)
    rows = {each.id: each for each in connection.execute(query.where(entities.c.id.in_(near[1:])))}
    neighbours = [{"id": rows[key].uid, "name": rows[key].name, "type": rows[key].type} for key in near[1:]]
    return _without_facts(details) | {
        "facts": [
            {
                name: value
                for name in ("id", "text", "predicate", "valid_at", "invalid_at", "trusted")
                if (value := getattr(fact, name)) is not None
            }
            for fact in details.facts[:MAX_FACTS]
        ],
        "neighbours": neighbours,
    }


def _without_facts(details: EntityDetails) -> dict[str, Any]:
    names = ("id", "name", "type", "aliases", "summary", "scope")
    shown = {name: value for name in names if (value := getattr(details, name))}
    return shown | ({"merged": [part.name for part in details.merged]} if details.merged else {})
