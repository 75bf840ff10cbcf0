"""Where a provider or an MCP server may live: base URLs read strictly, hosts public, private or forbidden.

A private address needs that exact `host:port` allowed; a metadata address is never reached. Decided
when a row is saved and again at every connect, because a name may resolve to something else by then.
Sending is `transport.py`'s; fetching web pages for tools has a stricter guard of its own.
"""

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

import idna
import msgspec

from luxx.accounts.caller import Caller
from luxx.errors import InvalidInput, NotAllowed, ProviderRefused, Unreachable
from luxx.providers.models import AllowedHostRow
from luxx.store.engine import Store

RESOLVE_SECONDS = 5.0
REMEMBERED_SECONDS = 5.0
"""How long another process's change of the allowed hosts may go unseen here."""
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
_SITE_LOCAL = ip_network("fec0::/10")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


class Reach(StrEnum):
    PUBLIC = "public"
    PRIVATE = "private"
    FORBIDDEN = "forbidden"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A base URL in one canonical spelling, so that every parser after this one reads the same host."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_port(self) -> str:
        return join_host_port(self.host, self.port)

    @property
    def url(self) -> str:
        default = DEFAULT_PORTS[self.scheme] == self.port
        where = self.host_port.rpartition(":")[0] if default else self.host_port
        return f"{self.scheme}://{where}{self.path}"


def join_host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_base_url(text: str) -> Endpoint:
    """The endpoint written in `text`. Raises InvalidInput with a sentence saying what is wrong with it."""
    if not text or len(text) > 500:
        raise InvalidInput(
            "base_url must be a URL of at most 500 characters, such as https://api.openai.com/v1"
        )
    if re.search(r"[\s\\\x00-\x20\x7f]", text):
        raise InvalidInput("base_url must not contain spaces, control characters or backslashes")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidInput("base_url is not a valid URL; write it like https://api.openai.com/v1") from error
    _refuse_extras(text, parts)
    scheme = parts.scheme.lower()
    return Endpoint(
        scheme=scheme,
        host=canonical_host(_host_part(parts.netloc)),
        port=DEFAULT_PORTS[scheme] if port is None else port,
        path=parts.path.rstrip("/"),
    )


def _refuse_extras(text: str, parts: SplitResult) -> None:
    if parts.scheme.lower() not in DEFAULT_PORTS:
        raise InvalidInput("base_url must begin with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput("base_url must not contain a user name or password; the key goes into api_key")
    if "?" in text or "#" in text:
        raise InvalidInput("base_url must not contain a query (?…) or a fragment (#…)")
    if not parts.hostname:
        raise InvalidInput("base_url has no host; write it like https://api.openai.com/v1")
    if parts.port == 0:
        raise InvalidInput("base_url has port 0; a port is between 1 and 65535")
    if any(ord(letter) > 126 for letter in parts.path):
        raise InvalidInput("the path of base_url must be plain ASCII; percent-encode what is not")


def _host_part(netloc: str) -> str:
    if netloc.startswith("["):
        return netloc.partition("]")[0] + "]"
    return netloc.partition(":")[0]


def parse_host_port(text: str) -> tuple[str, int]:
    """A `host:port` as an administrator writes it, in canonical spelling. Raises InvalidInput."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InvalidInput(f"'{text}' is not host:port; write it like 127.0.0.1:11434 or [::1]:8080")
    return canonical_host(host), int(port)


def canonical_host(text: str) -> str:
    """A host as name, dotted IPv4 or IPv6 without brackets, however it was spelled. Raises InvalidInput.

    Numbers are read as `inet_aton` does (octal, hex, fewer than four parts), as resolvers would.
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
        raise InvalidInput(f"the host '{text}' is not a valid IPv6 address (zones are not taken)") from error
    return str(address.ipv4_mapped or address)


def _canonical_v4(text: str, labels: list[str]) -> str:
    try:
        if len(labels) > 4:
            raise ValueError(text)
        numbers = [_read_number(label) for label in labels]
        head, tail = numbers[:-1], numbers[-1]
        if any(number > 255 for number in head) or tail >= 256 ** (4 - len(head)):
            raise ValueError(text)
        return str(IPv4Address(sum(number << (24 - 8 * place) for place, number in enumerate(head)) + tail))
    except ValueError as error:
        raise InvalidInput(f"the host '{text}' is not a valid IPv4 address") from error


def _read_number(label: str) -> int:
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    if len(label) > 1 and label.startswith("0"):
        return int(label, 8)
    return int(label)


def reach_of_address(text: str) -> Reach:
    """How an IP address is to be treated; an IPv6 address counts as the worst of what it carries."""
    address = ip_address(text.partition("%")[0])
    found = {_reach_of_one(address)}
    if isinstance(address, IPv6Address):
        found.update(_reach_of_one(inner) for inner in _carried(address))
    for reach in (Reach.FORBIDDEN, Reach.PRIVATE):
        if reach in found:
            return reach
    return Reach.PUBLIC


def _reach_of_one(address: IPv4Address | IPv6Address) -> Reach:
    if address in _METADATA_ADDRESSES or address.is_link_local or address.is_multicast:
        return Reach.FORBIDDEN
    if address in _NAT64[0]:
        return Reach.PUBLIC  # IPv6-only networks reach the public IPv4 world by it; what it carries counts
    if not address.is_global or address.is_reserved or address in _SITE_LOCAL:
        return Reach.PRIVATE
    return Reach.PUBLIC


def _carried(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for or tunnels to."""
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _NAT64) or (address in _COMPATIBLE and int(address) > 1):
        inner.append(last)
    if (int(address) >> 32) & 0xFFFF_FFFF in (0x0000_5EFE, 0x0200_5EFE):  # ISATAP
        inner.append(last)
    return [one for one in inner if one is not None]


def reach_of_name(host: str) -> Reach | None:
    """What is clear from a canonical host alone; None where it must be resolved."""
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
    """The addresses of a name, by the system's resolver, at most RESOLVE_SECONDS long. Raises Unreachable."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise Unreachable(f"the host '{host}' cannot be found; check its spelling and the network") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Vetted(msgspec.Struct, frozen=True, kw_only=True):
    """A base URL that may be saved. `newly_allowed` is the `host:port` that saving it allows, if any."""

    url: str
    newly_allowed: str | None = None


class AddressGuard:
    """Answers whether a server may be reached. `internal` lists the `host:port` that Luxx itself runs."""

    def __init__(
        self,
        store: Store,
        allow_private: Collection[str] = (),
        *,
        internal: Callable[[], Collection[str]] = tuple,
        resolve: Callable[[str, int], Awaitable[list[str]]] = resolve_host,
    ) -> None:
        self._store = store
        self.configured = frozenset(join_host_port(*parse_host_port(entry)) for entry in allow_private)
        self._internal = internal
        self._resolve = resolve
        self._remembered: dict[str, tuple[bool, float]] = {}
        self._generation = 0

    async def vet(self, caller: Caller, base_url: str) -> Vetted:
        """The canonical URL to save. Raises InvalidInput, or NotAllowed for what the caller may not use.

        A name that cannot be resolved now passes: nothing is sent to it before `check_connect`.
        """
        endpoint = parse_base_url(base_url)
        reach = reach_of_name(endpoint.host)
        if reach is not Reach.FORBIDDEN and not _is_literal(endpoint.host):
            reach = max_reach(reach, await self._reach_resolved(endpoint))
        if reach is Reach.FORBIDDEN:
            raise NotAllowed(
                f"{endpoint.host_port} is a metadata or link-local address; no server may be reached there",
                kind="address_forbidden",
            )
        if reach is not Reach.PRIVATE or await self.is_allowed(endpoint.host_port):
            return Vetted(url=endpoint.url)
        if is_operator(caller):
            return Vetted(url=endpoint.url, newly_allowed=endpoint.host_port)
        raise NotAllowed(
            f"{endpoint.host_port} is a private address; ask an administrator of this server to allow it "
            "(PUT /admin/allowed-hosts, or providers.allow_private in the config)",
            kind="private_address",
            detail={"host": endpoint.host_port},
        )

    async def _reach_resolved(self, endpoint: Endpoint) -> Reach | None:
        try:
            addresses = await self._resolve(endpoint.host, endpoint.port)
        except Unreachable:
            return None
        return max_reach(*(reach_of_address(address) for address in addresses))

    async def check_connect(self, host: str, port: int) -> list[str]:
        """The addresses to connect to, and no others: connect to one of them, not to the name again.

        Raises ProviderRefused for what is not allowed, Unreachable for a name that does not resolve.
        """
        host = _canonical_or_refused(host)
        reach = reach_of_name(host)
        addresses = [host] if _is_literal(host) else []
        if not addresses and reach is not Reach.FORBIDDEN:
            addresses = await self._resolve(host, port)
        reach = max_reach(reach, *(reach_of_address(address) for address in addresses))
        host_port = join_host_port(host, port)
        if reach is Reach.FORBIDDEN:
            raise ProviderRefused(
                f"{host_port} is a metadata or link-local address and is never reached",
                kind="address_forbidden",
            )
        if reach is Reach.PRIVATE and not await self.is_allowed(host_port):
            raise ProviderRefused(
                f"{host_port} is a private address that no administrator has allowed", kind="private_address"
            )
        return addresses

    async def check_literal(self, host: str, port: int) -> None:
        """What can be judged without resolving, so cheap that it can precede every request.

        Needed beside a resolver that calls `check_connect`: addresses written as such never reach one.
        """
        if reach_of_name(_canonical_or_refused(host)) not in (None, Reach.PUBLIC):
            await self.check_connect(host, port)

    async def is_allowed(self, host_port: str) -> bool:
        """Whether this exact, canonical `host:port` is allowed although private.

        Asked before every model call, so an answer is kept for REMEMBERED_SECONDS, or until `forget`.
        """
        if host_port in self.configured or host_port in self._internal():
            return True
        now = time.monotonic()
        known = self._remembered.get(host_port)
        if known is not None and now - known[1] < REMEMBERED_SECONDS:
            return known[0]
        generation = self._generation
        found = await self._store.read(lambda session: session.get(AllowedHostRow, host_port) is not None)
        if generation == self._generation:
            self._remembered[host_port] = (found, now)
        return found

    def forget(self) -> None:
        """The allowed hosts have changed."""
        self._generation += 1
        self._remembered.clear()


def is_operator(caller: Caller) -> bool:
    """Whether the caller may open the server to a private address: a tenant's own ADMIN may not."""
    return caller.is_operator


def max_reach(*reaches: Reach | None) -> Reach | None:
    """The strictest of several; None where nothing is known."""
    for reach in (Reach.FORBIDDEN, Reach.PRIVATE, Reach.PUBLIC):
        if reach in reaches:
            return reach
    return None


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _canonical_or_refused(host: str) -> str:
    try:
        return canonical_host(f"[{host}]" if ":" in host and not host.startswith("[") else host)
    except InvalidInput as error:
        raise ProviderRefused(error.message, kind="address_forbidden") from error
