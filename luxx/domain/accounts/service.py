"""Accounts of users: register, sign in, refresh tokens, sign out, change the own password.

Every function takes the caller first (`Caller` or `Peer`). `administration.py` holds what administrators do
with users and what the command line does without a caller, `authentication.py` who sends a request.
"""

from datetime import datetime
from typing import Literal, NoReturn

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts import users
from luxx.domain.accounts.authentication import (
    AccountResources,
    Claims,
    TokenSigner,
    TokenType,
    check_peer,
    jti_hash,
    refuse_disabled_user,
    refuse_ended_sign_in,
)
from luxx.domain.accounts.caller import Caller, Peer
from luxx.domain.accounts.models import SignIn, User
from luxx.domain.accounts.passwords import check_password
from luxx.domain.accounts.rights import AccountChange, RevocationReason, change_password, record_user_created
from luxx.domain.accounts.tenants import allows_registration
from luxx.domain.accounts.users import NewUser, UserView, view_of
from luxx.domain.audit import Action, Actor, AuditEntry, record
from luxx.errors import ConfigError, InvalidInput, NotAllowed, NotSignedIn
from luxx.infra.clock import new_id
from luxx.infra.config.schema import AuthConfig
from luxx.wire.tool import CommandPermission


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a sign-in; `expires_in` is the lifetime of the access token in seconds."""

    access_token: str
    refresh_token: str
    expires_in: int
    user: UserView
    token_type: Literal["bearer"] = "bearer"


class AccountService:
    """One per process."""

    def __init__(self, resources: AccountResources, *, tokens: TokenSigner, config: AuthConfig) -> None:
        self._resources = resources
        self._store = resources.store
        self._clock = resources.clock
        self._passwords = resources.passwords
        self._limits = resources.limits
        self._refusals = resources.refusals
        self._tokens = tokens
        self._allows_registration = config.allow_registration
        try:
            self._default_level = CommandPermission(config.default_permission_level)
        except ValueError as error:
            raise ConfigError("auth.default_permission_level: must be 1, 2, 3 or 4") from error

    # Anyone

    async def is_registration_open(self) -> bool:
        return self._allows_registration and await self._store.read(allows_registration)

    async def register(self, peer: Peer, username: str, password: str, email: str | None = None) -> SignedIn:
        """Adds a user and signs them in. Raises NotAllowed, InvalidInput, TooMany, or Conflict for a taken
        name."""
        if not await self.is_registration_open():
            await self._refusals.record_refusal(
                Action.REGISTER, _anonymous_actor(peer), "registration_closed"
            )
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
            user = view_of(users.add_user(session, new, workspaces=self._resources.workspaces, now=now))
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
            await self._refusals.record_refusal(Action.SIGN_IN, actor, "sign_in_failed")
            _refuse_sign_in()
        self._limits.refund_sign_in(peer, username)
        try:
            if not user.is_active:
                raise NotAllowed("this account is disabled; ask an administrator", kind="account_disabled")
            check_peer(peer, has_default_password=user.has_default_password)
        except NotAllowed as error:
            await self._refusals.record_refusal(Action.SIGN_IN, actor, error.kind)
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
            self._resources.changes.publish(
                AccountChange(user_id=user.id, because=RevocationReason.TOKEN_REUSED, only=claims.sid)
            )
            await self._refusals.record_refusal(Action.REFRESH, _actor(user, peer), "token_reused")
            raise NotSignedIn(
                "this refresh token was used before, so its sign-in has been ended; sign in again",
                kind="token_reused",
            )
        return self._signed_in(user, claims.sid, jti)

    # The signed-in

    async def sign_out(self, caller: Caller) -> None:
        """Invalidates both tokens of the sign-in at once."""
        now, user_id, only = self._clock(), caller.user_id, caller.sign_in_id
        because = RevocationReason.SIGNED_OUT

        def work(session: Session) -> None:
            users.revoke(session, user_id=user_id, because=because, now=now, only=only)
            record(session, AuditEntry(action=Action.SIGN_OUT, actor=caller.actor))

        await self._store.write(work)
        self._resources.changes.publish(AccountChange(user_id=user_id, because=because, only=only))

    async def me(self, caller: Caller) -> UserView:
        return await self._store.read(
            lambda session: view_of(users.find(session, caller.user_id, tenant_id=caller.tenant_id))
        )

    async def change_password(self, caller: Caller, peer: Peer, current: str, new: str) -> UserView:
        """Ends the user's other sign-ins. Raises InvalidInput for a wrong current or an unacceptable new
        password."""
        check_password(new, username=caller.username, where="$.new_password")
        if new == current:
            raise InvalidInput(
                "the new password must differ from the current one",
                kind="password_refused",
                field="$.new_password",
            )
        self._limits.count_sign_in(peer, caller.username)
        old_hash = await self._store.read(
            lambda session: users.find(session, caller.user_id, tenant_id=caller.tenant_id).password_hash
        )
        if not await self._passwords.is_correct(current, old_hash):
            await self._refusals.record_refusal(Action.PASSWORD_CHANGE, caller.actor, "password_refused")
            raise InvalidInput(
                "the current password is wrong", kind="password_refused", field="$.current_password"
            )
        self._limits.refund_sign_in(peer, caller.username)
        new_hash = await self._passwords.hash(new)
        now, because, sign_in_id = self._clock(), RevocationReason.PASSWORD_CHANGED, caller.sign_in_id

        def work(session: Session) -> UserView:
            return change_password(
                session, caller.user_id, new_hash, now=now, actor=caller.actor, expected=old_hash,
                spared_sign_in_id=sign_in_id,
            )  # fmt: skip

        user = await self._store.write(work)
        self._resources.changes.publish(AccountChange(user_id=user.id, because=because, spared=sign_in_id))
        return user


def _rotate(
    session: Session, claims: Claims, peer: Peer, *, new_jti: str, now: datetime, until: datetime
) -> tuple[UserView, bool]:
    """Replaces the refresh token; false, and the sign-in is revoked, if this token was used before."""
    sign_in_row = users.sign_in_of(session, claims.sid)
    if sign_in_row is None or sign_in_row[1].revoked_at is not None or sign_in_row[1].expires_at <= now:
        refuse_ended_sign_in()
    user, _ = sign_in_row
    if not user.is_active:
        refuse_disabled_user()
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
