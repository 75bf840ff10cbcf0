"""The graph of memory as a file: JSON, GraphML, or a script of Cypher that makes it in Neo4j.

All entities, also merged ones, facts that connect two of them, also such that are not known any more,
episodes that mention them, and communities.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import IO, Any
from xml.sax.saxutils import escape, quoteattr

from sqlalchemy import Connection, select

from luxx.features.memory.merging import entities
from luxx.features.memory.models import CommunityRow, EpisodeRow, FactRow, MentionRow
from luxx.features.memory.scopes import Scopes
from luxx.infra.store.tables import table_of

_facts, _mentions = table_of(FactRow), table_of(MentionRow)
_episodes, _communities = table_of(EpisodeRow), table_of(CommunityRow)

Properties = dict[str, Any]
Node = tuple[str, Properties]
Edge = tuple[str, str, str, Properties]

ROWS_AT_ONCE = 500

_SHOWN_NODES = {
    "Community": (_communities, ("name", "summary", "created_at")),
    "Entity": (entities, ("name", "type", "aliases", "summary", "created_at")),
    "Episodic": (_episodes, ("name", "source", "status", "happened_at", "trusted", "created_at")),
}
_SHOWN_OF_FACTS = (
    "text", "predicate", "category", "valid_at", "invalid_at", "created_at", "expired_at", "weight",
    "trusted", "pinned",
)  # fmt: skip
GRAPHML_KEYS = {
    "node": sorted({"label", "scope", *(name for _, names in _SHOWN_NODES.values() for name in names)}),
    "edge": sorted({"type", "id", *_SHOWN_OF_FACTS}),
}


class GraphFormat(StrEnum):
    """The format of an exported graph."""

    JSON = "json"
    GRAPHML = "graphml"
    CYPHER = "cypher"


def export_graph(connection: Connection, scopes: Scopes, format_: GraphFormat, file: IO[bytes]) -> None:
    """Writes the graph of these scopes in this format, row by row: it may have 100,000 facts a scope."""
    reading = connection.execution_options(yield_per=ROWS_AT_ONCE)
    nodes, edges = _nodes(reading, scopes), _edges(reading, scopes)
    match format_:
        case GraphFormat.JSON:
            lines = _json(nodes, edges)
        case GraphFormat.GRAPHML:
            lines = _graphml(nodes, edges)
        case GraphFormat.CYPHER:
            lines = _script(nodes, edges)
    for line in lines:
        file.write(line.encode() + b"\n")


def _nodes(connection: Connection, scopes: Scopes) -> Iterator[Node]:
    for label, (table, names) in _SHOWN_NODES.items():
        query = select(*table.c).where(table.c.scope_id.in_(scopes.ids)).order_by(table.c.id)
        for row in connection.execute(query):
            properties = {name: _plain(getattr(row, name)) for name in names}
            if label == "Entity":
                properties["aliases"] = json.loads(row.aliases)
            scope = str(scopes.by_id[row.scope_id].name)
            yield label, {"id": row.uid, "scope": scope, **_given(properties)}


def _edges(connection: Connection, scopes: Scopes) -> Iterator[Edge]:
    start, end = entities.alias(), entities.alias()
    facts = (
        select(*_facts.c, start.c.uid.label("start"), end.c.uid.label("end"))
        .join(start, start.c.id == _facts.c.subject_id)
        .join(end, end.c.id == _facts.c.object_id)
        .where(_facts.c.scope_id.in_(scopes.ids))
    )
    for row in connection.execute(facts.order_by(_facts.c.id)):
        properties = {name: _plain(getattr(row, name)) for name in _SHOWN_OF_FACTS}
        yield "RELATES_TO", row.start, row.end, {"id": row.uid, **_given(properties)}
    mentions = (
        select(_episodes.c.uid, entities.c.uid)
        .select_from(_mentions)
        .join(_episodes, _episodes.c.id == _mentions.c.episode_id)
        .join(entities, entities.c.id == _mentions.c.entity_id)
        .where(_mentions.c.scope_id.in_(scopes.ids))
    )
    for episode, entity in connection.execute(mentions.order_by(_mentions.c.id)):
        yield "MENTIONS", episode, entity, {}
    target = entities.alias()
    query = (
        select(entities.c.uid, target.c.uid, _communities.c.uid)
        .outerjoin(target, target.c.id == entities.c.canonical_id)
        .outerjoin(_communities, _communities.c.id == entities.c.community_id)
        .where(entities.c.scope_id.in_(scopes.ids))
    )
    for entity, merged_into, community in connection.execute(query.order_by(entities.c.id)):
        if community is not None:
            yield "BELONGS_TO", entity, community, {}
        if merged_into is not None:
            yield "MERGED_INTO", entity, merged_into, {}


def _plain(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _given(properties: Properties) -> Properties:
    return {name: value for name, value in properties.items() if value is not None}


def _json(nodes: Iterable[Node], edges: Iterable[Edge]) -> Iterator[str]:
    yield '{"nodes": ['
    yield from _separated({"label": label, **properties} for label, properties in nodes)
    yield '], "relationships": ['
    yield from _separated(
        {"type": kind, "start": start, "end": end, **properties} for kind, start, end, properties in edges
    )
    yield "]}"


def _separated(values: Iterable[Properties]) -> Iterator[str]:
    separator = ""
    for value in values:
        yield separator + json.dumps(value, ensure_ascii=False)
        separator = ","


def _graphml(nodes: Iterable[Node], edges: Iterable[Edge]) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    for kind, names in GRAPHML_KEYS.items():
        for name in names:
            yield f'  <key id="{kind}_{name}" for="{kind}" attr.name="{name}" attr.type="string"/>'
    yield '  <graph edgedefault="directed">'
    for label, properties in nodes:
        yield f"    <node id={quoteattr(properties['id'])}>"
        yield from _data("node", {"label": label, **{n: v for n, v in properties.items() if n != "id"}})
        yield "    </node>"
    for kind, start, end, properties in edges:
        yield f"    <edge source={quoteattr(start)} target={quoteattr(end)}>"
        yield from _data("edge", {"type": kind, **properties})
        yield "    </edge>"
    yield "  </graph>"
    yield "</graphml>"


def _data(kind: str, properties: Properties) -> Iterator[str]:
    for name, value in properties.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f'      <data key="{kind}_{name}">{escape(_printable(text))}</data>'


def _printable(text: str) -> str:
    """XML has no place for control characters."""
    return "".join(character if character >= " " or character in "\t\n\r" else " " for character in text)


def _script(nodes: Iterable[Node], edges: Iterable[Edge]) -> Iterator[str]:
    yield "CREATE CONSTRAINT luxx_id IF NOT EXISTS FOR (n:Luxx) REQUIRE n.id IS UNIQUE;"
    for label, properties in nodes:
        yield f"CREATE (:Luxx:{label} {_map(properties)});"
    for kind, start, end, properties in edges:
        ends = f"MATCH (a:Luxx {_map({'id': start})}), (b:Luxx {_map({'id': end})})"
        yield f"{ends} CREATE (a)-[:{kind} {_map(properties)}]->(b);"


def _map(properties: Properties) -> str:
    # JSON's texts, numbers, booleans and lists are written in Cypher as in JSON.
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in properties.items()) + "}"
