"""Which hosts and ports an operator opens to programs: `host`, `host:port` or `*.example.org`. Pure.

A listed name says nothing of the addresses behind it; these are the guard's to judge.
"""

import re
from collections.abc import Iterable

import msgspec

from luxx.errors import InvalidInput
from luxx.network.hosts import DEFAULT_PORTS, Reach, canonical_host, is_literal, join_host_port, reach_of_name

USUAL_PORTS = frozenset(DEFAULT_PORTS.values())
"""Of an entry without a port."""

_PORT = re.compile(r"(.+):([0-9]{1,5})")
_ANY = "*."
_HOW = "write it like example.org, example.org:8443 or *.example.org"


class AllowedHost(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is canonical; with `is_suffix` it stands for all names below it, and not for itself."""

    host: str
    ports: frozenset[int]
    is_suffix: bool = False

    def allows(self, host: str, port: int) -> bool:
        is_meant = host.endswith(f".{self.host}") if self.is_suffix else host == self.host
        return is_meant and port in self.ports


class AllowList:
    """Raises InvalidInput for an entry that is none."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(allowed_host(text) for text in entries)

    def allows(self, host: str, port: int) -> bool:
        """Whether a canonical host is listed, with this port."""
        return any(entry.allows(host, port) for entry in self._entries)


def allowed_host(text: str) -> AllowedHost:
    """One entry. Raises InvalidInput."""
    name, ports = text.strip(), USUAL_PORTS
    is_suffix = name.startswith(_ANY)
    name = name.removeprefix(_ANY)
    if (found := _PORT.fullmatch(name)) is not None and not name.endswith("]"):
        name, ports = found[1], frozenset({int(found[2])})
    if not all(0 < port < 65536 for port in ports):
        raise InvalidInput(f"'{text}' has no port that there is; {_HOW}")
    try:
        host = canonical_host(name)
    except InvalidInput as error:
        raise InvalidInput(f"'{text}' is not a host; {_HOW}") from error
    if is_suffix and (is_literal(host) or "." not in host):
        raise InvalidInput(f"'{text}' would open too much; name at least two parts, as in *.example.org")
    if reach_of_name(host) is Reach.FORBIDDEN:
        where = join_host_port(host, min(ports))
        raise InvalidInput(f"{where} is a metadata or link-local address, which is never reached; remove it")
    return AllowedHost(host=host, ports=ports, is_suffix=is_suffix)
