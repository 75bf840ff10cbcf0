"""Finds duplicate keys in JSON objects. Some decoders use the first value of a duplicate, others the last.

Every request is checked, so documents without repeated names are accepted without a second decoding.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, cast

from luxx.infra.json_size import SMALL_BYTES, check_size, decoder, without_escapes

_KEY_END = re.compile(rb'"\s*+:')
"""The closing quote of every key."""


class _Object(list[tuple[str, Any]]):
    """All members of a JSON object, duplicates included."""


class _DuplicateKey(Exception):
    pass


def has_duplicate_key(document: bytes) -> bool:
    """Whether an object in this valid JSON document has a duplicate key."""
    # Two equal keys are equal here too, or one of them has a backslash: an escape of another kind.
    plain = without_escapes(document)
    ends = [match.start() for match in _KEY_END.finditer(plain)]
    names = [plain[plain.rfind(b'"', 0, end) + 1 : end] for end in ends]
    if len(set(names)) == len(names) and b"\\" not in b"".join(names):
        return False
    try:
        json.loads(document, object_pairs_hook=_reject_duplicates)
    except _DuplicateKey:
        return True
    return False


def duplicate_key_paths(document: bytes) -> Iterator[str]:
    """The paths of the duplicate keys, such as `$.options[0].name`."""
    return _paths("$", json.loads(document, object_pairs_hook=_Object))


def decode_strict(document: bytes) -> Any:
    """The value of a JSON document. Raises ValueError for invalid JSON, for duplicate keys and for what
    `check_size` refuses."""
    check_size(document)
    value = decoder(Any).decode(document)
    if has_duplicate_key(document):
        raise ValueError(f"{next(duplicate_key_paths(document))} appears twice")
    return value


async def decode_strict_async(document: bytes) -> Any:
    """Like `decode_strict`; a large document is read in a thread."""
    if len(document) <= SMALL_BYTES:
        return decode_strict(document)
    return await asyncio.to_thread(decode_strict, document)


def _reject_duplicates(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) != len(members):
        raise _DuplicateKey


def _paths(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, _Object):
        names = set[str]()
        for name, item in value:
            if name in names:
                yield f"{path}.{name}"
            names.add(name)
            yield from _paths(f"{path}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _paths(f"{path}[{index}]", item)
