"""The schema of a tool of an MCP server, made harmless: known words, no references, few and shallow.

What is taken out only makes it allow more: the server checks its arguments itself. Pure.
"""

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

Schema = dict[str, Any]

_ONE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_COUNTS = frozenset(
    {
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minContains",
        "maxContains",
    }
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_AS_THEY_ARE = frozenset({"type", "enum", "const", "default", "examples", "format", "required"})
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})


class Unfit(Exception):
    """The schema cannot be taken over, in words."""


def harmless(given: Schema) -> Schema:
    """The schema as models are given it and arguments are checked by it. Raises Unfit."""
    if given.get("type", "object") != "object":
        raise Unfit("its arguments are no object")
    try:
        found = _Copy(given).of(given, (), 0)
        schema: Schema = {**found, "type": "object"}
        schema.setdefault("properties", {})
        size = len(msgspec.json.encode(schema))
    except RecursionError as error:
        raise Unfit("its schema is nested too deeply") from error
    if size > MOST_BYTES:
        raise Unfit(f"its schema takes more than {MOST_BYTES // 1024} KiB")
    return schema


class _Copy:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0

    def of(self, node: Any, within: tuple[str, ...], depth: int) -> Any:
        """`within`: the references that led here; one that leads back allows anything."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise Unfit(f"its schema has more than {MOST_NODES:,} parts")
        if depth > MOST_DEPTH:
            raise Unfit("its schema is nested too deeply")
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            return {}
        told = cast(Schema, node)

        def inner(child: Any) -> Any:
            return self.of(child, within, depth + 1)

        copied = self._plain(told) | _nested(told, inner)
        reference = told.get("$ref")
        if not isinstance(reference, str) or reference in within:
            return copied
        target = self.of(self._target(reference), (*within, reference), depth + 1)
        if copied.keys() <= _ANNOTATIONS and isinstance(target, dict):
            return cast(Schema, target) | copied
        return {**copied, "allOf": [target, *copied.get("allOf", [])]}

    def _plain(self, told: Schema) -> Schema:
        kept: Schema = {word: told[word] for word in told if word in _AS_THEY_ARE}
        kept |= {word: told[word] for word in told if word in _NUMBERS and type(told[word]) in (int, float)}
        kept |= {word: told[word] for word in told if word in _COUNTS and type(told[word]) is int}
        for word in ("title", "description"):
            if isinstance(told.get(word), str):
                kept[word] = shortened(told[word], MOST_WORDS)
        if isinstance(told.get("pattern"), str) and _is_searchable(told["pattern"]):
            kept["pattern"] = told["pattern"]
        return kept

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


def _nested(told: Schema, inner: Callable[[Any], Any]) -> Schema:
    """The schemas in a schema, word by word."""
    copied: Schema = {}
    for word in told:
        if word not in _ONE:
            continue
        if word == "items" and isinstance(told[word], list):
            copied["prefixItems"] = [inner(one) for one in told[word]]
        else:
            copied[word] = inner(told[word])
    for word in told:
        if word in _SEVERAL and isinstance(told[word], list) and told[word]:
            copied[word] = [inner(one) for one in told[word]]
    properties = told.get("properties")
    if isinstance(properties, dict):
        copied["properties"] = {name: inner(one) for name, one in cast(Schema, properties).items()}
    if "patternProperties" in told:
        # What they allow is more than is told here.
        copied.pop("additionalProperties", None)
    return copied


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _is_searchable(pattern: str) -> bool:
    try:
        compile_regex(pattern)
    except ToolFailed:
        return False
    return True
