"""The caller of a request, which every service method takes first, and the rate limits of requests.

Requests per user and sign-in attempts per peer are counted in memory, per process. Daily tokens, money and
the number of runs are limited elsewhere.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from luxx.domain.audit import Actor
from luxx.errors import NotAllowed, TooMany
from luxx.infra.config.schema import LimitsConfig
from luxx.wire.tool import CommandPermission


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The client of a request. `is_local`: from this machine and not forwarded by a proxy.

    `is_direct`: local, with a loopback `Host` and without any header that proxies add.
    """

    address: str
    is_local: bool
    is_direct: bool = False
    request_id: str = ""


DEFAULT_TENANT_ID = 1
"""The id of the default tenant; its administrators are the operators of the server."""


class KeyScope(StrEnum):
    """What a request with a personal API key may do. Each includes the ones before it."""

    READ = "read"
    CHAT = "chat"
    ADMIN = "admin"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in user, as read from the database at this request (never from the token alone).

    `key_scopes` is None for a token. For an API key it has the scopes, and `sign_in_id` is the key's id.
    `project_id`: where a run acts for the user, None: in no project. UNSET: the user acts, with what all of
    their projects have.
    """

    user_id: int
    tenant_id: int
    username: str
    permission_level: CommandPermission
    sign_in_id: str
    key_scopes: frozenset[KeyScope] | None = None
    must_change_password: bool = False
    has_default_password: bool = False
    peer: Peer | None = None
    project_id: str | UnsetType | None = UNSET

    def in_project(self, project_id: str | None) -> "Caller":
        """The caller of a run in this project, or in none."""
        return msgspec.structs.replace(self, project_id=project_id)

    def may_use_in(self, project_id: str | None) -> bool:
        """Whether what belongs to this project, or to none, is there for the caller."""
        return project_id is None or self.project_id is UNSET or self.project_id == project_id

    @property
    def is_admin(self) -> bool:
        return self.permission_level >= CommandPermission.ADMIN

    @property
    def is_operator(self) -> bool:
        """An ADMIN of the default tenant: administers all tenants and the server."""
        return self.is_admin and self.tenant_id == DEFAULT_TENANT_ID

    @property
    def actor(self) -> Actor:
        """The caller as the audit log names them."""
        return Actor(
            user_id=self.user_id,
            tenant_id=self.tenant_id,
            username=self.username,
            address=self.peer.address if self.peer else "",
            request_id=self.peer.request_id if self.peer else "",
        )

    def require(self, level: CommandPermission) -> None:
        """Raises NotAllowed below `level`."""
        if self.permission_level < level:
            raise NotAllowed(
                f"this needs permission level {level} ({level.name}); "
                f"yours is {int(self.permission_level)} ({self.permission_level.name}); "
                "an administrator can raise it"
            )

    def has_scope(self, scope: KeyScope) -> bool:
        """Whether a sign-in, or an API key with this scope, sent the request."""
        return self.key_scopes is None or KeyScope.ADMIN in self.key_scopes or scope in self.key_scopes

    def require_scope(self, scope: KeyScope, purpose: str = "") -> None:
        """Raises NotAllowed for an API key without the scope. `purpose`: what needs it, if it is not the
        request as such."""
        if not self.has_scope(scope):
            needs = (
                f"{purpose} needs the scope '{scope}', which this API key lacks"
                if purpose
                else (f"this API key lacks the scope '{scope}'")
            )
            raise NotAllowed(f"{needs}; use a key that has it", kind="key_scope")

    def require_operator(self) -> None:
        """Raises NotAllowed unless the caller is an administrator of the default tenant."""
        if not self.is_operator:
            raise NotAllowed("only an administrator of the default tenant may see or change this")


# Rate limits

MAX_KEYS = 10_000
"""Maximum keys of one limit; past it the least recently used key is dropped."""
USERNAME_LIMIT_FACTOR = 5
"""A username allows this many times the attempts of one peer, so that one peer that fails on purpose cannot
lock out the name's owner.
"""


class RateLimit:
    """A token bucket per key: `per_minute` at once, refilled evenly over a minute. 0 means no limit."""

    def __init__(
        self,
        per_minute: int,
        message: str,
        *,
        entries: int = MAX_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = float(per_minute)
        self._per_second = per_minute / 60
        self._message = message
        self._entries = entries
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def consume(self, key: str) -> None:
        """Takes one token. Raises TooMany if the bucket is empty."""
        if self._capacity <= 0:
            return
        tokens_left = self._tokens_left(key)
        if tokens_left < 1:
            self._store_bucket(key, tokens_left)
            wait = math.ceil((1 - tokens_left) / self._per_second)
            raise TooMany(f"{self._message}; try again in {wait} s", retry_after=wait)
        self._store_bucket(key, tokens_left - 1)

    def refund(self, key: str) -> None:
        """Undoes one `consume` of this key."""
        if self._capacity > 0:
            self._store_bucket(key, min(self._capacity, self._tokens_left(key) + 1))

    def _tokens_left(self, key: str) -> float:
        now = self._clock()
        tokens_left, at = self._buckets.get(key, (self._capacity, now))
        return min(self._capacity, tokens_left + (now - at) * self._per_second)

    def _store_bucket(self, key: str, tokens_left: float) -> None:
        self._buckets[key] = (tokens_left, self._clock())
        self._buckets.move_to_end(key)
        while len(self._buckets) > self._entries:
            self._buckets.popitem(last=False)


class RateLimits:
    """The limits of one server process."""

    def __init__(self, config: LimitsConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        login_attempts = config.logins_per_minute
        sign_in_message = "too many attempts to sign in"
        self._requests = RateLimit(config.requests_per_minute, "too many requests", clock=clock)
        self._peers = RateLimit(login_attempts, sign_in_message, clock=clock)
        self._usernames = RateLimit(login_attempts * USERNAME_LIMIT_FACTOR, sign_in_message, clock=clock)
        self._registrations = RateLimit(login_attempts, "too many registrations", clock=clock)
        link_reads = config.link_reads_per_minute
        self._link_reads = RateLimit(link_reads, "too many requests for shared links", clock=clock)

    def count_request(self, user_id: int) -> None:
        """Raises TooMany past `limits.requests_per_minute`."""
        self._requests.consume(str(user_id))

    def count_sign_in(self, peer: Peer, username: str) -> None:
        """Call before a password is checked. Raises TooMany past `limits.logins_per_minute`."""
        self._peers.consume(network_of(peer.address))
        self._usernames.consume(_name(username))

    def refund_sign_in(self, peer: Peer, username: str) -> None:
        """Call after a correct password: only guessing is limited."""
        self._peers.refund(network_of(peer.address))
        self._usernames.refund(_name(username))

    def count_registration(self, peer: Peer) -> None:
        """Raises TooMany past `limits.logins_per_minute`, counted apart from sign-ins."""
        self._registrations.consume(network_of(peer.address))

    def count_link_read(self, peer: Peer) -> None:
        """Raises TooMany past `limits.link_reads_per_minute`. Links are read without a sign-in."""
        self._link_reads.consume(network_of(peer.address))


def _name(username: str) -> str:
    return username.lower()[:64]


def network_of(address_text: str) -> str:
    """The address; for IPv6 its /64, which one customer usually has whole."""
    try:
        address = ipaddress.ip_address(address_text)
    except ValueError:
        return address_text
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
