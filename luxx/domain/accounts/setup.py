"""The one-time address that sets the first administrator's password while it is the published default.

Its secret is a signed token, bound to the hash of the password that it replaces: it becomes invalid once any
password is set, and every server of the database accepts it. `api/routes/setup.py` serves the page.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import AccountResources, claims_of, signed_token
from luxx.domain.accounts.caller import Peer
from luxx.domain.accounts.models import User
from luxx.domain.accounts.passwords import check_password
from luxx.domain.accounts.rights import AccountChange, RevocationReason, change_password
from luxx.domain.accounts.users import UserView
from luxx.domain.audit import Action, Actor
from luxx.errors import Conflict, NotAllowed
from luxx.infra.clock import new_id
from luxx.infra.secrets import derive_key

SETUP_LIFETIME = timedelta(hours=24)
_LIMIT_NAME = "/setup"
"""The name under which attempts are counted besides their peer; no username has a slash."""


class SetupClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token; times in seconds since 1970. `pwd` is a digest of the password hash to
    replace."""

    exp: int
    iat: int
    jti: str
    sub: str
    typ: Literal["setup"]
    pwd: str


class SetupState(msgspec.Struct, frozen=True, kw_only=True):
    """Whose password the token sets, and when it expires."""

    username: str
    expires_at: datetime


class _Verified(SetupState, frozen=True, kw_only=True):
    user_id: int
    password_hash: str


class PasswordSetup:
    """One per process. Anyone with the token may set the password, signed in or not."""

    def __init__(self, resources: AccountResources, secret: str) -> None:
        self._resources = resources
        self._store = resources.store
        self._clock = resources.clock
        self._key = derive_key(secret, "setup")

    async def token(self) -> str | None:
        """A new token for the user who has the published default password; None if no user has it."""

        def work(session: Session) -> tuple[int, str] | None:
            query = select(User.id, User.password_hash).where(User.has_default_password, User.is_active)
            user = session.execute(query.order_by(User.id).limit(1)).one_or_none()
            return None if user is None else (user.id, user.password_hash)

        default_user = await self._store.read(work)
        if default_user is None:
            return None
        now = self._clock()
        claims = SetupClaims(
            exp=int((now + SETUP_LIFETIME).timestamp()),
            iat=int(now.timestamp()),
            jti=new_id(),
            sub=str(default_user[0]),
            typ="setup",
            pwd=_fingerprint(default_user[1]),
        )
        return signed_token(claims, self._key)

    async def default_username(self) -> str | None:
        """The active user who has the published default password; None if no user has it."""
        query = select(User.username).where(User.has_default_password, User.is_active).order_by(User.id)
        return await self._store.read(lambda session: session.scalar(query.limit(1)))

    async def state(self, peer: Peer, token: str) -> SetupState:
        """What the token allows. Raises NotAllowed with the reason if it is invalid, or TooMany."""
        verified = await self._verified(peer, token)
        return SetupState(username=verified.username, expires_at=verified.expires_at)

    async def set_password(self, peer: Peer, token: str, password: str) -> UserView:
        """Ends all sign-ins of the user. Raises NotAllowed, TooMany, or InvalidInput for a bad password."""
        verified = await self._verified(peer, token)
        check_password(password, username=verified.username)
        new_hash = await self._resources.passwords.hash(password)
        now, because = self._clock(), RevocationReason.PASSWORD_CHANGED
        actor = Actor(username="setup address", address=peer.address, request_id=peer.request_id)

        def work(session: Session) -> UserView:
            return change_password(
                session, verified.user_id, new_hash, now=now, actor=actor, expected=verified.password_hash
            )

        try:
            user = await self._store.write(work)
        except Conflict as error:
            raise _already_used() from error
        self._resources.changes.publish(AccountChange(user_id=user.id, because=because))
        return user

    async def _verified(self, peer: Peer, token: str) -> _Verified:
        self._resources.limits.count_sign_in(peer, _LIMIT_NAME)
        try:
            claims = self._read(token)
            user = await self._store.read(lambda session: _user_of(session, claims))
        except NotAllowed as error:
            anonymous = Actor(address=peer.address, request_id=peer.request_id)
            await self._resources.refusals.record_refusal(Action.PASSWORD_CHANGE, anonymous, error.kind)
            raise
        self._resources.limits.refund_sign_in(peer, _LIMIT_NAME)
        return user

    def _read(self, token: str) -> SetupClaims:
        try:
            claims = claims_of(token, self._key, SetupClaims)
        except ValueError as error:
            raise NotAllowed(
                "this setup address is not valid; copy the whole address that the server printed",
                kind="setup_token_invalid",
            ) from error
        if claims.exp <= self._clock().timestamp():
            raise NotAllowed(
                "this setup address has expired; restart the server to get a new one",
                kind="setup_token_expired",
            )
        return claims


def _user_of(session: Session, claims: SetupClaims) -> _Verified:
    user = session.get(User, int(claims.sub)) if claims.sub.isdecimal() else None
    is_current = user is not None and user.has_default_password and user.is_active
    if user is None or not is_current or _fingerprint(user.password_hash) != claims.pwd:
        raise _already_used()
    return _Verified(
        user_id=user.id,
        username=user.username,
        password_hash=user.password_hash,
        expires_at=datetime.fromtimestamp(claims.exp, UTC),
    )


def _fingerprint(password_hash: str) -> str:
    return hashlib.sha256(password_hash.encode()).hexdigest()


def _already_used() -> NotAllowed:
    return NotAllowed(
        "this setup address was used already, or the password was set in another way; sign in with that "
        "password",
        kind="setup_token_used",
    )
