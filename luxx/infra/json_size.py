"""Bounds on what costs time in a JSON document besides its bytes: the number of values, digits of a number.

A decoder holds the interpreter's lock from the first byte to the last, so nothing else runs meanwhile, in no
thread. 10 MB of text are decoded in milliseconds, 10 MB of empty lists or of long numbers in seconds.
"""

from functools import cache
from math import isfinite
from typing import Any

import msgspec

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
