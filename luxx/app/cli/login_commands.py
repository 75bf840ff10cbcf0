"""`luxx login` and `luxx logout`: keep a sign-in for the other commands that use a server, and end it; and
`luxx key create|list|revoke`: your personal API keys of a server, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import asyncio
import getpass
import os
import re
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi, ask, open_server, server_url
from luxx.app.cli.server_commands import add_subcommands, all_items, find_named
from luxx.app.cli.sign_ins import SignInStore, StoredSignIn
from luxx.domain.accounts.api_keys import ApiKeyView, CreatedApiKey
from luxx.domain.accounts.caller import KeyScope
from luxx.domain.accounts.users import UserView
from luxx.errors import InvalidInput, LuxxError, NotFound, NotSignedIn, Unavailable
from luxx.infra.clock import utc_now


def add_login_options(parser: argparse.ArgumentParser) -> None:
    _add_url(parser)
    parser.add_argument("--username", help="default: asks for it")
    parser.add_argument("--password", help="default: LUXX_PASSWORD, or asks for it")
    parser.add_argument(
        "--key",
        nargs="?",
        const="",
        help="sign in with a personal API key instead; without a value, asks for it",
    )
    parser.set_defaults(run=_run(_login))


def add_logout_options(parser: argparse.ArgumentParser) -> None:
    _add_url(parser)
    parser.set_defaults(run=_run(_logout))


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the server (default: LUXX_URL, or the one of the configuration)")


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


DAYS = re.compile(r"(\d{1,4})d")
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def add_key_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    create = add("create", _create, "create an API key and print it, once")
    create.add_argument("name", help="what the key is for")
    create.add_argument(
        "--scope",
        action="append",
        choices=[scope.value for scope in KeyScope],
        help="what the key may do (default: chat); each includes the ones before it",
    )
    create.add_argument(
        "--expires",
        type=parse_expiry,
        metavar="WHEN",
        help="days from now (90d), a date (2027-01-31) or a time (2027-01-31T12:00:00Z); default: never",
    )
    add("list", _list, "list your API keys")
    revoke = add("revoke", _revoke, "revoke an API key")
    revoke.add_argument("key", metavar="NAME|ID", help="its name or id")


def parse_expiry(text: str) -> datetime:
    """The time that `--expires` names, in UTC. Raises ArgumentTypeError."""
    if days := DAYS.fullmatch(text):
        return utc_now() + timedelta(days=int(days.group(1)))
    return parse_time(text, "days from now (90d), ")


def parse_time(text: str, also: str = "") -> datetime:
    """A date, at its beginning, or a time, in UTC. `also`: what else may be written. Raises
    ArgumentTypeError."""
    try:
        time = datetime.fromisoformat(f"{text}T00:00:00Z" if DATE.fullmatch(text) else text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f"{text[:100]!r} is no time; write {also}a date (2027-01-31) or a time in UTC "
            "(2027-01-31T12:00:00Z)"
        ) from error


async def _create(server: ServerApi, screen: Screen, options: argparse.Namespace) -> None:
    body = {"name": options.name, "scopes": options.scope or [KeyScope.CHAT], "expires_at": options.expires}
    created = await server.call("POST", "/keys", CreatedApiKey, body)
    screen.note("copy the key now, it is not shown again")
    print(created.key, flush=True)


async def _list(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for key in await all_items(server, "/keys", ApiKeyView):
        fields = (
            key.id,
            key.name,
            f"{key.prefix}…",
            ",".join(key.scopes),
            _expiry_text(key),
            f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used",
        )
        print("\t".join(CONTROL_CHARACTERS.sub("", field) for field in fields))


async def _revoke(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    keys = await all_items(server, "/keys", ApiKeyView)
    key = find_named(keys, options.key, lambda key: key.name, "API keys")
    if key is None:
        raise NotFound(f"there is no API key {options.key.strip()[:100]!r}; `luxx key list` lists your keys")
    await server.call("DELETE", f"/keys/{key.id}", type(None))
    print(CONTROL_CHARACTERS.sub("", f"revoked {key.name}"))


def _expiry_text(key: ApiKeyView) -> str:
    if key.expires_at is None:
        return "does not expire"
    is_expired = key.expires_at <= utc_now()
    return f"{'expired' if is_expired else 'expires'} {key.expires_at:%Y-%m-%d %H:%M}"
