"""Expressions of a query as SQL: each has a type, which is known before the query runs.

Every value of the query and of its parameters is bound; no text of a query becomes SQL.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from luxx.features.memory.cypher.dialect import Sql
from luxx.features.memory.cypher.schema import (
    EDGES,
    KIND_BITS,
    KIND_MASK,
    LABELS,
    EdgeType,
    Label,
    ValueType,
    property_type,
)
from luxx.features.memory.cypher.syntax import (
    Compared,
    Expression,
    FunctionCall,
    Junction,
    ListOf,
    Literal,
    Not,
    NullCheck,
    ParameterUse,
    Property,
    QueryRefused,
    TextPosition,
    Variable,
)
from luxx.features.memory.cypher.tree import MAX_DEPTH

MAX_LIST = 200
MAX_STRING = 10_000

NUMBERS = frozenset({ValueType.INTEGER, ValueType.FLOAT})
ORDERED = frozenset({ValueType.STRING, ValueType.TIME, *NUMBERS})
THINGS = frozenset({ValueType.NODE, ValueType.EDGE})
AGGREGATES = ("count", "collect", "sum", "avg", "min", "max")
FUNCTIONS = (*AGGREGATES, "coalesce", "toLower", "type", "id")
TEXT_OPERATORS = frozenset({"STARTS WITH", "ENDS WITH", "CONTAINS"})


class Typed(Struct, frozen=True, kw_only=True):
    """An expression as SQL. `element`: the type in a list. Of a node or an edge, `sql` is its key, `kinds`
    are its possible labels or types, and `alias` is the table of this MATCH that has its columns. `possible`
    are the labels or types that it has in any way to read the MATCH.

    `folded`: of a name, the column by which an index finds it. `constant` is the value of a literal or a
    parameter, which may be read as a time.
    """

    sql: str
    type: ValueType
    element: ValueType | None = None
    kinds: tuple[str, ...] = ()
    alias: str | None = None
    possible: tuple[str, ...] = ()
    folded: str | None = None
    constant: Any = None

    @property
    def kind_table(self) -> Mapping[str, Label | EdgeType]:
        return LABELS if self.type is ValueType.NODE else EDGES


Environment = Mapping[str, Typed]


def is_aggregate(value: Expression) -> bool:
    return isinstance(value, FunctionCall) and value.name.lower() in AGGREGATES


class Expressions:
    """Compiles expressions of one query, with its parameters."""

    def __init__(self, sql: Sql, parameters: Mapping[str, Any]) -> None:
        self.sql = sql
        self._parameters = parameters

    def compile(self, value: Expression, known: Environment, depth: int = 0) -> Typed:
        """The expression as SQL. Raises QueryRefused."""
        if depth > MAX_DEPTH:
            raise QueryRefused(f"expressions may be nested {MAX_DEPTH} deep", value.at)
        match value:
            case Literal():
                return self._constant(value.value, value.at)
            case ParameterUse():
                return self._constant(self.parameter(value), value.at)
            case Variable():
                return _variable(value.name, value.at, known)
            case Property():
                return self._property(value, known)
            case FunctionCall():
                return self._call(value, known, depth)
            case Compared():
                return self._comparison(value, known, depth)
            case NullCheck():
                operand = self.compile(value.operand, known, depth + 1)
                test = "IS NOT NULL" if value.negated else "IS NULL"
                return _boolean(f"({operand.sql} {test})")
            case Not():
                return _boolean(f"(NOT {self.condition(value.operand, known, depth + 1)})")
            case Junction():
                parts = [self.condition(operand, known, depth + 1) for operand in value.operands]
                return _boolean(f"({f' {value.operator} '.join(parts)})")
            case ListOf():
                raise QueryRefused("a list can only stand after IN", value.at)

    def condition(self, value: Expression, known: Environment, depth: int = 0) -> str:
        """The SQL of an expression that is true, false or null."""
        compiled = self.compile(value, known, depth)
        if compiled.type not in (ValueType.BOOLEAN, ValueType.NULL):
            raise QueryRefused(
                f"a condition is expected, and this is {compiled.type}",
                value.at,
                ["a comparison", "IS NULL", "IN", "STARTS WITH", "ENDS WITH", "CONTAINS"],
            )
        return compiled.sql if compiled.type is ValueType.BOOLEAN else self.sql.null(ValueType.BOOLEAN)

    def parameter(self, value: ParameterUse) -> Any:
        if value.name not in self._parameters:
            expected = [f"${name}" for name in sorted(self._parameters)]
            raise QueryRefused(f"there is no parameter {value.name}", value.at, expected)
        return self._parameters[value.name]

    def equal(self, prop: Typed, value: Expression, known: Environment) -> str:
        """The condition that a property of a pattern has a value."""
        return self._compared("=", prop, self.compile(value, known), value.at)

    def _constant(self, value: Any, at: TextPosition) -> Typed:
        if isinstance(value, list):
            raise QueryRefused("a list can only stand after IN", at)
        type_ = type_of_constant(value, at)
        if type_ is ValueType.NULL:
            return Typed(sql=self.sql.null(ValueType.STRING), type=type_)
        return Typed(sql=self.sql.bind(value, type_), type=type_, constant=value)

    def _property(self, value: Property, known: Environment) -> Typed:
        owner = _variable(value.variable, value.at, known)
        if owner.type not in THINGS:
            raise QueryRefused(
                f"{value.variable} is {owner.type} and has no properties", value.at, _things(known)
            )
        return self.property_of(owner, value.name, value.name_at)

    def property_of(self, owner: Typed, name: str, at: TextPosition) -> Typed:
        """A property of a node or an edge; null where its label or type lacks it."""
        kinds = owner.kind_table
        type_ = property_type(kinds, owner.possible or owner.kinds, name, at)
        element = ValueType.STRING if type_ is ValueType.LIST else None
        if owner.alias is not None:
            kind = kinds[owner.kinds[0]]
            sql = kind.column(name, owner.alias) if name in kind.properties else self.sql.null(type_)
        else:
            sql = self.by_kind(owner, lambda kind: self._read(kinds[kind], name), type_)
        folded = (
            f"{owner.alias}.folded" if owner.alias and (owner.kinds, name) == (("Entity",), "name") else None
        )
        return Typed(sql=sql, type=type_, element=element, folded=folded)

    def _read(self, kind: Label | EdgeType, name: str) -> str | None:
        return kind.column(name, "x") if name in kind.properties else None

    def by_kind(self, owner: Typed, column: Callable[[str], str | None], type_: ValueType) -> str:
        """What `column` says of the node or edge, read by its key, for each of its possible kinds."""
        values = {kind: column(kind) for kind in owner.kinds}
        if len(values) == 1:
            ((kind, sql),) = values.items()
            return (
                self.sql.null(type_) if sql is None else self.sql.read(owner.kind_table[kind], owner.sql, sql)
            )
        cases = ""
        for kind, sql in values.items():
            if sql is not None:
                row = owner.kind_table[kind]
                read = self.sql.read(row, f"({owner.sql} >> {KIND_BITS})", sql)
                cases += f" WHEN ({owner.sql} & {KIND_MASK}) = {row.number} THEN {read}"
        return f"(CASE{cases} END)" if cases else self.sql.null(type_)

    def _call(self, call: FunctionCall, known: Environment, depth: int) -> Typed:
        name = call.name.lower()
        if name in AGGREGATES:
            raise QueryRefused(
                f"{call.name} can only be an item of RETURN or WITH of its own", call.at, ["RETURN", "WITH"]
            )
        functions = {
            "coalesce": self._coalesce,
            "tolower": self._to_lower,
            "type": self._type,
            "id": self._id,
        }
        if name not in functions:
            raise QueryRefused(f"there is no function {call.name}", call.at, FUNCTIONS)
        if call.distinct or call.star or not call.arguments:
            raise QueryRefused(
                f"{call.name} takes {'values' if name == 'coalesce' else 'one value'}", call.at
            )
        arguments = [self.compile(item, known, depth + 1) for item in call.arguments]
        if name != "coalesce" and len(arguments) != 1:
            raise QueryRefused(f"{call.name} takes one value", call.arguments[1].at, [")"])
        return functions[name](arguments, call)

    def _coalesce(self, arguments: list[Typed], call: FunctionCall) -> Typed:
        given = [(value, at.at) for value, at in zip(arguments, call.arguments, strict=True)]
        given = [pair for pair in given if pair[0].type is not ValueType.NULL]
        if not given:
            return arguments[0]
        type_ = given[0][0].type
        for value, at in given:
            if value.type in THINGS or value.type is ValueType.LIST:
                raise QueryRefused("coalesce takes values, not nodes, relationships or lists", at)
            if value.type is not type_ and not {value.type, type_} <= NUMBERS:
                raise QueryRefused(
                    f"the first value of coalesce is {type_}, this is {value.type}", at, [type_]
                )
            type_ = ValueType.FLOAT if value.type is ValueType.FLOAT else type_
        parts = [self.sql.as_type(value.sql, type_) if type_ in NUMBERS else value.sql for value, _ in given]
        return Typed(sql=parts[0] if len(parts) == 1 else f"COALESCE({', '.join(parts)})", type=type_)

    def _to_lower(self, arguments: list[Typed], call: FunctionCall) -> Typed:
        _require(arguments[0], {ValueType.STRING}, call.arguments[0].at)
        return Typed(sql=self.sql.lower(arguments[0].sql), type=ValueType.STRING)

    def _type(self, arguments: list[Typed], call: FunctionCall) -> Typed:
        edge = arguments[0]
        _require(edge, {ValueType.EDGE}, call.arguments[0].at)
        if edge.type is ValueType.NULL:
            return edge
        names = {name: self.sql.bind(name, ValueType.STRING) for name in edge.kinds}
        if len(names) == 1:
            sql = f"(CASE WHEN {edge.sql} IS NOT NULL THEN {next(iter(names.values()))} END)"
        else:
            cases = "".join(f" WHEN {EDGES[name].number} THEN {bound}" for name, bound in names.items())
            sql = f"(CASE {edge.sql} & {KIND_MASK}{cases} END)"
        return Typed(sql=sql, type=ValueType.STRING)

    def _id(self, arguments: list[Typed], call: FunctionCall) -> Typed:
        _require(arguments[0], THINGS, call.arguments[0].at)
        if arguments[0].type is ValueType.NULL:
            return arguments[0]
        return self.property_of(arguments[0], "id", call.at)

    def _comparison(self, value: Compared, known: Environment, depth: int) -> Typed:
        left = self.compile(value.left, known, depth + 1)
        if value.operator == "IN":
            return _boolean(self._contained(left, value, known, depth))
        right = self.compile(value.right, known, depth + 1)
        return _boolean(self._compared(value.operator, left, right, value.operator_at))

    def _compared(self, operator: str, left: Typed, right: Typed, at: TextPosition) -> str:
        if ValueType.NULL in (left.type, right.type):
            return self.sql.null(ValueType.BOOLEAN)
        if operator in TEXT_OPERATORS:
            for side in (left, right):
                _require(side, {ValueType.STRING}, at)
            return self.sql.text_test(operator, left.sql, right.sql)
        if left.type in THINGS and left.type is right.type:
            if operator not in ("=", "<>"):
                raise QueryRefused(f"{left.type} cannot be ordered", at, ["=", "<>"])
            return f"({full_key(left)} {operator} {full_key(right)})"
        left, right = self._as_times(left, right, at)
        if left.type is not right.type and not {left.type, right.type} <= NUMBERS:
            raise QueryRefused(f"{left.type} cannot be compared with {right.type}", at, [left.type])
        if left.type is ValueType.LIST:
            raise QueryRefused("lists cannot be compared", at, ["IN"])
        if operator in ("=", "<>"):
            return self._equals(operator, left, right)
        _require(left, ORDERED, at)
        return f"({self.sql.ordered(left.sql, left.type)} {operator} {right.sql})"

    def _equals(self, operator: str, left: Typed, right: Typed) -> str:
        equal = f"({left.sql} {operator} {right.sql})"
        for one, other in ((left, right), (right, left)):
            if operator == "=" and one.folded is not None and isinstance(other.constant, str):
                return f"({equal} AND {one.folded} = {self.sql.folded(other.constant)})"
        return equal

    def _as_times(self, left: Typed, right: Typed, at: TextPosition) -> tuple[Typed, Typed]:
        if left.type is ValueType.TIME and right.type is ValueType.STRING:
            return left, self._as_time(right, at)
        if right.type is ValueType.TIME and left.type is ValueType.STRING:
            return self._as_time(left, at), right
        return left, right

    def _as_time(self, value: Typed, at: TextPosition) -> Typed:
        if not isinstance(value.constant, str):
            raise QueryRefused("a time can be compared with a time, or with a text like '2026-05-31'", at)
        try:
            time = datetime.fromisoformat(value.constant)
            time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            expected = ["'2026-05-31'", "'2026-05-31T14:00:00Z'"]
            raise QueryRefused("the text is no time", at, expected) from None
        return replace(value, sql=self.sql.bind(time, ValueType.TIME), type=ValueType.TIME)

    def _contained(self, left: Typed, value: Compared, known: Environment, depth: int) -> str:
        at = value.right.at
        if isinstance(value.right, ListOf):
            items = [self.compile(item, known, depth + 1) for item in value.right.items]
        elif isinstance(value.right, ParameterUse) and isinstance(self.parameter(value.right), list):
            items = [self._constant(item, at) for item in self.parameter(value.right)]
        else:
            return self._in_list(left, self.compile(value.right, known, depth + 1), at)
        if len(items) > MAX_LIST:
            raise QueryRefused(f"a list may have at most {MAX_LIST} values", at)
        parts = [self._compared("=", left, item, at) for item in items]
        return f"({' OR '.join(parts)})" if parts else "(1 = 0)"

    def _in_list(self, left: Typed, right: Typed, at: TextPosition) -> str:
        if right.type is not ValueType.LIST:
            raise QueryRefused(f"IN takes a list, and this is {right.type}", at, ["a list", "a parameter"])
        if right.element is not ValueType.STRING or left.type is not ValueType.STRING:
            raise QueryRefused("only a text can be searched in a list of texts", at)
        found = self.sql.in_texts(left.sql, right.sql)
        return f"(CASE WHEN {left.sql} IS NOT NULL AND {right.sql} IS NOT NULL THEN {found} END)"


def full_key(thing: Typed) -> str:
    """A key that is unique among all labels or types."""
    if len(thing.kinds) > 1:
        return thing.sql
    number = thing.kind_table[next(iter(thing.kinds))].number
    return f"(({thing.sql} << {KIND_BITS}) + {number})"


def type_of_constant(value: Any, at: TextPosition) -> ValueType:
    """The type of a literal or a parameter. Raises QueryRefused for what no database takes."""
    match value:
        case None:
            return ValueType.NULL
        case bool():
            return ValueType.BOOLEAN
        case int():
            if not -(2**63) <= value < 2**63:
                raise QueryRefused("the number is too large", at)
            return ValueType.INTEGER
        case float():
            return ValueType.FLOAT
        case str():
            _check_text(value, at)
            return ValueType.STRING
        case _:
            raise QueryRefused("a parameter is a string, a number, true, false, null, or a list of these", at)


def _check_text(value: str, at: TextPosition) -> None:
    if len(value) > MAX_STRING:
        raise QueryRefused(f"a text may have at most {MAX_STRING:,} characters", at)
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise QueryRefused("the text has a character that cannot be stored", at)


def _variable(name: str, at: TextPosition, known: Environment) -> Typed:
    if name not in known:
        raise QueryRefused(f"there is no variable {name}", at, sorted(known))
    return known[name]


def _things(known: Environment) -> list[str]:
    return sorted(name for name, value in known.items() if value.type in THINGS)


def _require(value: Typed, types: frozenset[ValueType] | set[ValueType], at: TextPosition) -> None:
    if value.type not in types and value.type is not ValueType.NULL:
        raise QueryRefused(f"this is {value.type}", at, sorted(types))


def _boolean(sql: str) -> Typed:
    return Typed(sql=sql, type=ValueType.BOOLEAN)
