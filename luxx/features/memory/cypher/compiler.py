"""A query as one SQL statement: each clause is a common table expression of the rows of the one before.

A row has the integer keys of nodes and edges, and values; what a query shows of them is read at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, cast

from msgspec import Struct

from luxx.features.memory.cypher.dialect import ANY_COUNT, Sql
from luxx.features.memory.cypher.expressions import (
    NUMBERS,
    ORDERED,
    THINGS,
    Environment,
    Expressions,
    Typed,
    full_key,
    is_aggregate,
)
from luxx.features.memory.cypher.matches import MatchCompiler, in_rows
from luxx.features.memory.cypher.parser import START, parse
from luxx.features.memory.cypher.schema import EdgeType, ValueType
from luxx.features.memory.cypher.syntax import (
    FunctionCall,
    Item,
    MatchClause,
    ParameterUse,
    Projection,
    QueryRefused,
    Variable,
)
from luxx.features.memory.cypher.syntax import Literal as Constant
from luxx.features.memory.cypher.tree import text_of

MAX_CLAUSES = 12
MAX_ITEMS = 30
MAX_PARAMETERS = 50
MAX_STATEMENT = 500_000
"""Characters of the SQL."""

ROWS = "t"
"""The alias of the rows that a projection reads."""


class ResultColumn(Struct, frozen=True):
    """A column of a result: its name, its type, and that of the values of a list."""

    name: str
    type: ValueType
    element: ValueType | None


class Statement(Struct, frozen=True):
    """The SQL of a query. It gives at most one row more than asked for."""

    sql: str
    parameters: dict[str, Any]
    columns: tuple[ResultColumn, ...]


def compile_query(
    text: str,
    parameters: Mapping[str, Any],
    *,
    dialect: str,
    scopes: Sequence[int],
    limit: int,
    fold: Callable[[str], str],
) -> Statement:
    """The query as a statement that reads these scopes only. Raises QueryRefused."""
    if len(parameters) > MAX_PARAMETERS:
        raise QueryRefused(f"a query may have at most {MAX_PARAMETERS} parameters", START)
    query = parse(text)
    if len(query.clauses) > MAX_CLAUSES:
        raise QueryRefused(f"a query may have at most {MAX_CLAUSES} clauses", query.clauses[MAX_CLAUSES].at)
    compiler = _Compiler(Sql(dialect, scopes, fold), parameters)
    for clause in query.clauses:
        if isinstance(clause, MatchClause):
            compiler.match(clause)
        elif not clause.is_last:
            compiler.project(clause)
        else:
            return compiler.finish(clause, limit)
    raise QueryRefused("the query has no RETURN", START, ["RETURN"])


class _Column(Struct, frozen=True):
    """An item of a projection: its value, or that of its aggregate, before grouping; and the result."""

    name: str
    item: Item
    value: Typed
    aggregate: FunctionCall | None
    result: Typed


class _Compiler:
    def __init__(self, sql: Sql, parameters: Mapping[str, Any]) -> None:
        self._sql = sql
        self._expressions = Expressions(sql, parameters)
        self._tables: list[str] = []
        self._rows: str | None = None
        self._known: dict[str, Typed] = {}
        self._columns = (f"c{number}" for number in count())

    def match(self, clause: MatchClause) -> None:
        matched = MatchCompiler(self._expressions, self._rows, self._known, self._columns).compile(clause)
        self._add(matched.sql)
        self._known = dict(matched.known)

    def project(self, clause: Projection) -> None:
        """WITH."""
        order = self._select_items(clause)
        columns = ", ".join(f"{ROWS}.{value.sql}" for value in self._known.values())
        if order or clause.skip or clause.limit:
            self._add(f"SELECT {columns} FROM {self._rows} {ROWS}{order}{self._page(clause, ANY_COUNT)}")
        if clause.where is not None:
            known = {name: in_rows(value, ROWS) for name, value in self._known.items()}
            condition = self._expressions.condition(clause.where, known)
            self._add(f"SELECT {columns} FROM {self._rows} {ROWS} WHERE {condition}")

    def finish(self, clause: Projection, limit: int) -> Statement:
        """RETURN."""
        order = self._select_items(clause)
        shown = [self._shown(in_rows(value, ROWS)) for value in self._known.values()]
        names = [f"{sql} AS r{index}" for index, sql in enumerate(shown)]
        last = f"SELECT {', '.join(names)} FROM {self._rows} {ROWS}{order}{self._page(clause, limit + 1)}"
        sql = f"WITH {', '.join(self._tables)} {last}"
        if len(sql) > MAX_STATEMENT:
            raise QueryRefused(
                "the query stands for too many different ones", START, ["labels", "types", "shorter paths"]
            )
        columns = tuple(ResultColumn(name, value.type, value.element) for name, value in self._known.items())
        return Statement(sql, self._sql.parameters, columns)

    def _add(self, sql: str) -> None:
        self._rows = f"q{len(self._tables)}"
        self._tables.append(f"{self._rows} AS ({sql})")

    def _page(self, clause: Projection, most: int) -> str:
        limit = most if clause.limit is None else min(most, self._number(clause.limit))
        skip = 0 if clause.skip is None else self._number(clause.skip)
        return f" LIMIT {self._sql.bind(limit, ValueType.INTEGER)}" + (
            f" OFFSET {self._sql.bind(skip, ValueType.INTEGER)}" if skip else ""
        )

    def _number(self, value: Constant | ParameterUse) -> int:
        number = value.value if isinstance(value, Constant) else self._expressions.parameter(value)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= ANY_COUNT:
            raise QueryRefused("SKIP and LIMIT take a whole number from 0", value.at)
        return number

    def _select_items(self, clause: Projection) -> str:
        """Adds the rows of the items; returns the ORDER BY for them."""
        before = {name: in_rows(value, ROWS) for name, value in self._known.items()}
        columns = self._items(clause, before)
        is_grouped = any(column.aggregate for column in columns)
        is_late = is_grouped or clause.distinct
        names = {column.name: column.value for column in columns}
        keys = [] if is_late else self._keys(clause, columns, {**before, **names}, {})
        selected = [
            f"{column.value.sql} AS {f'i{number}' if is_grouped else column.result.sql}"
            for number, column in enumerate(columns)
        ]
        selected += [f"{key} AS k{number}" for number, key in enumerate(keys)]
        self._add(f"SELECT {', '.join(selected)}" + (f" FROM {self._rows} {ROWS}" if self._rows else ""))
        if is_grouped:
            self._group(columns)
        self._known = {column.name: column.result for column in columns}
        if clause.distinct:
            self._add(f"SELECT DISTINCT {', '.join(self._names())} FROM {self._rows}")
        if is_late:
            after = {name: in_rows(value, ROWS) for name, value in self._known.items()}
            texts = {text_of(column.item.value): after[column.name] for column in columns}
            keys = self._keys(clause, columns, after, texts)
        else:
            keys = [f"{ROWS}.k{number}" for number in range(len(keys))]
        return _order_by(clause, keys)

    def _names(self) -> list[str]:
        return [value.sql for value in self._known.values()]

    def _items(self, clause: Projection, before: Environment) -> list[_Column]:
        items = clause.items
        if items is None:
            items = tuple(
                Item(at=clause.at, value=Variable(at=clause.at, name=name), alias=None) for name in before
            )
        if not items:
            raise QueryRefused("there are no variables", clause.at, ["a name", "a value"])
        if len(items) > MAX_ITEMS:
            raise QueryRefused(f"there may be at most {MAX_ITEMS} items", items[MAX_ITEMS].at)
        columns: list[_Column] = []
        for item in items:
            name = self._name(item, clause)
            if any(column.name == name for column in columns):
                raise QueryRefused(f"there are two columns {name}", item.at, ["AS and another name"])
            columns.append(self._item(name, item, before))
        return columns

    def _name(self, item: Item, clause: Projection) -> str:
        if item.alias is None and not clause.is_last and not isinstance(item.value, Variable):
            raise QueryRefused("an item of WITH that is no variable needs a name", item.at, ["AS and a name"])
        return item.alias or text_of(item.value)

    def _item(self, name: str, item: Item, before: Environment) -> _Column:
        column = next(self._columns)
        if is_aggregate(item.value):
            call = cast("FunctionCall", item.value)
            value = self._argument(call, before)
            type_, element = _aggregate_type(call.name.lower(), value)
            if value.type in THINGS:
                sql = self._shown(value) if call.name.lower() == "collect" else full_key(value)
                value = Typed(sql=sql, type=ValueType.STRING)
            return _Column(name, item, value, call, Typed(sql=column, type=type_, element=element))
        value = self._expressions.compile(item.value, before)
        result = Typed(sql=column, type=value.type, element=value.element, kinds=value.kinds)
        return _Column(name, item, value, None, result)

    def _argument(self, call: FunctionCall, before: Environment) -> Typed:
        name = call.name.lower()
        if call.star and name == "count":
            return Typed(sql="1", type=ValueType.INTEGER)
        if call.star or len(call.arguments) != 1:
            raise QueryRefused(f"{call.name} takes one value", call.at, [f"{call.name}(value)"])
        argument = call.arguments[0]
        value = self._expressions.compile(argument, before)
        allowed = AGGREGATED.get(name)
        if value.type is ValueType.NULL and allowed is not None:
            return Typed(sql=self._sql.null(ValueType.INTEGER), type=ValueType.INTEGER)
        if allowed is not None and value.type not in allowed:
            raise QueryRefused(f"{call.name} does not take {value.type}", argument.at, sorted(allowed))
        if name == "collect" and value.type is ValueType.LIST:
            raise QueryRefused("collect does not take lists", argument.at)
        return value

    def _group(self, columns: list[_Column]) -> None:
        selected: list[str] = []
        keys: list[str] = []
        for number, column in enumerate(columns):
            source = f"i{number}"
            if column.aggregate is None:
                keys.append(source)
                selected.append(f"{source} AS {column.result.sql}")
            else:
                sql = self._aggregate(column.aggregate, source, column.value.type)
                selected.append(f"{sql} AS {column.result.sql}")
        self._add(
            f"SELECT {', '.join(selected)} FROM {self._rows}"
            + (f" GROUP BY {', '.join(keys)}" if keys else "")
        )

    def _aggregate(self, call: FunctionCall, source: str, type_: ValueType) -> str:
        name = call.name.lower()
        distinct = "DISTINCT " if call.distinct else ""
        match name:
            case "collect":
                return self._sql.json_list(source, type_, distinct=call.distinct)
            case "min" | "max":
                return f"{name}({self._sql.ordered(source, type_)})"
            case "sum":
                total = self._sql.as_type(f"sum({distinct}{source})", type_)
                return f"COALESCE({total}, {self._sql.as_type('0', type_)})"
            case "avg":
                return self._sql.as_type(f"avg({distinct}{source})", ValueType.FLOAT)
            case _:
                return f"count({distinct}{source})"

    def _keys(
        self, clause: Projection, columns: list[_Column], known: Environment, texts: Environment
    ) -> list[str]:
        """The SQL of the sort keys. `texts`: results by the text of their item."""
        keys: list[str] = []
        for sort in clause.order:
            value = texts.get(text_of(sort.value)) or self._expressions.compile(sort.value, known)
            if value.type not in (*ORDERED, ValueType.BOOLEAN, ValueType.NULL):
                expected = [f"{name}.name" for name, each in known.items() if each.type is ValueType.NODE]
                raise QueryRefused(f"ORDER BY takes values, and this is {value.type}", sort.at, expected)
            keys.append(self._sql.ordered(value.sql, value.type))
        return keys

    def _shown(self, value: Typed) -> str:
        """A value as a result: times, nodes and relationships as text."""
        if value.type is ValueType.TIME:
            return self._sql.time_text(value.sql)
        if value.type in THINGS:
            return self._expressions.by_kind(value, lambda kind: self._object(value, kind), ValueType.STRING)
        return value.sql

    def _object(self, value: Typed, name: str) -> str:
        kind = value.kind_table[name]
        parts: dict[str, str] = {}
        if isinstance(kind, EdgeType):
            parts["relationship"] = f"'{name}'"
            parts["start"] = self._sql.uid(kind.start, kind.start_row)
            parts["end"] = self._sql.uid(kind.end, kind.end_row)
        else:
            parts["label"] = f"'{name}'"
        for prop, type_ in kind.properties.items():
            if prop != "text":
                parts[prop] = self._sql.json_value(kind.column(prop, "x"), type_)
        return self._sql.json_object(parts)


AGGREGATED = {"sum": NUMBERS, "avg": NUMBERS, "min": ORDERED, "max": ORDERED}
"""The types that some aggregates take."""


def _aggregate_type(name: str, value: Typed) -> tuple[ValueType, ValueType | None]:
    match name:
        case "count":
            return ValueType.INTEGER, None
        case "avg":
            return ValueType.FLOAT, None
        case "collect":
            return ValueType.LIST, value.type
        case _:
            return value.type, None


def _order_by(clause: Projection, keys: list[str]) -> str:
    parts = [
        f"{key} {'DESC NULLS FIRST' if sort.descending else 'ASC NULLS LAST'}"
        for key, sort in zip(keys, clause.order, strict=True)
    ]
    return f" ORDER BY {', '.join(parts)}" if parts else ""
