"""The guard that authenticates a request before its body is read, and the peer's address behind proxies.

The services decide what a signed-in caller may do.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from luxx.domain.accounts.authentication import Authenticator, check_peer
from luxx.domain.accounts.caller import Caller, KeyScope, Peer
from luxx.errors import ConfigError, NotAllowed, NotSignedIn

AnyConnection = ASGIConnection[Any, Any, Any, Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Guard = Callable[[AnyConnection, BaseRouteHandler], Awaitable[None]]
FORWARDING_HEADERS = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
)
"""Headers that proxies add. A request with one of them does not count as local."""
PROXY_HEADERS = frozenset(
    (
        *(b"forwarded", b"via", b"max-forwards", b"cdn-loop", b"client-ip", b"true-client-ip", b"proxy-host"),
        *(b"x-client-ip", b"x-cluster-client-ip", b"x-real-ip", b"x-remote-ip", b"x-remote-addr", b"x-host"),
        *(b"x-scheme", b"x-url-scheme", b"x-proxy-user-ip", b"x-arr-log-id", b"x-amzn-trace-id"),
        *(b"x-real-port", b"x-original-host", b"x-original-url", b"fastly-client-ip", b"fly-client-ip"),
        b"x-varnish",
    )
)
PROXY_PREFIXES = (b"x-forwarded", b"x-original-forwarded", b"x-envoy-", b"x-azure-", b"cf-", b"tailscale-")
"""Further headers of proxies and tunnels. They only prevent a sign-in with the default password."""
PUBLIC = "public"
"""The `opt` of a handler that needs no sign-in: `opt={PUBLIC: True}`."""
PASSWORD_CHANGE_EXEMPT = "password_change_exempt"
"""The `opt` of a handler that a caller may use before a required password change."""
KEY_SCOPE = "key_scope"
"""The `opt` of a handler or controller that names the `KeyScope` that a request with an API key needs, if it
does more than read; NO_KEY: only a token of a sign-in is accepted. Without it, `admin`."""
NO_KEY = "none"
CHAT = {KEY_SCOPE: KeyScope.CHAT}
"""The `opt` of a controller whose requests a key with the scope `chat` may send."""
REQUEST_ID = "luxx_request_id"
"""Scope key of the request's id, which `security.py` sets."""
CALLER = "luxx_caller"
PEER = "luxx_peer"


class PeerReader:
    """Finds the peer of a request. `trusted_proxies`: addresses or networks whose X-Forwarded-For is used.
    `on_untrusted` gets the address of each other sender of X-Forwarded-For."""

    def __init__(
        self, trusted_proxies: Sequence[str] = (), on_untrusted: Callable[[str], None] | None = None
    ) -> None:
        self._on_untrusted = on_untrusted
        try:
            self._trusted = [ipaddress.ip_network(network, strict=False) for network in trusted_proxies]
        except ValueError as error:
            raise ConfigError(f"server.trusted_proxies: {error}") from error

    def read(self, connection: AnyConnection) -> Peer:
        """The peer. Behind trusted proxies, its address is the last one that is not a trusted proxy's."""
        host = connection.client.host if connection.client else ""
        peer = parse_address(host)
        is_forwarded = any(name in connection.headers for name in FORWARDING_HEADERS)
        is_local = peer is not None and peer.is_loopback and not is_forwarded
        if peer is not None and self._is_trusted(peer):
            hops = ",".join(connection.headers.getall("x-forwarded-for", [])).split(",")
            for hop in reversed(hops):
                address = parse_address(hop.strip())
                if address is None:
                    break
                host = str(address)
                if not self._is_trusted(address):
                    break
        elif is_forwarded and self._on_untrusted is not None and "x-forwarded-for" in connection.headers:
            self._on_untrusted(host)
        scope = cast("Mapping[str, Any]", connection.scope)
        request_id = str(scope.get(REQUEST_ID, ""))
        is_direct = is_local and not _may_be_proxied(scope)
        return Peer(address=host, is_local=is_local, is_direct=is_direct, request_id=request_id)

    def trusts(self, host: str) -> bool:
        """Whether this is the address of a trusted proxy."""
        if not self._trusted:
            return False
        address = parse_address(host)
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def require_sign_in(authenticator: Authenticator, peers: PeerReader) -> Guard:
    """The guard of the whole app. It raises NotSignedIn without a valid access token, NotAllowed or TooMany.

    Guards run before the body is read, so a client without a sign-in gets no errors about its body.
    """

    async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        peer = peers.read(connection)
        connection.scope["state"][PEER] = peer
        if handler.opt.get(PUBLIC):
            return
        caller = await authenticator.authenticate(_bearer(connection), peer)
        connection.scope["state"][CALLER] = caller
        check_peer(peer, has_default_password=caller.has_default_password)
        if caller.key_scopes is not None:
            _check_key_scope(caller, connection.scope, handler)
        if not handler.opt.get(PASSWORD_CHANGE_EXEMPT):
            check_password_changed(caller)
        authenticator.count_request(caller)

    return guard


async def provide_caller(request: Request[Any, Any, Any]) -> Caller:
    """The dependency `caller`, whom the guard authenticated. Raises NotSignedIn on a public route."""
    caller = caller_of(request.scope)
    if caller is None:
        raise NotSignedIn("sign in first")
    return caller


def caller_of(scope: Scope) -> Caller | None:
    """The authenticated caller, or None before or without authentication."""
    caller = cast("Mapping[str, Any]", scope).get("state", {}).get(CALLER)
    return caller if isinstance(caller, Caller) else None


async def provide_peer(request: Request[Any, Any, Any]) -> Peer:
    peer: Peer = request.scope["state"][PEER]
    return peer


def check_password_changed(caller: Caller) -> None:
    """Raises NotAllowed while the caller has a password that an administrator chose. The published default
    password is exempt; `check_peer` restricts it to this machine instead."""
    if caller.must_change_password and not caller.has_default_password:
        raise NotAllowed(
            "an administrator set this password; choose your own first (POST /auth/password)",
            kind="password_change_needed",
        )


def _check_key_scope(caller: Caller, scope: Scope, handler: BaseRouteHandler) -> None:
    """Raises NotAllowed if the caller's key may not send this request. Every scope allows to read."""
    needed = handler.opt.get(KEY_SCOPE, KeyScope.ADMIN)
    if needed == NO_KEY:
        raise NotAllowed(
            "an API key cannot do this; sign in with username and password and use that token",
            kind="key_refused",
        )
    method = cast("Mapping[str, Any]", scope).get("method")
    if needed != KeyScope.READ and method not in ("GET", "HEAD"):
        caller.require_scope(KeyScope(needed))


def _bearer(connection: AnyConnection) -> str:
    header = connection.headers.get("authorization")
    if header is None:
        raise NotSignedIn("sign in first: send the header 'Authorization: Bearer <access_token or API key>'")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotSignedIn("the Authorization header must be 'Bearer <access_token>'", kind="token_invalid")
    return token.strip()


def _may_be_proxied(scope: Mapping[str, Any]) -> bool:
    """Whether a proxy may have forwarded the request.

    Signs are a header above, a `Host`, `Origin` or `Referer` that is not loopback, and HTTP/1.0, nginx's old
    default. `Connection: close` is none: local programs send it too, such as urllib.
    """
    if scope.get("http_version") == "1.0":
        return True
    has_host = False
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for name, value in headers:
        if name in PROXY_HEADERS or name.startswith(PROXY_PREFIXES):
            return True
        if name == b"host":
            has_host = True
            if not _is_loopback(value):
                return True
        elif name in (b"origin", b"referer") and not _is_loopback(
            value.partition(b"://")[2].partition(b"/")[0]
        ):
            return True
    return not has_host


@lru_cache(maxsize=256)
def _is_loopback(authority: bytes) -> bool:
    """Whether a host, with or without a port, is `localhost` or a loopback address."""
    text = authority.decode("latin-1").lower()
    if text.partition(":")[0].rstrip(".") == "localhost":
        return True
    address = parse_address(text)
    return address is not None and address.is_loopback


def parse_address(text: str) -> Address | None:
    """An address as proxies write it (`[::1]:80`, `10.0.0.1:80`, `::ffff:10.0.0.1`); None if invalid."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
