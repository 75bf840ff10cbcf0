"""Who sends a request: signed tokens, the state of their sign-in in the database, and tickets for sockets.
`key_access.py` reads API keys.

A ticket opens one socket, once and soon, because a token must not appear in a URL.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import jwt
import msgspec
from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller, Peer, RateLimits
from luxx.domain.accounts.key_access import KEY_START, VALID_KEYS, KeyReader
from luxx.domain.accounts.models import SignIn, TicketRow, User
from luxx.domain.accounts.passwords import DEFAULT_ADMIN, Passwords
from luxx.domain.accounts.rights import AccountChange, AccountChanges
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.audit import Refusals
from luxx.errors import NotAllowed, NotSignedIn
from luxx.infra.clock import new_id, utc_now
from luxx.infra.secrets import derive_key
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import read_once, table_of
from luxx.wire.tool import CommandPermission


@dataclass(frozen=True, kw_only=True)
class AccountResources:
    """What the account services of one process share."""

    store: Store
    passwords: Passwords
    workspaces: Workspaces
    limits: RateLimits
    changes: AccountChanges
    refusals: Refusals
    clock: Callable[[], datetime] = utc_now


# Tokens

ALGORITHM = "HS256"
LONGEST_TOKEN = 4096
_UNCHECKED_TIMES = ("verify_exp", "verify_iat", "verify_nbf")
"""The readers of tokens compare the times with their own clock."""

LEEWAY_SECONDS = 60
"""How far servers' clocks may differ; a token issued later than that after now is refused."""

C = TypeVar("C", bound=msgspec.Struct)
_jwt = jwt.PyJWT()


def signed_token(claims: msgspec.Struct, key: bytes) -> str:
    """The claims as a JWT, signed with HS256."""
    return _jwt.encode(msgspec.to_builtins(claims), key, algorithm=ALGORITHM)


def claims_of(token: str, key: bytes, kind: type[C]) -> C:
    """The claims of a JWT that was signed with this key. Raises ValueError; checks no times."""
    if len(token) > LONGEST_TOKEN:
        raise ValueError("token too long")
    options: Any = {"require": kind.__struct_fields__} | dict.fromkeys(_UNCHECKED_TIMES, False)
    try:
        return msgspec.convert(_jwt.decode(token, key, algorithms=[ALGORITHM], options=options), kind)
    except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError) as error:
        raise ValueError("not a valid token") from error


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token; times in seconds since 1970. `sid` is the sign-in, `sub` the user's id as
    text."""

    exp: int
    iat: int
    jti: str
    sub: str
    sid: str
    typ: TokenType


class TokenSigner:
    """Signs with HS256 and a 32-byte key derived from `app.secret_key`."""

    def __init__(
        self,
        secret: str,
        *,
        access: timedelta = timedelta(minutes=30),
        refresh: timedelta = timedelta(days=30),
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._key = derive_key(secret, "tokens")
        self._lifetime = {TokenType.ACCESS: access, TokenType.REFRESH: refresh}
        self._clock = clock

    def lifetime(self, typ: TokenType) -> timedelta:
        return self._lifetime[typ]

    def make(self, typ: TokenType, *, user_id: int, sign_in_id: str, jti: str | None = None) -> str:
        """A signed token of this type for this sign-in; `jti` is new unless given."""
        now = self._clock()
        claims = Claims(
            exp=int((now + self._lifetime[typ]).timestamp()),
            iat=int(now.timestamp()),
            jti=jti or new_id(),
            sub=str(user_id),
            sid=sign_in_id,
            typ=typ,
        )
        return signed_token(claims, self._key)

    def read(self, token: str, typ: TokenType) -> Claims:
        """The claims of a genuine, unexpired token of this type. Raises NotSignedIn otherwise."""
        try:
            claims = claims_of(token, self._key, Claims)
        except ValueError as error:
            raise NotSignedIn("the token is not valid; sign in again", kind="token_invalid") from error
        if claims.typ is not typ:
            raise NotSignedIn(
                f"this is not an {typ} token" if typ is TokenType.ACCESS else f"this is not a {typ} token",
                kind="token_wrong_type",
            )
        if claims.exp <= self._clock().timestamp():
            raise NotSignedIn("the token has expired; refresh it or sign in again", kind="token_expired")
        if claims.iat > self._clock().timestamp() + LEEWAY_SECONDS:
            raise NotSignedIn(
                "the token was issued in the future; sign in again; if that does not help, ask "
                "an operator to set this server's clock",
                kind="token_invalid",
            )
        return claims


def jti_hash(jti: str) -> str:
    """The hash under which the database stores a refresh token, so that reading the database gives no
    token."""
    return hashlib.sha256(jti.encode()).hexdigest()


# Sign-ins

_U, _S = User.__table__.c, SignIn.__table__.c
_SIGN_IN_QUERY = (
    select(
        _U.id, _U.tenant_id, _U.username, _U.permission_level, _U.is_active, _U.must_change_password,
        _U.has_default_password, _S.expires_at, _S.revoked_at,
    )
    .select_from(SignIn.__table__.join(User.__table__, _S.user_id == _U.id))
    .where(_S.id == bindparam("sign_in_id"))
)  # fmt: skip
USER_QUERY = select(_U.id, _U.tenant_id, _U.username, _U.permission_level, _U.is_active).where(
    _U.id == bindparam("user_id")
)
"""What `caller_without_sign_in` reads of a user; a query that asks for more adds columns."""


def user_as_caller(connection: Connection, user_id: int) -> Caller:
    """The user as the database has them now, for work that outlives its request. Raises NotAllowed if the
    user is disabled or deleted."""
    return caller_without_sign_in(active_user(connection, USER_QUERY, {"user_id": user_id}))


def active_user(
    connection: Connection, query: Select[*tuple[Any, ...]], values: dict[str, Any]
) -> Row[*tuple[Any, ...]]:
    """The row that `USER_QUERY`, or a query that adds columns to it, finds for these values. Raises
    NotAllowed if the user is disabled or deleted."""
    user = connection.execute(query, values).one_or_none()
    if user is None or not user.is_active:
        raise NotAllowed("the user of this run is disabled", kind="account_disabled")
    return user


def caller_of_turn(session: Session, user_id: int) -> Caller:
    """The user of turns that begin in one transaction. Raises NotAllowed."""
    return read_once(session, ("caller", user_id), lambda: user_as_caller(session.connection(), user_id))


def caller_without_sign_in(user: User | Row[*tuple[Any, ...]]) -> Caller:
    """The user as a caller, for what is done in their name without a request."""
    return Caller(
        user_id=user.id,
        tenant_id=user.tenant_id,
        username=user.username,
        permission_level=CommandPermission(user.permission_level),
        sign_in_id="",
    )


def check_peer(peer: Peer, *, has_default_password: bool) -> None:
    """Raises NotAllowed for the published default password, unless the request comes directly from this
    machine (`Peer.is_direct`)."""
    if has_default_password and not peer.is_direct:
        raise NotAllowed(
            "this user still has the published default password and can sign in only on the server itself, "
            "at http://127.0.0.1 and through no proxy; set another password at the address that the server "
            f"prints at its start, or run `luxx user passwd {DEFAULT_ADMIN}`",
            kind="default_password",
        )


def refuse_ended_sign_in() -> NoReturn:
    raise NotSignedIn("this sign-in has ended; sign in again", kind="token_revoked")


def refuse_disabled_user() -> NoReturn:
    raise NotSignedIn("this account is disabled; ask an administrator", kind="account_disabled")


class Authenticator:
    """One per process; `subscribe` to learn of what this process revokes."""

    def __init__(self, resources: AccountResources, tokens: TokenSigner) -> None:
        self._resources = resources
        self._store = resources.store
        self._clock = resources.clock
        self._tokens = tokens
        self._keys = KeyReader(resources.store, resources.clock)
        self.caller_of_key = self._keys.caller_of

    def subscribe(self, callback: Callable[[AccountChange], None]) -> Callable[[], None]:
        """`callback` runs on the event loop after each change; call the return value to unsubscribe."""
        return self._resources.changes.subscribe(callback)

    async def authenticate(self, token: str, peer: Peer | None = None) -> Caller:
        """The user of an access token or an API key, read from the database. Raises NotSignedIn."""
        if token.startswith(KEY_START):
            return await self._keys.authenticate(token, peer)
        claims = self._tokens.read(token, TokenType.ACCESS)
        caller = await self.caller_of_sign_in(claims.sid, peer)
        if str(caller.user_id) != claims.sub:
            raise NotSignedIn("the token is not valid; sign in again", kind="token_invalid")
        return caller

    async def recheck(self, caller: Caller) -> Caller:
        """The caller as of now; for streams, which outlive their request.

        Raises NotSignedIn if the sign-in or key was revoked, NotAllowed if the user has fewer rights than
        before.
        """
        find = self.caller_of_sign_in if caller.key_scopes is None else self.caller_of_key
        current = await find(caller.sign_in_id, caller.peer)
        if current.permission_level < caller.permission_level or current.tenant_id != caller.tenant_id:
            raise NotAllowed("your rights have changed; send the request again", kind="rights_changed")
        return current

    async def revoked_callers(self, callers: Sequence[Caller]) -> set[Caller]:
        """The callers for whom `recheck` would raise."""
        now = self._clock()
        return await self._store.read_rows(lambda connection: _revoked_callers(connection, callers, now))

    def count_request(self, caller: Caller) -> None:
        """Raises TooMany past the user's limit."""
        self._resources.limits.count_request(caller.user_id)

    async def caller_of_sign_in(self, sign_in_id: str, peer: Peer | None) -> Caller:
        """The user of a sign-in, read from the database. Raises NotSignedIn."""

        def work(connection: Connection):
            return connection.execute(_SIGN_IN_QUERY, {"sign_in_id": sign_in_id}).one_or_none()

        row = await self._store.read_rows(work)
        if row is None or row.revoked_at is not None or row.expires_at <= self._clock():
            refuse_ended_sign_in()
        if not row.is_active:
            refuse_disabled_user()
        return Caller(
            user_id=row.id,
            tenant_id=row.tenant_id,
            username=row.username,
            permission_level=CommandPermission(row.permission_level),
            sign_in_id=sign_in_id,
            must_change_password=row.must_change_password,
            has_default_password=row.has_default_password,
            peer=peer,
        )


BATCH_SIZE = 500
_VALID_SIGN_INS = (
    select(_S.id, _U.permission_level, _U.tenant_id)
    .select_from(SignIn.__table__.join(User.__table__, _S.user_id == _U.id))
    .where(
        _S.id.in_(bindparam("ids", expanding=True)),
        _S.revoked_at.is_(None),
        _S.expires_at > bindparam("now"),
        _U.is_active,
    )
)


def _revoked_callers(connection: Connection, callers: Sequence[Caller], now: datetime) -> set[Caller]:
    """The callers whose sign-in or key ended, who were disabled or moved, or whose level is lower than
    before."""
    valid: dict[str, Row[str, int, int]] = {}
    for query, is_key in ((_VALID_SIGN_INS, False), (VALID_KEYS, True)):
        ids = sorted({caller.sign_in_id for caller in callers if (caller.key_scopes is not None) is is_key})
        for first in range(0, len(ids), BATCH_SIZE):
            parameters = {"ids": ids[first : first + BATCH_SIZE], "now": now}
            valid.update({row.id: row for row in connection.execute(query, parameters)})
    still_valid = {
        caller
        for caller in callers
        if (row := valid.get(caller.sign_in_id)) is not None
        and row.permission_level >= caller.permission_level
        and row.tenant_id == caller.tenant_id
    }
    return set(callers) - still_valid


# Tickets

TICKET_LIFETIME = timedelta(seconds=30)
TICKET_BYTES = 32
MAX_TICKET_LENGTH = 100
"""Maximum characters of a ticket; longer ones are refused unread."""

_tickets = table_of(TicketRow)
_delete_expired_tickets = delete(_tickets).where(_tickets.c.expires_at <= bindparam("now"))
_insert_ticket = insert(_tickets)
_is_valid_ticket = (_tickets.c.ticket_hash == bindparam("hash"), _tickets.c.expires_at > bindparam("now"))
_find_ticket = select(_tickets.c.ticket_hash).where(*_is_valid_ticket)
_delete_ticket = delete(_tickets).where(*_is_valid_ticket).returning(_tickets.c.sign_in_id, _tickets.c.key_id)


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_in` is its lifetime in seconds; it opens one socket."""

    ticket: str
    expires_in: int


@dataclass(frozen=True, slots=True)
class TicketService:
    """One per process. A ticket is valid at any process of the same database."""

    store: Store
    authenticator: Authenticator
    clock: Callable[[], datetime] = utc_now

    async def issue(self, caller: Caller) -> Ticket:
        """A new ticket for the caller's sign-in or key; it ends with that. Deletes all expired tickets."""
        ticket, now = secrets.token_urlsafe(TICKET_BYTES), self.clock()
        row = {
            "ticket_hash": _ticket_hash(ticket),
            "sign_in_id": caller.sign_in_id if caller.key_scopes is None else None,
            "key_id": None if caller.key_scopes is None else caller.sign_in_id,
            "expires_at": now + TICKET_LIFETIME,
        }

        def work(connection: Connection) -> None:
            connection.execute(_delete_expired_tickets, {"now": now})
            connection.execute(_insert_ticket, row)

        await self.store.write_rows(work)
        return Ticket(ticket=ticket, expires_in=int(TICKET_LIFETIME.total_seconds()))

    async def redeem(self, ticket: str, peer: Peer) -> Caller:
        """The caller whose ticket it is; the ticket is used up. Raises NotSignedIn."""
        parameters = {"hash": _ticket_hash(ticket), "now": self.clock()}
        row = None
        # Read first, so that invalid tickets cost no write.
        if 0 < len(ticket) <= MAX_TICKET_LENGTH and await self.store.read_rows(
            lambda connection: connection.scalar(_find_ticket, parameters)
        ):
            row = await self.store.write_rows(
                lambda connection: connection.execute(_delete_ticket, parameters).one_or_none()
            )
        if row is None:
            raise NotSignedIn(
                "this ticket is invalid, used or expired; get a new one (POST /auth/ticket)",
                kind="ticket_invalid",
            )
        if row.key_id is not None:
            return await self.authenticator.caller_of_key(row.key_id, peer)
        return await self.authenticator.caller_of_sign_in(row.sign_in_id, peer)


def _ticket_hash(ticket: str) -> str:
    """The hash under which the database stores a ticket, so that reading the database gives no ticket."""
    return hashlib.sha256(ticket.encode("utf-8", "replace")).hexdigest()
