"""`luxx user add|passwd|level|disable|enable|delete|list`: the users of an installation, in its database."""

import argparse
import asyncio
import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import UNSET

from luxx.app.cli.command_line import add_command, configure
from luxx.app.cli.server_commands import confirm
from luxx.app.core_services import CoreServices
from luxx.app.serve import check_start, database_errors
from luxx.domain.accounts.rights import UserChange
from luxx.domain.accounts.users import UserView
from luxx.errors import LuxxError
from luxx.infra.config.schema import Config
from luxx.infra.store.upgrade import upgrade_database
from luxx.wire.tool import CommandPermission

T = TypeVar("T")


def add_user_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="what")
    add = add_command(commands, "add", _user_add, "add a user; asks for the password")
    add.add_argument("username")
    add.add_argument("--level", type=int, choices=[1, 2, 3, 4], default=1)
    add.add_argument("--email")
    add.add_argument("--tenant", help="the name of an existing tenant (default: the default tenant)")
    passwd = add_command(commands, "passwd", _user_passwd, "set a user's password; asks for it")
    passwd.add_argument("username")
    level = add_command(commands, "level", _user_change, "set a user's permission level")
    level.add_argument("username")
    level.add_argument("level", type=int, choices=[1, 2, 3, 4])
    for name, is_active, help_text in (
        ("disable", False, "disable a user; end the user's sign-ins and runs"),
        ("enable", True, "enable a disabled user"),
    ):
        command = add_command(commands, name, _user_change, help_text)
        command.add_argument("username")
        command.set_defaults(is_active=is_active)
    delete = add_command(commands, "delete", _user_delete, "delete a user with all data and files")
    delete.add_argument("username")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    listing = add_command(commands, "list", _user_list, "list the users")
    listing.add_argument("--tenant", help="list only the users of this tenant")


def _user_add(options: argparse.Namespace) -> int:
    config = _configure_existing(options)
    password = _ask_password()
    level = CommandPermission(options.level)
    user = _with_services(
        config,
        lambda services: services.operator.add_user(
            options.username, password, level=level, email=options.email, tenant=options.tenant
        ),
    )
    print(f"added {user.username}, level {user.permission_level}")
    return 0


def _user_passwd(options: argparse.Namespace) -> int:
    config = _configure_existing(options)
    password = _ask_password()
    user = _with_services(config, lambda services: services.operator.set_password(options.username, password))
    print(f"{user.username} has a new password; all sign-ins of this user have ended")
    return 0


def _user_change(options: argparse.Namespace) -> int:
    """Changes the level, or with `is_active` disables or enables the user."""
    level = getattr(options, "level", None)
    change = UserChange(
        permission_level=UNSET if level is None else CommandPermission(level),
        is_active=getattr(options, "is_active", UNSET),
    )
    config = _configure_existing(options)
    user = _with_services(config, lambda services: services.operator.change_user(options.username, change))
    print(f"{user.username} has level {user.permission_level} and is {_state(user)}")
    return 0


def _user_delete(options: argparse.Namespace) -> int:
    config = _configure_existing(options)
    if not options.yes:
        confirm(f"This deletes {options.username} with all conversations and files.", options.username)
    user = _with_services(config, lambda services: services.operator.delete_user(options.username))
    print(f"deleted {user.username}")
    return 0


def _user_list(options: argparse.Namespace) -> int:
    async def read(services: CoreServices) -> tuple[list[UserView], dict[int, str]]:
        operator = services.operator
        return await operator.all_users(tenant=options.tenant), await operator.tenant_names()

    users, tenants = _with_services(_configure_existing(options), read)
    for user in users:
        tenant = tenants.get(user.tenant_id, "")
        print(f"{user.id}\t{user.username}\tlevel {user.permission_level}\t{_state(user)}\t{tenant}")
    return 0


def _state(user: UserView) -> str:
    return "active" if user.is_active else "disabled"


def _configure_existing(options: argparse.Namespace) -> Config:
    """The configuration of a server that has a database. Raises ConfigError where there is none."""
    config = configure(options)
    check_start(config, needs_data=True)
    return config


@database_errors()
def _with_services(config: Config, work: Callable[[CoreServices], Awaitable[T]]) -> T:
    """Migrates the database, creates the first user if there is none and runs `work`; opens no server."""
    services = CoreServices(config)

    async def run() -> T:
        await asyncio.to_thread(upgrade_database, services.engine)
        await services.operator.ensure_first_user(os.environ.get("LUXX_ADMIN_PASSWORD"))
        return await work(services)

    try:
        return asyncio.run(run())
    finally:
        services.release()


def _ask_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password = getpass.getpass("password: ")
    if getpass.getpass("again: ") != password:
        raise LuxxError("the two passwords differ; nothing was changed")
    return password
