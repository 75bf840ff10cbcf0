"""What a graph has: labels, types and properties, and in which tables they are.

A node or an edge has an integer key, which joins use; `uid` is what people see as its `id`. An entity that
was merged is no node: its edges end at the entity that it was merged into.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from luxx.features.memory.cypher.syntax import QueryRefused, TextPosition


class ValueType(StrEnum):
    """The type of an expression, known before the query runs."""

    STRING = "a string"
    INTEGER = "a whole number"
    FLOAT = "a number"
    BOOLEAN = "true or false"
    TIME = "a time"
    LIST = "a list"
    NULL = "null"
    NODE = "a node"
    EDGE = "a relationship"


STRING, FLOAT, BOOLEAN, TIME = ValueType.STRING, ValueType.FLOAT, ValueType.BOOLEAN, ValueType.TIME


class Label(Struct, frozen=True, kw_only=True):
    """A kind of nodes: the rows of a table. `number` tells keys of several labels apart; `condition` is what
    holds for each, besides its scope. `columns` are those of properties, if they have another name or are
    computed; `{row}` is the row's alias."""

    number: int
    table: str
    condition: str = ""
    properties: Mapping[str, ValueType]
    columns: Mapping[str, str]

    def column(self, name: str, row: str) -> str:
        """The SQL of a property of a row."""
        return self.columns.get(name, "{row}." + name).replace("{row}", row)


class WalkTable(Struct, frozen=True):
    """A table of a walk over an edge: its alias is that of the edge and `suffix`, `on` says which rows.

    `{e}` is the alias of the edge's own table, `{n}` the key of the node where the walk begins.
    """

    table: str
    suffix: str
    on: str


class EdgeType(Struct, frozen=True, kw_only=True):
    """A kind of edges: the rows of `table`. `from_start` and `from_end` are the tables of a walk over one, in
    the order in which indexes find the rows, and then the key of the node where the walk ends.

    `start_row` and `end_row` are the tables' columns of the nodes at the ends of a row `x`.
    """

    number: int
    start: str
    end: str
    table: str
    from_start: tuple[tuple[WalkTable, ...], str]
    from_end: tuple[tuple[WalkTable, ...], str]
    start_row: str
    end_row: str
    properties: Mapping[str, ValueType] = {}
    columns: Mapping[str, str] = {}

    def column(self, name: str, row: str) -> str:
        """The SQL of a property of a row."""
        return f"{row}.{self.columns.get(name, name)}"


def _merged(suffix: str) -> str:
    """The condition for the entities that a node stands for: itself, and those merged into it."""
    return f"({{e}}{suffix}.id = {{n}} OR {{e}}{suffix}.canonical_id = {{n}})"


def _root(suffix: str) -> str:
    """The key of the node that stands for an entity."""
    return f"COALESCE({{e}}{suffix}.canonical_id, {{e}}{suffix}.id)"


MEMBERS = (
    "(SELECT count(*) FROM entities y WHERE y.community_id = {row}.id AND y.scope_id = {row}.scope_id "
    "AND +y.canonical_id IS NULL)"
)
CHANGED = {"created_at": TIME, "updated_at": TIME}

# The sign keeps SQLite from looking for all entities that are not merged, which are nearly all there are.
LABELS: Mapping[str, Label] = {
    "Entity": Label(
        number=0,
        table="entities",
        condition="+{row}.canonical_id IS NULL",
        properties={
            **dict.fromkeys(("id", "name", "type", "summary"), STRING),
            "aliases": ValueType.LIST,
            **CHANGED,
        },
        columns={"id": "{row}.uid"},
    ),
    "Episodic": Label(
        number=1,
        table="episodes",
        properties={
            **dict.fromkeys(("id", "name", "source", "status"), STRING),
            "trusted": BOOLEAN,
            **dict.fromkeys(("happened_at", "created_at"), TIME),
        },
        columns={"id": "{row}.uid"},
    ),
    "Community": Label(
        number=2,
        table="communities",
        properties={
            **dict.fromkeys(("id", "name", "summary"), STRING),
            "member_count": ValueType.INTEGER,
            **CHANGED,
        },
        columns={"id": "{row}.uid", "member_count": MEMBERS},
    ),
}

EDGES: Mapping[str, EdgeType] = {
    "MENTIONS": EdgeType(
        number=0,
        start="Episodic",
        end="Entity",
        table="mentions",
        from_start=(
            (
                WalkTable("mentions", "", "{e}.episode_id = {n}"),
                WalkTable("entities", "o", "{e}o.id = {e}.entity_id"),
            ),
            _root("o"),
        ),
        from_end=(
            (
                WalkTable("entities", "o", _merged("o")),
                WalkTable("mentions", "", "{e}.entity_id = {e}o.id AND {e}.episode_id IS NOT NULL"),
            ),
            "{e}.episode_id",
        ),
        start_row="x.episode_id",
        end_row="x.entity_id",
    ),
    "RELATES_TO": EdgeType(
        number=1,
        start="Entity",
        end="Entity",
        table="facts",
        from_start=(
            (
                WalkTable("entities", "s", _merged("s")),
                WalkTable("facts", "", "{e}.subject_id = {e}s.id"),
                WalkTable("entities", "o", "{e}o.id = {e}.object_id"),
            ),
            _root("o"),
        ),
        from_end=(
            (
                WalkTable("entities", "o", _merged("o")),
                WalkTable("facts", "", "{e}.object_id = {e}o.id"),
                WalkTable("entities", "s", "{e}s.id = {e}.subject_id"),
            ),
            _root("s"),
        ),
        start_row="x.subject_id",
        end_row="x.object_id",
        properties={
            **dict.fromkeys(("id", "fact", "text", "predicate", "category"), STRING),
            **dict.fromkeys(("valid_at", "invalid_at", "created_at", "expired_at"), TIME),
            "weight": FLOAT,
            "trusted": BOOLEAN,
        },
        columns={"id": "uid", "fact": "text"},
    ),
    "BELONGS_TO": EdgeType(
        number=2,
        start="Entity",
        end="Community",
        table="entities",
        from_start=((WalkTable("entities", "", "{e}.id = {n}"),), "{e}.community_id"),
        from_end=(
            (WalkTable("entities", "", "{e}.community_id = {n} AND +{e}.canonical_id IS NULL"),),
            "{e}.id",
        ),
        start_row="x.id",
        end_row="x.community_id",
    ),
}

CURRENT_FACTS = "RELATES_TO"
"""The type of which edges may be expired."""

KIND_BITS = 2
KIND_MASK = 3
"""A key whose label or type is not known beforehand has the number of that in its last bits."""


def find_label(name: str, at: TextPosition) -> str:
    """Raises QueryRefused for a label that does not exist."""
    if name not in LABELS:
        raise QueryRefused(f"there is no label {name}", at, LABELS)
    return name


def find_type(name: str, at: TextPosition) -> str:
    """Raises QueryRefused for a type of relationships that does not exist."""
    if name not in EDGES:
        raise QueryRefused(f"there is no type {name}", at, EDGES)
    return name


def property_type(
    kinds: Mapping[str, "Label | EdgeType"], names: tuple[str, ...], prop: str, at: TextPosition
) -> ValueType:
    """The type of a property that at least one of the labels or types has. Raises QueryRefused."""
    known = {name: type_ for kind in names for name, type_ in kinds[kind].properties.items()}
    if prop not in known:
        raise QueryRefused(
            f"{' and '.join(names)} have no property {prop}", at, sorted(known) or ["no property"]
        )
    return known[prop]
