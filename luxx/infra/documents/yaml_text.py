"""YAML from users, with bounds on what costs time to parse: size, depth, number of values; no aliases. And
documents for users, as YAML or JSON.
"""

import re
from collections.abc import Iterator
from math import isfinite
from typing import Any, cast

import msgspec
import yaml

from luxx.errors import InvalidInput, LuxxError
from luxx.infra.field_errors import FieldErrors
from luxx.infra.strict_json import MAX_DIGITS, decode_strict

_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml is a hundred times as fast; PyYAML is built without it on some systems."""

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
MAX_SLOW_CHARACTERS = 50_000
"""libyaml refuses the escapes of an emoji as JSON writes it. PyYAML's own parser reads a text up to this size
that has some."""

LAST_FIELDS = frozenset({"fallbacks", "rules", "system_prompt"})
"""Fields of documents that are long."""

MAX_DEPTH = 20
MAX_VALUES = 20_000
OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")
NUMBER_CHARACTERS = "0123456789+-._:eE"
MAX_PLAIN = 1_000
"""The most characters without a blank and without quotes that may begin as a number does."""

_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
MAX_PATH = 200
"""Characters of a path in an error message. It repeats keys of the document."""


def parse_yaml(text: str, *, max_characters: int) -> Any:
    """The value of a document, made of the types of JSON. Raises InvalidInput with the line or the path.

    JSON is decoded as such: YAML reads `1e3` as text and allows no tabs. Aliases are refused, because a short
    text with aliases can stand for a huge value; duplicate keys are refused, because only one of them would
    count.
    """
    if len(text) > max_characters:
        raise InvalidInput(f"the document has {len(text):,} characters; the limit is {max_characters:,}")
    if text.lstrip().startswith("{"):
        try:
            return _plain("$", decode_strict(text.encode()))
        except (ValueError, RecursionError):
            pass  # YAML, or an error, whose line the YAML parser names.
    is_slow = len(text) <= MAX_SLOW_CHARACTERS and _HALF_CHARACTER.search(text) is not None
    loader: Any = yaml.SafeLoader if is_slow else _FastLoader
    try:
        _check_events(text, loader)
        root = cast("Any", yaml.compose(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
        _check_nodes(root)
        value: Any = yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # At its end libyaml counts a line that the text does not have.
        line = f" in line {min(mark.line + 1, len(text.splitlines()) or 1)}" if mark is not None else ""
        raise InvalidInput(f"the document is not valid YAML or JSON{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InvalidInput(
            f"the document is not valid YAML or JSON: {' '.join(str(error).split())}"
        ) from error
    except (ValueError, OverflowError) as error:
        # For example the date 2026-06-31; after a colon Python names a setting of its own.
        problem = str(error).partition(":")[0]
        raise InvalidInput(f"the document holds a value that cannot be read: {problem}") from error
    return _plain("$", value)


def dump_yaml(value: Any) -> str:
    """The value as YAML for people: keys in their order, text with line breaks as a block."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def encode_document(document: msgspec.Struct, format: str) -> str:
    """The document as `json` or `yaml`; fields with their default values are left out."""
    plain = _in_order(document)
    if format == "json":
        return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()
    return dump_yaml(plain)


def _in_order(value: Any) -> Any:
    """The value in the types of JSON: of each struct its own fields stand before those of its bases, because
    these have the names that people look for first, and LAST_FIELDS stand at the end."""
    if isinstance(value, list):
        return [_in_order(item) for item in cast("list[Any]", value)]
    if not isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    fields = cast("dict[str, Any]", msgspec.to_builtins(value))
    own = [name for name in type(value).__annotations__ if name in fields]
    names = sorted(dict.fromkeys([*own, *fields]), key=lambda name: name in LAST_FIELDS)
    return {name: _in_order(getattr(value, name)) for name in names}


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and indents the items of lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A block cannot hold trailing blanks or a tab at the start of a line; PyYAML then quotes it instead.
    style = "|" if "\n" in text else None
    if OTHER_BREAKS.search(text):
        # YAML reads these as line breaks, unless they are escaped.
        style = '"'
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def _check_events(text: str, loader: Any) -> None:
    depth = 0
    events = cast("Iterator[object]", yaml.parse(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    for number, event in enumerate(events):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInput("the document uses a YAML alias (*name), which is not supported; write it out")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_DIGITS:
            _check_number(event)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or number > MAX_VALUES:
            raise InvalidInput(
                f"the document is nested deeper than {MAX_DEPTH} levels, or has more than {MAX_VALUES} values"
            )


def _check_number(event: Any) -> None:
    """Raises InvalidInput for a number that would take long to read: 1:2:3 has the base 60."""
    text, tag = str(event.value), event.tag
    begins = text[0] in NUMBER_CHARACTERS and not text[:MAX_PLAIN].count(" ")
    is_plain = event.implicit[0] and begins and (len(text) > MAX_PLAIN or not text.strip(NUMBER_CHARACTERS))
    if is_plain or tag in _NUMBER_TAGS:
        line = event.start_mark.line + 1
        raise InvalidInput(
            f"the document has a number with more than {MAX_DIGITS} digits in line {line}; shorten it, "
            "or put it in quotes if it is text"
        )


def _check_nodes(node: Any) -> None:
    """Raises InvalidInput for keys that appear twice or merge others."""
    if isinstance(node, yaml.MappingNode):
        seen_keys: set[str] = set()
        for key, value in cast("list[tuple[Any, Any]]", node.value):
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in seen_keys:
                raise InvalidInput(f"the document has the key {name[:80]!r} twice, in line {line}")
            if key.tag == "tag:yaml.org,2002:merge":
                raise InvalidInput(f"the document merges keys (<<) in line {line}; write them out")
            seen_keys.add(name)
            _check_nodes(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in cast("list[Any]", node.value):
            _check_nodes(item)


def _plain(path: str, value: Any, depth: int = 0) -> Any:
    """The value, if JSON can express it. Joins two escapes for one character, as JSON writes an emoji."""
    if depth > MAX_DEPTH:
        raise _refusal(path, f"the document is nested deeper than {MAX_DEPTH} levels")
    match value:
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {
                _key(path, key): _plain(f"{path}.{key}"[:MAX_PATH], item, depth + 1) for key, item in items
            }
        case list():
            values = enumerate(cast("list[Any]", value))
            return [_plain(f"{path}[{index}]"[:MAX_PATH], item, depth + 1) for index, item in values]
        case str():
            return _plain_text(path, value)
        case int() if not -(2**63) <= value < 2**63:
            raise _refusal(path, "the number is too large")
        case float() if not isfinite(value):
            raise _refusal(path, "the number must be finite")
        case None | bool() | int() | float():
            return value
        case _:
            raise _refusal(path, "put dates in quotes, and use no YAML tags (!!name)")


def _key(path: str, key: Any) -> str:
    if not isinstance(key, str):
        raise _refusal(path, f"the key {str(key)[:80]} is not text; put it in quotes")
    return _plain_text(path, key)


def _plain_text(path: str, text: str) -> str:
    if "\0" in text:
        raise _refusal(path, "text must not contain the character NUL")
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _refusal(
            path, "text must not contain half a character (an escape \\ud800 to \\udfff)"
        ) from None


def _refusal(path: str, problem: str) -> LuxxError:
    return FieldErrors({path: problem}, subject="the document is not valid").refusal()
