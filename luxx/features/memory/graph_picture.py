"""A picture of the graph: which nodes it has, and the edges between them."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, literal, or_, select, union_all

from luxx.features.memory.merging import entities
from luxx.features.memory.models import CommunityRow, EpisodeRow, FactRow, MentionRow
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.views import FactTime, in_utc
from luxx.infra.store.tables import table_of

MAX_EDGES = 6_000

NodeKind = Literal["entity", "episode", "community"]
_facts, _mentions = table_of(FactRow), table_of(MentionRow)
_episodes, _communities = table_of(EpisodeRow), table_of(CommunityRow)
_root = func.coalesce(entities.c.canonical_id, entities.c.id)


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the picture: an entity with its type, an episode, or a community."""

    id: str
    name: str
    kind: NodeKind = "entity"
    type: str = ""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the graph. An edge has the positions of its nodes in `nodes`, from 0, and how many
    relationships it stands for; which they are follows from the kinds of the nodes."""

    nodes: list[GraphNode]
    edges: list[tuple[int, int, int]]
    truncated: bool


def _happened(time: FactTime) -> list[ColumnElement[bool]]:
    """The conditions on episodes: one that had not happened mentions nothing."""
    conditions: list[ColumnElement[bool]] = []
    if time.as_of is not None:
        conditions.append(_episodes.c.happened_at <= in_utc(time.as_of, "as_of"))
    if time.known_at is not None:
        conditions.append(_episodes.c.created_at <= in_utc(time.known_at, "known_at"))
    return conditions


def _ends(scopes: Scopes, time: FactTime) -> Select[Any, Any]:
    """The entities at both ends of each fact of this time, as those that stand for them."""
    start, end = entities.alias(), entities.alias()
    return (
        select(
            func.coalesce(start.c.canonical_id, start.c.id).label("start"),
            func.coalesce(end.c.canonical_id, end.c.id).label("end"),
        )
        .select_from(_facts)
        .join(start, start.c.id == _facts.c.subject_id)
        .join(end, end.c.id == _facts.c.object_id)
        .where(_facts.c.scope_id.in_(scopes.ids), *time.facts())
    )


def best_connected(connection: Connection, scopes: Scopes, time: FactTime, limit: int) -> list[int]:
    """The entities with the most facts; of the past only those with one, because an entity has no time."""
    ends = _ends(scopes, time).subquery()
    both = union_all(select(ends.c.start.label("id")), select(ends.c.end)).subquery()
    degrees = select(both.c.id, func.count().label("degree")).group_by(both.c.id).subquery()
    mains = select(entities.c.id).where(
        entities.c.scope_id.in_(scopes.ids), entities.c.canonical_id.is_(None)
    )
    connected = mains.join(degrees, degrees.c.id == entities.c.id)
    query = connected.order_by(degrees.c.degree.desc(), entities.c.id).limit(limit)
    found = list(connection.scalars(query))
    if time.is_past or len(found) >= limit:
        return found
    others = mains.where(entities.c.id.not_in(found)).order_by(entities.c.id)
    return [*found, *connection.scalars(others.limit(limit - len(found)))]


def entities_around(
    connection: Connection, scopes: Scopes, time: FactTime, start: int, depth: int, limit: int
) -> list[int]:
    """The entities up to `depth` facts away from one, nearest first."""
    found, frontier = {start: None}, [start]
    for _ in range(depth):
        if not frontier or len(found) >= limit:
            break
        parts = select(entities.c.id).where(
            or_(entities.c.id.in_(frontier), entities.c.canonical_id.in_(frontier))
        )
        ends = _ends(scopes, time)
        forward = ends.where(_facts.c.subject_id.in_(parts)).subquery()
        backward = ends.where(_facts.c.object_id.in_(parts)).subquery()
        query = select(forward.c.end.label("id")).union(select(backward.c.start)).order_by("id")
        frontier = [key for key in connection.scalars(query) if key not in found][: limit - len(found)]
        found.update(dict.fromkeys(frontier))
    return list(found)


def picture_of(
    connection: Connection, scopes: Scopes, time: FactTime, keys: list[int], limit: int, *, truncated: bool
) -> Graph:
    """The picture of these entities, with their communities and the episodes that mention them."""
    rows = {row.id: row for row in connection.execute(select(*entities.c).where(entities.c.id.in_(keys)))}
    nodes = [GraphNode(id=rows[key].uid, name=rows[key].name, type=rows[key].type) for key in keys]
    at: dict[tuple[str, int], int] = {("entity", key): position for position, key in enumerate(keys)}
    belongs = [(key, rows[key].community_id) for key in keys if rows[key].community_id is not None]
    mentions = connection.execute(_mentions_of(scopes, time, keys)).all()
    others: list[tuple[NodeKind, Any, set[int]]] = [
        ("community", _communities, {community for _, community in belongs}),
        ("episode", _episodes, {row.episode_id for row in mentions}),
    ]
    for kind, table, wanted in others:
        query = select(table.c.id, table.c.uid, table.c.name).where(
            table.c.id.in_(wanted), table.c.scope_id.in_(scopes.ids)
        )
        for row in connection.execute(query.order_by(table.c.id.desc())):
            if len(nodes) == limit:
                truncated = True
                break
            at[kind, row.id] = len(nodes)
            nodes.append(GraphNode(id=row.uid, name=row.name, kind=kind))
    edges = [
        *_relations(connection, scopes, time, keys, at),
        *((at["entity", key], at[link], 1) for key, group in belongs if (link := ("community", group)) in at),
        *(
            (at["episode", row.episode_id], at["entity", row.entity], int(row.times))
            for row in mentions
            if ("episode", row.episode_id) in at
        ),
    ]
    return Graph(nodes=nodes, edges=edges[:MAX_EDGES], truncated=truncated or len(edges) > MAX_EDGES)


def _relations(
    connection: Connection,
    scopes: Scopes,
    time: FactTime,
    keys: list[int],
    at: Mapping[tuple[str, int], int],
) -> Iterator[tuple[int, int, int]]:
    ends = _ends(scopes, time).subquery()
    query = select(ends.c.start, ends.c.end, func.count()).where(ends.c.start.in_(keys), ends.c.end.in_(keys))
    for start, end, count in connection.execute(query.group_by(ends.c.start, ends.c.end)):
        yield at["entity", start], at["entity", end], int(count)


def _mentions_of(scopes: Scopes, time: FactTime, keys: list[int]) -> Select[Any, Any, int]:
    return (
        select(_mentions.c.episode_id, _root.label("entity"), func.count(literal(1)).label("times"))
        .join(entities, entities.c.id == _mentions.c.entity_id)
        .join(_episodes, _episodes.c.id == _mentions.c.episode_id)
        .where(
            _mentions.c.scope_id.in_(scopes.ids),
            *_happened(time),
            or_(entities.c.id.in_(keys), entities.c.canonical_id.in_(keys)),
        )
        .group_by(_mentions.c.episode_id, _root)
    )
