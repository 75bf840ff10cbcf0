"""A MATCH as SQL: one SELECT for each way to read its patterns."""

from collections.abc import Iterator

from msgspec import Struct

from luxx.features.memory.cypher.expressions import Environment, Expressions, Typed, full_key
from luxx.features.memory.cypher.patterns import Hop, Pattern, Way, pattern_of, ways
from luxx.features.memory.cypher.schema import CURRENT_FACTS, EDGES, KIND_BITS, KIND_MASK, LABELS, ValueType
from luxx.features.memory.cypher.syntax import (
    Compared,
    EdgePattern,
    Expression,
    FunctionCall,
    Junction,
    Match,
    MatchClause,
    Not,
    NullCheck,
    Property,
    Variable,
)

BEFORE = "p"
"""The alias of the rows of the clauses before."""

NO_ROWS = "(SELECT 1 AS one) z"
"""What a walk begins with where no rows come before."""


class Matched(Struct, frozen=True):
    """The SQL of a MATCH and its variables, as columns of that SQL."""

    sql: str
    known: Environment


class MatchCompiler:
    """Compiles one MATCH. `before` is the name of the rows so far, None if there are none; `known` are its
    variables; `columns` gives the names of new columns."""

    def __init__(
        self, expressions: Expressions, before: str | None, known: Environment, columns: Iterator[str]
    ) -> None:
        self._expressions = expressions
        self._sql = expressions.sql
        self._before = before
        self._known = known
        self._columns = columns
        self.ways: list[Way] = []
        self.order: list[int] = []
        """The positions of nodes, those first of which an index finds few."""

    def compile(self, clause: MatchClause) -> Matched:
        nodes = {name: value.kinds for name, value in self._known.items() if value.type is ValueType.NODE}
        values = frozenset(self._known.keys() - nodes.keys())
        pattern = pattern_of(clause, nodes, values)
        found = self.ways = ways(pattern, clause.at)
        self.order = self._order(pattern, clause.where)
        known = self._results(pattern, found)
        expired = frozenset(_owners_of_expiry(clause.where))
        selects = [_Select(self, pattern, way, expired) for way in found]
        bodies = [select.body(clause.where) for select in selects]
        rows = (self.rows_before or NO_ROWS) + self._sql.then
        parts = [
            f"SELECT {', '.join(select.outputs(known)) or '1 AS one'} FROM {rows}{body}"
            for select, body in zip(selects, bodies, strict=True)
        ]
        if clause.optional:
            parts.append(self._unmatched(known, bodies))
        return Matched(" UNION ALL ".join(parts), known)

    def _order(self, pattern: Pattern, where: Expression | None) -> list[int]:
        fixed = set(_fixed_properties(where))

        def cost(position: int) -> tuple[int, int]:
            node = pattern.nodes[position]
            names = {match.name for each in node.patterns for match in each.properties}
            names |= {prop for name, prop in fixed if name == node.name}
            if node.name is not None and node.name in self._known:
                return 0, position
            if "id" in names:
                return 1, position
            if "name" in names:
                return 2, position
            return (3 if names else 4 if node.labels == ("Community",) else 5), position

        return sorted(range(len(pattern.nodes)), key=cost)

    def _results(self, pattern: Pattern, found: list[Way]) -> dict[str, Typed]:
        """The variables after this MATCH; those of earlier ones keep their labels."""
        known = dict(self._known)
        for position, node in enumerate(pattern.nodes):
            if node.name is not None and node.name not in known:
                kinds = tuple(dict.fromkeys(way.labels[position] for way in found))
                known[node.name] = Typed(sql=next(self._columns), type=ValueType.NODE, kinds=kinds)
        for position, edge in enumerate(pattern.edges):
            if edge.pattern.variable is not None:
                kinds = tuple(dict.fromkeys(way.hops[position][0].type for way in found))
                known[edge.pattern.variable] = Typed(
                    sql=next(self._columns), type=ValueType.EDGE, kinds=kinds
                )
        return known

    def _unmatched(self, known: Environment, bodies: list[str]) -> str:
        """The rows that no way continues, with null for what is new."""
        columns = [
            f"{BEFORE}.{value.sql}" if name in self._known else f"{self._sql.null(value.type)} AS {value.sql}"
            for name, value in known.items()
        ]
        rows = self.rows_before or NO_ROWS
        none = f"NOT EXISTS (SELECT 1 FROM {NO_ROWS}{self._sql.then}"
        unmatched = " AND ".join(f"{none}{body})" for body in bodies)
        return f"SELECT {', '.join(columns) or '1 AS one'} FROM {rows} WHERE {unmatched}"

    @property
    def rows_before(self) -> str:
        return "" if self._before is None else f"{self._before} {BEFORE}"

    @property
    def expressions(self) -> Expressions:
        return self._expressions

    @property
    def known(self) -> Environment:
        return self._known


class _Select:
    """One way to read the patterns: its tables in the order of a walk from the nodes that are found first."""

    def __init__(
        self, match: MatchCompiler, pattern: Pattern, way: Way, with_expired: frozenset[str]
    ) -> None:
        self._match = match
        self._sql = match.expressions.sql
        self._pattern = pattern
        self._way = way
        self._with_expired = with_expired
        self._tables: list[str] = []
        self._conditions: list[str] = []
        self._edges: dict[str, list[str]] = {}
        """The aliases of edges, by type: no edge stands twice in a match."""
        self._placed: set[int] = set()
        self._walked: set[int] = set()
        self._known: dict[str, Typed] = {name: in_rows(value, BEFORE) for name, value in match.known.items()}
        for position in match.order:
            if position not in self._placed:
                self._start(position)
                self._walk()
        self._require_properties()

    def _start(self, position: int) -> None:
        """Adds a node that no edge leads to."""
        label, name = self._way.labels[position], self._pattern.nodes[position].name
        conditions: list[str] = []
        is_bound = name is not None and name in self._match.known
        if name is not None and is_bound:
            bound, key = in_rows(self._match.known[name], BEFORE), f"n{position}.id"
            if len(bound.kinds) == 1:
                conditions.append(f"{key} = {bound.sql}")
            else:
                self._conditions.append(f"({bound.sql} & {KIND_MASK}) = {LABELS[label].number}")
                conditions.append(f"{key} = ({bound.sql} >> {KIND_BITS})")
        self._place(position, conditions, is_start=not is_bound)

    def _place(self, position: int, conditions: list[str], *, is_start: bool = False) -> None:
        label, node = self._way.labels[position], self._pattern.nodes[position]
        self._add_row(label, f"n{position}", conditions, is_start=is_start)
        self._placed.add(position)
        if node.name is not None:
            if not is_start and node.name in self._match.known:
                bound = in_rows(self._match.known[node.name], BEFORE)
                here = self._node(position, label)
                key = here.sql if len(bound.kinds) == 1 else full_key(here)
                self._conditions.append(f"{key} = {bound.sql}")
            self._known[node.name] = self._node(position, label)

    def _add_row(self, label: str, row: str, conditions: list[str], *, is_start: bool = False) -> None:
        kind = LABELS[label]
        own = [kind.condition.replace("{row}", row)] if kind.condition else []
        condition = " AND ".join([*conditions, *own]) or "1 = 1"
        self._tables.append(self._sql.join(kind.table, row, condition, is_start=is_start))

    def _walk(self) -> None:
        """Adds the edges at the nodes that stand so far, and the nodes at their other ends."""
        waiting = set(range(len(self._pattern.edges))) - self._walked
        while waiting:
            ready = [index for index in sorted(waiting) if self._is_ready(index)]
            if not ready:
                return
            # First those between two nodes, which only filter.
            index = min(ready, key=lambda each: (not self._is_closing(each), each))
            waiting.remove(index)
            self._walked.add(index)
            self._add_edge(index)

    def _is_ready(self, index: int) -> bool:
        edge = self._pattern.edges[index]
        return bool({edge.start, edge.end} & self._placed)

    def _is_closing(self, index: int) -> bool:
        edge = self._pattern.edges[index]
        return {edge.start, edge.end} <= self._placed

    def _add_edge(self, position: int) -> None:
        edge, hops = self._pattern.edges[position], self._way.hops[position]
        numbered = list(enumerate(hops))
        here, there = edge.start, edge.end
        if here not in self._placed:
            here, there = there, here
            numbered = [(number, Hop(hop.type, not hop.forward)) for number, hop in reversed(numbered)]
        key = end = f"n{here}.id"
        for number, hop in numbered:
            alias = f"e{position}_{number}"
            end = self._add_hop(alias, hop, key, edge.pattern)
            if edge.pattern.direction == "-" and not hops[number].forward and hop.labels[0] == hop.labels[1]:
                # A loop is the same edge in both directions.
                self._conditions.append(f"{end} <> {key}")
            if (number, hop) != numbered[-1]:
                between = f"m{position}_{number}"
                self._add_row(hop.labels[1], between, [f"{between}.id = {end}"])
                key = f"{between}.id"
        if there in self._placed:
            self._conditions.append(f"n{there}.id = {end}")
        else:
            self._place(there, [f"n{there}.id = {end}"])
        if edge.pattern.variable is not None:
            self._known[edge.pattern.variable] = self._edge(position, 0, hops[0].type)

    def _add_hop(self, alias: str, hop: Hop, key: str, pattern: EdgePattern) -> str:
        """Adds the tables of an edge from the node with a key; returns the key of the other."""
        kind = EDGES[hop.type]
        steps, end = kind.from_start if hop.forward else kind.from_end
        for step in steps:
            on = step.on.replace("{e}", alias).replace("{n}", key)
            self._tables.append(self._sql.join(step.table, alias + step.suffix, on))
        end = end.replace("{e}", alias)
        self._conditions += [f"{alias}.id <> {other}.id" for other in self._edges.get(hop.type, [])]
        self._edges.setdefault(hop.type, []).append(alias)
        if hop.type == CURRENT_FACTS and not self._takes_expired(pattern):
            self._conditions.append(f"{alias}.expired_at IS NULL")
        return end

    def _takes_expired(self, pattern: EdgePattern) -> bool:
        return pattern.variable in self._with_expired or any(
            match.name == "expired_at" for match in pattern.properties
        )

    def _require_properties(self) -> None:
        for position, node in enumerate(self._pattern.nodes):
            owner = self._node(position, self._way.labels[position])
            for pattern in node.patterns:
                self._require(owner, pattern.properties)
        for position, hops in enumerate(self._way.hops):
            properties = self._pattern.edges[position].pattern.properties
            for index, hop in enumerate(hops):
                self._require(self._edge(position, index, hop.type), properties)

    def _require(self, owner: Typed, properties: tuple[Match, ...]) -> None:
        expressions = self._match.expressions
        for match in properties:
            prop = expressions.property_of(owner, match.name, match.at)
            self._conditions.append(expressions.equal(prop, match.value, self._known))

    def _node(self, position: int, label: str) -> Typed:
        possible = tuple(dict.fromkeys(way.labels[position] for way in self._match.ways))
        alias = f"n{position}"
        return Typed(sql=f"{alias}.id", type=ValueType.NODE, kinds=(label,), alias=alias, possible=possible)

    def _edge(self, position: int, index: int, type_: str) -> Typed:
        possible = tuple(dict.fromkeys(hop.type for way in self._match.ways for hop in way.hops[position]))
        alias = f"e{position}_{index}"
        return Typed(sql=f"{alias}.id", type=ValueType.EDGE, kinds=(type_,), alias=alias, possible=possible)

    def body(self, where: Expression | None) -> str:
        """The tables of this way, and its conditions, after the rows before, if there are any."""
        conditions = list(self._conditions)
        if where is not None:
            conditions.append(self._match.expressions.condition(where, self._known))
        return self._sql.then.join(self._tables) + (
            f" WHERE {' AND '.join(conditions)}" if conditions else ""
        )

    def outputs(self, known: Environment) -> Iterator[str]:
        for name, value in known.items():
            if name in self._match.known:
                yield f"{BEFORE}.{value.sql}"
                continue
            here = self._known[name]
            yield f"{here.sql if len(value.kinds) == 1 else full_key(here)} AS {value.sql}"


def in_rows(value: Typed, alias: str) -> Typed:
    """A variable whose SQL is the name of a column, as a column of the rows with this alias."""
    return Typed(sql=f"{alias}.{value.sql}", type=value.type, element=value.element, kinds=value.kinds)


def _fixed_properties(where: Expression | None) -> Iterator[tuple[str, str]]:
    """The properties that have a value, or one of some, wherever the condition is true."""
    waiting = [] if where is None else [where]
    while waiting:
        match waiting.pop():
            case Junction(operator="AND", operands=operands):
                waiting += operands
            case Compared(operator="=" | "IN", left=left, right=right):
                for side in (left, right):
                    if isinstance(side, Property):
                        yield side.variable, side.name
                    elif isinstance(side, FunctionCall) and side.name.lower() == "id" and side.arguments:
                        argument = side.arguments[0]
                        if isinstance(argument, Variable):
                            yield argument.name, "id"
            case _:
                pass


def _owners_of_expiry(where: Expression | None) -> Iterator[str]:
    """The relationships whose `expired_at` a condition names: they may be facts that are no longer known."""
    waiting = [] if where is None else [where]
    while waiting:
        value = waiting.pop()
        match value:
            case Property() if value.name == "expired_at":
                yield value.variable
            case Compared():
                waiting += [value.left, value.right]
            case NullCheck() | Not():
                waiting.append(value.operand)
            case Junction():
                waiting += value.operands
            case FunctionCall():
                waiting += value.arguments
            case _:
                pass
