"""The MCP servers that a caller sees, of the configuration and added ones, with their state and their tools.

Not here: adding and changing them (`editing`), their tools in runs and connections (`pool`).
"""

import asyncio
from collections.abc import Sequence

import msgspec
from sqlalchemy import update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.models import (
    Credential,
    McpManifestRow,
    McpServerStatus,
    McpServerView,
    McpToolView,
    ServerStatus,
    held_by,
)
from luxx.domain.mcp.pool import BuiltTools, McpPool
from luxx.domain.mcp.service import McpServers, McpStatus
from luxx.domain.mcp.sign_in import EndedSignIn, SignIns
from luxx.domain.mcp.stored import StoredServer, TenantServers
from luxx.domain.mcp.views import (
    configured_tools,
    configured_view,
    is_editable,
    stored_tools,
    stored_view,
)
from luxx.errors import Conflict, NotAllowed, NotFound
from luxx.infra.store.engine import Store
from luxx.wire.tool import CommandPermission

SAVE_SECONDS = 10.0
"""How long saving waits for the first list of tools; then it goes on in the background."""

TEST_SECONDS = 45.0


class McpRegistry:
    """One per process."""

    def __init__(self, store: Store, configured: McpServers, pool: McpPool, sign_ins: SignIns) -> None:
        self._sign_ins = sign_ins
        self._store = store
        self._configured = configured
        self._pool = pool

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[McpServerView], int]:
        """The servers of the configuration, then the others by name."""
        configured = self._configured.statuses_for(caller.tenant_id)
        first, end = (page - 1) * page_size, page * page_size
        views = [configured_view(status, caller) for status in configured[first:end]]

        def work(session: Session) -> tuple[list[McpServerView], int]:
            tenant = self._pool.tenant_servers(session, caller.tenant_id)
            servers = list(tenant.visible_to(caller.user_id))
            skipped = len(configured)
            shown = servers[max(first - skipped, 0) : max(end - skipped, 0)]
            found = [self._view(session, caller, tenant, server) for server in shown]
            return [*views, *found], skipped + len(servers)

        return await self._store.read(work)

    async def get(self, caller: Caller, name: str) -> McpServerView:
        """Raises NotFound."""
        if (status := self.configured_status(caller, name)) is not None:
            return configured_view(status, caller)

        def work(session: Session) -> McpServerView:
            tenant, server = self._find(session, caller, name)
            return self._view(session, caller, tenant, server)

        return await self._store.read(work)

    async def status(self, caller: Caller, name: str) -> McpServerStatus:
        """Raises NotFound."""
        view = await self.get(caller, name)
        return McpServerStatus(
            status=view.status, problem=view.problem, checked_at=view.since, owner=view.owner
        )

    async def tools(self, caller: Caller, name: str | None = None) -> list[McpToolView]:
        """The tools of one server, or of all that the caller has. Raises NotFound."""
        names = [status.name for status in self._configured.statuses_for(caller.tenant_id)]
        views: list[McpToolView] = []
        for configured in names if name is None else [name] if name in names else []:
            views += configured_tools(configured, *self._configured.tools_of(caller.tenant_id, configured))
        if name in names:
            return views

        def work(session: Session) -> list[McpToolView]:
            tenant = self._tenant(session, caller)
            if name is None:
                servers = list(tenant.visible_to(caller.user_id))
            else:
                servers = [self._find(session, caller, name)[1]]
            listed = ((server, self._built(session, caller, tenant, server)) for server in servers)
            return [
                tool
                for server, built in listed
                if built is not None
                for tool in stored_tools(server, tenant, built)
            ]

        return [*views, *await self._store.read(work)]

    async def test(self, caller: Caller, name: str) -> McpServerView:
        """Connects and lists the tools anew. Raises NotFound or Conflict."""
        caller.require(CommandPermission.WRITE)
        return await self._test(caller, name)

    async def _test(self, caller: Caller, name: str) -> McpServerView:
        if self.configured_status(caller, name) is not None:
            await self._configured.retry(caller.tenant_id, name)
            return await self.get(caller, name)
        server = await self.server(caller, name)
        if not server.enabled:
            raise Conflict(f"the MCP server {name} is disabled; enable it first", kind="mcp_disabled")
        await asyncio.wait({self._pool.refresh(server, caller.user_id)}, timeout=TEST_SECONDS)
        return await self.get(caller, name)

    async def connect(self, caller: Caller, name: str, base_url: str) -> McpServerStatus:
        """Connects, or begins a sign-in that comes back to `base_url`. Raises NotFound, Conflict, NotAllowed
        or ProviderError."""
        if self.configured_status(caller, name) is not None:
            await self.test(caller, name)
            return await self.status(caller, name)
        server = await self.server(caller, name)
        if server.credential is not Credential.PER_USER:
            caller.require(CommandPermission.WRITE)
        await self._test(caller, name)
        status = await self.status(caller, name)
        if server.credential is Credential.NONE:
            return status
        is_complete = await self._pool.places.grants.is_complete(server.id, server.holder(caller.user_id))
        if is_complete and status.status is not ServerStatus.NEEDS_SIGN_IN:
            return status
        if server.credential is Credential.SHARED and not is_editable(server, caller):
            raise NotAllowed("only an ADMIN signs in at this server, for all users of the tenant")
        address = await self._sign_ins.begin(caller, server.id, base_url)
        return msgspec.structs.replace(status, authorization_url=address)

    async def signed_in(self, caller: Caller, server_id: str, holder: int | None, name: str) -> McpServerView:
        """The server after a sign-in, which may be of another account than the one before."""
        await self._pool.drop(server_id, holder)
        return await self.saved(caller, server_id, name)

    async def disconnect(self, caller: Caller, name: str) -> McpServerStatus:
        """Ends the caller's sign-in and connection, of a server with one for all those, and revokes its
        tokens; `problem` says so if that failed. Raises NotFound, NotAllowed or Conflict."""
        server = await self.server(caller, name)
        holder = server.holder(caller.user_id)
        if holder is None:
            caller.require(CommandPermission.WRITE)
        if holder is None and not is_editable(server, caller):
            raise NotAllowed("all users of the tenant use this connection; only an ADMIN ends it")

        def work(session: Session) -> Sequence[EndedSignIn]:
            ended = self._pool.places.grants.forget(session, server.id, holder)
            status = (
                ServerStatus.STOPPED if server.credential is Credential.NONE else ServerStatus.NEEDS_SIGN_IN
            )
            session.execute(
                update(McpManifestRow)
                .where(McpManifestRow.server_id == server.id, held_by(McpManifestRow.user_id, holder))
                .values(status=status.value, problem="")
            )
            return ended

        ended = await self._store.write(work)
        self._pool.has_changed()
        await self._pool.drop(server.id, holder)
        problem = await self._pool.places.grants.revoke(ended)
        status = await self.status(caller, name)
        return msgspec.structs.replace(status, problem=problem) if problem else status

    def names(self, session: Session, caller: Caller) -> list[str]:
        """The names of the servers that the caller sees."""
        configured = [status.name for status in self._configured.statuses_for(caller.tenant_id)]
        tenant = self._pool.tenant_servers(session, caller.tenant_id)
        return [*configured, *(server.name for server in tenant.visible_to(caller.user_id))]

    async def tool_name(self, caller: Caller, name: str, tool: str) -> str:
        """The name for models of a server's tool, which may be given by either name. Raises NotFound."""
        for view in await self.tools(caller, name):
            if tool in (view.name, view.tool_name) and view.enabled:
                return view.tool_name
        raise NotFound(f"the MCP server {name} offers no tool with this name", kind="tool_not_found")

    # Rows

    def _tenant(self, session: Session, caller: Caller) -> TenantServers:
        return self._pool.tenant_servers(session, caller.tenant_id)

    def _find(self, session: Session, caller: Caller, name: str) -> tuple[TenantServers, StoredServer]:
        tenant = self._tenant(session, caller)
        found = [server for server in tenant.visible_to(caller.user_id) if server.name == name]
        if not found:
            raise NotFound("no MCP server with this name", kind="mcp_server_not_found")
        return tenant, max(found, key=lambda server: server.user_id is not None)

    async def server(self, caller: Caller, name: str) -> StoredServer:
        """A server that somebody added. Raises NotFound, and Conflict for one of the configuration."""
        if self.configured_status(caller, name) is not None:
            raise Conflict(
                f"the MCP server {name} is part of the configuration, which only the operator changes",
                kind="mcp_server_configured",
            )
        return await self._store.read(lambda session: self._find(session, caller, name)[1])

    def configured_status(self, caller: Caller, name: str) -> McpStatus | None:
        """The server of the configuration with this name, if there is one."""
        statuses = self._configured.statuses_for(caller.tenant_id)
        return next((status for status in statuses if status.name == name), None)

    async def saved(self, caller: Caller, server_id: str, name: str) -> McpServerView:
        """The view of a saved server after it was asked for its tools, or after SAVE_SECONDS."""
        server = await self.server(caller, name)
        if server.enabled:
            await asyncio.wait({self._pool.refresh(server, caller.user_id)}, timeout=SAVE_SECONDS)
        return await self.get(caller, name)

    def _built(
        self, session: Session, caller: Caller, tenant: TenantServers, server: StoredServer
    ) -> BuiltTools | None:
        manifest = tenant.manifest_of(server, caller.user_id)
        if manifest is None or manifest.digest is None:
            return None
        return self._pool.built(session, server, manifest)

    def _view(
        self, session: Session, caller: Caller, tenant: TenantServers, server: StoredServer
    ) -> McpServerView:
        return stored_view(
            server,
            tenant,
            self._built(session, caller, tenant, server),
            caller,
            self._pool.places.vault,
            is_starting=self._pool.is_starting(server, caller.user_id),
            owner=self._pool.calls.owner_of(session.connection(), server, caller.user_id),
        )
