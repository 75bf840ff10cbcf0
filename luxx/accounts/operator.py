"""What the operator of the server does without signing in: the first user, and the command line's `user …`.

No function here asks who calls: no route may reach it.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.accounts import users
from luxx.accounts.changes import Because
from luxx.accounts.models import Tenant, User
from luxx.accounts.passwords import DEFAULT_ADMIN, DEFAULT_PASSWORD, Passwords, check_password
from luxx.accounts.rights import (
    Departure,
    StopRuns,
    UserChange,
    change_user,
    delete_user,
    record_new,
    record_password,
)
from luxx.accounts.tenants import tenant_id_of
from luxx.accounts.users import NewUser, UserView, view_of
from luxx.accounts.workspaces import Workspaces
from luxx.audit.entries import Action, Actor
from luxx.clock import utc_now
from luxx.errors import ConfigError, Conflict, InvalidInput, NotFound
from luxx.store.engine import Store
from luxx.wire.tool import CommandPermission

COMMAND_LINE = Actor(username="command line")


class Operator:
    """For the start of the server and the command line."""

    def __init__(
        self,
        store: Store,
        *,
        passwords: Passwords,
        workspaces: Workspaces,
        departure: Departure,
        stop_runs: StopRuns,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._passwords = passwords
        self._workspaces = workspaces
        self._departure = departure
        self._stop_runs = stop_runs
        self._clock = clock

    async def ensure_first_user(self, admin_password: str | None = None) -> bool:
        """Makes the default tenant and, if there is no user at all, `admin`; says whether it did.

        Without `admin_password` (LUXX_ADMIN_PASSWORD) it is the published default, flagged to be changed.
        """
        if await self._store.read(lambda session: session.scalar(select(User.id).limit(1))) is not None:
            return False
        password = admin_password or DEFAULT_PASSWORD
        is_default = password == DEFAULT_PASSWORD
        try:
            if not is_default:
                check_password(password, username=DEFAULT_ADMIN)
            new = NewUser(
                username=DEFAULT_ADMIN,
                email=None,
                password_hash=await self._passwords.hash(password),
                permission_level=CommandPermission.ADMIN,
                has_default_password=is_default,
            )
            await self._add(new, Actor(username="first start"))
        except InvalidInput as error:
            raise ConfigError(f"LUXX_ADMIN_PASSWORD: {error.message}") from error
        except (Conflict, IntegrityError):
            return False  # Another process started at the same moment and was first.
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
        """A user of the tenant of this name, else of the default one.

        Raises InvalidInput, Conflict, or NotFound for an unknown tenant.
        """
        users.check_new(username, email)
        check_password(password, username=username)
        new = NewUser(
            username=username,
            email=email,
            password_hash=await self._passwords.hash(password),
            permission_level=level,
            tenant_id=await self._tenant_id(tenant),
        )
        return await self._add(new, COMMAND_LINE)

    async def set_password(self, username: str, password: str) -> UserView:
        """Ends all sign-ins of the user. Raises InvalidInput, or NotFound for an unknown name."""
        check_password(password, username=username)
        password_hash, now = await self._passwords.hash(password), self._clock()
        because = Because.PASSWORD_CHANGED

        def work(session: Session) -> UserView:
            user_id = _named(session, username).id
            user = users.set_password(session, user_id, password_hash, now=now, because=because)
            record_password(session, user, Action.PASSWORD_RESET, COMMAND_LINE)
            return user

        return await self._store.write(work)

    async def change_user(self, username: str, change: UserChange) -> UserView:
        """Sets what is given; a running server follows within seconds.

        Raises NotFound for an unknown name, or Conflict for the last administrator.
        """
        now, departure = self._clock(), self._departure

        def work(session: Session) -> UserView:
            user = _named(session, username)
            changed = change_user(session, user, change, actor=COMMAND_LINE, departure=departure, now=now)
            return changed.user

        return await self._store.write(work)

    async def delete_user(self, username: str) -> UserView:
        """Disables, waits a moment for a running server to end their runs, then deletes the user.

        Raises NotFound, or Conflict for the last administrator.
        """
        disabled = await self.change_user(username, UserChange(is_active=False))
        await self._stop_runs(disabled.id)

        def work(session: Session) -> UserView:
            user = _named(session, username)
            return delete_user(session, user, actor=COMMAND_LINE, departure=self._departure)

        gone = await self._store.write(work)
        await asyncio.to_thread(self._workspaces.remove, gone.id)
        return gone

    async def all_users(self, *, tenant: str | None = None) -> list[UserView]:
        """Everyone in every tenant, or in the one of this name, by id."""
        tenant_id = await self._tenant_id(tenant)

        def work(session: Session) -> list[UserView]:
            query = select(User).order_by(User.id)
            if tenant_id is not None:
                query = query.where(User.tenant_id == tenant_id)
            return [view_of(user) for user in session.scalars(query)]

        return await self._store.read(work)

    async def tenant_names(self) -> dict[int, str]:
        """The names of all tenants by id."""

        def work(session: Session) -> dict[int, str]:
            return {row.id: row.name for row in session.scalars(select(Tenant))}

        return await self._store.read(work)

    async def _tenant_id(self, name: str | None) -> int | None:
        if name is None:
            return None
        return await self._store.read(lambda session: tenant_id_of(session, name))

    async def _add(self, new: NewUser, actor: Actor) -> UserView:
        now = self._clock()

        def work(session: Session) -> UserView:
            user = view_of(users.add_user(session, new, workspaces=self._workspaces, now=now))
            record_new(session, user, actor)
            return user

        return await self._store.write(work)


def _named(session: Session, username: str) -> User:
    user = users.find_by_name(session, username)
    if user is None:
        raise NotFound(f"there is no user '{username}'", kind="user_not_found")
    return user
