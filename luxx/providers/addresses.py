"""Which addresses providers and MCP servers may have: strict parsing of base URLs, and the address guard.

A private address needs an exact `host:port` in the allowed hosts; metadata addresses are always forbidden.
The guard checks when a row is saved and again at every connect, because a name may resolve to another
address by then. `infra/network/hosts.py` classifies hosts and addresses.
"""

import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput, NotAllowed, ProviderError, ProviderRefused, Unreachable
from luxx.infra.network.hosts import (
    DEFAULT_PORTS,
    Reach,
    canonical_host,
    check_host,
    is_literal,
    join_host_port,
    max_reach,
    parse_host_port,
    reach_of_address,
    reach_of_name,
    resolve_host,
)
from luxx.infra.network.urls import host_part
from luxx.infra.store.engine import Store
from luxx.providers.models import AllowedHostRow
from luxx.providers.registry import INTERNAL_TYPES, default_base_url, takes_query

CACHE_SECONDS = 5.0
"""How long this process may miss another process's change of the allowed hosts."""


_VERSION_QUERY = re.compile(r"api-version=[A-Za-z0-9._-]{1,40}")
"""The only query that a base URL may have: Azure's addresses end in one."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A base URL in canonical form, so that every other parser reads the same host."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def host_port(self) -> str:
        return join_host_port(self.host, self.port)

    @property
    def url(self) -> str:
        default = DEFAULT_PORTS[self.scheme] == self.port
        authority = self.host_port.rpartition(":")[0] if default else self.host_port
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{authority}{self.path}{query}"


def parse_base_url(text: str) -> Endpoint:
    """Parses a base URL. Raises InvalidInput, whose message says what is wrong."""
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
    _reject_unsupported_parts(text, parts)
    scheme = parts.scheme.lower()
    return Endpoint(
        scheme=scheme,
        host=canonical_host(host_part(parts.netloc)),
        port=DEFAULT_PORTS[scheme] if port is None else port,
        path=parts.path.rstrip("/"),
        query=parts.query,
    )


def _reject_unsupported_parts(text: str, parts: SplitResult) -> None:
    if parts.scheme.lower() not in DEFAULT_PORTS:
        raise InvalidInput("base_url must begin with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput("base_url must not contain a user name or password; the key goes into api_key")
    if "#" in text or ("?" in text and not _VERSION_QUERY.fullmatch(parts.query)):
        raise InvalidInput(
            "base_url must not contain a query (?…), apart from ?api-version=…, nor a fragment (#…)"
        )
    if not parts.hostname:
        raise InvalidInput("base_url has no host; write it like https://api.openai.com/v1")
    if parts.port == 0:
        raise InvalidInput("base_url has port 0; a port is between 1 and 65535")
    if any(ord(letter) > 126 for letter in parts.path):
        raise InvalidInput("the path of base_url must be plain ASCII; percent-encode other characters")


class CheckedBaseUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A base URL that may be saved. `newly_allowed`: the `host:port` to add to the allowed hosts, if any."""

    url: str
    newly_allowed: str | None = None


class AddressGuard:
    """Decides whether Luxx may connect to a server.

    `internal` has the keys of Luxx's own servers (the embedded model, the demo) by their `host:port`. No
    user can name these addresses: a request needs the key, which none knows.
    """

    def __init__(
        self,
        store: Store,
        allow_private: Collection[str] = (),
        *,
        internal: Mapping[str, str] | None = None,
        resolve: Callable[[str, int], Awaitable[list[str]]] = resolve_host,
    ) -> None:
        self._store = store
        self.configured = frozenset(join_host_port(*parse_host_port(entry)) for entry in allow_private)
        self._internal: Mapping[str, str] = {} if internal is None else internal
        self._resolve = resolve
        self._allowed_cache: dict[str, tuple[bool, float]] = {}
        self._generation = 0

    async def check_base_url(self, caller: Caller, base_url: str, *, query: bool = False) -> CheckedBaseUrl:
        """The canonical URL to save. Raises InvalidInput, or NotAllowed if the caller may not use it.

        A name that does not resolve passes: `check_connect` runs before anything is sent to it. `query`:
        whether the URL may have one.
        """
        endpoint = parse_base_url(base_url)
        if endpoint.query and not query:
            raise InvalidInput(f"base_url must not contain a query here; leave out ?{endpoint.query}")
        return CheckedBaseUrl(url=endpoint.url, newly_allowed=await self.check_endpoint(caller, endpoint))

    async def check_endpoint(self, caller: Caller, endpoint: Endpoint) -> str | None:
        """The `host:port` that saving this address allows, if it is private and the caller is an operator.

        Raises NotAllowed if the caller may not use it.
        """
        reach, addresses = reach_of_name(endpoint.host), [endpoint.host]
        if reach is not Reach.FORBIDDEN and not is_literal(endpoint.host):
            addresses = await self._resolved(endpoint)
            reach = max_reach(reach, *(reach_of_address(address) for address in addresses))
        if reach is Reach.FORBIDDEN:
            raise NotAllowed(
                f"{endpoint.host_port} is a metadata or link-local address, which is always forbidden; "
                "use another address",
                kind="address_forbidden",
            )
        if self._is_internal(addresses, endpoint.port):
            raise NotAllowed(internal_text(endpoint.host_port), kind="address_internal")
        if reach is not Reach.PRIVATE or await self.is_allowed(endpoint.host_port):
            return None
        if caller.is_operator:
            return endpoint.host_port
        raise NotAllowed(
            f"{endpoint.host_port} is a private address; ask an administrator of this server to allow it "
            "(PUT /admin/allowed-hosts, or providers.allow_private in the config)",
            kind="private_address",
            detail={"host": endpoint.host_port},
        )

    async def _resolved(self, endpoint: Endpoint) -> list[str]:
        try:
            return await self._resolve(endpoint.host, endpoint.port)
        except Unreachable:
            return []

    def _is_internal(self, addresses: Iterable[str], port: int) -> bool:
        """Whether one of these addresses, with this port, is a server of Luxx on this machine."""
        if not any(host_port.endswith(f":{port}") for host_port in self._internal):
            return False
        return any(_is_this_machine(address) for address in addresses)

    async def check_connect(self, host: str, port: int) -> list[str]:
        """The allowed addresses of a host. Connect to one of them; do not resolve the name again.

        Raises ProviderRefused if an address is not allowed, Unreachable if the name does not resolve.
        """
        try:
            checked_host = await check_host(host, port, self._resolve)
        except InvalidInput as error:
            raise ProviderRefused(error.message, kind="address_forbidden") from error
        if checked_host.reach is Reach.FORBIDDEN:
            raise ProviderRefused(
                f"{checked_host.host_port} is a metadata or link-local address, which is always forbidden",
                kind="address_forbidden",
            )
        if self._is_internal(checked_host.addresses, port):
            raise ProviderRefused(internal_text(checked_host.host_port), kind="address_internal")
        if checked_host.reach is Reach.PRIVATE and not await self.is_allowed(checked_host.host_port):
            raise ProviderRefused(
                f"{checked_host.host_port} is a private address that no administrator has allowed",
                kind="private_address",
            )
        return checked_host.addresses

    async def check_literal(self, host: str, port: int, secret: str = "") -> None:
        """Checks a host without resolving it, cheaply enough for every request with this key. Raises
        ProviderRefused.

        A resolver that calls `check_connect` is not enough: it is not called for literal addresses.
        """
        if reach_of_name(_canonical_host(host)) not in (None, Reach.PUBLIC):
            key = self._internal.get(join_host_port(host, port))
            if key is not None and secrets.compare_digest(key.encode(), secret.encode()):
                return
            await self.check_connect(host, port)

    async def is_allowed(self, host_port: str) -> bool:
        """Whether this exact, canonical `host:port` is allowed although it is private."""
        return host_port in self.configured or await self._is_allowed_by_operator(host_port)

    async def _is_allowed_by_operator(self, host_port: str) -> bool:
        # Runs before every model call, so results are cached for CACHE_SECONDS, or until `clear_cache`.
        now = time.monotonic()
        cached = self._allowed_cache.get(host_port)
        if cached is not None and now - cached[1] < CACHE_SECONDS:
            return cached[0]
        generation = self._generation
        is_host_allowed = await self._store.read(
            lambda session: session.get(AllowedHostRow, host_port) is not None
        )
        if generation == self._generation:
            self._allowed_cache[host_port] = (is_host_allowed, now)
        return is_host_allowed

    def clear_cache(self) -> None:
        self._generation += 1
        self._allowed_cache.clear()


def internal_text(host_port: str) -> str:
    """Why a port of Luxx is refused."""
    return f"{host_port} is a port of this server itself, which no provider may name; use another address"


def _is_this_machine(host: str) -> bool:
    """Whether an address, or a literal host, is this machine's loopback."""
    if not is_literal(host):
        return False
    address = ip_address(host.strip("[]").partition("%")[0])
    mapped = address.ipv4_mapped if address.version == 6 else None
    address = mapped or address
    return address.is_loopback or address.is_unspecified


class AddressRefused(OSError):
    """Carries the guard's error through aiohttp's connector, which handles only OSError."""

    def __init__(self, reason: ProviderError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class GuardedResolver(AbstractResolver):
    """For `aiohttp.TCPConnector(resolver=…)`, which does not call it for hosts that are IP addresses."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            addresses = await self._guard.check_connect(host, port)
        except ProviderError as error:
            raise AddressRefused(error) from error
        results = [_result(host, port, address) for address in addresses]
        return [result for result in results if family in (socket.AF_UNSPEC, result["family"])]

    async def close(self) -> None:
        """Nothing to close."""


def _result(host: str, port: int, address: str) -> ResolveResult:
    is_v6 = ip_address(address.partition("%")[0]).version == 6
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if is_v6 else socket.AF_INET,
        proto=socket.IPPROTO_TCP,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


def _canonical_host(host: str) -> str:
    try:
        return canonical_host(f"[{host}]" if ":" in host and not host.startswith("[") else host)
    except InvalidInput as error:
        raise ProviderRefused(error.message, kind="address_forbidden") from error


def parse_allowed_host(text: str) -> str:
    """The canonical `host:port` of an entry. Raises InvalidInput, also for an address that is forbidden."""
    host, port = parse_host_port(text)
    if reach_of_name(host) is Reach.FORBIDDEN:
        raise InvalidInput(f"'{text}' is a metadata or link-local address and cannot be allowed")
    return join_host_port(host, port)


def parse_allowed_hosts(entries: Iterable[str]) -> set[str]:
    """The hosts of a request. Raises InvalidInput with the field of a wrong one."""
    hosts: set[str] = set()
    for index, entry in enumerate(entries):
        try:
            hosts.add(parse_allowed_host(entry))
        except InvalidInput as error:
            raise error.about(f"$.hosts[{index}]") from error
    return hosts


async def check_provider_url(
    guard: AddressGuard, caller: Caller, provider_type: str, base_url: str
) -> tuple[str, str | None]:
    """The address of a provider to store, and its `host:port` if saving it allows a private host.

    Raises InvalidInput.
    """
    if provider_type in INTERNAL_TYPES:
        if base_url:
            raise InvalidInput(
                "the embedded model and the demo take no base_url; their address is assigned when they start",
                field="$.base_url",
            )
        return "", None
    base_url = base_url or default_base_url(provider_type)
    if not base_url:
        raise InvalidInput(f"provider_type {provider_type} needs a base_url", field="$.base_url")
    try:
        checked = await guard.check_base_url(caller, base_url, query=takes_query(provider_type))
    except InvalidInput as error:
        raise error.about("$.base_url") from error
    return checked.url, checked.newly_allowed
