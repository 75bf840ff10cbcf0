"""Finds a member that a JSON object has twice: decoders take the last one, other readers the first.

Meant for every request, so what cannot have one is told by the names alone, without a second decoding.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

_KEY_END = re.compile(rb'"\s*+:')
"""The closing quote of all that may be a member's name. It finds some in texts too, which costs time only."""


class _Object(list[tuple[str, Any]]):
    """The members of an object, all of them."""


class _DuplicateKey(Exception):
    pass


def has_duplicate_key(document: bytes) -> bool:
    """Whether an object in this valid JSON document has two members of one name."""
    ends = [match.start() for match in _KEY_END.finditer(document)]
    # From the quote before it. Of names with escaped quotes this is the end: one name written in two ways
    # has a backslash there, or ends alike.
    names = [document[document.rfind(b'"', 0, end) + 1 : end] for end in ends]
    if len(set(names)) == len(names) and b"\\" not in b"".join(names):
        return False
    try:
        json.loads(document, object_pairs_hook=_reject_duplicates)
    except _DuplicateKey:
        return True
    return False


def duplicate_key_paths(document: bytes) -> Iterator[str]:
    """The paths of these members, such as `$.options[0].name`."""
    return _paths("$", json.loads(document, object_pairs_hook=_Object))


def decode_strict(document: bytes) -> Any:
    """The value of a JSON document. Raises ValueError, also where a member is there twice."""
    value = msgspec.json.decode(document)
    if has_duplicate_key(document):
        raise ValueError(f"{next(duplicate_key_paths(document))} is there twice")
    return value


def _reject_duplicates(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) != len(members):
        raise _DuplicateKey


def _paths(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, _Object):
        seen = set[str]()
        for name, item in value:
            if name in seen:
                yield f"{path}.{name}"
            seen.add(name)
            yield from _paths(f"{path}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _paths(f"{path}[{index}]", item)
