"""Who may come in: the guard that signs a request in before its body is read, and who the peer is.

What the signed-in may do is decided by the services.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from luxx.accounts.caller import Caller
from luxx.accounts.limits import Peer
from luxx.accounts.service import AccountService, check_peer
from luxx.errors import ConfigError, NotAllowed, NotSignedIn

AnyConnection = ASGIConnection[Any, Any, Any, Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Guard = Callable[[AnyConnection, BaseRouteHandler], Awaitable[None]]
FORWARDING = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
)
"""Headers that proxies add; a request with any of them did not come straight from this machine."""
PUBLIC = "public"
"""The `opt` of a handler that needs no sign-in: `opt={PUBLIC: True}`."""
WITH_ANY_PASSWORD = "with_any_password"
"""The `opt` of a handler that is open also to who must change the password first."""
REQUEST_ID = "luxx_request_id"
"""Where in the scope `protection.py` leaves the request's id."""
CALLER = "luxx_caller"
PEER = "luxx_peer"


class PeerReader:
    """Tells a request's peer. A `trusted_proxies` entry (address or network) is believed about its client."""

    def __init__(self, trusted_proxies: Sequence[str] = ()) -> None:
        try:
            self._trusted = [ipaddress.ip_network(each, strict=False) for each in trusted_proxies]
        except ValueError as error:
            raise ConfigError(f"server.trusted_proxies: {error}") from error

    def read(self, connection: AnyConnection) -> Peer:
        """The peer's address, or behind trusted proxies the last address that is none of theirs."""
        host = connection.client.host if connection.client else ""
        peer = _address(host)
        is_forwarded = any(name in connection.headers for name in FORWARDING)
        is_local = peer is not None and peer.is_loopback and not is_forwarded
        if peer is not None and self._is_trusted(peer):
            hops = ",".join(connection.headers.getall("x-forwarded-for", [])).split(",")
            for hop in reversed(hops):
                address = _address(hop.strip())
                if address is None:
                    break
                host = str(address)
                if not self._is_trusted(address):
                    break
        scope = cast("Mapping[str, Any]", connection.scope)
        request_id = str(scope.get(REQUEST_ID, ""))
        return Peer(address=host, is_local=is_local, request_id=request_id)

    def trusts(self, host: str) -> bool:
        """Whether this is the address of a trusted proxy."""
        if not self._trusted:
            return False
        address = _address(host)
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def require_sign_in(accounts: AccountService, peers: PeerReader) -> Guard:
    """The app's guard. Raises NotSignedIn without a good access token, NotAllowed, or TooMany.

    Put it on the app: guards run before the body is read, so an outsider learns nothing from a wrong body.
    """

    async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        peer = peers.read(connection)
        connection.scope["state"][PEER] = peer
        if handler.opt.get(PUBLIC):
            return
        caller = await accounts.authenticate(_bearer(connection), peer)
        connection.scope["state"][CALLER] = caller
        check_peer(peer, has_default_password=caller.has_default_password)
        if not handler.opt.get(WITH_ANY_PASSWORD):
            check_password_is_theirs(caller)
        accounts.count_request(caller)

    return guard


async def provide_caller(request: Request[Any, Any, Any]) -> Caller:
    """The dependency `caller`: who the guard let in. Raises NotSignedIn on a public route."""
    caller = caller_of(request.scope)
    if caller is None:
        raise NotSignedIn("sign in first")
    return caller


def caller_of(scope: Scope) -> Caller | None:
    """Who is signed in, as far as the guard came."""
    caller = cast("Mapping[str, Any]", scope).get("state", {}).get(CALLER)
    return caller if isinstance(caller, Caller) else None


async def provide_peer(request: Request[Any, Any, Any]) -> Peer:
    """The dependency `peer`: where the request comes from."""
    peer: Peer = request.scope["state"][PEER]
    return peer


def check_password_is_theirs(caller: Caller) -> None:
    """Raises NotAllowed while a password that an administrator chose stands; the published default is
    kept to this machine instead."""
    if caller.must_change_password and not caller.has_default_password:
        raise NotAllowed(
            "an administrator set this password; choose your own first (POST /auth/password)",
            kind="password_change_needed",
        )


def _bearer(connection: AnyConnection) -> str:
    header = connection.headers.get("authorization")
    if header is None:
        raise NotSignedIn("sign in first: send the header 'Authorization: Bearer <access_token>'")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotSignedIn("the Authorization header must read 'Bearer <access_token>'", kind="token_invalid")
    return token.strip()


def _address(text: str) -> Address | None:
    """An address as proxies write it (`[::1]:80`, `10.0.0.1:80`, `::ffff:10.0.0.1`), or None."""
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
