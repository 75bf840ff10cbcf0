"""What is checked in JSON besides its types: duplicate keys, what costs time, halves of surrogate pairs, and
patterns of texts of one line.

Some decoders use the first value of a duplicate, others the last. A decoder holds the interpreter's lock from
the first byte to the last, so nothing else runs meanwhile, in no thread. 10 MB of text are decoded in
milliseconds, 10 MB of empty lists or of long numbers in seconds.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import Any, cast

import msgspec

IN_LINE = "one line without control characters"
IN_NAME = "one line with a visible character"
IN_PASTED = "one line, as copied"
"""What the patterns below allow, in words: the description of a field, and its error message."""

# The patterns end in `$(?!\n)`: in Python a bare `$` also matches before a final line break. `\Z` does not,
# but in the OpenAPI document it has another meaning.
LINE = r"^[^\x00-\x1f\x7f]*$(?!\n)"
"""A line without control characters; may be empty."""

NAME = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$(?!\n)"
"""A line with at least one visible character."""

PASTED = r"^[^\x00-\x1f\x7f]*[\r\n]*$(?!\n)"
"""A pasted line, which may end in line breaks; the code that reads it must strip them."""


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


MAX_VALUES = 100_000
MAX_DIGITS = 64

SMALL_BYTES = 64 * 1024
"""A document up to this size needs no check: at worst it takes some milliseconds."""

_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")


def check_size(document: bytes) -> None:
    """Raises ValueError for more than MAX_VALUES values, or a number with more than MAX_DIGITS digits."""
    if len(document) <= SMALL_BYTES or not (_has_many_values(document) or _has_long_number(document)):
        return
    # It may be in texts. Without escaped quotes, every second part between quotes is outside of them.
    # A value has at most two texts, with its key.
    most_parts = 4 * MAX_VALUES + 2
    parts = without_escapes(document).split(b'"', most_parts)
    structure = b"".join(parts[::2])
    if len(parts) > most_parts or _has_many_values(structure):
        raise ValueError(f"it has more than {MAX_VALUES:,} values; send less at once")
    if _has_long_number(structure):
        raise ValueError(f"a number has more than {MAX_DIGITS} digits; shorten it")


@cache
def decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type, which leaves untyped decimals to Python: at worst many times faster."""
    return msgspec.json.Decoder(type_, float_hook=_read_float)


def _read_float(literal: str) -> float:
    value = float(literal)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return value


def without_escapes(document: bytes) -> bytes:
    """The document without escaped quotes and backslashes: each quote begins or ends a text."""
    return document.replace(b"\\\\", b"").replace(b'\\"', b"")


def _has_many_values(text: bytes) -> bool:
    return text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES


def _has_long_number(text: bytes) -> bool:
    return b"0" * (MAX_DIGITS + 1) in text.translate(_DIGITS)


REPLACEMENT = "\ufffd"
"""What stands for a character that is no valid text."""

MAX_BYTES = 256 * 1024

_lone = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def without_lone_surrogates(document: bytes) -> bytes:
    """The JSON document with the replacement character in place of each escape that is half of a pair.

    A document of more than MAX_BYTES is left as it is: the event loop would wait.
    """
    return document if len(document) > MAX_BYTES else replace_lone_surrogates(document)


def replace_lone_surrogates(document: bytes) -> bytes:
    """The same for a document of any size; megabytes take some milliseconds each."""
    if b"\\u" not in document or b"\0" in document:
        return document
    # An escaped backslash begins no escape. NUL is no character of JSON, so it can stand for it.
    plain = document.replace(b"\\\\", b"\0\0")
    return _lone.sub(rb"\\ufffd", plain).replace(b"\0\0", b"\\\\")


def readable_escapes(json_text: str) -> str:
    """JSON text in which the escape of a lone surrogate, which no encoding has, is that of U+FFFD."""
    if "\\ud" not in json_text and "\\uD" not in json_text:
        return json_text
    return replace_lone_surrogates(json_text.encode("utf-8", "replace")).decode()
