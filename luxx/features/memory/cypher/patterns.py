"""The patterns of a MATCH as graphs, and all ways in which labels, types, directions and lengths can be
chosen for them.

Each way becomes a SELECT of its own: with one label for each node, one type and direction for each hop,
every condition is an equality, which indexes serve. An OR or a walk of any length would not be.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from luxx.features.memory.cypher.schema import EDGES, LABELS, find_label, find_type
from luxx.features.memory.cypher.syntax import (
    EdgePattern,
    MatchClause,
    NodePattern,
    Path,
    QueryRefused,
    TextPosition,
)

MAX_HOPS = 4
MAX_NODES = 12
"""Nodes of one MATCH."""

MAX_WAYS = 80
"""SELECTs of one MATCH."""


class Node(Struct, frozen=True, kw_only=True):
    """A node of a MATCH; one without a name has a number of its own. `labels`: those that it can have."""

    name: str | None
    labels: tuple[str, ...]
    patterns: tuple[NodePattern, ...]


class Edge(Struct, frozen=True, kw_only=True):
    """An edge between two nodes, by their positions. `types`: those that it can have."""

    start: int
    end: int
    types: tuple[str, ...]
    least: int
    most: int
    pattern: EdgePattern


class Pattern(Struct, frozen=True):
    """All nodes and edges of a MATCH."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class Hop(Struct, frozen=True):
    """One edge of the graph. `forward`: the walk goes from its start to its end."""

    type: str
    forward: bool

    @property
    def labels(self) -> tuple[str, str]:
        """The labels at the beginning and at the end of the walk."""
        type_ = EDGES[self.type]
        return (type_.start, type_.end) if self.forward else (type_.end, type_.start)


class Way(Struct, frozen=True):
    """A label for each node, and the hops of each edge."""

    labels: tuple[str, ...]
    hops: tuple[tuple[Hop, ...], ...]


def pattern_of(clause: MatchClause, known: Mapping[str, tuple[str, ...]], values: frozenset[str]) -> Pattern:
    """The graph of a MATCH. `known`: the nodes of earlier clauses with their possible labels; `values`: other
    names that are taken. Raises QueryRefused."""
    nodes: list[Node] = []
    positions: dict[str, int] = {}
    edges: list[Edge] = []
    for path in clause.paths:
        at = [_add_node(node, nodes, positions, known, values) for node in path.nodes]
        if len(nodes) > MAX_NODES:
            raise QueryRefused(f"a MATCH may have at most {MAX_NODES} nodes", path.at)
        edges.extend(_edges(path, at))
    _check_names(edges, {*positions, *known, *values})
    return Pattern(tuple(nodes), tuple(edges))


def _add_node(
    pattern: NodePattern,
    nodes: list[Node],
    positions: dict[str, int],
    known: Mapping[str, tuple[str, ...]],
    values: frozenset[str],
) -> int:
    name = pattern.variable
    if name in values:
        raise QueryRefused(f"{name} is no node", pattern.at, sorted(known))
    label = None if pattern.label is None else find_label(pattern.label, pattern.label_at or pattern.at)
    position = positions.get(name) if name is not None else None
    if position is None:
        labels = known.get(name, tuple(LABELS)) if name is not None else tuple(LABELS)
        nodes.append(Node(name=name, labels=labels, patterns=()))
        position = len(nodes) - 1
        if name is not None:
            positions[name] = position
    node = nodes[position]
    labels = tuple(kind for kind in node.labels if label in (None, kind))
    if not labels:
        raise QueryRefused(
            f"{name} cannot have the label {label}", pattern.label_at or pattern.at, node.labels
        )
    nodes[position] = Node(name=name, labels=labels, patterns=(*node.patterns, pattern))
    return position


def _edges(path: Path, at: list[int]) -> Iterator[Edge]:
    for index, pattern in enumerate(path.edges):
        types = tuple(
            dict.fromkeys(
                find_type(str(name), TextPosition(name.line, name.column)) for name in pattern.types
            )
        )
        least, most = _lengths(pattern)
        yield Edge(
            start=at[index],
            end=at[index + 1],
            types=types or tuple(EDGES),
            least=least,
            most=most,
            pattern=pattern,
        )


def _lengths(pattern: EdgePattern) -> tuple[int, int]:
    hops = pattern.hops
    if hops is None:
        return 1, 1
    expected = [f"*1..{MAX_HOPS}"]
    if hops.most is None or hops.most > MAX_HOPS:
        raise QueryRefused(f"a path may have at most {MAX_HOPS} hops, and says so", hops.at, expected)
    least = 1 if hops.least is None else hops.least
    if not 1 <= least <= hops.most:
        raise QueryRefused(f"a path has 1 to {MAX_HOPS} hops, the smaller number first", hops.at, expected)
    if pattern.variable is not None:
        raise QueryRefused(
            f"a path of several hops has no variable: leave {pattern.variable} out",
            pattern.at,
            ["[:TYPE*1..2]"],
        )
    return least, hops.most


def _check_names(edges: list[Edge], taken: set[str]) -> None:
    for edge in edges:
        name = edge.pattern.variable
        if name is None:
            continue
        if name in taken:
            raise QueryRefused(
                f"{name} is already in use; give the relationship another name", edge.pattern.at
            )
        taken.add(name)


def ways(pattern: Pattern, at: TextPosition) -> list[Way]:
    """All ways to choose labels and hops. Raises QueryRefused if there is none, or too many."""
    found: list[Way] = []
    for way in _choose(pattern, 0, [None] * len(pattern.nodes), ()):
        found.append(way)
        if len(found) > MAX_WAYS:
            raise QueryRefused(
                "the pattern stands for too many different ones",
                at,
                ["labels", "types", "a direction (->)", "shorter paths"],
            )
    if not found:
        expected = [f"(:{kind.start})-[:{name}]->(:{kind.end})" for name, kind in EDGES.items()]
        raise QueryRefused("no relationship connects these labels so", at, expected)
    return found


def _choose(
    pattern: Pattern, index: int, labels: list[str | None], hops: tuple[tuple[Hop, ...], ...]
) -> Iterator[Way]:
    if index == len(pattern.edges):
        yield from _label_rest(pattern, labels, hops)
        return
    edge = pattern.edges[index]
    for walk in _walks(edge, labels[edge.start] or None, pattern.nodes[edge.start].labels):
        start, end = walk[0].labels[0], walk[-1].labels[1]
        chosen = list(labels)
        if chosen[edge.start] not in (None, start) or start not in pattern.nodes[edge.start].labels:
            continue
        chosen[edge.start] = start
        if chosen[edge.end] not in (None, end) or end not in pattern.nodes[edge.end].labels:
            continue
        chosen[edge.end] = end
        yield from _choose(pattern, index + 1, chosen, (*hops, walk))


def _walks(edge: Edge, start: str | None, labels: tuple[str, ...]) -> Iterator[tuple[Hop, ...]]:
    starts = labels if start is None else (start,)
    for length in range(edge.least, edge.most + 1):
        for label in starts:
            yield from _walks_from(edge, label, length)


def _walks_from(edge: Edge, label: str, length: int) -> Iterator[tuple[Hop, ...]]:
    if length == 0:
        yield ()
        return
    for hop in _hops(edge):
        if hop.labels[0] == label:
            for rest in _walks_from(edge, hop.labels[1], length - 1):
                yield (hop, *rest)


def _hops(edge: Edge) -> Iterator[Hop]:
    for type_ in edge.types:
        if edge.pattern.direction != "<-":
            yield Hop(type_, forward=True)
        if edge.pattern.direction != "->":
            yield Hop(type_, forward=False)


def _label_rest(
    pattern: Pattern, labels: list[str | None], hops: tuple[tuple[Hop, ...], ...]
) -> Iterator[Way]:
    """Nodes without edges have each of their labels."""
    for position, label in enumerate(labels):
        if label is None:
            for choice in pattern.nodes[position].labels:
                yield from _label_rest(pattern, [*labels[:position], choice, *labels[position + 1 :]], hops)
            return
    yield Way(tuple(label for label in labels if label is not None), hops)
