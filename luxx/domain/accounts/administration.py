"""What administrators and the command line do with users: list, add, change, reset a password, delete.

An operator administers every user. The ADMIN of another tenant administers that tenant: users of other
tenants are not found.
"""

import asyncio
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts import users
from luxx.domain.accounts.authentication import AccountResources
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.accounts.passwords import DEFAULT_ADMIN, DEFAULT_PASSWORD, check_password
from luxx.domain.accounts.rights import (
    AccountChange,
    Offboarding,
    RevocationReason,
    StopRuns,
    UserChange,
    change_password,
    change_user,
    check_still_admin,
    delete_user,
    record_user_created,
)
from luxx.domain.accounts.tenants import find_tenant, tenant_id_of, tenant_not_found
from luxx.domain.accounts.users import NewUser, UserFilter, UserView, view_of
from luxx.domain.audit import Action, Actor, AuditFilter, AuditView, list_entries
from luxx.errors import ConfigError, Conflict, InvalidInput, NotFound
from luxx.wire.tool import CommandPermission


class NewAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A user to add; without `tenant_id` in the caller's own tenant."""

    username: str
    password: str
    permission_level: CommandPermission
    email: str | None = None
    tenant_id: int | None = None


@dataclass(frozen=True, slots=True)
class Administration:
    """One per process. ADMINs only."""

    resources: AccountResources
    offboarding: Offboarding
    stop_runs: StopRuns

    async def list_users(
        self, caller: Caller, filters: UserFilter, *, page: int, page_size: int
    ) -> tuple[list[UserView], int]:
        """The users whom the caller administers, newest first, and the number of matches."""
        caller.require(CommandPermission.ADMIN)
        filters = msgspec.structs.replace(filters, tenant_id=_tenant_filter(caller, filters.tenant_id))
        return await self.resources.store.read(
            lambda session: users.page_of_users(
                session, filters, offset=(page - 1) * page_size, limit=page_size
            )
        )

    async def get_user(self, caller: Caller, user_id: int) -> UserView:
        caller.require(CommandPermission.ADMIN)
        return await self.resources.store.read(
            lambda session: view_of(_managed_user(session, caller, user_id))
        )

    async def create_user(self, caller: Caller, new: NewAccount) -> UserView:
        """Raises InvalidInput, NotFound for a tenant that the caller does not administer, or Conflict."""
        caller.require(CommandPermission.ADMIN)
        tenant_id = _tenant(caller, caller.tenant_id if new.tenant_id is None else new.tenant_id)
        users.check_new_user(new.username, new.email)
        check_password(new.password, username=new.username)
        row = NewUser(
            username=new.username,
            email=new.email,
            password_hash=await self.resources.passwords.hash(new.password),
            permission_level=new.permission_level,
            tenant_id=tenant_id,
        )
        now = self.resources.clock()

        def work(session: Session) -> UserView:
            check_still_admin(session, caller)
            find_tenant(session, tenant_id, lock={"read": True})
            user = view_of(users.add_user(session, row, workspaces=self.resources.workspaces, now=now))
            record_user_created(session, user, caller.actor)
            return user

        return await self.resources.store.write(work)

    async def update_user(self, caller: Caller, user_id: int, change: UserChange) -> UserView:
        """Sets the given fields. A user who is disabled or moved loses their sign-ins and runs at once.

        Raises NotFound, or Conflict for the last administrator or a taken address.
        """
        caller.require(CommandPermission.ADMIN)
        if change.tenant_id is not UNSET:
            _tenant(caller, change.tenant_id)
        now = self.resources.clock()

        def work(session: Session):
            user = _managed_user(session, caller, user_id)
            return change_user(
                session, user, change, actor=caller.actor, offboarding=self.offboarding, now=now
            )

        changed = await self.resources.store.write(work)
        if (account_change := changed.account_change) is not None:
            self.resources.changes.publish(account_change)
            if account_change.because is not RevocationReason.DEMOTED:
                await self.stop_runs(user_id)
        return changed.user

    async def reset_password(self, caller: Caller, user_id: int, password: str) -> UserView:
        """Sets a password that the user must change at the next sign-in; ends all their sign-ins."""
        caller.require(CommandPermission.ADMIN)
        if user_id == caller.user_id:
            raise Conflict("change your own password with POST /auth/password", kind="own_account")
        user = await self.get_user(caller, user_id)
        check_password(password, username=user.username)
        new_hash, now = await self.resources.passwords.hash(password), self.resources.clock()
        because, action = RevocationReason.PASSWORD_RESET, Action.PASSWORD_RESET

        def work(session: Session) -> UserView:
            check_still_admin(session, caller)
            _managed_user(session, caller, user_id)
            return change_password(
                session, user_id, new_hash, now=now, actor=caller.actor, because=because, action=action
            )

        reset = await self.resources.store.write(work)
        self.resources.changes.publish(AccountChange(user_id=user_id, because=because))
        return reset

    async def delete_user(self, caller: Caller, user_id: int) -> None:
        """Disables the user, stops their runs, then deletes them with all their data, including files.

        Raises NotFound, or Conflict for the last administrator.
        """
        # Disabling first lets the user start nothing new and closes their open streams.
        await self.update_user(caller, user_id, UserChange(is_active=False))
        await self.stop_runs(user_id)

        def work(session: Session) -> None:
            user = _managed_user(session, caller, user_id)
            delete_user(session, user, actor=caller.actor, offboarding=self.offboarding)

        await self.resources.store.write(work)
        self.resources.changes.publish(AccountChange(user_id=user_id, because=RevocationReason.DELETED))
        await asyncio.to_thread(self.resources.workspaces.remove, user_id)

    async def audit(
        self, caller: Caller, filters: AuditFilter, *, page: int, page_size: int
    ) -> tuple[list[AuditView], int]:
        """Entries of the audit log, newest first: all for operators, else those of the own tenant."""
        caller.require(CommandPermission.ADMIN)
        filters = msgspec.structs.replace(filters, tenant_id=_tenant_filter(caller, filters.tenant_id))
        offset = 0 if filters.before else (page - 1) * page_size
        return await self.resources.store.read(
            lambda session: list_entries(session, filters, offset=offset, limit=page_size)
        )


def _tenant_filter(caller: Caller, tenant_id: int | None) -> int | None:
    """The tenant to filter by; None for an operator who named none: all tenants. Raises NotFound."""
    if caller.is_operator:
        return tenant_id
    return _tenant(caller, caller.tenant_id if tenant_id is None else tenant_id)


def _tenant(caller: Caller, tenant_id: int) -> int:
    """Raises NotFound for a tenant that the caller does not administer."""
    if not caller.is_operator and tenant_id != caller.tenant_id:
        raise tenant_not_found(tenant_id)
    return tenant_id


def _managed_user(session: Session, caller: Caller, user_id: int) -> User:
    """A user whom the caller administers. Raises NotFound."""
    return users.find(session, user_id, tenant_id=None if caller.is_operator else caller.tenant_id)


COMMAND_LINE = Actor(username="command line")


@dataclass(frozen=True, slots=True)
class Operator:
    """What the start of the server and the command line do with users; there is no caller."""

    resources: AccountResources
    offboarding: Offboarding
    stop_runs: StopRuns

    async def ensure_first_user(self, admin_password: str | None = None) -> bool:
        """Creates the default tenant and, if there is no user, `admin`; returns whether it created the
        user.

        Without `admin_password` (LUXX_ADMIN_PASSWORD) the password is the published default, which must be
        changed.
        """
        if (
            await self.resources.store.read(lambda session: session.scalar(select(User.id).limit(1)))
            is not None
        ):
            return False
        password = admin_password or DEFAULT_PASSWORD
        is_default = password == DEFAULT_PASSWORD
        try:
            if not is_default:
                check_password(password, username=DEFAULT_ADMIN)
            new = NewUser(
                username=DEFAULT_ADMIN,
                email=None,
                password_hash=await self.resources.passwords.hash(password),
                permission_level=CommandPermission.ADMIN,
                has_default_password=is_default,
            )
            await self._add(new, Actor(username="first start"))
        except InvalidInput as error:
            raise ConfigError(f"LUXX_ADMIN_PASSWORD: {error.message}") from error
        except (Conflict, IntegrityError):
            return False  # Another process that started at the same moment was first.
        return True

    async def add_user(
        self,
        username: str,
        password: str,
        *,
        level: CommandPermission,
        email: str | None = None,
        tenant: str | None = None,
    ) -> UserView:
        """Adds a user to the tenant with this name, else to the default one.

        Raises InvalidInput, Conflict, or NotFound for an unknown tenant.
        """
        users.check_new_user(username, email)
        check_password(password, username=username)
        new = NewUser(
            username=username,
            email=email,
            password_hash=await self.resources.passwords.hash(password),
            permission_level=level,
            tenant_id=await self._tenant_id(tenant),
        )
        return await self._add(new, COMMAND_LINE)

    async def set_password(self, username: str, password: str) -> UserView:
        """Ends all sign-ins of the user. Raises InvalidInput, or NotFound for an unknown name."""
        check_password(password, username=username)
        password_hash, now = await self.resources.passwords.hash(password), self.resources.clock()

        def work(session: Session) -> UserView:
            user_id = _require_user(session, username).id
            return change_password(
                session, user_id, password_hash, now=now, actor=COMMAND_LINE, action=Action.PASSWORD_RESET
            )

        return await self.resources.store.write(work)

    async def change_user(self, username: str, change: UserChange) -> UserView:
        """Sets the given fields; a running server applies the change within seconds.

        Raises NotFound for an unknown name, or Conflict for the last administrator.
        """
        now, offboarding = self.resources.clock(), self.offboarding

        def work(session: Session) -> UserView:
            user = _require_user(session, username)
            changed = change_user(session, user, change, actor=COMMAND_LINE, offboarding=offboarding, now=now)
            return changed.user

        return await self.resources.store.write(work)

    async def delete_user(self, username: str) -> UserView:
        """Disables the user, waits a moment for a running server to end their runs, then deletes the user.

        Raises NotFound, or Conflict for the last administrator.
        """
        disabled = await self.change_user(username, UserChange(is_active=False))
        await self.stop_runs(disabled.id)

        def work(session: Session) -> UserView:
            user = _require_user(session, username)
            return delete_user(session, user, actor=COMMAND_LINE, offboarding=self.offboarding)

        deleted = await self.resources.store.write(work)
        await asyncio.to_thread(self.resources.workspaces.remove, deleted.id)
        return deleted

    async def all_users(self, *, tenant: str | None = None) -> list[UserView]:
        """All users by id, of every tenant or of the one with this name."""
        tenant_id = await self._tenant_id(tenant)

        def work(session: Session) -> list[UserView]:
            query = select(User).order_by(User.id)
            if tenant_id is not None:
                query = query.where(User.tenant_id == tenant_id)
            return [view_of(user) for user in session.scalars(query)]

        return await self.resources.store.read(work)

    async def tenant_names(self) -> dict[int, str]:
        """The names of all tenants by id."""
        return await self.resources.store.read(
            lambda session: {row.id: row.name for row in session.scalars(select(Tenant))}
        )

    async def _tenant_id(self, name: str | None) -> int | None:
        if name is None:
            return None
        return await self.resources.store.read(lambda session: tenant_id_of(session, name))

    async def _add(self, new: NewUser, actor: Actor) -> UserView:
        now = self.resources.clock()

        def work(session: Session) -> UserView:
            user = view_of(users.add_user(session, new, workspaces=self.resources.workspaces, now=now))
            record_user_created(session, user, actor)
            return user

        return await self.resources.store.write(work)


def _require_user(session: Session, username: str) -> User:
    user = users.find_by_name(session, username)
    if user is None:
        raise NotFound(f"there is no user '{username}'", kind="user_not_found")
    return user
