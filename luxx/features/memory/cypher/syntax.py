"""The tree of a query: pure values with their places in the text, and the error of a refused query."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from luxx.errors import InvalidInput


class TextPosition(Struct, frozen=True):
    """Line and column in the text of a query, counted from 1."""

    line: int
    column: int


class QueryRefused(InvalidInput):
    """A query that is outside of the subset. `detail` has its line and column and what may stand there."""

    kind = "query_refused"

    def __init__(self, message: str, at: TextPosition, expected: Iterable[str] = ()) -> None:
        alternatives = list(expected)
        text = f"{message} (line {at.line}, column {at.column})"
        if alternatives:
            text += f"; expected {', '.join(alternatives)}"
        super().__init__(text, detail={"line": at.line, "column": at.column, "expected": alternatives})


class Syntax(Struct, frozen=True, kw_only=True):
    """A part of a query. `at` is where it begins."""

    at: TextPosition


class Literal(Syntax, frozen=True, kw_only=True):
    """A value of the text: string, number, boolean or null."""

    value: str | int | float | bool | None


class ParameterUse(Syntax, frozen=True, kw_only=True):
    """`$name`."""

    name: str


class ListOf(Syntax, frozen=True, kw_only=True):
    """`[1, 2]`."""

    items: tuple["Expression", ...]


class Variable(Syntax, frozen=True, kw_only=True):
    """A name of a node, a relationship or a value."""

    name: str


class Property(Syntax, frozen=True, kw_only=True):
    """`variable.name`; `at` is the place of the variable, `name_at` that of the property."""

    variable: str
    name: str
    name_at: TextPosition


class FunctionCall(Syntax, frozen=True, kw_only=True):
    """A function with its arguments; `star`: count(*)."""

    name: str
    arguments: tuple["Expression", ...] = ()
    distinct: bool = False
    star: bool = False


class Compared(Syntax, frozen=True, kw_only=True):
    """`operator`: =, <>, <, <=, >, >=, IN, STARTS WITH, ENDS WITH or CONTAINS."""

    operator: str
    operator_at: TextPosition
    left: "Expression"
    right: "Expression"


class NullCheck(Syntax, frozen=True, kw_only=True):
    """`operand IS NULL`, or `IS NOT NULL`."""

    operand: "Expression"
    negated: bool


class Not(Syntax, frozen=True, kw_only=True):
    operand: "Expression"


class Junction(Syntax, frozen=True, kw_only=True):
    """Several operands with AND or OR between them."""

    operator: str
    operands: tuple["Expression", ...]


Expression = (
    Literal
    | ParameterUse
    | ListOf
    | Variable
    | Property
    | FunctionCall
    | Compared
    | NullCheck
    | Not
    | Junction
)


class Match(Struct, frozen=True):
    """A property in a pattern: `{name: value}`."""

    name: str
    at: TextPosition
    value: Expression


class NodePattern(Syntax, frozen=True, kw_only=True):
    """`(variable:Label {name: value})`, each part optional."""

    variable: str | None = None
    label: str | None = None
    label_at: TextPosition | None = None
    properties: tuple[Match, ...] = ()


class Hops(Syntax, frozen=True, kw_only=True):
    """`*2`, `*1..3`; an omitted bound is None."""

    least: int | None
    most: int | None


class EdgePattern(Syntax, frozen=True, kw_only=True):
    """`-[variable:TYPE*1..2 {name: value}]->`. `direction`: `->`, `<-` or `-` for both. `types` are
    tokens: texts with their `line` and `column`."""

    direction: str
    variable: str | None = None
    types: tuple[Any, ...] = ()
    hops: Hops | None = None
    properties: tuple[Match, ...] = ()


class Path(Syntax, frozen=True, kw_only=True):
    """Nodes with edges between them: one node more than edges."""

    nodes: tuple[NodePattern, ...]
    edges: tuple[EdgePattern, ...]


class MatchClause(Syntax, frozen=True, kw_only=True):
    paths: tuple[Path, ...]
    where: Expression | None
    optional: bool


class Item(Syntax, frozen=True, kw_only=True):
    """An item of RETURN or WITH."""

    value: Expression
    alias: str | None


class SortKey(Syntax, frozen=True, kw_only=True):
    value: Expression
    descending: bool


class Projection(Syntax, frozen=True, kw_only=True):
    """`items` None: all variables (`*`). `where` is that of a WITH."""

    items: tuple[Item, ...] | None
    distinct: bool
    order: tuple[SortKey, ...]
    skip: Literal | ParameterUse | None
    limit: Literal | ParameterUse | None
    where: Expression | None
    is_last: bool


class CypherQuery(Struct, frozen=True):
    clauses: tuple[MatchClause | Projection, ...]
