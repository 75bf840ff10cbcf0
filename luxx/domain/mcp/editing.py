"""Adding, changing and deleting MCP servers.

ADMINs add servers for the tenant, and users of level 2 remote ones for themselves. Names are unique in a
tenant and for a user, who cannot take a name of the tenant's.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import check_still_admin
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.domain.conversations.service import own_project
from luxx.domain.mcp.approval import McpToolRow
from luxx.domain.mcp.changes import (
    CONNECTION_FIELDS,
    apply_columns,
    canonical_url,
    changed_columns,
    changed_secrets,
    check_command,
    check_credential,
    check_fields,
    check_new,
    new_columns,
    new_secrets,
)
from luxx.domain.mcp.link import parse_server_url
from luxx.domain.mcp.models import (
    Credential,
    McpManifestRow,
    McpServerChanges,
    McpServerRow,
    McpServerView,
    NewMcpServer,
    ServerScope,
    ServerStatus,
    ServerTransport,
)
from luxx.domain.mcp.pool import McpPool
from luxx.domain.mcp.registry import McpRegistry
from luxx.domain.mcp.sign_in import EndedSignIn
from luxx.domain.mcp.stored import ServerSecrets, StoredServer, approval_name, open_secrets, seal_secrets
from luxx.domain.mcp.views import is_editable
from luxx.errors import Conflict, InvalidInput, NotAllowed, NotFound, Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.removal import remove_tree
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.providers.queries import allow_host
from luxx.wire.tool import CommandPermission

MOST_OF_TENANT = 100
MOST_OF_USER = 20


class McpEditor:
    """One per process."""

    def __init__(self, store: Store, pool: McpPool, registry: McpRegistry) -> None:
        self._store = store
        self._pool = pool
        self._registry = registry

    async def create(self, caller: Caller, new: NewMcpServer) -> McpServerView:
        """Adds a server, and connects to it once. Raises InvalidInput, NotAllowed, NotFound or Conflict."""
        new = check_new(new)
        self._check_may_write(caller, new.scope, new.transport, has_reads=bool(new.reads))
        newly_allowed = await self._check_address(caller, new.url, new.transport)

        def work(session: Session) -> str:
            user_id = caller.user_id if new.scope is ServerScope.USER else None
            self._check_still(session, caller, user_id)
            if new.project_id is not None:
                own_project(session, caller, new.project_id)
            self._check_name(session, caller, new.name, user_id, is_new=True)
            now, server_id = utc_now(), new_id()
            row = McpServerRow(
                id=server_id, tenant_id=caller.tenant_id, user_id=user_id, revision=1,
                secrets=seal_secrets(self._pool.places.vault, server_id, new_secrets(new)),
                created_at=now, updated_at=now, **new_columns(new),
            )  # fmt: skip
            session.add(row)
            session.flush()
            allow_host(session, caller, newly_allowed)
            _record(session, caller, Action.MCP_SERVER_CREATE, row)
            return server_id

        return await self._registry.saved(caller, await self._write(work), new.name)

    async def update(self, caller: Caller, name: str, changes: McpServerChanges) -> McpServerView:
        """Changes a server, and connects to it anew. Sign-ins that do not fit it any more end, and
        their tokens are revoked; `problem` says so if that failed. Raises what `create` raises."""
        server = await self._editable(caller, name)
        check_fields(server.transport, changes)
        if changes.command is not UNSET and server.transport is ServerTransport.STDIO:
            check_command(changes.command)
        self._check_may_write(
            caller,
            server.scope,
            server.transport,
            has_reads=changes.reads not in (UNSET, list(server.reads), []),
        )
        url, newly_allowed = server.url, None
        if changes.url is not UNSET and server.transport is not ServerTransport.STDIO:
            url = canonical_url(changes.url, server.transport)
            newly_allowed = await self._check_address(caller, url, server.transport)
        has_moved = url != server.url and _origin(url, server) != _origin(server.url, server)

        def work(session: Session) -> Sequence[EndedSignIn]:
            row = self._locked(session, caller, server.id)
            ended = self._change(session, caller, row, changes, url, has_moved=has_moved)
            allow_host(session, caller, newly_allowed)
            _record(session, caller, Action.MCP_SERVER_CHANGE, row)
            return ended

        ended: Sequence[EndedSignIn] = await self._write(work)
        view, problem = await asyncio.gather(
            self._registry.saved(caller, server.id, server.name if changes.name is UNSET else changes.name),
            self._pool.places.grants.revoke(ended),
        )
        return replace(view, problem=problem) if problem else view

    def _change(
        self,
        session: Session,
        caller: Caller,
        row: McpServerRow,
        changes: McpServerChanges,
        url: str,
        *,
        has_moved: bool,
    ) -> Sequence[EndedSignIn]:
        """Returns the sign-ins that ended."""
        if changes.name not in (UNSET, row.name):
            self._check_name(session, caller, str(changes.name), row.user_id, is_new=False)
        if isinstance(changes.project_id, str):
            if row.user_id is None:
                raise InvalidInput("a server of the tenant has no project", field="$.project_id")
            own_project(session, caller, changes.project_id)
        columns = changed_columns(changes)
        if has_moved and changes.oauth is UNSET:
            columns["oauth"] = None
        vault = self._pool.places.vault
        try:
            before = open_secrets(vault, row.id, row.secrets)
        except Unavailable:
            before = ServerSecrets()
        secrets = changed_secrets(changes, before, keeps_headers=not has_moved)
        is_new_url = url != row.url
        apply_columns(row, {**columns, "url": url, "secrets": seal_secrets(vault, row.id, secrets)})
        transport, credential = ServerTransport(row.transport), Credential(row.credential)
        check_credential(transport, credential, row.oauth)
        given = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
        if given & CONNECTION_FIELDS:
            row.revision += 1
        url_changed = has_moved or changes.credential is not UNSET
        ended: Sequence[EndedSignIn] = ()
        if is_new_url or url_changed or changes.oauth is not UNSET:
            ended = self._pool.places.grants.forget(session, row.id, None)
        if ended and credential is not Credential.NONE:
            signed_out = {"status": ServerStatus.NEEDS_SIGN_IN.value, "problem": ""}
            of_server = McpManifestRow.server_id == row.id
            session.execute(update(McpManifestRow).where(of_server).values(signed_out))
        if url_changed or changes.command is not UNSET:
            session.execute(delete(McpManifestRow).where(McpManifestRow.server_id == row.id))
        renamed = approval_name(row.name, row.user_id)
        session.execute(update(McpToolRow).where(McpToolRow.server_id == row.id).values(server=renamed))
        row.updated_at = utc_now()
        session.flush()
        return ended

    async def delete(self, caller: Caller, name: str) -> str:
        """Deletes a server with its grants, tools and directory, and revokes its tokens; returns why some may
        still be valid. Raises NotFound, NotAllowed or Conflict."""
        server = await self._editable(caller, name)

        def work(session: Session) -> Sequence[EndedSignIn]:
            row = self._locked(session, caller, server.id)
            _record(session, caller, Action.MCP_SERVER_DELETE, row)
            ended = self._pool.places.grants.forget(session, server.id, None)
            session.delete(row)
            return ended

        ended: Sequence[EndedSignIn] = await self._write(work)
        await self._pool.drop(server.id, None)
        if server.transport is ServerTransport.STDIO:
            workspace = self._pool.connections.workspace_of(server)
            await asyncio.to_thread(remove_tree, str(workspace))
        return await self._pool.places.grants.revoke(ended)

    async def _editable(self, caller: Caller, name: str) -> StoredServer:
        server = await self._registry.server(caller, name)
        if not is_editable(server, caller):
            raise NotAllowed("only an ADMIN changes the MCP servers of the tenant")
        return server

    def _locked(self, session: Session, caller: Caller, server_id: str) -> McpServerRow:
        row = session.get(McpServerRow, server_id, with_for_update=True, populate_existing=True)
        if row is None or row.tenant_id != caller.tenant_id:
            raise NotFound("no MCP server with this name", kind="mcp_server_not_found")
        self._check_still(session, caller, row.user_id)
        return row

    def _check_still(self, session: Session, caller: Caller, user_id: int | None) -> None:
        if user_id is None:
            check_still_admin(session, caller)

    def _check_may_write(
        self, caller: Caller, scope: ServerScope, transport: ServerTransport, *, has_reads: bool
    ) -> None:
        caller.require(CommandPermission.WRITE)
        if scope is ServerScope.TENANT or transport is ServerTransport.STDIO:
            caller.require(CommandPermission.ADMIN)
        if has_reads and not caller.is_operator:
            raise NotAllowed(
                "only an administrator of the default tenant lets a program read directories of the server"
            )

    async def _check_address(self, caller: Caller, url: str, transport: ServerTransport) -> str | None:
        if transport is ServerTransport.STDIO:
            return None
        endpoint = parse_server_url(url, transport).endpoint
        return await self._pool.places.guard.check_endpoint(caller, endpoint)

    def _check_name(
        self, session: Session, caller: Caller, name: str, user_id: int | None, *, is_new: bool
    ) -> None:
        """Raises Conflict for a taken name, or if there are too many servers."""
        lock_until_commit(session.connection(), Lock.MCP_SERVERS, caller.tenant_id)
        of_tenant = (McpServerRow.tenant_id == caller.tenant_id, McpServerRow.user_id.is_(None))
        in_scope = of_tenant if user_id is None else (McpServerRow.user_id == user_id,)
        is_taken = self._registry.configured_status(caller, name) is not None or any(
            session.scalar(select(McpServerRow.id).where(*scope, McpServerRow.name == name)) is not None
            for scope in (of_tenant, in_scope)
        )
        if is_taken:
            raise Conflict(
                f"there is already an MCP server named {name}; choose another name",
                kind="mcp_server_name_taken",
            )
        most = MOST_OF_TENANT if user_id is None else MOST_OF_USER
        count = session.scalar(select(func.count()).select_from(McpServerRow).where(*in_scope)) or 0
        if is_new and count >= most:
            raise Conflict(
                f"there are {most} MCP servers, which is the limit; delete one", kind="mcp_servers_full"
            )

    async def _write(self, work: Callable[[Session], Any]) -> Any:
        try:
            return await self._store.write(work)
        finally:
            self._pool.places.guard.clear_cache()
            self._pool.has_changed()


def _origin(url: str, server: StoredServer) -> str:
    return parse_server_url(url, server.transport).origin


def _record(session: Session, caller: Caller, action: Action, row: McpServerRow) -> None:
    record(
        session,
        AuditEntry(
            action=action,
            actor=caller.actor,
            target_type="mcp_server",
            target_id=row.id,
            detail=Detail(name=row.name),
        ),
    )
