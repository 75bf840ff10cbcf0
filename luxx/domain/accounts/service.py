"""Accounts of users: register, sign in, refresh tokens, sign out, change the own password.

Every function takes the caller first (`Caller` or `Peer`). `administration.py` holds what administrators do
with users and what the command line does without a caller.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, NoReturn

import msgspec
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.accounts import users
from luxx.domain.accounts.caller import Caller, Peer, RateLimits
from luxx.domain.accounts.credentials import (
    DEFAULT_ADMIN,
    Claims,
    Passwords,
    TokenSigner,
    TokenType,
    check_password,
    jti_hash,
)
from luxx.domain.accounts.models import SignIn, User
from luxx.domain.accounts.rights import (
    AccountChange,
    AccountChanges,
    RevocationReason,
    record_password_change,
    record_user_created,
    revoked_callers,
)
from luxx.domain.accounts.tenants import allows_registration
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.accounts.users import NewUser, UserView, view_of
from luxx.domain.audit import Action, Actor, AuditEntry, Refusals, record
from luxx.errors import ConfigError, InvalidInput, NotAllowed, NotSignedIn
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import AuthConfig
from luxx.infra.store.engine import Store
from luxx.wire.tool import CommandPermission


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a sign-in; `expires_in` is the lifetime of the access token in seconds."""

    access_token: str
    refresh_token: str
    expires_in: int
    user: UserView
    token_type: Literal["bearer"] = "bearer"


_U, _S = User.__table__.c, SignIn.__table__.c
_SIGN_IN_QUERY = (
    select(
        _U.id, _U.tenant_id, _U.username, _U.permission_level, _U.is_active, _U.must_change_password,
        _U.has_default_password, _S.expires_at, _S.revoked_at,
    )
    .select_from(SignIn.__table__.join(User.__table__, _S.user_id == _U.id))
    .where(_S.id == bindparam("sign_in_id"))
)  # fmt: skip


_USER_QUERY = select(_U.id, _U.tenant_id, _U.username, _U.permission_level, _U.is_active).where(
    _U.id == bindparam("user_id")
)


def user_as_caller(connection: Connection, user_id: int) -> Caller:
    """The user as the database has them now, for work that outlives its request. Raises NotAllowed if the
    user is disabled or deleted."""
    user = connection.execute(_USER_QUERY, {"user_id": user_id}).one_or_none()
    if user is None or not user.is_active:
        raise NotAllowed("the user of this run is disabled", kind="account_disabled")
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


class AccountService:
    """One per process; `subscribe` to learn of what this process revokes."""

    def __init__(
        self,
        store: Store,
        *,
        passwords: Passwords,
        tokens: TokenSigner,
        limits: RateLimits,
        workspaces: Workspaces,
        config: AuthConfig,
        changes: AccountChanges,
        refusals: Refusals,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._passwords = passwords
        self._tokens = tokens
        self._limits = limits
        self._workspaces = workspaces
        self._clock = clock
        self._allows_registration = config.allow_registration
        self._changes = changes
        self._refusals = refusals
        try:
            self._default_level = CommandPermission(config.default_permission_level)
        except ValueError as error:
            raise ConfigError("auth.default_permission_level: must be 1, 2, 3 or 4") from error

    def subscribe(self, callback: Callable[[AccountChange], None]) -> Callable[[], None]:
        """`callback` runs on the event loop after each change; call the return value to unsubscribe."""
        return self._changes.subscribe(callback)

    # Every request

    async def authenticate(self, token: str, peer: Peer | None = None) -> Caller:
        """The user of an access token, read from the database. Raises NotSignedIn."""
        claims = self._tokens.read(token, TokenType.ACCESS)
        caller = await self.caller_of_sign_in(claims.sid, peer)
        if str(caller.user_id) != claims.sub:
            raise NotSignedIn("the token is not valid; sign in again", kind="token_invalid")
        return caller

    async def recheck(self, caller: Caller) -> Caller:
        """The caller as of now; for streams, which outlive their request.

        Raises NotSignedIn if the sign-in was revoked, NotAllowed if the user has fewer rights than before.
        """
        current = await self.caller_of_sign_in(caller.sign_in_id, caller.peer)
        if current.permission_level < caller.permission_level or current.tenant_id != caller.tenant_id:
            raise NotAllowed("your rights have changed; send the request again", kind="rights_changed")
        return current

    async def revoked_callers(self, callers: Sequence[Caller]) -> set[Caller]:
        """The callers for whom `recheck` would raise."""
        now = self._clock()
        return await self._store.read(lambda session: revoked_callers(session, callers, now))

    def count_request(self, caller: Caller) -> None:
        """Raises TooMany past the user's limit."""
        self._limits.count_request(caller.user_id)

    async def caller_of_sign_in(self, sign_in_id: str, peer: Peer | None) -> Caller:
        """The user of a sign-in, read from the database. Raises NotSignedIn."""

        def work(connection: Connection):
            return connection.execute(_SIGN_IN_QUERY, {"sign_in_id": sign_in_id}).one_or_none()

        row = await self._store.read_rows(work)
        if row is None or row.revoked_at is not None or row.expires_at <= self._clock():
            _refuse_ended()
        if not row.is_active:
            _refuse_disabled()
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

    # Anyone

    async def register(self, peer: Peer, username: str, password: str, email: str | None = None) -> SignedIn:
        """Adds a user and signs them in. Raises NotAllowed, InvalidInput, TooMany, or Conflict for a taken
        name."""
        if not (self._allows_registration and await self._store.read(allows_registration)):
            await self._refusals.note(Action.REGISTER, _anonymous_actor(peer), "registration_closed")
            raise NotAllowed(
                "registration is closed on this server; ask an administrator for an account",
                kind="registration_closed",
            )
        users.check_new_user(username, email)
        check_password(password, username=username)
        self._limits.count_registration(peer)
        await self._store.read(lambda session: users.check_username_free(session, username, email))
        new = NewUser(
            username=username,
            email=email,
            password_hash=await self._passwords.hash(password),
            permission_level=self._default_level,
        )
        now = self._clock()

        def work(session: Session) -> UserView:
            user = view_of(users.add_user(session, new, workspaces=self._workspaces, now=now))
            record_user_created(session, user, _actor(user, peer), Action.REGISTER)
            return user

        user = await self._store.write(work)
        return await self._start_sign_in(peer, user.id, new.password_hash)

    async def sign_in(self, peer: Peer, username: str, password: str) -> SignedIn:
        """Raises NotSignedIn, with equal text and duration for a wrong name and a wrong password, or
        TooMany."""
        self._limits.count_sign_in(peer, username)
        user = await self._store.read(lambda session: users.find_by_name(session, username))
        is_correct = await self._passwords.is_correct(password, user.password_hash if user else None)
        # An unknown username is not recorded: some people type their password there.
        actor = _actor(view_of(user), peer) if user else _anonymous_actor(peer)
        if user is None or not is_correct:
            await self._refusals.note(Action.SIGN_IN, actor, "sign_in_failed")
            _refuse_sign_in()
        self._limits.refund_sign_in(peer, username)
        try:
            if not user.is_active:
                raise NotAllowed("this account is disabled; ask an administrator", kind="account_disabled")
            check_peer(peer, has_default_password=user.has_default_password)
        except NotAllowed as error:
            await self._refusals.note(Action.SIGN_IN, actor, error.kind)
            raise
        return await self._start_sign_in(peer, user.id, user.password_hash)

    async def _start_sign_in(self, peer: Peer, user_id: int, verified_hash: str) -> SignedIn:
        now, sign_in_id, jti = self._clock(), new_id(), new_id()

        def work(session: Session) -> UserView:
            user = session.get(User, user_id)
            # Another request may have changed the password while the old one was checked.
            if user is None or user.password_hash != verified_hash or not user.is_active:
                _refuse_sign_in()
            users.delete_expired_sign_ins(session, user_id, now)
            session.add(
                SignIn(
                    id=sign_in_id,
                    user_id=user_id,
                    refresh_hash=jti_hash(jti),
                    expires_at=now + self._tokens.lifetime(TokenType.REFRESH),
                    created_at=now,
                    last_used_at=now,
                )
            )
            record(session, AuditEntry(action=Action.SIGN_IN, actor=_actor(view_of(user), peer)))
            return view_of(user)

        return self._signed_in(await self._store.write(work), sign_in_id, jti)

    def _signed_in(self, user: UserView, sign_in_id: str, jti: str) -> SignedIn:
        make = self._tokens.make
        return SignedIn(
            access_token=make(TokenType.ACCESS, user_id=user.id, sign_in_id=sign_in_id),
            refresh_token=make(TokenType.REFRESH, user_id=user.id, sign_in_id=sign_in_id, jti=jti),
            expires_in=int(self._tokens.lifetime(TokenType.ACCESS).total_seconds()),
            user=user,
        )

    async def refresh(self, peer: Peer, refresh_token: str) -> SignedIn:
        """Exchanges a refresh token for new tokens. Using one a second time ends its sign-in."""
        claims = self._tokens.read(refresh_token, TokenType.REFRESH)
        self._limits.count_request(int(claims.sub))
        now, jti = self._clock(), new_id()
        until = now + self._tokens.lifetime(TokenType.REFRESH)
        user, is_first_use = await self._store.write(
            lambda session: _rotate(session, claims, peer, new_jti=jti, now=now, until=until)
        )
        if not is_first_use:
            self._changes.publish(
                AccountChange(user_id=user.id, because=RevocationReason.TOKEN_REUSED, only=claims.sid)
            )
            await self._refusals.note(Action.REFRESH, _actor(user, peer), "token_reused")
            raise NotSignedIn(
                "this refresh token was used before, so its sign-in has been ended; sign in again",
                kind="token_reused",
            )
        return self._signed_in(user, claims.sid, jti)

    # The signed-in

    async def sign_out(self, caller: Caller) -> None:
        """Invalidates both tokens of the sign-in at once."""
        now, because, user_id, only = (
            self._clock(),
            RevocationReason.SIGNED_OUT,
            caller.user_id,
            caller.sign_in_id,
        )

        def work(session: Session) -> None:
            users.revoke(session, user_id=user_id, because=because, now=now, only=only)
            record(session, AuditEntry(action=Action.SIGN_OUT, actor=caller.actor))

        await self._store.write(work)
        self._changes.publish(AccountChange(user_id=user_id, because=because, only=only))

    async def me(self, caller: Caller) -> UserView:
        return await self._store.read(
            lambda session: view_of(users.find(session, caller.user_id, tenant_id=caller.tenant_id))
        )

    async def change_password(self, caller: Caller, peer: Peer, current: str, new: str) -> UserView:
        """Ends the user's other sign-ins. Raises InvalidInput for a wrong current or an unacceptable new
        password."""
        check_password(new, username=caller.username, where="$.new_password")
        if new == current:
            _refuse_field("$.new_password", "the new password must differ from the current one")
        self._limits.count_sign_in(peer, caller.username)
        old_hash = await self._store.read(
            lambda session: users.find(session, caller.user_id, tenant_id=caller.tenant_id).password_hash
        )
        if not await self._passwords.is_correct(current, old_hash):
            await self._refusals.note(Action.PASSWORD_CHANGE, caller.actor, "password_refused")
            _refuse_field("$.current_password", "the current password is wrong")
        self._limits.refund_sign_in(peer, caller.username)
        new_hash = await self._passwords.hash(new)
        now, because, sign_in_id = self._clock(), RevocationReason.PASSWORD_CHANGED, caller.sign_in_id

        def work(session: Session) -> UserView:
            user = users.set_password(
                session,
                caller.user_id,
                new_hash,
                now=now,
                because=because,
                expected=old_hash,
                spared_sign_in_id=sign_in_id,
            )
            record_password_change(session, user, Action.PASSWORD_CHANGE, caller.actor)
            return user

        user = await self._store.write(work)
        self._changes.publish(AccountChange(user_id=user.id, because=because, spared=sign_in_id))
        return user


def _rotate(
    session: Session, claims: Claims, peer: Peer, *, new_jti: str, now: datetime, until: datetime
) -> tuple[UserView, bool]:
    """Replaces the refresh token; false, and the sign-in is revoked, if this token was used before."""
    sign_in_row = users.sign_in_of(session, claims.sid)
    if sign_in_row is None or sign_in_row[1].revoked_at is not None or sign_in_row[1].expires_at <= now:
        _refuse_ended()
    user, _ = sign_in_row
    if not user.is_active:
        _refuse_disabled()
    check_peer(peer, has_default_password=user.has_default_password)
    if users.rotate_refresh_hash(
        session, claims.sid, old=jti_hash(claims.jti), new=jti_hash(new_jti), now=now, until=until
    ):
        return view_of(user), True
    users.revoke(session, user_id=user.id, because=RevocationReason.TOKEN_REUSED, now=now, only=claims.sid)
    return view_of(user), False


def _actor(user: UserView, peer: Peer) -> Actor:
    return Actor(
        user_id=user.id,
        tenant_id=user.tenant_id,
        username=user.username,
        address=peer.address,
        request_id=peer.request_id,
    )


def _anonymous_actor(peer: Peer) -> Actor:
    return Actor(address=peer.address, request_id=peer.request_id)


def _refuse_sign_in() -> NoReturn:
    raise NotSignedIn("wrong username or password", kind="sign_in_failed")


def _refuse_ended() -> NoReturn:
    raise NotSignedIn("this sign-in has ended; sign in again", kind="token_revoked")


def _refuse_disabled() -> NoReturn:
    raise NotSignedIn("this account is disabled; ask an administrator", kind="account_disabled")


def _refuse_field(where: str, problem: str) -> NoReturn:
    raise InvalidInput(problem, kind="password_refused", detail={"fields": {where: problem}})
