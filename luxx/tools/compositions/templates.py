"""Argument templates and branches of a composition's members. Pure; evaluates no code.

`{"$from": source, "path": path}` in a template is replaced by the value it refers to. The grammar is in
`docs/agents/compositions.md`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never, cast

import msgspec
from msgspec import UNSET, UnsetType

from luxx.errors import ToolFailed
from luxx.wire.tool import Branch, Comparison, MemberOutcome, ToolResult

FROM = "$from"
INPUT = "input"
PREVIOUS = "previous"

MAX_PATH_PARTS = 20
MAX_DEPTH = 16
TOO_DEEP = f"values are nested at most {MAX_DEPTH} deep"
MAX_FILLED_BYTES = 1_000_000
"""Limit in bytes of JSON for the values that references fill into the arguments of one call."""

_FIELDS = {FROM, "path", "default"}
_PARTS = re.compile(r"([^.\[\]]+)((?:\[\d{1,9}\])*)")
_INDEX = re.compile(r"\[(\d+)\]")
_MAX_PATH = 200

ReferencePath = tuple[str | int, ...]
Problem = tuple[str, str]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed `{"$from": …}`. Without a path it refers to the whole input, or to the data of a result."""

    source: str
    parts: ReferencePath
    default: Any = UNSET


class MissingValue(ToolFailed):
    """A reference refers to a missing value and has no default."""


def read_path(path: str) -> ReferencePath:
    """The parts of a path such as `data.items[0].text`. Raises ValueError with the problem."""
    if not path:
        return ()
    parts: list[str | int] = []
    for piece in path.split("."):
        match = _PARTS.fullmatch(piece)
        if match is None:
            raise ValueError(
                "a path consists of names separated by dots, and of [indexes], such as data.items[0].text"
            )
        parts += [match[1], *(int(number) for number in _INDEX.findall(match[2]))]
    if len(parts) > MAX_PATH_PARTS:
        raise ValueError(f"a path has at most {MAX_PATH_PARTS} parts")
    return tuple(parts)


def path_text(parts: ReferencePath) -> str:
    """The path as text, the inverse of `read_path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def value_at(data: Any, parts: ReferencePath) -> Any:
    """The value at this path in JSON data; UNSET if there is none."""
    for part in parts:
        if isinstance(part, int):
            items = cast("list[Any]", data) if isinstance(data, list) else []
            data = items[part] if part < len(items) else UNSET
        else:
            data = cast("dict[str, Any]", data).get(part, UNSET) if isinstance(data, dict) else UNSET
        if data is UNSET:
            return UNSET
    return data


def fill_template(template: Any, sources: Mapping[str, Any], limit: int = MAX_FILLED_BYTES) -> Any:
    """The template with its references replaced. Raises MissingValue, or ToolFailed above `limit` bytes of
    JSON, because a value that is referred to many times is encoded many times.
    """
    return _TemplateFiller(sources, limit).fill_template(template)


class _TemplateFiller:
    def __init__(self, sources: Mapping[str, Any], limit: int) -> None:
        self._sources = sources
        self._limit = self._remaining_bytes = limit
        self._sizes: dict[tuple[str, ReferencePath], int] = {}

    def fill_template(self, template: Any) -> Any:
        if isinstance(template, list):
            return [self.fill_template(item) for item in cast("list[Any]", template)]
        if not isinstance(template, dict):
            return template
        fields = cast("dict[str, Any]", template)
        if FROM not in fields:
            return {name: self.fill_template(item) for name, item in fields.items()}
        reference = _read(fields)
        value = value_at(self._sources.get(reference.source, UNSET), reference.parts)
        if not isinstance(value, UnsetType):
            self._charge(value, (reference.source, reference.parts))
            return value
        if isinstance(reference.default, UnsetType):
            raise MissingValue(
                f"{reference.source} has no value at {path_text(reference.parts) or 'its root'}"
            )
        return reference.default

    def _charge(self, value: Any, reference_key: tuple[str, ReferencePath]) -> None:
        if reference_key not in self._sizes:
            self._sizes[reference_key] = len(msgspec.json.encode(value))
        self._remaining_bytes -= self._sizes[reference_key]
        if self._remaining_bytes < 0:
            raise ToolFailed(f"the values filled into its arguments exceed {self._limit:,} bytes")


def problems_in(
    template: Any, json_path: str, check_reference: Callable[[Reference], str | None], depth: int = MAX_DEPTH
) -> Iterator[Problem]:
    """The problems of a template by JSON path. `check_reference` returns the problem of one reference."""
    if depth == 0:
        yield json_path, TOO_DEEP
    elif isinstance(template, list):
        for index, item in enumerate(cast("list[Any]", template)):
            yield from problems_in(item, f"{json_path}[{index}]", check_reference, depth - 1)
    elif isinstance(template, dict):
        fields = cast("dict[str, Any]", template)
        if FROM not in fields:
            for name, item in fields.items():
                yield from problems_in(item, f"{json_path}.{name}", check_reference, depth - 1)
            return
        if is_too_deep(fields.get("default")):
            yield f"{json_path}.default", TOO_DEEP
        try:
            problem = check_reference(_read(fields))
        except ValueError as error:
            problem = str(error)
        if problem is not None:
            yield json_path, problem


def is_too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether a JSON value is nested deeper than `limit`."""
    if isinstance(value, list):
        return limit == 0 or any(is_too_deep(item, limit - 1) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).values()
        return limit == 0 or any(is_too_deep(item, limit - 1) for item in items)
    return False


def _read(fields: dict[str, Any]) -> Reference:
    """Parse a reference. Raises ValueError with the problem."""
    source, path = fields[FROM], fields.get("path")
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"the allowed keys are {FROM}, path and default, not {unknown[0][:64]}")
    if not isinstance(source, str):
        raise ValueError(f"{FROM} must be a text: {INPUT}, {PREVIOUS}, or the id of an earlier member")
    if path is None:
        path = "" if source == INPUT else "data"
    if not isinstance(path, str) or len(path) > _MAX_PATH:
        raise ValueError(f"a path must be a text of at most {_MAX_PATH} characters")
    return Reference(source=source, parts=read_path(path), default=fields.get("default", UNSET))


END = "end"


def next_member_id(branches: Sequence[Branch], result: ToolResult) -> str | None:
    """The `go` of the first branch whose condition is true; None if there is none."""
    return next((branch.go for branch in branches if _holds(branch, result)), None)


def _holds(branch: Branch, result: ToolResult) -> bool:
    if branch.on != MemberOutcome.ANY and (branch.on == MemberOutcome.SUCCESS) != result.success:
        return False
    if branch.compare is None:
        return True
    actual = value_at(result.to_dict(), read_path(branch.path or ""))
    return _is_match(branch.compare, actual, branch.value)


def _is_match(comparison: Comparison, actual: Any, value: Any) -> bool:
    match comparison:
        case Comparison.EXISTS:
            return actual is not UNSET
        case Comparison.EQUAL:
            return _is_same(actual, value)
        case Comparison.UNEQUAL:
            return not _is_same(actual, value)
        case Comparison.LESS:
            return _are_ordered(actual, value) and actual < value
        case Comparison.GREATER:
            return _are_ordered(actual, value) and actual > value
        case Comparison.CONTAINS if isinstance(actual, list):
            return any(_is_same(item, value) for item in cast("list[Any]", actual))
        case Comparison.CONTAINS:
            return isinstance(actual, str | dict) and isinstance(value, str) and value in actual
        case _:
            assert_never(comparison)


def _is_same(one: Any, other: Any) -> bool:
    """JSON equality: true is not 1, and 1 equals 1.0."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _are_ordered(one: Any, other: Any) -> bool:
    return (isinstance(one, str) and isinstance(other, str)) or (is_number(one) and is_number(other))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
