"""`luxx key create|list|revoke`: your personal API keys of a server, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import re
from datetime import UTC, datetime, timedelta

from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import AddCommand, add_subcommands, all_items, find_named
from luxx.domain.accounts.api_keys import ApiKeyView, CreatedApiKey
from luxx.domain.accounts.caller import KeyScope
from luxx.errors import NotFound
from luxx.infra.clock import utc_now

DAYS = re.compile(r"(\d{1,4})d")
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def add_key_commands(parser: argparse.ArgumentParser, add_command: AddCommand) -> None:
    add = add_subcommands(parser, add_command)
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
    try:
        if days := DAYS.fullmatch(text):
            return utc_now() + timedelta(days=int(days.group(1)))
        time = datetime.fromisoformat(f"{text}T00:00:00Z" if DATE.fullmatch(text) else text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f"{text[:100]!r} is no time; write days from now (90d), a date (2027-01-31) or a time in UTC "
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
