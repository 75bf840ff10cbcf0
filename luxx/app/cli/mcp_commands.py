"""`luxx mcp list|add|test|login|tools`: the MCP servers of a server, through its HTTP API.

Values of headers and variables are never arguments: they are read from environment variables.
Exit codes: 0 done; 1 refused, unreachable, or the MCP server does not work; 2 wrong options.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

import msgspec

from luxx.app.cli.mcp_sign_in import begin_sign_in
from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import add_subcommands, all_items, named, one_line, print_fields
from luxx.domain.conversations.service import ProjectView
from luxx.domain.mcp.models import (
    Credential,
    McpServerChanges,
    McpServerView,
    McpToolView,
    NewMcpServer,
    ServerScope,
    ServerStatus,
    ServerTransport,
)
from luxx.errors import InvalidInput, LuxxError, NotFound

WAIT_SECONDS = 300
"""How long a sign-in may take; Luxx forgets it after five minutes."""

POLL_SECONDS = 2.0
MOST_NAME_CHARACTERS = 20
REMOTE = tuple(one.value for one in ServerTransport if one != ServerTransport.STDIO)
UNNAMED_PARTS = frozenset({"mcp", "api", "www", "docs", "app", "server", "remote"})
"""Parts of a host that say nothing about whose it is."""


def add_mcp_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    add("list", _list, "list your MCP servers, those of the tenant and those of the configuration")
    _add_options_of_server(add("add", _add, "add an MCP server, connect to it once and list its tools"))
    for name, work, help_text in (
        ("test", _test, "connect to an MCP server and say whether it works"),
        ("login", _login, "sign in at an MCP server with a browser"),
        ("tools", _tools, "list the tools of an MCP server"),
    ):
        command = add(name, work, help_text)
        command.add_argument("server", help="its name")
        if name == "login":
            command.add_argument(
                "--wait",
                type=_seconds,
                default=WAIT_SECONDS,
                metavar="SECONDS",
                help=f"how long to wait for the sign-in (default: {WAIT_SECONDS})",
            )


def _add_options_of_server(new: argparse.ArgumentParser) -> None:
    new.add_argument(
        "target",
        nargs="+",
        metavar="URL|COMMAND",
        help="the address of a service; or a program of the tenant with its arguments, after -- (ADMIN)",
    )
    new.add_argument("--name", help="default: after the host of the address")
    new.add_argument("--tenant", action="store_true", help="for all users of your tenant (ADMIN)")
    new.add_argument("--project", help="only for this project of yours: its name or id")
    new.add_argument("--transport", choices=REMOTE, help="default: after the address")
    new.add_argument(
        "--credential",
        choices=[one.value for one in Credential],
        help="who signs in there: nobody, one account for all, or each user (default: found out)",
    )
    new.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="send this header, with the value of this environment variable",
    )
    new.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="give the program this environment variable, with its value here",
    )


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= WAIT_SECONDS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to {WAIT_SECONDS}")
    return int(text)


async def _list(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for one in await all_items(server, "/mcp/servers", McpServerView):
        _print_server(one)


def _print_server(one: McpServerView) -> None:
    owner = "configuration" if one.is_configured else one.scope.value
    state = one.status.value if one.enabled else "disabled"
    count = f"{len(one.tools)} {'tool' if len(one.tools) == 1 else 'tools'}"
    place = one.url or " ".join([one.command, *one.args])
    process = [f"in the process {one.owner}"] if one.owner else []
    problem = [one_line(one.problem)] if one.problem else []
    print_fields(one.name, owner, state, count, one_line(place), *process, *problem)


async def _add(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> int:
    project = None
    if options.project is not None:
        projects = await all_items(server, "/projects", ProjectView)
        project = named(projects, options.project, lambda each: each.name, "project").id
    new = _new_server(options.target, options)
    if project is not None:
        new = msgspec.structs.replace(new, project_id=project)
    added = await server.call("POST", "/mcp/servers", McpServerView, new)
    if added.status == ServerStatus.NEEDS_SIGN_IN and not options.credential and not options.header:
        # It refuses those whom it does not know, so it has accounts.
        changes = McpServerChanges(credential=Credential.PER_USER)
        added = await server.call("PUT", f"/mcp/servers/{added.name}", McpServerView, changes)
    _print_server(added)
    if added.status == ServerStatus.NEEDS_SIGN_IN:
        if added.credential == Credential.NONE:
            return 1
        print(f"sign in there: luxx mcp login {added.name}")
    return 1 if added.status == ServerStatus.FAILED else 0


def _new_server(target: Sequence[str], options: argparse.Namespace) -> NewMcpServer:
    """Raises InvalidInput."""
    if "://" not in target[0]:
        if options.name is None:
            raise InvalidInput("a program has no address to name it after; give --name")
        variables = {name: _variable(name) for name in options.env}
        return NewMcpServer(
            name=options.name,
            transport=ServerTransport.STDIO,
            command=target[0],
            args=list(target[1:]),
            env=variables,
            scope=ServerScope.TENANT,
        )
    if len(target) > 1:
        raise InvalidInput("an address stands alone; a program does not begin with an address")
    headers = [text.partition("=") for text in options.header]
    return NewMcpServer(
        name=options.name or name_from(target[0]),
        transport=ServerTransport(options.transport) if options.transport else transport_from(target[0]),
        url=target[0],
        headers={name: _variable(variable) for name, _, variable in headers},
        credential=Credential(options.credential or Credential.NONE),
        scope=ServerScope.TENANT if options.tenant else ServerScope.USER,
    )


def _variable(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise InvalidInput(f"the environment variable {name[:100]!r} is not set or empty")
    return value


def name_from(address: str) -> str:
    """A name for the server at an address, after its host. Raises InvalidInput if none fits."""
    labels = (_url(address).hostname or "").split(".")
    if labels[-1].isdigit() or ":" in labels[0]:
        labels = ["server"]
    parts = labels[:-1] or labels
    if len(parts) > 1 and len(parts[-1]) <= 3:
        parts = parts[:-1]  # The end may have two parts, as that of example.co.uk.
    label = next((part for part in reversed(parts) if part not in UNNAMED_PARTS), parts[-1])
    name = "".join(
        letter for letter in label.lower() if letter.isascii() and (letter.isalnum() or letter == "-")
    )
    if not (name := name.lstrip("-")[:MOST_NAME_CHARACTERS]):
        raise InvalidInput("the address has no host to name the server after; give --name")
    return name


def transport_from(address: str) -> ServerTransport:
    url = _url(address)
    if url.scheme in ("ws", "wss"):
        return ServerTransport.WEBSOCKET
    return ServerTransport.SSE if url.path.rstrip("/").endswith("/sse") else ServerTransport.HTTP


def _url(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise InvalidInput(f"{address[:200]!r} is not a URL") from error


async def _server(server: ServerApi, name: str) -> McpServerView:
    """Raises NotFound with the names that there are."""
    servers = await all_items(server, "/mcp/servers", McpServerView)
    for one in servers:
        if one.name == name.strip():
            return one
    names = ", ".join(one.name for one in servers) or "none"
    raise NotFound(f"there is no MCP server {name.strip()[:100]!r}; yours: {names[:500]}")


async def _test(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> int:
    one = await _server(server, options.server)
    tested = await server.call("POST", f"/mcp/servers/{one.name}/test", McpServerView)
    _print_server(tested)
    return 0 if tested.status == ServerStatus.READY else 1


async def _login(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> int:
    one = await _server(server, options.server)
    address = await begin_sign_in(server, one.name)
    if address is None:
        print(f"{one.name} needs no sign-in")
        return 0
    print(f"open this address in a browser:\n{CONTROL_CHARACTERS.sub('', address)}", flush=True)
    try:
        async with asyncio.timeout(options.wait):
            one = await _read(server, one.name)
            while one.status != ServerStatus.READY:
                await asyncio.sleep(POLL_SECONDS)
                one = await _read(server, one.name)
    except TimeoutError:
        raise LuxxError(f"nobody signed in within {options.wait} seconds; begin again") from None
    _print_server(one)
    return 0


async def _read(server: ServerApi, name: str) -> McpServerView:
    return await server.call("GET", f"/mcp/servers/{name}", McpServerView)


async def _tools(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> int:
    one = await _server(server, options.server)
    tools = await all_items(server, f"/mcp/servers/{one.name}/tools", McpToolView)
    for tool in tools:
        kind = ("reads" if tool.read_only else "changes") if tool.enabled else "not offered"
        text = tool.problem or tool.description
        print_fields(tool.name, tool.tool_name, kind, one_line(text.partition("\n")[0]))
    if not tools and one.problem:
        print(CONTROL_CHARACTERS.sub("", f"luxx: {one.name} {one_line(one.problem)}"), file=sys.stderr)
        return 1
    return 0
