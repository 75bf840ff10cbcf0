"""The schema of a tool of an MCP server, made harmless: known words, no references, few and shallow.

What is taken out only makes it allow more: the server checks its arguments itself. So words are not taken
over that allow less where what is in them allows more: `not`, `if`; `oneOf` becomes `anyOf`. Pure.
"""

import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.pattern import compile_regex

MOST_NODES = 2_000
MOST_DEPTH = 24
MOST_BYTES = 32 * 1024
MOST_WORDS = 1_000
"""Characters of one description."""

MOST_ALTERNATIVES = 20
MOST_ALTERNATIVES_IN_ALL = 200
"""In one `anyOf` or `allOf`, and in the whole schema; the word is left out where there are more."""

MOST_VALUES = 500
MOST_VALUE = 200
"""Of an `enum`, and characters of one of them."""

LARGEST = 2**53
"""Numbers beyond it are read differently by different readers of JSON, or not at all."""

Schema = dict[str, Any]

_ONE = frozenset({"items", "additionalProperties", "contains", "propertyNames"})
_SEVERAL = {"allOf": "allOf", "anyOf": "anyOf", "oneOf": "anyOf", "prefixItems": "prefixItems"}
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains"}
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_AS_THEY_ARE = frozenset({"type", "required"})
_BESIDE = frozenset({"description", "default"})
"""What may stand beside a reference without saying what is allowed."""

_REFUSED_AT_THE_TOP = frozenset({"allOf", "anyOf", "enum", "const", "not"})
"""Vendors of models refuse a whole question because of one tool with these."""

_ALTERNATIVES = frozenset({"allOf", "anyOf", "oneOf"})

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What an argument may be called, as all vendors take it; deeper names are free."""


class UnusableSchema(Exception):
    """The schema cannot be taken over, in words."""


def sanitized_schema(given: Schema) -> Schema:
    """The schema as models are given it and arguments are checked by it. Raises Unfit."""
    if given.get("type", "object") != "object":
        raise UnusableSchema("its arguments are no object")
    try:
        schema = _at_the_top(_Copy(given).of(given, (), 0), given)
        size = len(msgspec.json.encode(schema))
    except RecursionError as error:
        raise UnusableSchema("its schema is nested too deeply") from error
    if size > MOST_BYTES:
        raise UnusableSchema(f"its schema takes more than {MOST_BYTES // 1024} KiB")
    return schema


def _at_the_top(found: Schema, given: Schema) -> Schema:
    schema: Schema = {word: found[word] for word in found if word not in _REFUSED_AT_THE_TOP}
    schema["type"] = "object"
    properties = schema.setdefault("properties", {})
    if not properties and not _ALTERNATIVES.isdisjoint(found.keys() | given.keys()):
        raise UnusableSchema("its arguments are told as alternatives alone, which models are not given")
    for name in properties:
        if not _NAME.fullmatch(name):
            raise UnusableSchema(f"models do not take an argument named {name!r}")
    required = schema.pop("required", None)
    if isinstance(required, list):
        # Some vendors refuse one that is not told of; the server still misses it.
        source = [one for one in cast("list[Any]", required) if isinstance(one, str) and one in properties]
        schema |= {"required": source} if source else {}
    return schema


class _Copy:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0
        self._alternatives = 0

    def of(self, node: Any, within: tuple[str, ...], depth: int) -> Any:
        """`within`: the references that led here; one that leads back allows anything."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise UnusableSchema(f"its schema has more than {MOST_NODES:,} parts")
        if depth > MOST_DEPTH:
            raise UnusableSchema("its schema is nested too deeply")
        if node is False:
            return {"not": {}}
        if not isinstance(node, dict):
            return {}
        source = cast(Schema, node)

        def inner(child: Any) -> Any:
            return self.of(child, within, depth + 1)

        copied = self._plain(source) | self._nested(source, inner)
        reference = source.get("$ref")
        if not isinstance(reference, str) or reference in within:
            return copied
        target = self.of(self._target(reference), (*within, reference), depth + 1)
        if copied.keys() - {word for word in ("type",) if copied.get(word) == target.get(word)} <= _BESIDE:
            return target | copied
        return {**copied, "allOf": [target, *copied.get("allOf", [])]}

    def _plain(self, source: Schema) -> Schema:
        kept: Schema = {word: source[word] for word in source if word in _AS_THEY_ARE}
        kept |= {word: source[word] for word in source if word in _NUMBERS and _is_number(source[word])}
        kept |= {
            word: source[word]
            for word in source
            if word in _COUNTS and type(source[word]) is int and _is_number(source[word])
        }
        kept |= {
            word: source[word] for word in ("const", "default") if word in source and _is_short(source[word])
        }
        if _are_values(source.get("enum")):
            kept["enum"] = source["enum"]
        if isinstance(source.get("description"), str):
            kept["description"] = shortened(source["description"], MOST_WORDS)
        if isinstance(source.get("format"), str) and len(source["format"]) <= MOST_VALUE:
            kept["format"] = source["format"]
        if isinstance(source.get("pattern"), str) and _is_searchable(source["pattern"]):
            kept["pattern"] = source["pattern"]
        return kept

    def _nested(self, source: Schema, inner: Callable[[Any], Any]) -> Schema:
        """The schemas in a schema, word by word."""
        copied: Schema = {}
        for word in source:
            if word == "items" and isinstance(source[word], list):
                copied["prefixItems"] = [inner(one) for one in source[word]]
            elif word == "additionalProperties" and isinstance(source[word], bool):
                copied[word] = source[word]
            elif word in _ONE:
                copied[word] = inner(source[word])
        for word in source:
            if word in _SEVERAL and isinstance(source[word], list) and self._are_few(word, len(source[word])):
                copied.setdefault(_SEVERAL[word], [inner(one) for one in source[word]])
        properties = source.get("properties")
        if isinstance(properties, dict):
            copied["properties"] = {name: inner(one) for name, one in cast(Schema, properties).items()}
        if "patternProperties" in source:
            # What they allow is more than is told here.
            copied.pop("additionalProperties", None)
        return copied

    def _are_few(self, word: str, count: int) -> bool:
        if word == "prefixItems":
            return count > 0
        if not 0 < count <= MOST_ALTERNATIVES or self._alternatives + count > MOST_ALTERNATIVES_IN_ALL:
            return False
        self._alternatives += count
        return True

    def _target(self, reference: str) -> Any:
        """What a reference within the schema leads to; anything is allowed where it leads elsewhere."""
        if not reference.startswith("#"):
            return True
        found: Any = self._root
        for word in reference[1:].split("/")[1:]:
            key = word.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                return True
            found = cast(Schema, found)[key]
        return found


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MOST_VALUE
    return value is None or isinstance(value, bool) or _is_number(value)


def _are_values(values: Any) -> bool:
    many = cast("list[Any]", values) if isinstance(values, list) else []
    return 0 < len(many) <= MOST_VALUES and all(_is_short(one) for one in many)


def _is_searchable(pattern: str) -> bool:
    try:
        compile_regex(pattern)
    except ToolFailed:
        return False
    return True
