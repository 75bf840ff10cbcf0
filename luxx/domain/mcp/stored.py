"""The MCP servers that people added, as values: which exist for whom, what they listed, and their secrets.

Not here: connections to them (`pool`), and how people change them (`editing`).
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select, update
from sqlalchemy.dialects import postgresql, sqlite

from luxx.domain.accounts.models import Tenant
from luxx.domain.mcp.approval import McpToolRow
from luxx.domain.mcp.models import (
    Credential,
    McpManifestRow,
    McpServerRow,
    OAuthClientView,
    ServerScope,
    ServerStatus,
    ServerTransport,
    held_by,
)
from luxx.domain.mcp.offering import server_prefix, user_server_prefix
from luxx.domain.mcp.sdk import ListedTool
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import McpServerConfig
from luxx.infra.secrets import Vault
from luxx.infra.store.tables import table_of

MOST_MANIFEST_BYTES = 1024 * 1024
"""Bytes of a stored list of tools; further tools are ignored."""

_servers, _manifests, _tools = table_of(McpServerRow), table_of(McpManifestRow), table_of(McpToolRow)
_tenants = table_of(Tenant)
_texts = msgspec.json.Decoder(list[str])
_client = msgspec.json.Decoder(OAuthClientView)
_listed = msgspec.json.Decoder(list[ListedTool])


class ServerSecrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is sealed in the row of a server."""

    env: dict[str, str] = {}
    headers: dict[str, str] = {}
    client_secret: str | None = None

    def __repr__(self) -> str:
        return "ServerSecrets(…)"


_secrets = msgspec.json.Decoder(ServerSecrets)


def secrets_identity(server_id: str) -> str:
    """The identity that the sealed secrets of a server are bound to."""
    return f"mcp_servers:{server_id}:secrets"


def seal_secrets(vault: Vault, server_id: str, secrets: ServerSecrets) -> str:
    """The secrets as they are stored; empty if there are none."""
    encoded = msgspec.json.encode(secrets).decode()
    return "" if encoded == "{}" else vault.seal(encoded, identity=secrets_identity(server_id))


def open_secrets(vault: Vault, server_id: str, sealed: str) -> ServerSecrets:
    """The stored secrets of a server. Raises Unavailable if they cannot be decrypted."""
    return (
        _secrets.decode(vault.open(sealed, identity=secrets_identity(server_id)))
        if sealed
        else ServerSecrets()
    )


def approval_name(name: str, user_id: int | None) -> str:
    """The name of a server in the table of approved definitions."""
    return name if user_id is None else f"u{user_id}_{name}"


class StoredServer(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `mcp_servers`; its secrets are sealed. `tenant`: the name of its tenant."""

    id: str
    tenant_id: int
    tenant: str
    user_id: int | None
    project_id: str | None
    name: str
    transport: ServerTransport
    url: str
    command: str
    args: tuple[str, ...]
    reads: tuple[str, ...]
    credential: Credential
    oauth: OAuthClientView | None
    secrets: str
    trusted: bool
    level: int
    enabled: bool
    revision: int
    updated_at: datetime

    @property
    def scope(self) -> ServerScope:
        return ServerScope.TENANT if self.user_id is None else ServerScope.USER

    @property
    def prefix(self) -> str:
        """The prefix of the names of its tools."""
        if self.user_id is None:
            return server_prefix(self.tenant, self.name)
        return user_server_prefix(self.user_id, self.name)

    @property
    def approval_name(self) -> str:
        """Its name in the table of approved definitions."""
        return approval_name(self.name, self.user_id)

    def holder(self, user_id: int) -> int | None:
        """Whose connection and list a call of this user uses; None: those of all users."""
        return user_id if self.credential is Credential.PER_USER else None

    def opened(self, vault: Vault) -> ServerSecrets:
        """Its secrets. Raises Unavailable if they cannot be decrypted."""
        return open_secrets(vault, self.id, self.secrets)

    def config(self, secrets: ServerSecrets) -> McpServerConfig:
        """The server in the form of one of the configuration. What its tools must not show is in `env`."""
        hidden = [*secrets.env.items(), *secrets.headers.items()]
        return McpServerConfig(
            name=self.name,
            command=[self.command or self.url, *self.args],
            tenant=self.tenant,
            env=[f"{name}={value}" for name, value in hidden],
            reads=list(self.reads),
            trusted=self.trusted,
            level=self.level,
        )


class ToolManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the last attempt to list a server's tools. `digest`: of the last list; None: none."""

    id: str
    server_id: str
    user_id: int | None
    digest: str | None
    status: ServerStatus
    problem: str
    checked_at: datetime


class TenantServers(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a tenant and its users, their manifests by server and user, and the hashes of approved
    definitions by server and tool."""

    servers: tuple[StoredServer, ...] = ()
    manifests: Mapping[tuple[str, int | None], ToolManifest] = {}
    approved: Mapping[str, Mapping[str, str]] = {}

    def visible_to(self, user_id: int) -> Iterator[StoredServer]:
        """The tenant's servers and the user's own, by name."""
        return (server for server in self.servers if server.user_id in (None, user_id))

    def manifest_of(self, server: StoredServer, user_id: int) -> ToolManifest | None:
        """What the server listed for this user, else for another one: tools do not go away with a sign-in."""
        own = self.manifests.get((server.id, server.holder(user_id)))
        if own is not None and own.digest is not None:
            return own
        return self.manifests.get((server.id, None))


def _select_servers() -> Select[Any]:
    return select(_servers, _tenants.c.name.label("tenant")).join(
        _tenants, _tenants.c.id == _servers.c.tenant_id
    )


def read_tenant_servers(connection: Connection, tenant_id: int) -> TenantServers:
    """All servers of a tenant and its users."""
    in_tenant = _servers.c.tenant_id == tenant_id
    rows = connection.execute(_select_servers().where(in_tenant).order_by(_servers.c.name, _servers.c.id))
    servers = tuple(stored_server(row) for row in rows)
    if not servers:
        return TenantServers()
    columns = [_manifests.c[name] for name in ToolManifest.__struct_fields__]
    of_tenant = select(*columns).join(_servers, _servers.c.id == _manifests.c.server_id).where(in_tenant)
    manifests = [
        msgspec.convert(row, ToolManifest, from_attributes=True) for row in connection.execute(of_tenant)
    ]
    approved: dict[str, dict[str, str]] = {}
    hashes = select(_tools.c.server_id, _tools.c.tool, _tools.c.approved_hash).where(
        _tools.c.tenant_id == tenant_id, _tools.c.server_id.is_not(None)
    )
    for server_id, tool, hashed in connection.execute(hashes):
        approved.setdefault(server_id, {})[tool] = hashed
    return TenantServers(
        servers=servers,
        manifests={(one.server_id, one.user_id): one for one in manifests},
        approved=approved,
    )


def read_server(connection: Connection, server_id: str) -> StoredServer | None:
    """The server as it is now."""
    row = connection.execute(_select_servers().where(_servers.c.id == server_id)).one_or_none()
    return None if row is None else stored_server(row)


def is_stateful(connection: Connection, server: StoredServer, user_id: int) -> bool:
    """Whether one process has the connections of this server that a call of the user uses."""
    if server.transport is not ServerTransport.HTTP:
        return True
    of_holder = held_by(_manifests.c.user_id, server.holder(user_id))
    found = select(_manifests.c.is_stateful).where(_manifests.c.server_id == server.id, of_holder)
    return bool(connection.scalar(found))


def stored_server(row: Any) -> StoredServer:
    """A row of `_select_servers`, or one of the ORM with the name of its tenant, as a value."""
    values = {name: getattr(row, name) for name in _PLAIN}
    return StoredServer(
        **values,
        transport=ServerTransport(row.transport),
        args=tuple(_texts.decode(row.args)),
        reads=tuple(_texts.decode(row.reads)),
        credential=Credential(row.credential),
        oauth=None if row.oauth is None else _client.decode(row.oauth),
    )


_PLAIN = (
    "id", "tenant_id", "tenant", "user_id", "project_id", "name", "url", "command", "secrets", "trusted",
    "level", "enabled", "revision", "updated_at",
)  # fmt: skip


def has_servers(connection: Connection) -> bool:
    """Whether anybody has added a server."""
    return connection.execute(select(_servers.c.id).limit(1)).first() is not None


def revisions(connection: Connection, server_ids: list[str]) -> dict[str, int]:
    """The revisions of those of these servers that exist and are enabled."""
    enabled = select(_servers.c.id, _servers.c.revision).where(
        _servers.c.id.in_(server_ids), _servers.c.enabled.is_(True)
    )
    return {row.id: row.revision for row in connection.execute(enabled).all()}


def read_listed(connection: Connection, manifest_id: str) -> list[ListedTool]:
    """The stored list of a manifest."""
    text = connection.execute(select(_manifests.c.tools).where(_manifests.c.id == manifest_id)).scalar()
    return [] if text is None else _listed.decode(text)


def encode_listed(tools: list[ListedTool]) -> bytes:
    """A list of tools as it is stored, without those past MOST_MANIFEST_BYTES."""
    parts: list[bytes] = []
    size = 0
    for tool in tools:
        encoded = msgspec.json.encode(tool)
        size += len(encoded) + 1
        if size > MOST_MANIFEST_BYTES:
            break
        parts.append(encoded)
    return b"[" + b",".join(parts) + b"]"


_add_manifest = {"sqlite": sqlite.insert(_manifests), "postgresql": postgresql.insert(_manifests)}


def write_manifest(
    connection: Connection, server_id: str, user_id: int | None, values: dict[str, Any]
) -> None:
    """Writes `status` and `problem`, and with a new list also `tools` and `digest`."""
    of_holder = held_by(_manifests.c.user_id, user_id)
    values = {**values, "checked_at": utc_now()}
    changed = connection.execute(
        update(_manifests).where(_manifests.c.server_id == server_id, of_holder).values(values)
    )
    is_there = connection.execute(select(_servers.c.id).where(_servers.c.id == server_id)).first()
    if changed.rowcount == 0 and is_there is not None:
        added = {"id": new_id(), "server_id": server_id, "user_id": user_id, **values}
        # Another process may have added it meanwhile; then its list counts.
        connection.execute(_add_manifest[connection.dialect.name].on_conflict_do_nothing(), added)
