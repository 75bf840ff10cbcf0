"""Hosts and addresses: normalizes each spelling, and classifies them as public, private or forbidden.

All connections on behalf of users use these rules: those to providers, and those of tools. Callers decide
who may reach private addresses.
"""

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import idna
import msgspec

from luxx.errors import ConfigError, InvalidInput, NotAllowed, Unavailable, Unreachable

# Reserved for documentation, so no machine has them.
_UNASSIGNED = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def is_own_address(text: str) -> bool:
    """Whether this machine has the address. Asks the kernel; sends nothing."""
    family = socket.AF_INET6 if ip_address(text).version == 6 else socket.AF_INET
    if not _can_be_bound(family, text):
        return False
    # Routers and load balancers may allow to bind any address; there only the route's source is a proof.
    return not _can_be_bound(family, _UNASSIGNED[family]) or _is_route_source(family, text)


def _can_be_bound(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except OSError as error:
        return error.errno not in _NOT_OURS
    return True


def _is_route_source(family: socket.AddressFamily, address: str) -> bool:
    """Whether the kernel's route to the address starts at the address itself."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect((address, 9))
            return ip_address(one.getsockname()[0]) == ip_address(address)
    except OSError:
        return False


RESOLVE_SECONDS = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443}

_METADATA_NAMES = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "instance-data",
        "instance-data.ec2.internal",
    }
)
_METADATA_ADDRESSES = frozenset(
    ip_address(text)
    for text in (
        "168.63.129.16",  # Azure's wire server; looks public
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud, old
        "fd00:ec2::254",  # EC2 over IPv6
        "fd20:ce::254",  # Google Cloud over IPv6
        "fd00:42::42",  # Scaleway over IPv6
    )
)
_PRIVATE_SUFFIXES = ("localhost", "local", "internal", "lan", "home.arpa", "intranet", "corp")
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")
_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "192.0.0.0/24",  # IETF protocol assignments
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "100::/64",  # discard only
        "100:0:0:1::/64",  # dummy prefix
        "2001::/23",  # IETF protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, deprecated
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local, deprecated
    )
)
"""Networks that the IANA registries reserve, and that `is_global` of some Python version includes."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


class Reach(StrEnum):
    PUBLIC = "public"
    PRIVATE = "private"
    FORBIDDEN = "forbidden"


def join_host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host_port(text: str) -> tuple[str, int]:
    """The canonical host and the port of a configured `host:port`. Raises InvalidInput."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InvalidInput(f"'{text}' is not host:port; write it like 127.0.0.1:11434 or [::1]:8080")
    return canonical_host(host), int(port)


def canonical_host(text: str) -> str:
    """The host as a name, a dotted IPv4 or an IPv6 address without brackets. Raises InvalidInput.

    Numbers are read as `inet_aton` and resolvers do: octal, hexadecimal, fewer than four parts.
    """
    if text.startswith("["):
        return _canonical_v6(text)
    try:
        name = text if text.isascii() else idna.encode(text, uts46=True, std3_rules=False).decode()
    except idna.IDNAError as error:
        raise InvalidInput(f"the host '{text}' is not a valid name") from error
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if labels and _NUMBER.fullmatch(labels[-1]):
        return _canonical_v4(text, labels)
    if not name or len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidInput(f"the host '{text}' is not a valid name or address")
    return name


def _canonical_v6(text: str) -> str:
    try:
        if not text.endswith("]") or "%" in text:
            raise ValueError(text)
        address = IPv6Address(text[1:-1])
    except ValueError as error:
        raise InvalidInput(f"the host '{text}' is not a valid IPv6 address without a zone") from error
    return str(address.ipv4_mapped or address)


def _canonical_v4(text: str, labels: list[str]) -> str:
    try:
        if len(labels) > 4:
            raise ValueError(text)
        numbers = [_read_number(label) for label in labels]
        head, tail = numbers[:-1], numbers[-1]
        if any(number > 255 for number in head) or tail >= 256 ** (4 - len(head)):
            raise ValueError(text)
        return str(IPv4Address(sum(number << (24 - 8 * index) for index, number in enumerate(head)) + tail))
    except ValueError as error:
        raise InvalidInput(f"the host '{text}' is not a valid IPv4 address") from error


def _read_number(label: str) -> int:
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    if len(label) > 1 and label.startswith("0"):
        return int(label, 8)
    return int(label)


def reach_of_address(text: str) -> Reach:
    """The class of an IP address; the strictest one if an IPv6 address embeds IPv4 addresses.

    This machine's own addresses count as private, even public ones.
    """
    address = ip_address(text.partition("%")[0])
    reaches = {_reach_of_one(address)}
    if isinstance(address, IPv6Address):
        reaches.update(_reach_of_one(inner) for inner in _embedded_ipv4(address))
    for reach in (Reach.FORBIDDEN, Reach.PRIVATE):
        if reach in reaches:
            return reach
    return Reach.PRIVATE if is_own_address(str(address)) else Reach.PUBLIC


def _reach_of_one(address: IPv4Address | IPv6Address) -> Reach:
    if address in _METADATA_ADDRESSES or address.is_link_local or address.is_multicast:
        return Reach.FORBIDDEN
    if address in _NAT64[0]:
        return Reach.PUBLIC  # IPv6-only networks reach public IPv4 by it; the embedded address decides
    if not address.is_global or address.is_reserved or any(address in network for network in _NOT_PUBLIC):
        return Reach.PRIVATE
    return Reach.PUBLIC


def _embedded_ipv4(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address maps to or tunnels to."""
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _NAT64) or (address in _COMPATIBLE and int(address) > 1):
        inner.append(last)
    if (int(address) >> 32) & 0xFFFF_FFFF in (0x0000_5EFE, 0x0200_5EFE):  # ISATAP
        inner.append(last)
    if int(address) >> 32 == 0xFFFF_0000:  # ::ffff:0:0:0/96, translated by SIIT
        inner.append(last)
    return [address for address in inner if address is not None]


def reach_of_name(host: str) -> Reach | None:
    """The class of a canonical host if it needs no DNS lookup, else None."""
    try:
        return reach_of_address(host)
    except ValueError:
        pass
    if host in _METADATA_NAMES:
        return Reach.FORBIDDEN
    if any(host == suffix or host.endswith(f".{suffix}") for suffix in _PRIVATE_SUFFIXES):
        return Reach.PRIVATE
    return None


async def resolve_host(host: str, port: int) -> list[str]:
    """The addresses from the system's resolver, within RESOLVE_SECONDS. Raises Unreachable."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise Unreachable(f"the host '{host}' cannot be found; check its spelling and the network") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The class and the addresses of a host. Connect to one of `addresses`: the name may resolve anew."""

    host_port: str
    reach: Reach
    addresses: list[str]


async def check_host(host: str, port: int, resolve: Callable[[str, int], Awaitable[list[str]]]) -> HostCheck:
    """Classifies a host in any spelling: the strictest class of its name and all its addresses.

    Raises InvalidInput for an invalid host, and the errors of `resolve`.
    """
    name = canonical_host(f"[{host}]" if ":" in host and not host.startswith("[") else host)
    reach = reach_of_name(name)
    addresses = [name] if is_literal(name) else []
    if not addresses and reach is not Reach.FORBIDDEN:
        addresses = await resolve(name, port)
    reach = max_reach(reach, *(reach_of_address(address) for address in addresses))
    return HostCheck(
        host_port=join_host_port(name, port), reach=reach or Reach.FORBIDDEN, addresses=addresses
    )


def max_reach(*reaches: Reach | None) -> Reach | None:
    """The strictest class; None if all are None."""
    for reach in (Reach.FORBIDDEN, Reach.PRIVATE, Reach.PUBLIC):
        if reach in reaches:
            return reach
    return None


def is_literal(host: str) -> bool:
    """Whether a canonical host is an address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


Resolve = Callable[[str, int], Awaitable[list[str]]]


class WebGuard:
    """Decides which addresses tools may connect to.

    `allow_private`: exact `host:port` entries that may be private. Raises ConfigError for an invalid one.
    """

    def __init__(self, allow_private: Collection[str] = (), *, resolve: Resolve = resolve_host) -> None:
        self._resolve = resolve
        self._allowed = frozenset(_entry(text) for text in allow_private)

    async def addresses_of(self, host: str, port: int, resolve: Resolve | None = None) -> list[str]:
        """The only addresses to connect to, in order. `resolve` replaces the guard's DNS lookup.

        Raises NotAllowed for a host that may not be reached, Unavailable if the name cannot be resolved,
        InvalidInput for an invalid host.
        """
        # Refuse private names before the lookup, which would reveal whether they exist.
        self._refuse(reach_of_name(host), join_host_port(host, port))
        try:
            checked = await check_host(host, port, resolve or self._resolve)
        except Unreachable as error:
            raise Unavailable(error.message) from error
        self._refuse(checked.reach, checked.host_port)
        return checked.addresses

    def _refuse(self, reach: Reach | None, host_port: str) -> None:
        if reach is Reach.FORBIDDEN:
            raise NotAllowed(
                f"{host_port} is a metadata or link-local address and is never reached",
                kind="address_forbidden",
            )
        if reach is Reach.PRIVATE and host_port not in self._allowed:
            raise NotAllowed(
                f"{host_port} is not on the public internet; only public addresses are reached",
                kind="private_address",
            )


def _entry(text: str) -> str:
    try:
        host, port = parse_host_port(text)
    except InvalidInput as error:
        raise ConfigError(f"tools.web_allow_private: {error.message}") from error
    if reach_of_name(host) is Reach.FORBIDDEN:
        raise ConfigError(f"tools.web_allow_private: '{text}' is a metadata or link-local address; remove it")
    return join_host_port(host, port)
