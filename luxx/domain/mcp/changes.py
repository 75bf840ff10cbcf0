"""What people may write into the row of an MCP server: checks of values that depend on each other, and the
columns that follow from a request.

Not here: who may do it, and names (`editing`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from luxx.domain.mcp.link import parse_server_url
from luxx.domain.mcp.models import (
    Credential,
    McpServerChanges,
    McpServerRow,
    NewMcpServer,
    OAuthClient,
    OAuthClientView,
    ServerScope,
    ServerTransport,
)
from luxx.domain.mcp.stored import ServerSecrets
from luxx.errors import InvalidInput

MOST_ENV_CHARACTERS = 32_000
"""The environment of a program has to fit into the buffer of a pipe."""

RESERVED_HEADERS = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-length", "content-type", "host", "last-event-id",
        "mcp-protocol-version", "mcp-session-id", "transfer-encoding", "upgrade", "user-agent",
    }
)  # fmt: skip
"""Headers that belong to HTTP or the protocol."""


def check_new(new: NewMcpServer) -> NewMcpServer:
    """The server with its URL in canonical form. Raises InvalidInput."""
    is_program = new.transport is ServerTransport.STDIO
    if is_program and new.scope is ServerScope.USER:
        raise InvalidInput(
            "a server with the transport stdio is a program of the tenant: scope must be tenant",
            field="$.scope",
        )
    if new.project_id is not None and new.scope is ServerScope.TENANT:
        raise InvalidInput("a server of the tenant has no project", field="$.project_id")
    check_fields(new.transport, new)
    check_credential(new.transport, new.credential, new.oauth)
    if is_program:
        check_command(new.command)
        return new
    return msgspec.structs.replace(new, url=canonical_url(new.url, new.transport))


def check_command(command: str) -> None:
    """Raises InvalidInput."""
    if not command.strip():
        raise InvalidInput("a server with the transport stdio needs its command", field="$.command")


def canonical_url(url: str, transport: ServerTransport) -> str:
    """Raises InvalidInput."""
    try:
        return parse_server_url(url, transport).url
    except InvalidInput as error:
        raise error.about("$.url") from error


def check_fields(transport: ServerTransport, values: NewMcpServer | McpServerChanges) -> None:
    """Raises InvalidInput for what a server with this transport does not have, and for values that cannot be
    sent."""
    is_program = transport is ServerTransport.STDIO
    others = ("url", "headers", "oauth") if is_program else ("command", "args", "reads", "env")
    for name in others:
        if getattr(values, name) not in (UNSET, None, "", [], {}):
            raise InvalidInput(f"a server with the transport {transport} has no {name}", field=f"$.{name}")
    if values.env is not UNSET and sum(len(name + value) + 2 for name, value in values.env.items()) > (
        MOST_ENV_CHARACTERS
    ):
        raise InvalidInput(f"env has more than {MOST_ENV_CHARACTERS:,} characters", field="$.env")
    if values.reads is not UNSET and not all(path.startswith("/") for path in values.reads):
        raise InvalidInput("reads are absolute paths of directories, such as /opt/notes", field="$.reads")
    if values.headers is not UNSET:
        reserved = [name for name in values.headers if name.lower() in RESERVED_HEADERS]
        if reserved:
            raise InvalidInput(f"Luxx itself sets the header {reserved[0]}", field="$.headers")


def check_credential(transport: ServerTransport, credential: Credential, oauth: object) -> None:
    """Raises InvalidInput."""
    if credential is Credential.NONE:
        if oauth is not None:
            raise InvalidInput("oauth needs a credential: shared or per_user", field="$.oauth")
        return
    if transport is ServerTransport.STDIO:
        raise InvalidInput("a server with the transport stdio has no sign-in", field="$.credential")


def client_json(client: OAuthClient | None) -> str | None:
    """The column `oauth`."""
    if client is None:
        return None
    view = OAuthClientView(
        client_id=client.client_id, scopes=client.scopes, has_secret=client.client_secret is not None
    )
    return msgspec.json.encode(view).decode()


def new_columns(new: NewMcpServer) -> dict[str, Any]:
    """The columns of a new row that follow from the request alone."""
    is_of_tenant = new.scope is ServerScope.TENANT
    return {
        "project_id": new.project_id,
        "name": new.name,
        "transport": new.transport.value,
        "url": new.url,
        "command": new.command,
        "args": _json(new.args),
        "reads": _json(new.reads),
        "credential": new.credential.value,
        "oauth": client_json(new.oauth),
        "trusted": new.trusted,
        "level": (3 if is_of_tenant else 2) if new.level is UNSET else new.level,
        "enabled": new.enabled,
    }


def new_secrets(new: NewMcpServer) -> ServerSecrets:
    client_secret = None if new.oauth is None else new.oauth.client_secret
    return ServerSecrets(env=new.env, headers=new.headers, client_secret=client_secret)


def changed_columns(changes: McpServerChanges) -> dict[str, Any]:
    """The columns that the changes set, without the URL and secrets."""
    columns: dict[str, Any] = {}
    for name in ("name", "command", "trusted", "level", "enabled", "project_id"):
        if (value := getattr(changes, name)) is not UNSET:
            columns[name] = value
    for name in ("args", "reads"):
        if (value := getattr(changes, name)) is not UNSET:
            columns[name] = _json(value)
    if changes.credential is not UNSET:
        columns["credential"] = changes.credential.value
    if changes.oauth is not UNSET:
        columns["oauth"] = client_json(changes.oauth)
    return columns


def changed_secrets(
    changes: McpServerChanges, before: ServerSecrets, *, keeps_headers: bool
) -> ServerSecrets:
    """`keeps_headers`: false for a new origin, to which the old ones must not go."""
    kept = before if keeps_headers else msgspec.structs.replace(before, headers={}, client_secret=None)
    values: dict[str, Any] = {}
    if changes.env is not UNSET:
        values["env"] = changes.env
    if changes.headers is not UNSET:
        values["headers"] = changes.headers
    if changes.oauth is not UNSET:
        values["client_secret"] = None if changes.oauth is None else changes.oauth.client_secret
    return msgspec.structs.replace(kept, **values)


CONNECTION_FIELDS = frozenset(
    {"name", "url", "command", "args", "reads", "env", "headers", "credential", "oauth", "trusted", "level"}
)
"""Fields whose change ends the connections of a server, and changes the definitions of its tools."""


def apply_columns(row: McpServerRow, columns: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        setattr(row, name, value)


def _json(values: list[str]) -> str:
    return msgspec.json.encode(values).decode()
