"""Builds the tree of a query while the parser reads it: one method for each rule of `grammar.lark`."""

import math
import re
from functools import partial
from typing import Any

from luxx.features.memory.cypher.syntax import (
    Compared,
    CypherQuery,
    EdgePattern,
    Expression,
    FunctionCall,
    Hops,
    Item,
    Junction,
    ListOf,
    Literal,
    Match,
    MatchClause,
    NodePattern,
    Not,
    NullCheck,
    ParameterUse,
    Path,
    Projection,
    Property,
    QueryRefused,
    SortKey,
    TextPosition,
    Variable,
)

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
MAX_DIGITS = 19
"""Of a whole number; those of 64 bits have at most 19."""

MAX_DEPTH = 25
"""How deep the expressions of a query may be nested."""

Children = list[Any]


def place_of(token: Any) -> TextPosition:
    return TextPosition(token.line, token.column)


def text_of(value: Expression, depth: int = 0) -> str:
    """An expression as the name of a column without an alias. One that is nested too deep to be compiled is
    cut, because the compiler refuses it with its place."""
    if depth > MAX_DEPTH:
        return "…"
    below = partial(text_of, depth=depth + 1)
    match value:
        case Literal():
            return repr(value.value) if isinstance(value.value, str) else str(value.value).lower()
        case ParameterUse():
            return f"${value.name}"
        case Variable():
            return value.name
        case Property():
            return f"{value.variable}.{value.name}"
        case FunctionCall():
            arguments = "*" if value.star else ", ".join(below(item) for item in value.arguments)
            return f"{value.name}({'DISTINCT ' if value.distinct else ''}{arguments})"
        case ListOf():
            return f"[{', '.join(below(item) for item in value.items)}]"
        case Compared():
            return f"{below(value.left)} {value.operator} {below(value.right)}"
        case NullCheck():
            return f"{below(value.operand)} IS {'NOT ' if value.negated else ''}NULL"
        case Not():
            return f"NOT {below(value.operand)}"
        case Junction():
            return f" {value.operator} ".join(below(item) for item in value.operands)


class TreeBuilder:
    """The parser calls the method of a rule with what it made of the rule's parts; omitted ones are None."""

    def start(self, clauses: Children) -> CypherQuery:
        return CypherQuery(tuple(clauses))

    def match(self, parts: Children) -> MatchClause:
        optional, keyword, paths, where = parts
        at = place_of(optional or keyword)
        return MatchClause(at=at, paths=tuple(paths), where=where, optional=optional is not None)

    def with_(self, parts: Children) -> Projection:
        keyword, body, where = parts
        return _projection(place_of(keyword), body, where, is_last=False)

    def return_(self, parts: Children) -> Projection:
        keyword, body = parts
        return _projection(place_of(keyword), body, None, is_last=True)

    def where(self, parts: Children) -> Expression:
        return parts[1]

    def paths(self, parts: Children) -> Children:
        return parts

    types = arguments = detail = body = paths

    def path(self, parts: Children) -> Path:
        return Path(at=parts[0].at, nodes=tuple(parts[::2]), edges=tuple(parts[1::2]))

    def node(self, parts: Children) -> NodePattern:
        start, name, label, properties = parts
        return NodePattern(
            at=place_of(start),
            variable=None if name is None else str(name),
            label=None if label is None else str(label),
            label_at=None if label is None else place_of(label),
            properties=properties or (),
        )

    def label(self, parts: Children) -> Any:
        return parts[0]

    def edge_both(self, parts: Children) -> EdgePattern:
        return _edge("-", parts)

    def edge_right(self, parts: Children) -> EdgePattern:
        return _edge("->", parts)

    def edge_left(self, parts: Children) -> EdgePattern:
        return _edge("<-", parts)

    def any_hops(self, parts: Children) -> Hops:
        return Hops(at=place_of(parts[0]), least=1, most=None)

    def exact_hops(self, parts: Children) -> Hops:
        count = _whole(parts[1])
        return Hops(at=place_of(parts[0]), least=count, most=count)

    def hops(self, parts: Children) -> Hops:
        star, least, _, most = parts
        return Hops(
            at=place_of(star),
            least=1 if least is None else _whole(least),
            most=None if most is None else _whole(most),
        )

    def properties(self, parts: Children) -> tuple[Match, ...]:
        return tuple(parts)

    def property_of(self, parts: Children) -> Match:
        return Match(str(parts[0]), place_of(parts[0]), parts[1])

    def all_items(self, parts: Children) -> None:
        return None

    def items(self, parts: Children) -> tuple[Item, ...]:
        return tuple(parts)

    def item(self, parts: Children) -> Item:
        value, _, alias = parts
        return Item(at=value.at, value=value, alias=None if alias is None else str(alias))

    def order(self, parts: Children) -> tuple[SortKey, ...]:
        return tuple(parts[2:])

    def sort_key(self, parts: Children) -> SortKey:
        value, direction = parts
        descending = direction is not None and direction.type == "DESC"
        return SortKey(at=value.at, value=value, descending=descending)

    def skip(self, parts: Children) -> Expression:
        return parts[1] if isinstance(parts[1], ParameterUse) else self.integer(parts[1:])

    limit = skip

    def junction(self, parts: Children) -> Junction:
        operands = tuple(parts[::2])
        return Junction(at=operands[0].at, operator=parts[1].type, operands=operands)

    def negated(self, parts: Children) -> Expression:
        keyword, operand = parts
        # Two negations are none, so that the depth of a tree does not follow their number.
        return operand.operand if isinstance(operand, Not) else Not(at=place_of(keyword), operand=operand)

    def compared(self, parts: Children) -> Compared:
        left, right, words = parts[0], parts[-1], parts[1:-1]
        operator = " ".join(str(word).upper() for word in words)
        return Compared(at=left.at, operator_at=place_of(words[0]), operator=operator, left=left, right=right)

    def null_check(self, parts: Children) -> NullCheck:
        operand, _, negation, _ = parts
        return NullCheck(at=operand.at, operand=operand, negated=negation is not None)

    def variable(self, parts: Children) -> Variable:
        return Variable(at=place_of(parts[0]), name=str(parts[0]))

    def property(self, parts: Children) -> Property:
        variable, name = parts
        return Property(at=place_of(variable), variable=str(variable), name=str(name), name_at=place_of(name))

    def call(self, parts: Children) -> FunctionCall:
        name, distinct, arguments = parts
        return FunctionCall(
            at=place_of(name),
            name=str(name),
            arguments=tuple(arguments or ()),
            distinct=distinct is not None,
        )

    def call_star(self, parts: Children) -> FunctionCall:
        return FunctionCall(at=place_of(parts[0]), name=str(parts[0]), star=True)

    def list(self, parts: Children) -> ListOf:
        return ListOf(at=place_of(parts[0]), items=tuple(parts[1:]))

    def parameter(self, parts: Children) -> ParameterUse:
        return ParameterUse(at=place_of(parts[0]), name=str(parts[1]))

    def string(self, parts: Children) -> Literal:
        token = parts[0]
        text = ESCAPE.sub(lambda found: _unescaped(found[1]), str(token)[1:-1])
        return Literal(at=place_of(token), value=text)

    def integer(self, parts: Children) -> Literal:
        return Literal(at=place_of(parts[0]), value=_whole(parts[0]))

    def float(self, parts: Children) -> Literal:
        number = float(parts[0])
        if not math.isfinite(number):
            raise QueryRefused("the number is too large", place_of(parts[0]))
        return Literal(at=place_of(parts[0]), value=number)

    def true(self, parts: Children) -> Literal:
        return Literal(at=place_of(parts[0]), value=True)

    def false(self, parts: Children) -> Literal:
        return Literal(at=place_of(parts[0]), value=False)

    def null(self, parts: Children) -> Literal:
        return Literal(at=place_of(parts[0]), value=None)


def _projection(at: TextPosition, body: Children, where: Expression | None, *, is_last: bool) -> Projection:
    distinct, items, order, skip, limit = body
    return Projection(
        at=at,
        items=items,
        distinct=distinct is not None,
        order=order or (),
        skip=skip,
        limit=limit,
        where=where,
        is_last=is_last,
    )


def _edge(direction: str, parts: Children) -> EdgePattern:
    at = place_of(parts[0])
    if len(parts) == 1:
        return EdgePattern(at=at, direction=direction)
    _, name, types, hops, properties = parts[1]
    return EdgePattern(
        at=at,
        direction=direction,
        variable=None if name is None else str(name),
        types=tuple(types or ()),
        hops=hops,
        properties=properties or (),
    )


def _whole(token: Any) -> int:
    if len(str(token).lstrip("-").lstrip("0")) > MAX_DIGITS:
        raise QueryRefused("the number is too large", place_of(token))
    return int(token)


def _unescaped(escape: str) -> str:
    if escape.startswith("u") and len(escape) == 5:
        return chr(int(escape[1:], 16))
    return ESCAPES.get(escape, escape)
