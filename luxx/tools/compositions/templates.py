"""Arguments of a composition's members: values in which `{"$from": source, "path": path}` stands for another.

Pure. The whole grammar is in `docs/compositions.md`; nothing is ever evaluated.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never, cast

import msgspec
from msgspec import UNSET, UnsetType

from luxx.errors import ToolFailed
from luxx.wire.composition import Branch, Comparison, MemberOutcome
from luxx.wire.tool import ToolResult

FROM = "$from"
INPUT = "input"
PREVIOUS = "previous"

MAX_PATH_PARTS = 20
MAX_DEPTH = 16
TOO_DEEP = f"values are nested at most {MAX_DEPTH} deep"
MAX_FILLED_BYTES = 1_000_000
"""Bytes of JSON that references put into the arguments of one call."""

_FIELDS = {FROM, "path", "default"}
_PARTS = re.compile(r"([^.\[\]]+)((?:\[\d{1,9}\])*)")
_INDEX = re.compile(r"\[(\d+)\]")
_MAX_PATH = 200

PathParts = tuple[str | int, ...]
Problem = tuple[str, str]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """`{"$from": …}`, read. Without a path it is all of the input, or the data of a result."""

    source: str
    parts: PathParts
    default: Any = UNSET


class MissingValue(ToolFailed):
    """What a reference names is not there, and it has no default."""


def read_path(path: str) -> PathParts:
    """`data.items[0].text` as its parts. Raises ValueError with what is wrong."""
    if not path:
        return ()
    parts: list[str | int] = []
    for piece in path.split("."):
        match = _PARTS.fullmatch(piece)
        if match is None:
            raise ValueError(
                "a path is names with dots between them and [numbers], such as data.items[0].text"
            )
        parts += [match[1], *(int(number) for number in _INDEX.findall(match[2]))]
    if len(parts) > MAX_PATH_PARTS:
        raise ValueError(f"a path has at most {MAX_PATH_PARTS} parts")
    return tuple(parts)


def path_text(parts: PathParts) -> str:
    """The path as people write it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def value_at(data: Any, parts: PathParts) -> Any:
    """What is at this place in JSON values; UNSET where nothing is."""
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
    """The template with what its references name. Raises NotThere, or ToolFailed past `most` bytes of JSON.

    Values are shared until the whole is written out: what is named a thousand times would be a thousand then.
    """
    return _TemplateFiller(sources, limit).fill_template(template)


class _TemplateFiller:
    def __init__(self, sources: Mapping[str, Any], limit: int) -> None:
        self._sources = sources
        self._limit = self._remaining_bytes = limit
        self._sizes: dict[tuple[str, PathParts], int] = {}

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
                f"there is nothing at {path_text(reference.parts) or 'all'} of {reference.source}"
            )
        return reference.default

    def _charge(self, value: Any, reference_key: tuple[str, PathParts]) -> None:
        if reference_key not in self._sizes:
            self._sizes[reference_key] = len(msgspec.json.encode(value))
        self._remaining_bytes -= self._sizes[reference_key]
        if self._remaining_bytes < 0:
            raise ToolFailed(f"what is filled into its arguments is over {self._limit:,} bytes")


def problems_in(
    template: Any, json_path: str, check_reference: Callable[[Reference], str | None]
) -> Iterator[Problem]:
    """What is wrong in a template, by JSON path. `judge` says what is wrong with a reference as such."""
    yield from _problems(template, json_path, check_reference, MAX_DEPTH)


def is_too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether JSON values are nested deeper than a composition may have them."""
    if isinstance(value, list):
        return limit == 0 or any(is_too_deep(item, limit - 1) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).values()
        return limit == 0 or any(is_too_deep(item, limit - 1) for item in items)
    return False


def _problems(
    template: Any, json_path: str, check_reference: Callable[[Reference], str | None], depth: int
) -> Iterator[Problem]:
    if depth == 0:
        yield json_path, TOO_DEEP
    elif isinstance(template, list):
        for index, item in enumerate(cast("list[Any]", template)):
            yield from _problems(item, f"{json_path}[{index}]", check_reference, depth - 1)
    elif isinstance(template, dict):
        fields = cast("dict[str, Any]", template)
        if FROM not in fields:
            for name, item in fields.items():
                yield from _problems(item, f"{json_path}.{name}", check_reference, depth - 1)
            return
        if is_too_deep(fields.get("default")):
            yield f"{json_path}.default", TOO_DEEP
        try:
            problem = check_reference(_read(fields))
        except ValueError as error:
            problem = str(error)
        if problem is not None:
            yield json_path, problem


def _read(fields: dict[str, Any]) -> Reference:
    """Raises ValueError with what is wrong."""
    source, path = fields[FROM], fields.get("path")
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"beside {FROM} there are only path and default, not {unknown[0][:64]}")
    if not isinstance(source, str):
        raise ValueError(f"{FROM} is a text: {INPUT}, {PREVIOUS}, or the id of an earlier member")
    if path is None:
        path = "" if source == INPUT else "data"
    if not isinstance(path, str) or len(path) > _MAX_PATH:
        raise ValueError(f"a path is a text of at most {_MAX_PATH} characters")
    return Reference(source=source, parts=read_path(path), default=fields.get("default", UNSET))


END = "end"


def next_member_id(branches: Sequence[Branch], result: ToolResult) -> str | None:
    """Where the first branch that holds goes; None where none does."""
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
        case Comparison.CONTAINS if isinstance(actual, str | dict):
            return isinstance(value, str) and value in actual
        case Comparison.CONTAINS:
            return False
        case _:
            assert_never(comparison)


def _is_same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, and 1 is 1.0."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _are_ordered(one: Any, other: Any) -> bool:
    return (isinstance(one, str) and isinstance(other, str)) or (_is_number(one) and _is_number(other))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
