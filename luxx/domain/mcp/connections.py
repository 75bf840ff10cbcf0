"""The connections of this process to the MCP servers that people added, by server and user.

Not here: their tools (`pool`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from luxx.domain.mcp.call import McpCall
from luxx.domain.mcp.link import Link
from luxx.domain.mcp.models import ServerTransport, connection_key
from luxx.domain.mcp.remote import RemoteServer
from luxx.domain.mcp.sdk import ListedTool
from luxx.domain.mcp.server import McpServer
from luxx.domain.mcp.service import directory_of
from luxx.domain.mcp.sign_in import Grants
from luxx.domain.mcp.stored import StoredServer, revisions
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.providers.addresses import AddressGuard
from luxx.tools.hooks import StoreImages
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.service import Sandbox
from luxx.wire.tool import ToolResult

IDLE_SECONDS = 300.0
"""A connection that nobody has used for so long is closed."""

MOST_OPEN = 200
"""Connections of this process; past it the least recently used one is closed."""


class OpenServer(Protocol):
    """A server that is connected to, or whose program runs, when it is needed."""

    used_at: float

    @property
    def is_busy(self) -> bool: ...

    @property
    def is_stateful(self) -> bool:
        """Whether calls depend on earlier ones over the same connection."""
        ...

    async def call(self, call: McpCall) -> ToolResult: ...

    async def refresh(self) -> None: ...

    async def close(self) -> None: ...


class ProgramServer:
    """A server that is a program. It is not ended while it is idle, because it may keep data."""

    used_at = 0.0
    is_busy = is_stateful = True

    def __init__(self, server: McpServer) -> None:
        self._server = server

    async def call(self, call: McpCall) -> ToolResult:
        return await self._server.call(call)

    async def refresh(self) -> None:
        await self._server.connected()

    async def close(self) -> None:
        await self._server.close()


class _Open(msgspec.Struct, kw_only=True):
    revision: int
    server: OpenServer


Key = tuple[str, int | None]
"""A server, and the user whose connection it is; None: that of all users."""


class ServerPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where servers run and may be reached. `public_url`: the address of Luxx for browsers, or empty."""

    sandbox: Sandbox
    root: Path
    limits: ProgramLimits
    guard: AddressGuard
    vault: Vault
    grants: Grants
    public_url: str
    store_images: StoreImages


OnTools = Callable[[StoredServer, Key, Sequence[ListedTool]], Awaitable[None]]


class McpConnections:
    """One per process. `on_tools` is called with each list of tools that a server gives."""

    def __init__(self, store: Store, places: ServerPlaces, on_tools: OnTools) -> None:
        self._store = store
        self._places = places
        self._on_tools = on_tools
        self._open: dict[Key, _Open] = {}

    async def server(self, server: StoredServer, key: Key) -> OpenServer:
        """The server, which is connected to when it is used. Raises Unavailable if its secrets are lost."""
        entry = self._open.get(key)
        if entry is not None and entry.revision >= server.revision:
            return entry.server
        program = server.transport is ServerTransport.STDIO
        opened = self._program(server, key) if program else self._remote(server, key)
        self._open[key] = _Open(revision=server.revision, server=opened)
        if entry is not None:
            await entry.server.close()
        await self._close_oldest()
        return opened

    def _remote(self, server: StoredServer, key: Key) -> OpenServer:
        link = Link(
            server_id=server.id,
            name=server.name,
            transport=server.transport,
            url=server.url,
            headers=server.opened(self._places.vault).headers,
            credential=server.credential,
            user_id=key[1],
            guard=self._places.guard,
            grants=self._places.grants,
        )

        async def on_listed(tools: Sequence[ListedTool]) -> None:
            await self._on_tools(server, key, tools)

        return RemoteServer(server.name, link, on_listed)

    def _program(self, server: StoredServer, key: Key) -> OpenServer:
        places = self._places
        config = server.config(server.opened(places.vault))

        async def on_listed(_server: McpServer, tools: Sequence[ListedTool]) -> None:
            await self._on_tools(server, key, tools)

        return ProgramServer(
            McpServer(
                config, self.workspace_of(server), places.limits, places.sandbox, on_listed, elicits=True
            )
        )

    def workspace_of(self, server: StoredServer) -> Path:
        """The directory of a server that is a program."""
        return directory_of(self._places.root, server.prefix)

    async def _close_oldest(self) -> None:
        if len(self._open) > MOST_OPEN:
            idle = [key for key, entry in self._open.items() if not entry.server.is_busy]
            oldest = min(idle, key=lambda key: self._open[key].server.used_at, default=None)
            await self._close_where(lambda key, entry: key == oldest)

    async def close_changed(self) -> None:
        """Closes what was changed, disabled or deleted, and what nobody has used for long."""
        if not self._open:
            return
        ids = list({server_id for server_id, _ in self._open})
        now_valid = await self._store.read_rows(lambda connection: revisions(connection, ids))
        idle_since = time.monotonic() - IDLE_SECONDS

        def is_over(key: Key, entry: _Open) -> bool:
            revision = now_valid.get(key[0])
            # What was opened meanwhile, or has a newer revision, is not old.
            is_old = key[0] in ids and (revision is None or revision > entry.revision)
            is_idle = not entry.server.is_busy and entry.server.used_at < idle_since
            return is_old or is_idle

        await self._close_where(is_over)

    async def close_all(self) -> None:
        await self._close_where(lambda key, entry: True)

    async def _close_where(self, condition: "Callable[[Key, _Open], bool]") -> None:
        closed = {key: entry for key, entry in self._open.items() if condition(key, entry)}
        for key in closed:
            del self._open[key]
        await asyncio.gather(*(entry.server.close() for entry in closed.values()), return_exceptions=True)

    def is_stateful(self, key: Key) -> bool:
        """Whether the open connection is such a one."""
        entry = self._open.get(key)
        return entry is not None and entry.server.is_stateful

    def stateful_keys(self) -> set[str]:
        """The keys of the connections that only one process may have."""
        return {connection_key(*key) for key, entry in self._open.items() if entry.server.is_stateful}

    async def close_keys(self, keys: set[str]) -> None:
        """Closes these connections."""
        await self._close_where(lambda key, entry: connection_key(*key) in keys)

    async def drop(self, server_id: str, user_id: int | None) -> None:
        """Closes the connection of this user, or with None all of this server."""
        await self._close_where(
            lambda key, entry: key[0] == server_id and (user_id is None or key[1] == user_id)
        )
