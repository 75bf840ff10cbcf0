"""What the operator of the server does without signing in: the first user, and the command line's `user …`.

No function here asks who calls: no route may reach it.
"""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.accounts import users
from luxx.accounts.models import User
from luxx.accounts.passwords import DEFAULT_ADMIN, DEFAULT_PASSWORD, Passwords, check_password
from luxx.accounts.service import Because
from luxx.accounts.users import NewUser, UserView, view_of
from luxx.accounts.workspaces import Workspaces
from luxx.clock import utc_now
from luxx.errors import ConfigError, Conflict, InvalidInput, NotFound
from luxx.store.engine import Store
from luxx.wire.tool import CommandPermission


class Operator:
    """For the start of the server and the command line."""

    def __init__(
        self,
        store: Store,
        *,
        passwords: Passwords,
        workspaces: Workspaces,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._passwords = passwords
        self._workspaces = workspaces
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
                must_change_password=is_default,
            )
            await self._add(new)
        except InvalidInput as error:
            raise ConfigError(f"LUXX_ADMIN_PASSWORD: {error.message}") from error
        except (Conflict, IntegrityError):
            return False  # Another process started at the same moment and was first.
        return True

    async def add_user(
        self, username: str, password: str, *, level: CommandPermission, email: str | None = None
    ) -> UserView:
        """A user of the default tenant. Raises InvalidInput or Conflict."""
        users.check_new(username, email)
        check_password(password, username=username)
        password_hash = await self._passwords.hash(password)
        return await self._add(
            NewUser(username=username, email=email, password_hash=password_hash, permission_level=level)
        )

    async def set_password(self, username: str, password: str) -> UserView:
        """Ends all sign-ins of the user. Raises InvalidInput, or NotFound for an unknown name."""
        check_password(password, username=username)
        user = await self._store.read(lambda session: users.find_by_name(session, username))
        if user is None:
            raise NotFound(f"there is no user '{username}'", kind="user_not_found")
        user_id, password_hash, now = user.id, await self._passwords.hash(password), self._clock()
        because = Because.PASSWORD_CHANGED
        return await self._store.write(
            lambda session: users.set_password(session, user_id, password_hash, now=now, because=because)
        )

    async def all_users(self) -> list[UserView]:
        """Everyone in every tenant, by id."""

        def work(session: Session) -> list[UserView]:
            return [view_of(user) for user in session.scalars(select(User).order_by(User.id))]

        return await self._store.read(work)

    async def _add(self, new: NewUser) -> UserView:
        now = self._clock()
        return await self._store.write(
            lambda session: view_of(users.add_user(session, new, workspaces=self._workspaces, now=now))
        )
