"""Reads and changes rows of users and sign-ins inside one transaction; each function takes the Session
first.

`service.py` checks who may ask, passwords and tokens.
"""

import re
from datetime import datetime

import msgspec
from sqlalchemy import Row, Select, delete, func, or_, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import DEFAULT_TENANT_ID
from luxx.domain.accounts.models import SignIn, Tenant, User, UserSettings
from luxx.domain.accounts.user_data import Workspaces
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.field_errors import FieldErrors
from luxx.wire.tool import CommandPermission

DEFAULT_TENANT = "default"
USERNAME = r"[A-Za-z0-9._-]{3,64}"
EMAIL = r"[^@\s\x00-\x1f\x7f]{1,64}@[^@\s\x00-\x1f\x7f]{1,189}"
LARGEST_ID = 2**31 - 1

_advance_tenant_sequence = text("SELECT nextval(pg_get_serial_sequence('tenants', 'id'))")


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """A user as the API shows them. `role` is `admin` exactly at level 4, else `user`."""

    id: int
    tenant_id: int
    username: str
    email: str | None
    role: str
    permission_level: CommandPermission
    workspace_path: str
    is_active: bool
    must_change_password: bool
    created_at: datetime


class NewUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user to add, with name and address already checked. Without a tenant: the default one."""

    username: str
    email: str | None
    password_hash: str
    permission_level: CommandPermission
    has_default_password: bool = False
    tenant_id: int | None = None


def check_new_user(username: str, email: str | None) -> None:
    """Raises InvalidInput for an invalid username or address; None means no address."""
    if not re.fullmatch(USERNAME, username):
        problem = "a username has 3 to 64 characters: letters a-z, digits, '.', '_' and '-'"
        raise InvalidInput(problem, kind="username_refused", field="$.username")
    if email is not None and not re.fullmatch(EMAIL, email):
        problem = "this is not an e-mail address; leave it out or write name@example.org"
        raise InvalidInput(problem, kind="email_refused", field="$.email")


def role_of(level: int) -> str:
    return "admin" if level >= CommandPermission.ADMIN else "user"


def view_of(user: User) -> UserView:
    return msgspec.convert(user, UserView, from_attributes=True)


def default_tenant_id(session: Session, now: datetime) -> int:
    """The id of the default tenant; creates the tenant if there is none."""
    default = select(Tenant.id).where(Tenant.is_default)
    existing_id = session.scalar(default)
    if existing_id is not None:
        return existing_id
    try:
        with session.begin_nested():
            session.add(
                Tenant(
                    id=DEFAULT_TENANT_ID,
                    name=DEFAULT_TENANT,
                    is_default=True,
                    allow_registration=True,
                    created_at=now,
                )
            )
            session.flush()
            if session.get_bind().dialect.name == "postgresql":
                # An explicit id does not advance the sequence; the next tenant would get the same.
                session.execute(_advance_tenant_sequence)
    except IntegrityError:
        pass  # Another process created it at the same moment.
    return session.scalars(default).one()


def add_user(session: Session, new: NewUser, *, workspaces: Workspaces, now: datetime) -> User:
    """Adds a user with settings and a workspace. Raises Conflict for a taken name."""
    user = User(
        tenant_id=default_tenant_id(session, now) if new.tenant_id is None else new.tenant_id,
        username=new.username,
        username_key=new.username.lower(),
        email=new.email.lower() if new.email else None,
        password_hash=new.password_hash,
        must_change_password=new.has_default_password,
        has_default_password=new.has_default_password,
        role=role_of(new.permission_level),
        permission_level=int(new.permission_level),
        created_at=now,
    )
    check_username_free(session, new.username, new.email)
    session.add(user)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict("this username or e-mail address is taken", kind="username_taken") from error
    user.workspace_path = str(workspaces.prepare_if_enabled(user.id))
    session.add(UserSettings(user_id=user.id, created_at=now, updated_at=now))
    session.flush()
    return user


def check_username_free(session: Session, username: str, email: str | None) -> None:
    """Raises Conflict if another user has this name (ignoring case) or this address."""
    if find_by_name(session, username) is not None:
        raise Conflict(f"the username '{username}' is taken; choose another", kind="username_taken")
    check_email_is_free(session, email)


def check_email_is_free(session: Session, email: str | None) -> None:
    """Raises Conflict if a user has this address."""
    if email and session.scalar(select(User.id).where(User.email == email.lower())) is not None:
        raise Conflict("this e-mail address is taken", kind="email_taken")


def find_by_name(session: Session, username: str) -> User | None:
    """The user with this name, ignoring case; None for an unknown or invalid name."""
    if not re.fullmatch(USERNAME, username):
        return None
    return session.scalar(select(User).where(User.username_key == username.lower()))


def find(session: Session, user_id: int, *, tenant_id: int | None) -> User:
    """The user, in this tenant unless it is None. Raises NotFound for a missing user or one of another
    tenant."""
    user = session.get(User, user_id) if 0 < user_id <= LARGEST_ID else None
    if user is None or tenant_id not in (None, user.tenant_id):
        raise NotFound(f"there is no user {user_id}", kind="user_not_found")
    return user


class UserFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which users to list; `q` is a part of the name or the address, ignoring case."""

    tenant_id: int | None = None
    q: str = ""


def page_of_users(
    session: Session, filters: UserFilter, *, offset: int, limit: int
) -> tuple[list[UserView], int]:
    """Users, newest first, and the number of matches."""
    query: Select[User] = select(User)
    if filters.tenant_id is not None:
        query = query.where(User.tenant_id == filters.tenant_id)
    if filters.q:
        part = filters.q.lower()
        query = query.where(
            or_(User.username_key.contains(part, autoescape=True), User.email.contains(part, autoescape=True))
        )
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    rows = session.scalars(query.order_by(User.id.desc()).offset(offset).limit(limit))
    return [view_of(user) for user in rows], total


def sign_in_of(session: Session, sign_in_id: str) -> Row[User, SignIn] | None:
    return session.execute(
        select(User, SignIn).join(SignIn, SignIn.user_id == User.id).where(SignIn.id == sign_in_id)
    ).one_or_none()


def rotate_refresh_hash(
    session: Session, sign_in_id: str, *, old: str, new: str, now: datetime, until: datetime
) -> bool:
    """Replaces the refresh hash `old` by `new`. False if `old` is not current: only one of many callers
    wins."""
    swapped = session.scalar(
        update(SignIn)
        .where(SignIn.id == sign_in_id, SignIn.refresh_hash == old, SignIn.revoked_at.is_(None))
        .values(refresh_hash=new, last_used_at=now, expires_at=until)
        .returning(SignIn.id)
        .execution_options(synchronize_session=False)
    )
    return swapped is not None


def revoke(
    session: Session,
    *,
    user_id: int,
    because: str,
    now: datetime,
    only: str | None = None,
    spared_sign_in_id: str | None = None,
) -> None:
    """Ends the user's sign-ins: `only` one of them, or all but `spared_sign_in_id`."""
    statement = update(SignIn).where(SignIn.user_id == user_id, SignIn.revoked_at.is_(None))
    if only is not None:
        statement = statement.where(SignIn.id == only)
    if spared_sign_in_id is not None:
        statement = statement.where(SignIn.id != spared_sign_in_id)
    session.execute(
        statement.values(revoked_at=now, revoked_because=because).execution_options(synchronize_session=False)
    )


def delete_expired_sign_ins(session: Session, user_id: int, now: datetime) -> None:
    """Deletes the user's expired sign-ins, so that the table does not grow for ever."""
    session.execute(
        delete(SignIn)
        .where(SignIn.user_id == user_id, SignIn.expires_at <= now)
        .execution_options(synchronize_session=False)
    )


def check_member_name(user_id: int | None, username: str | None) -> None:
    """Raises InvalidInput unless a new member is named in one of the two ways."""
    if (user_id is None) == (username is None):
        problem = "give either user_id or username"
        raise FieldErrors({"$.user_id": problem, "$.username": problem}).refusal(message=problem)


def find_new_member(session: Session, tenant_id: int, user_id: int | None, username: str | None) -> User:
    """The active user of a tenant with this id or name. Raises NotFound."""
    is_wanted = User.id == user_id
    if username is not None:
        is_wanted = User.username_key == username.strip().lower()
    user = session.scalar(select(User).where(is_wanted, User.tenant_id == tenant_id, User.is_active))
    if user is None:
        field = "$.user_id" if username is None else "$.username"
        problem = "your tenant has no active user with this id or name"
        raise NotFound(problem, kind="user_not_found", field=field)
    return user
