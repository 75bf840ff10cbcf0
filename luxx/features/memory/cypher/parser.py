"""Reads the text of a query into its tree, by an LALR parser: the time grows with the length only.

Lark is loaded with the first query.
"""

import importlib
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from luxx.features.memory.cypher.syntax import CypherQuery, QueryRefused, TextPosition
from luxx.features.memory.cypher.tree import TreeBuilder

MAX_CHARACTERS = 4_000

START = TextPosition(1, 1)

SPELLINGS = {
    "NAME": "a name",
    "STRING": "a string",
    "INT": "a whole number",
    "FLOAT": "a number",
    "COMPARES": "a comparison (=, <>, <, <=, >, >=)",
    "DOLLAR": "a parameter ($name)",
    "STAR": "*",
    "DOTS": "..",
    "LPAR": "(",
    "LSQB": "[",
    "RPAR": ")",
    "RSQB": "]",
    "LBRACE": "{",
    "RBRACE": "}",
    "COMMA": ",",
    "COLON": ":",
    "DOT": ".",
    "VBAR": "|",
    "DASH": "-",
    "RIGHT": "->",
    "LEFT": "<-",
    "DOUBLE_DASH": "--",
    "DOUBLE_RIGHT": "-->",
    "DOUBLE_LEFT": "<--",
    "$END": "the end of the query",
}
"""How an error names the terminals of the grammar; keywords have their own names."""

UNSAID = frozenset({"SEMICOLON"})

OTHER_CLAUSES = frozenset(
    (
        "CREATE",
        "MERGE",
        "DELETE",
        "DETACH",
        "SET",
        "REMOVE",
        "CALL",
        "LOAD",
        "FOREACH",
        "UNWIND",
        "UNION",
        "DROP",
    )
)


@lru_cache(maxsize=128)
def parse(text: str) -> CypherQuery:
    """The tree of a query. Raises QueryRefused. Programs send the same text with other parameters."""
    if len(text) > MAX_CHARACTERS:
        raise QueryRefused(f"a query may have at most {MAX_CHARACTERS:,} characters", START)
    if not text.strip():
        raise QueryRefused("the query is empty", START, ["MATCH", "OPTIONAL MATCH", "RETURN", "WITH"])
    module = _lark()
    try:
        return _parser().parse(text)
    except module.UnexpectedToken as error:
        raise _unexpected(text, error.token, error.accepts or error.expected) from None
    except module.UnexpectedCharacters as error:
        at = TextPosition(error.line, error.column)
        expected = _spelled(error.allowed or ())
        raise QueryRefused(f"{_shown(text[error.pos_in_stream])} cannot stand here", at, expected) from None


def _lark() -> Any:
    return importlib.import_module("lark")


@cache
def _parser() -> Any:
    grammar = files(__package__ or "").joinpath("grammar.lark").read_text("utf-8")
    return _lark().Lark(grammar, parser="lalr", transformer=TreeBuilder(), maybe_placeholders=True)


def _unexpected(text: str, token: Any, names: Any) -> QueryRefused:
    expected = _spelled(names)
    if token.type == "$END":
        return QueryRefused("the query ends too early", _end_of(text), expected)
    at = TextPosition(token.line or 1, token.column or 1)
    word = str(token)
    if word.upper() in OTHER_CLAUSES:
        return QueryRefused(f"{word.upper()} is not available: graph queries only read", at, expected)
    return QueryRefused(f"{_shown(word)} cannot stand here", at, expected)


def _spelled(names: Any) -> list[str]:
    return sorted(SPELLINGS.get(str(name), str(name)) for name in names if name not in UNSAID)


def _shown(text: str) -> str:
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    return f"'{shown if len(shown) <= 40 else shown[:39] + '…'}'"


def _end_of(text: str) -> TextPosition:
    lines = text.split("\n")
    return TextPosition(len(lines), len(lines[-1]) + 1)
