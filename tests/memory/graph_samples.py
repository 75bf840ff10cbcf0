"""Random graphs, in a database and in kglite, and random queries of the subset."""

import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from kglite import KnowledgeGraph
from msgspec import Struct
from sqlalchemy import Connection, insert

from luxx.features.memory.lexical import memory_name
from luxx.features.memory.models import (
    CommunityRow,
    EntityRow,
    EpisodeRow,
    FactRow,
    MemoryScopeRow,
    MentionRow,
)
from luxx.infra.store.tables import Base

NAMES = ("Ann", "Bob", "Zoë", "张伟", "Release 4.1", "Ann Lee", "acme", "O'Neil")
TYPES = ("person", "place", "project")
PREDICATES = ("knows", "works at", "is in")
DAY = datetime.fromisoformat("2026-01-01T00:00:00Z")
Rows = dict[type[Base], list[dict[str, Any]]]


class SampleGraph(Struct, frozen=True):
    """The rows of a graph, its scopes, and the scope in between, which is somebody else's."""

    rows: Rows
    scopes: list[int]

    def insert(self, connection: Connection) -> None:
        for table, rows in self.rows.items():
            # Columns that a row leaves out are null in it.
            names = {name for row in rows for name in row}
            for row in rows:
                connection.execute(insert(table).values({**dict.fromkeys(names), **row}))

    def in_kglite(self) -> KnowledgeGraph:
        """The graph as a reader of its scopes sees it."""
        graph = KnowledgeGraph()
        seen = {
            table: {row["id"]: row for row in rows if row.get("scope_id", row["id"]) in self.scopes}
            for table, rows in self.rows.items()
        }
        entities, facts = seen[EntityRow], seen[FactRow]
        roots = {key: row.get("canonical_id") or key for key, row in entities.items()}
        for key, row in entities.items():
            if roots[key] == key:
                # In kglite every node has a `type`, its label.
                _node(graph, "Entity", {**row, "kind": row["type"]}, "name", "kind", "summary")
        for row in seen[EpisodeRow].values():
            _node(graph, "Episodic", row, "name", "source", "status", "trusted")
        for row in seen[CommunityRow].values():
            members = [
                key
                for key in entities
                if roots[key] == key and entities[key].get("community_id") == row["id"]
            ]
            _node(
                graph, "Community", {**row, "member_count": len(members)}, "name", "summary", "member_count"
            )
            for key in members:
                _edge(graph, "BELONGS_TO", entities[key]["uid"], row["uid"], {})
        for row in seen[MentionRow].values():
            episode = seen[EpisodeRow][row["episode_id"]]
            _edge(graph, "MENTIONS", episode["uid"], entities[roots[row["entity_id"]]]["uid"], {})
        for row in facts.values():
            if row.get("expired_at") is None and row.get("subject_id") and row.get("object_id"):
                ends = [entities[roots[row[name]]]["uid"] for name in ("subject_id", "object_id")]
                properties = {name: row[name] for name in ("text", "predicate", "weight", "trusted")}
                _edge(graph, "RELATES_TO", ends[0], ends[1], {"id": row["uid"], **properties})
        return graph


def _node(graph: KnowledgeGraph, label: str, row: dict[str, Any], *names: str) -> None:
    values = {"id": row["uid"], **{name: row[name] for name in names}}
    places = ", ".join(f"{name}: ${name}" for name in values)
    graph.cypher(f"CREATE (:{label} {{{places}}})", params=values)


def _edge(graph: KnowledgeGraph, kind: str, start: str, end: str, values: dict[str, Any]) -> None:
    places = ", ".join(f"{name}: ${name}" for name in values)
    properties = f" {{{places}}}" if values else ""
    graph.cypher(
        f"MATCH (a {{id: $start}}), (b {{id: $end}}) CREATE (a)-[:{kind}{properties}]->(b)",
        params={"start": start, "end": end, **values},
    )


def sample_graph(seed: int, first_id: int) -> SampleGraph:
    """A graph of two scopes with merged entities and expired facts, beside one of a third scope.

    Its rows have ids from `first_id` on.
    """
    random_ = random.Random(seed)
    scopes = [first_id, first_id + 1, first_id + 2]
    rows: Rows = {
        MemoryScopeRow: [],
        CommunityRow: [],
        EntityRow: [],
        EpisodeRow: [],
        FactRow: [],
        MentionRow: [],
    }
    rows[MemoryScopeRow] = [
        {"id": scope, "tenant_id": 1, "kind": "user", "user_id": None, "created_at": DAY} for scope in scopes
    ]
    for scope in scopes:
        _add_scope(rows, scope, first_id + 100 * (scope - first_id), random_)
    return SampleGraph(rows, [scopes[0], scopes[2]])


def _add_scope(rows: Rows, scope: int, base: int, random_: random.Random) -> None:
    def common(kind: str, number: int) -> dict[str, Any]:
        uid = f"{kind}-{base + number}"
        return {
            "id": base + number,
            "uid": uid,
            "scope_id": scope,
            "created_at": DAY + timedelta(days=number),
        }

    communities = [
        {**common("c", n), "name": f"group {n}", "summary": "", "updated_at": DAY} for n in range(2)
    ]
    entities: list[dict[str, Any]] = []
    for number in range(8):
        name = random_.choice(NAMES)
        roots = [row["id"] for row in entities if row["canonical_id"] is None]
        entities.append(
            {
                **common("e", number),
                "name": name,
                "folded": memory_name(name),
                "type": random_.choice(TYPES),
                "aliases": json.dumps([name.upper()]),
                "summary": random_.choice(("", "a summary")),
                "community_id": random_.choice((None, *(row["id"] for row in communities))),
                "canonical_id": random_.choice(roots) if roots and random_.random() < 0.25 else None,
                "updated_at": DAY,
            }
        )
    episodes = [
        {
            **common("p", number),
            "name": f"talk {number % 2}",
            "source": random_.choice(("conversation", "room")),
            "happened_at": DAY,
            "status": random_.choice(("synced", "pending")),
            "trusted": random_.random() < 0.7,
        }
        for number in range(4)
    ]
    keys = [row["id"] for row in entities]
    facts = [
        {
            **common("f", number),
            "text": f"fact {number}",
            "category": "knowledge",
            "subject_id": random_.choice(keys),
            "object_id": random_.choice((*keys, *keys, None)),
            "predicate": random_.choice((*PREDICATES, None)),
            "valid_at": random_.choice((None, DAY)),
            "expired_at": DAY if random_.random() < 0.15 else None,
            "origin": "model",
            "trusted": random_.random() < 0.7,
            "pinned": False,
            "weight": random_.choice((0.25, 0.5, 1.0, 2.5)),
        }
        for number in range(11)
    ]
    pairs = [(random_.choice(episodes)["id"], random_.choice(keys)) for _ in range(7)]
    mentions = [
        {"id": base + n, "scope_id": scope, "episode_id": episode, "entity_id": entity}
        for n, (episode, entity) in enumerate(dict.fromkeys(pairs))
    ]
    for table, made in (
        (CommunityRow, communities),
        (EntityRow, entities),
        (EpisodeRow, episodes),
        (FactRow, facts),
        (MentionRow, mentions),
    ):
        rows[table].extend(made)


EDGES = {
    "MENTIONS": ("Episodic", "Entity"),
    "RELATES_TO": ("Entity", "Entity"),
    "BELONGS_TO": ("Entity", "Community"),
}
TEXTS = {"Entity": ("name", "type"), "Episodic": ("name", "source", "status"), "Community": ("name",)}


class RandomQuery:
    """One query; `text` is it. Where it has a LIMIT, it has an order of all its columns."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._labels: dict[str, str] = {}
        self._facts: list[str] = []
        clauses = [self._match(optional=False)]
        if self._random.random() < 0.35:
            clauses.append(self._match(optional=self._random.random() < 0.6))
        if self._random.random() < 0.25:
            clauses.append(self._with())
        self.text = " ".join([*clauses, self._return()])

    def _match(self, *, optional: bool) -> str:
        random_ = self._random
        facts = list(self._facts)
        known = [name for name in self._labels if name in "abcdefgh"]
        start = random_.choice(known) if known and random_.random() < 0.8 else self._name()
        text = self._node(start, self._labels.get(start) or random_.choice(tuple(TEXTS)), start not in known)
        here = start
        for _ in range(random_.choice((0, 1, 1, 1, 2, 2, 3)) or (1 if optional else 0)):
            edge, there = self._edge(here)
            text += edge + there
            here = list(self._labels)[-1]
        where = self._condition() if random_.random() < 0.6 else ""
        if optional:
            self._facts = facts
        return f"{'OPTIONAL ' if optional else ''}MATCH {text}" + (f" WHERE {where}" if where else "")

    def _name(self) -> str:
        return "abcdefgh"[len(self._labels)]

    def _node(self, name: str, label: str, is_new: bool) -> str:
        self._labels.setdefault(name, label)
        text = f":{label}" if self._random.random() < 0.6 else ""
        if is_new and self._random.random() < 0.15:
            text += f" {{name: {quoted(self._random.choice(NAMES))}}}"
        return f"({name}{text})"

    def _edge(self, here: str) -> tuple[str, str]:
        random_ = self._random
        label = self._labels[here]
        kind, forward = random_.choice(
            [
                (kind, forward)
                for kind, ends in EDGES.items()
                for forward in (True, False)
                if ends[not forward] == label
            ]
        )
        there = EDGES[kind][forward]
        inner, length = "", ""
        if label == there and random_.random() < 0.35:
            length = random_.choice(("*1..2", "*2", "*1..3"))
        elif kind == "RELATES_TO" and random_.random() < 0.6:
            inner = f"r{len(self._labels)}"
            self._facts.append(inner)
        inner += f":{kind}{length}"
        arrow = random_.random()
        name = self._name()
        node = self._node(name, there, is_new=True)
        if arrow < 0.25:
            return f"-[{inner}]-", node
        return (f"-[{inner}]->" if forward else f"<-[{inner}]-"), node

    def _condition(self, depth: int = 0) -> str:
        random_ = self._random
        choice = random_.random()
        if depth < 2 and choice < 0.3:
            operator = random_.choice((" AND ", " OR "))
            return f"({self._condition(depth + 1)}{operator}{self._condition(depth + 1)})"
        if depth < 2 and choice < 0.4:
            return f"NOT {self._condition(depth + 1)}"
        if self._facts and choice < 0.65:
            fact = random_.choice(self._facts)
            return random_.choice(
                (
                    f"{fact}.weight >= {random_.choice((0.5, 1, 2))}",
                    f"{fact}.trusted",
                    f"{fact}.predicate = {quoted(random_.choice(PREDICATES))}",
                    f"{fact}.predicate IS {random_.choice(('', 'NOT '))}NULL",
                )
            )
        name = random_.choice(list(self._labels))
        value = f"{name}.{random_.choice(TEXTS[self._labels[name]])}"
        return random_.choice(
            (
                f"{value} = {quoted(random_.choice(NAMES + TYPES))}",
                f"{value} <> {quoted(random_.choice(NAMES + TYPES))}",
                f"{value} < {quoted(random_.choice(NAMES + TYPES))}",
                f"{value} IN [{', '.join(quoted(each) for each in random_.sample(NAMES + TYPES, 3))}]",
                f"{value} STARTS WITH {quoted(random_.choice(('A', 'p', 'Rel', '张')))}",
                f"{value} ENDS WITH {quoted(random_.choice(('n', '1', 'ë', '')))}",
                f"{value} CONTAINS {quoted(random_.choice(('e', 'o', ' ', '伟')))}",
                f"toLower({value}) CONTAINS 'a'",
                f"{value} IS NOT NULL",
            )
        )

    def _values(self) -> list[str]:
        names = [f"{name}.{prop}" for name, label in self._labels.items() for prop in ("id", *TEXTS[label])]
        return [*names, *(f"{fact}.{prop}" for fact in self._facts for prop in ("weight", "id", "trusted"))]

    def _aggregate(self) -> str:
        random_ = self._random
        choices = ["count(*)", f"count(DISTINCT {random_.choice(list(self._labels))})"]
        value = random_.choice([value for value in self._values() if not value.endswith("trusted")])
        choices += [f"collect({value})", f"collect(DISTINCT {value})", f"min({value})", f"max({value})"]
        if self._facts:
            weight = f"{random_.choice(self._facts)}.weight"
            choices += [f"sum({weight})", f"avg({weight})", f"sum(DISTINCT {weight})"]
        return random_.choice(choices)

    def _with(self) -> str:
        random_ = self._random
        kept = random_.choice(list(self._labels))
        self._labels = {kept: self._labels[kept]}
        self._facts = []
        if random_.random() < 0.5:
            return f"WITH DISTINCT {kept}" + (
                f" WHERE {self._condition(2)}" if random_.random() < 0.4 else ""
            )
        return f"WITH {kept}, count(*) AS n WHERE n >= {random_.choice((1, 2))}"

    def _return(self) -> str:
        random_ = self._random
        values = self._values()
        items = random_.sample(values, min(len(values), random_.choice((1, 2, 3))))
        grouped = random_.random() < 0.35
        if grouped:
            items = [*items[: random_.choice((0, 1, 2))], self._aggregate()]
        if random_.random() < 0.2:
            items.append(f"coalesce({random_.choice(self._texts())}, 'none')")
        items = [f"{item} AS x{number}" for number, item in enumerate(items)]
        text = f"RETURN {'DISTINCT ' if random_.random() < 0.25 else ''}{', '.join(items)}"
        if any("collect" in item for item in items) or random_.random() < 0.5:
            return text
        order = [f"x{number}{random_.choice(('', ' DESC'))}" for number in range(len(items))]
        text += f" ORDER BY {', '.join(order)}"
        if random_.random() < 0.5:
            text += f" SKIP {random_.choice((0, 1, 3))}"
        return text + (f" LIMIT {random_.choice((1, 5, 50))}" if random_.random() < 0.7 else "")

    def _texts(self) -> Sequence[str]:
        return [f"{name}.{prop}" for name, label in self._labels.items() for prop in TEXTS[label]]


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
