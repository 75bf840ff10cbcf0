"""Changes of a user's rights, deletion of users, and the notification of open streams and sockets.

Each change is one transaction with its audit entry; `administration.py` decides who may ask for it.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum

import msgspec
import structlog
from msgspec import UNSET, UnsetType
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts import users
from luxx.domain.accounts.caller import DEFAULT_TENANT_ID, Caller
from luxx.domain.accounts.models import User
from luxx.domain.accounts.tenants import find_tenant
from luxx.domain.accounts.users import UserView, role_of, view_of
from luxx.domain.audit import Action, Actor, AuditEntry, Detail, record
from luxx.errors import Conflict, NotAllowed
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.store.tables import Base
from luxx.wire.tool import CommandPermission

logger = structlog.get_logger()


class RevocationReason(StrEnum):
    """Why a sign-in ended or a user's rights shrank."""

    SIGNED_OUT = "signed_out"
    PASSWORD_CHANGED = "password_changed"
    PASSWORD_RESET = "password_reset"
    TOKEN_REUSED = "token_reused"
    DISABLED = "disabled"
    DEMOTED = "demoted"
    MOVED = "moved"
    DELETED = "deleted"
    KEY_REVOKED = "key_revoked"


class AccountChange(msgspec.Struct, frozen=True, kw_only=True):
    """Published once it is on disk. It concerns all of a user's sign-ins, `only` one, or all but `spared`."""

    user_id: int
    because: RevocationReason
    only: str | None = None
    spared: str | None = None

    def concerns(self, caller: Caller) -> bool:
        """Whether the streams and sockets of this caller must be closed. An API key stays valid when the
        user's password changes."""
        if self.because is RevocationReason.PASSWORD_CHANGED and caller.key_scopes is not None:
            return False
        return (
            caller.user_id == self.user_id
            and self.only in (None, caller.sign_in_id)
            and self.spared != caller.sign_in_id
        )


class AccountChanges:
    """One per process. Publishes to other processes over the bus; while the bus is down, they learn of a
    change from their periodic `AccountService.recheck`."""

    def __init__(self, bus: Bus) -> None:
        self._subscribers: list[Callable[[AccountChange], None]] = []
        self._bus = bus
        bus.subscribe(Topic.ACCOUNT, self._on_message)

    def subscribe(self, callback: Callable[[AccountChange], None]) -> Callable[[], None]:
        """`callback` runs on the event loop after each change; call the return value to unsubscribe."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def publish(self, change: AccountChange) -> None:
        """Notifies every subscriber of this process and of the others."""
        if not self._bus.is_alone:
            self._bus.publish(Topic.ACCOUNT, msgspec.json.encode(change))
        self._notify_subscribers(change)

    def _on_message(self, _process: str, payload: bytes) -> None:
        try:
            self._notify_subscribers(msgspec.json.decode(payload, type=AccountChange))
        except msgspec.DecodeError as error:
            # Sent by another version of Luxx.
            logger.warning("account_change_invalid", error=str(error))

    def _notify_subscribers(self, change: AccountChange) -> None:
        for callback in tuple(self._subscribers):
            callback(change)


StopRuns = Callable[[int], Awaitable[None]]
"""Cancels the runs of a user and returns when they have ended, or after a bounded wait."""

AUDITED_FIELDS = ("email", "permission_level", "is_active", "tenant_id")


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields to set; UNSET leaves a field unchanged."""

    permission_level: CommandPermission | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    email: str | UnsetType | None = UNSET
    tenant_id: int | UnsetType = UNSET


class Offboarding(msgspec.Struct, frozen=True):
    """What other features do in the same transaction when a user is disabled, moved or deleted.

    `cancel_runs` marks the user's runs as cancelled. `transfer_shared` gives what the first user shares with
    the tenant to the second, or ends the sharing if there is no second; the actor is who caused it.
    """

    cancel_runs: Callable[[Session, int], None]
    transfer_shared: Callable[[Session, int, int | None, Actor], None]


class UserChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A user after a change and before it."""

    user: UserView
    before: UserView

    @property
    def account_change(self) -> AccountChange | None:
        """The message for the streams and sockets that the user has open; None if their rights did not
        shrink."""
        user_id = self.user.id
        if self.before.is_active and not self.user.is_active:
            return AccountChange(user_id=user_id, because=RevocationReason.DISABLED)
        if self.before.tenant_id != self.user.tenant_id:
            return AccountChange(user_id=user_id, because=RevocationReason.MOVED)
        if self.user.permission_level < self.before.permission_level:
            return AccountChange(user_id=user_id, because=RevocationReason.DEMOTED)
        return None


def change_user(
    session: Session, user: User, change: UserChange, *, actor: Actor, offboarding: Offboarding, now: datetime
) -> UserChangeResult:
    """Sets the given fields and the role. A user who no longer administers the tenant stops sharing with
    it.

    Raises Conflict for the last administrator or a taken address, NotFound for an unknown tenant.
    """
    before = view_of(user)
    level = before.permission_level if change.permission_level is UNSET else change.permission_level
    is_active = before.is_active if change.is_active is UNSET else change.is_active
    tenant_id = before.tenant_id if change.tenant_id is UNSET else change.tenant_id
    stays_admin = is_active and level >= CommandPermission.ADMIN
    successor = None
    if tenant_id != before.tenant_id or not stays_admin:
        successor = _next_admin(session, user, actor)
    if change.email is not UNSET:
        _set_email(session, user, change.email)
    user.permission_level, user.role, user.is_active = int(level), role_of(level), is_active
    if tenant_id != before.tenant_id:
        # Without a successor: what the user shares moves along, and the keys of providers belong to the user.
        offboarding.transfer_shared(session, user.id, None, actor)
        _move_to_tenant(session, user, tenant_id)
    session.flush()
    if not stays_admin:
        offboarding.transfer_shared(session, user.id, successor, actor)
    changed = UserChangeResult(user=view_of(user), before=before)
    account_change = changed.account_change
    if account_change is not None and account_change.because is not RevocationReason.DEMOTED:
        users.revoke(session, user_id=user.id, because=account_change.because, now=now)
        offboarding.cancel_runs(session, user.id)
    _record_change(session, changed, actor)
    return changed


def delete_user(session: Session, user: User, *, actor: Actor, offboarding: Offboarding) -> UserView:
    """Deletes a user with all their data; another administrator of the tenant takes over what they shared.

    Raises Conflict for the last administrator.
    """
    successor = _next_admin(session, user, actor)
    deleted = view_of(user)
    offboarding.transfer_shared(session, user.id, successor, actor)
    session.delete(user)
    session.flush()
    record(session, _user_entry(deleted, Action.USER_DELETE, actor, Detail(name=deleted.username)))
    return deleted


def is_admin_now(session: Session, caller: Caller) -> bool:
    """Whether the locked row still has the caller's rights; it cannot change before the write ends."""
    return caller.is_admin and _is_unchanged(session, caller, is_locked=True)


def check_still_admin(session: Session, caller: Caller) -> None:
    """For requests that waited since the caller was read. Raises NotAllowed if the caller lost the level."""
    if not caller.is_admin or not _is_unchanged(session, caller, is_locked=False):
        raise NotAllowed("you are no longer an administrator")


def _is_unchanged(session: Session, caller: Caller, *, is_locked: bool) -> bool:
    query = select(User.permission_level, User.is_active, User.tenant_id).where(User.id == caller.user_id)
    if is_locked:
        query = query.with_for_update(read=True)
    row = session.execute(query).one_or_none()
    return row is not None and tuple(row) == (int(caller.permission_level), True, caller.tenant_id)


def record_user_created(
    session: Session, user: UserView, actor: Actor, action: Action = Action.USER_CREATE
) -> None:
    """Records the entry for a user who was added or registered."""
    detail = Detail(name=user.username, permission_level=int(user.permission_level))
    record(session, _user_entry(user, action, actor, detail))


def change_password(
    session: Session,
    user_id: int,
    password_hash: str,
    *,
    now: datetime,
    actor: Actor,
    because: RevocationReason = RevocationReason.PASSWORD_CHANGED,
    action: Action = Action.PASSWORD_CHANGE,
    expected: str | None = None,
    spared_sign_in_id: str | None = None,
) -> UserView:
    """Ends the user's sign-ins but `spared_sign_in_id`. Raises Conflict if the hash is no longer `expected`.

    After PASSWORD_RESET the user can do nothing but choose another password.
    """
    user = session.get(User, user_id, with_for_update=True)
    if user is None or (expected is not None and user.password_hash != expected):
        raise Conflict("the password was changed elsewhere at the same moment", kind="password_changed")
    user.password_hash, user.has_default_password = password_hash, False
    user.must_change_password = because == RevocationReason.PASSWORD_RESET
    users.revoke(session, user_id=user_id, because=because, now=now, spared_sign_in_id=spared_sign_in_id)
    session.flush()
    changed = view_of(user)
    record(session, _user_entry(changed, action, actor, Detail(name=changed.username)))
    return changed


def _next_admin(session: Session, user: User, actor: Actor) -> int | None:
    """The oldest other active administrator of the user's tenant, who takes over what `user` shares.

    Raises Conflict if `user` is the last administrator of the default tenant or of the actor's own. An
    operator may leave another tenant without one, because an operator can appoint a new one.
    """
    # Locked in the order of ids, so that two administrators who demote each other at once cannot both
    # succeed.
    admins = session.scalars(
        select(User.id)
        .where(User.tenant_id == user.tenant_id, User.permission_level == 4, User.is_active)
        .order_by(User.id)
        .with_for_update()
    ).all()
    needs_admin = user.tenant_id in (DEFAULT_TENANT_ID, actor.tenant_id)
    if needs_admin and list(admins) == [user.id]:
        raise Conflict(
            "this is the last active administrator; make another user an administrator first",
            kind="last_admin",
        )
    return next((admin for admin in admins if admin != user.id), None)


def _set_email(session: Session, user: User, email: str | None) -> None:
    new_email = email.lower() if email else None
    if new_email == user.email:
        return
    users.check_email_is_free(session, new_email)
    user.email = new_email
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict("this e-mail address is taken", kind="email_taken") from error


def _move_to_tenant(session: Session, user: User, tenant_id: int) -> None:
    """Moves all the user's rows to the tenant and ends their sharing, because the keys belong to the user."""
    find_tenant(session, tenant_id, lock={"read": True})
    user.tenant_id = tenant_id
    session.flush()
    for table in Base.metadata.sorted_tables:
        if "user_id" not in table.c or "tenant_id" not in table.c or table.name == "audit_log":
            continue
        values: dict[str, object] = {"tenant_id": tenant_id}
        if "is_shared" in table.c:
            values["is_shared"] = False
        session.execute(update(table).where(table.c.user_id == user.id).values(values))
    session.expire_all()


def _record_change(session: Session, changed: UserChangeResult, actor: Actor) -> None:
    user, before = changed.user, changed.before
    fields = [name for name in AUDITED_FIELDS if getattr(user, name) != getattr(before, name)]
    if not fields:
        return
    detail = Detail(
        name=user.username,
        fields=fields,
        permission_level=int(user.permission_level),
        level_before=int(before.permission_level) if "permission_level" in fields else UNSET,
        is_active=user.is_active if "is_active" in fields else UNSET,
        tenant_before=before.tenant_id if "tenant_id" in fields else UNSET,
    )
    record(session, _user_entry(user, Action.USER_CHANGE, actor, detail))
    if "tenant_id" in fields:
        record(session, _user_entry(before, Action.USER_CHANGE, actor, detail))


def _user_entry(user: UserView, action: Action, actor: Actor, detail: Detail) -> AuditEntry:
    return AuditEntry(
        action=action,
        actor=actor,
        target_type="user",
        target_id=str(user.id),
        tenant_id=user.tenant_id,
        detail=detail,
    )
