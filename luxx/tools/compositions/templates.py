"""Arguments of a composition's members: values in which `{"$from": source, "path": path}` stands for another.

Pure. The whole grammar is in `docs/compositions.md`; nothing is ever evaluated.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from luxx.errors import ToolFailed

FROM = "$from"
INPUT = "input"
PREVIOUS = "previous"

MOST_PARTS = 20
MOST_DEPTH = 16
_FIELDS = {FROM, "path", "default"}
_PARTS = re.compile(r"([^.\[\]]+)((?:\[\d{1,9}\])*)")
_INDEX = re.compile(r"\[(\d+)\]")
_MAX_PATH = 200

Parts = tuple[str | int, ...]
Problem = tuple[str, str]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """`{"$from": …}`, read. Without a path it is all of the input, or the data of a result."""

    source: str
    parts: Parts
    default: Any = UNSET


class NotThere(ToolFailed):
    """What a reference names is not there, and it has no default."""


def read_path(path: str) -> Parts:
    """`data.items[0].text` as its parts. Raises ValueError with what is wrong."""
    if not path:
        return ()
    parts: list[str | int] = []
    for piece in path.split("."):
        found = _PARTS.fullmatch(piece)
        if found is None:
            raise ValueError(
                "a path is names with dots between them and [numbers], such as data.items[0].text"
            )
        parts += [found[1], *(int(number) for number in _INDEX.findall(found[2]))]
    if len(parts) > MOST_PARTS:
        raise ValueError(f"a path has at most {MOST_PARTS} parts")
    return tuple(parts)


def written(parts: Parts) -> str:
    """The path as people write it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def value_at(data: Any, parts: Parts) -> Any:
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


def filled(template: Any, sources: Mapping[str, Any]) -> Any:
    """The template with what its references name. Raises NotThere."""
    if isinstance(template, list):
        return [filled(item, sources) for item in cast("list[Any]", template)]
    if not isinstance(template, dict):
        return template
    fields = cast("dict[str, Any]", template)
    if FROM not in fields:
        return {name: filled(item, sources) for name, item in fields.items()}
    reference = _read(fields)
    value = value_at(sources.get(reference.source, UNSET), reference.parts)
    value = reference.default if isinstance(value, UnsetType) else value
    if isinstance(value, UnsetType):
        raise NotThere(f"there is nothing at {written(reference.parts) or 'all'} of {reference.source}")
    return value


def problems_in(template: Any, at: str, judge: Callable[[Reference], str | None]) -> Iterator[Problem]:
    """What is wrong in a template, by JSON path. `judge` says what is wrong with a reference as such."""
    yield from _problems(template, at, judge, MOST_DEPTH)


def _problems(
    template: Any, at: str, judge: Callable[[Reference], str | None], depth: int
) -> Iterator[Problem]:
    if depth == 0:
        yield at, f"values are nested at most {MOST_DEPTH} deep"
    elif isinstance(template, list):
        for index, item in enumerate(cast("list[Any]", template)):
            yield from _problems(item, f"{at}[{index}]", judge, depth - 1)
    elif isinstance(template, dict):
        fields = cast("dict[str, Any]", template)
        if FROM not in fields:
            for name, item in fields.items():
                yield from _problems(item, f"{at}.{name}", judge, depth - 1)
            return
        try:
            problem = judge(_read(fields))
        except ValueError as error:
            problem = str(error)
        if problem is not None:
            yield at, problem


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
