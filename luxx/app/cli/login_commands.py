"""`luxx login` and `luxx logout`: keep a sign-in for the other commands that use a server, and end it.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import asyncio
import getpass
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from luxx.app.cli.server_api import ServerApi, ask, open_server, server_url
from luxx.app.cli.server_commands import AddCommand
from luxx.app.cli.sign_ins import SignInStore, StoredSignIn
from luxx.domain.accounts.users import UserView
from luxx.errors import InvalidInput, LuxxError, NotSignedIn, Unavailable


def add_login_commands(commands: Any, add_command: AddCommand) -> None:
    """Adds the parsers. `add_command` takes the subparsers, a name, the function and a help text."""
    login = add_command(commands, "login", _run(_login), "sign in to a server, for the commands that use it")
    logout = add_command(commands, "logout", _run(_logout), "end the sign-in of `luxx login`")
    for parser in (login, logout):
        parser.add_argument("--url", help="the server (default: LUXX_URL, or the one of the configuration)")
    login.add_argument("--username", help="default: asks for it")
    login.add_argument("--password", help="default: LUXX_PASSWORD, or asks for it")
    login.add_argument(
        "--key",
        nargs="?",
        const="",
        help="sign in with a personal API key instead; without a value, asks for it",
    )


def _run(
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    return lambda options: asyncio.run(work(options))


async def _login(options: argparse.Namespace) -> int:
    url, store = server_url(options), SignInStore()
    store.find(url)  # A file that cannot be used is reported before anybody types a password.
    async with open_server(url) as server:
        if options.key is not None:
            sign_in = await _with_key(server, options.key or _secret("API key"))
        else:
            sign_in = await _with_password(server, options)
        async with store.lock():
            store.save(url, sign_in)
    print(f"signed in to {url} as {sign_in.username}; `luxx logout` ends it")
    return 0


async def _with_key(server: ServerApi, key: str) -> StoredSignIn:
    server.use_token(key)
    user = await server.call("GET", "/auth/me", UserView)
    return StoredSignIn(username=user.username, access_token=key)


async def _with_password(server: ServerApi, options: argparse.Namespace) -> StoredSignIn:
    if not options.username and not sys.stdin.isatty():
        raise InvalidInput("there is no username; give --username, or an API key with --key")
    username = options.username or ask(input, "username: ")
    password = options.password or os.environ.get("LUXX_PASSWORD") or _secret("password")
    tokens = await server.sign_in(username, password)
    return tokens.to_store(username)


def _secret(name: str) -> str:
    """Reads a secret without echo, or the first line of stdin. Raises InvalidInput if there is none."""
    value = ask(getpass.getpass, f"{name}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise InvalidInput(f"there is no {name}; type it, or write it to stdin")
    return value


async def _logout(options: argparse.Namespace) -> int:
    url, store = server_url(options), SignInStore()
    sign_in = store.find(url)
    if sign_in is None:
        raise LuxxError(f"you are not signed in to {url}")
    outcome = f"signed out of {url}"
    if sign_in.refresh_token:
        try:
            async with open_server(url) as server:
                server.use_stored(sign_in, store)
                await server.call("POST", "/auth/logout", type(None))
        except NotSignedIn:
            pass  # It has ended already.
        except Unavailable as error:
            outcome = f"the sign-in is deleted here, but the server was not asked to end it: {error.message}"
    else:
        outcome += "; the API key itself stays valid, `luxx key revoke` revokes it"
    async with store.lock():
        store.remove(url)
    print(outcome)
    return 0
