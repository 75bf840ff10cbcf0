"""Addresses as rules compare them: written as they are fetched, and only where all would read them alike.

How an address is read and what it may reach is the network's (`luxx.network`).
"""

import re
from functools import lru_cache

import msgspec

from luxx.errors import InvalidInput
from luxx.network.hosts import canonical_host
from luxx.network.urls import parse_url

NOT_PLAIN = "it is not an address that all would read alike"

_PLAIN_URL = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_FOLDED = re.compile(r"(?<!:)//|(?:^|/)\.\.?(?:[/;]|$)|%2F|%5C|%25")
"""What servers fold, each in its own way: dots and empty segments, and signs that are hidden."""


class PlainAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`place` is the host, with its port unless that is the usual one; `target` the path with its query."""

    scheme: str
    place: str
    target: str

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.place}{self.target}"


def plain_address(given: str) -> PlainAddress | str:
    """The address, or why it is not surely known which one is meant."""
    if not _PLAIN_URL.fullmatch(given):
        return NOT_PLAIN
    try:
        url = parse_url(given)
    except InvalidInput:
        return NOT_PLAIN
    target = unescaped(url.target)
    if _BAD_ESCAPE.search(target) or _FOLDED.search(target.partition("?")[0]):
        return NOT_PLAIN
    scheme, _, rest = url.text.partition("://")
    return PlainAddress(scheme=scheme, place=rest.partition("/")[0], target=target)


def unescaped(target: str) -> str:
    """Without escapes that nobody needs; the others in capital letters."""
    return _ESCAPED.sub(lambda found: _character(found[1]), target)


@lru_cache(maxsize=4096)
def plain_place(pattern: str) -> str:
    """The host of a pattern in the spelling of hosts; one with wildcards only in small letters."""
    host, separator, port = pattern.rpartition(":")
    if not separator or not port.isdecimal():
        host, port = pattern, ""
    try:
        name = canonical_host(host)
    except InvalidInput:
        return pattern.lower()
    name = f"[{name}]" if ":" in name else name
    return f"{name}:{port}" if port else name


def _character(code: str) -> str:
    char = chr(int(code, 16))
    return char if char in _UNRESERVED else f"%{code.upper()}"
