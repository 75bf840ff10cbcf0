"""The tools of the MCP servers that people added: their source, their calls, and reading them anew.

Tools come from the stored lists, so that a server that hangs or is down delays no run; a server is connected
to, or its program is started, when one of its tools is called. Not here: the connections (`connections`),
and how people change servers (`editing`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.approval import McpDefinitions, definition_hash
from luxx.domain.mcp.asking import call_signed_in
from luxx.domain.mcp.call import McpCall
from luxx.domain.mcp.connections import Key, McpConnections, ServerPlaces
from luxx.domain.mcp.models import Credential, ServerStatus, ServerTransport
from luxx.domain.mcp.offering import build_offered_tools
from luxx.domain.mcp.owners.calling import McpCalls
from luxx.domain.mcp.owners.service import ProcessLeases
from luxx.domain.mcp.sdk import ListedTool
from luxx.domain.mcp.stored import (
    StoredServer,
    TenantServers,
    ToolManifest,
    encode_listed,
    has_servers,
    read_listed,
    read_tenant_servers,
    write_manifest,
)
from luxx.errors import LuxxError
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolRegistry, ToolSet
from luxx.tools.sources import CallerTools, ToolSource
from luxx.wire.tool import ToolResult

KEPT_SECONDS = 2.0
"""How long this process may miss another process's change of a tenant's servers."""

LOOK_SECONDS = 15.0
MOST_BUILT = 500
"""Lists of tools that are kept in memory as definitions."""

logger = structlog.get_logger()


class BuiltTools(msgspec.Struct, frozen=True, kw_only=True):
    """The definitions of a list, and the hash of each by its name without the prefix. `left_out`: the others,
    with reasons; `listed`: the whole list."""

    tools: ToolRegistry
    hashes: dict[str, str]
    left_out: list[str]
    listed: list[ListedTool]


class Heartbeats(Protocol):
    """The heartbeat of this process, as far as it is used here."""

    @property
    def may_claim_lost(self) -> bool:
        """Whether this process may take over what belonged to a lost one."""
        ...

    def on_each_heartbeat(self, work: Callable[[], Awaitable[None]]) -> None: ...


class McpPool(ToolSource):
    """One per process. `is_empty`: nobody has added a server, so nothing is asked."""

    reads_database = True
    is_empty = False

    def __init__(
        self,
        store: Store,
        bus: Bus,
        definitions: McpDefinitions,
        places: ServerPlaces,
        leases: ProcessLeases,
    ) -> None:
        self.places = places
        self.connections = McpConnections(store, places, self._on_tools)
        self.calls = McpCalls(store, bus, places, self.connections, leases, self._note)
        self._store = store
        self._bus = bus
        self._definitions = definitions
        self._kept: dict[int, tuple[float, TenantServers]] = {}
        self._built: dict[tuple[str, int, str], BuiltTools] = {}
        self._noted: dict[Key, tuple[ServerStatus, str]] = {}
        self._changes = 0
        self._starting: set[Key] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._look: asyncio.Task[None] | None = None
        bus.subscribe(Topic.MCP_SERVERS, lambda process, payload: self._on_change(payload))

    async def open(self, heartbeat: Heartbeats, *, is_worker: bool) -> None:
        """Finds out whether there are servers, and begins to close connections that nobody uses."""
        leases = self.calls.owners.leases
        leases.is_worker, leases.may_claim_lost = is_worker, lambda: heartbeat.may_claim_lost
        if not self._store.is_sqlite:
            heartbeat.on_each_heartbeat(self._look_at_owners)
        self.is_empty = not await self._store.read_rows(has_servers)
        self._look = asyncio.create_task(self._look_regularly())

    async def close(self) -> None:
        await self.calls.owners.close()
        tasks = [*self._tasks, *([] if self._look is None else [self._look])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        has_stateful = bool(self.connections.stateful_keys())
        await self.connections.close_all()
        if has_stateful:
            await self.calls.owners.release()

    async def _look_at_owners(self) -> None:
        if not self.is_empty:
            await self.calls.owners.look()

    def for_caller(self, session: Session, caller: Caller) -> ToolSet:
        """The tools of the tenant's servers and of the caller's own, as they were listed last; in a run, of
        the servers of its project and of no other."""
        tenant = self.tenant_servers(session, caller.tenant_id)
        sets: list[ToolSet] = []
        for server in tenant.visible_to(caller.user_id):
            manifest = tenant.manifest_of(server, caller.user_id)
            is_here = server.enabled and caller.may_use_in(server.project_id)
            if is_here and manifest is not None and manifest.digest is not None:
                built = self.built(session, server, manifest)
                withheld = withheld_names(built, tenant, server)
                names = {server.prefix + name for name in withheld}
                sets.append(built.tools.without(names) if names else built.tools)
        return CallerTools(sets)

    def tenant_servers(self, session: Session, tenant_id: int) -> TenantServers:
        """The servers of the tenant, which are kept for KEPT_SECONDS. May run in several threads."""
        kept, now = self._kept.get(tenant_id), time.monotonic()
        if kept is not None and kept[0] > now:
            return kept[1]
        changes = self._changes
        servers = read_tenant_servers(session.connection(), tenant_id)
        if changes == self._changes:
            # Otherwise a change that was made meanwhile may not be in it.
            self._kept[tenant_id] = (now + KEPT_SECONDS, servers)
        return servers

    def built(self, session: Session, server: StoredServer, manifest: ToolManifest) -> BuiltTools:
        """The definitions of a stored list. Slow the first time."""
        key = (server.id, server.revision, manifest.digest or "")
        if (kept := self._built.get(key)) is not None:
            return kept
        built = self._build(server, read_listed(session.connection(), manifest.id))
        if len(self._built) >= MOST_BUILT:
            self._built.clear()
        self._built[key] = built
        return built

    def _build(self, server: StoredServer, listed: list[ListedTool]) -> BuiltTools:
        try:
            secrets = server.opened(self.places.vault)
        except LuxxError as error:
            return BuiltTools(tools=ToolRegistry(), hashes={}, left_out=[error.message], listed=[])
        call, store_images = partial(self._call_signed_in, server), self.places.store_images
        offered = build_offered_tools(
            server.config(secrets),
            server.prefix,
            listed,
            call,
            store_images,
            is_remote=server.transport is not ServerTransport.STDIO,
            resumes=True,
        )
        hashes = {
            tool.name.removeprefix(server.prefix): definition_hash(tool) for tool in offered.tools.list_all()
        }
        return BuiltTools(tools=offered.tools, hashes=hashes, left_out=offered.left_out, listed=listed)

    def has_changed(self) -> None:
        """Call it on the event loop after a change: every process reads the servers again."""
        self._forget()
        self._bus.publish(Topic.MCP_SERVERS, b"")

    async def drop(self, server_id: str, user_id: int | None) -> None:
        """Closes the connection of this user, or with None all of this server, in every process."""
        await self.connections.drop(server_id, user_id)
        self._bus.publish(Topic.MCP_SERVERS, msgspec.json.encode((server_id, user_id)))

    def _on_change(self, payload: bytes) -> None:
        self._forget()
        if payload:
            self._run(self.connections.drop(*msgspec.json.decode(payload, type=Key)))

    def _forget(self) -> None:
        self.is_empty = False
        self._clear_kept()
        self._run(self.connections.close_changed())

    def _clear_kept(self) -> None:
        self._changes += 1
        self._kept.clear()

    def _run(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                # Another process may have noted something else meanwhile.
                self._noted.clear()
                await self.connections.close_changed()
                self.is_empty = not await self._store.read_rows(has_servers)
            except SQLAlchemyError as error:
                logger.warning("mcp_servers_unknown", error=type(error).__name__)

    def is_starting(self, server: StoredServer, user_id: int) -> bool:
        return (server.id, server.holder(user_id)) in self._starting

    def refresh(self, server: StoredServer, user_id: int) -> "asyncio.Task[None]":
        """Connects and lists the tools once, in the background. The result is in the manifest."""
        return self._run(self._refresh(server, user_id))

    async def _refresh(self, server: StoredServer, user_id: int) -> None:
        key = (server.id, server.holder(user_id))
        self._starting.add(key)
        try:
            await self.calls.refresh(server, user_id)
        except LuxxError as error:
            await self._note(key, ServerStatus.FAILED, error.message)
        except Exception as error:
            logger.error("mcp_refresh_failed", server=server.name, error=repr(error))
            await self._note(key, ServerStatus.FAILED, "could not be asked; the log of the server has more")
        finally:
            self._starting.discard(key)
            self._clear_kept()

    async def _call_signed_in(self, server: StoredServer, call: McpCall) -> ToolResult:
        is_for_all = server.credential is Credential.SHARED and server.user_id is None
        return await call_signed_in(
            lambda: self.calls.call(server, call), call.context, self.places.public_url, is_for_all=is_for_all
        )

    async def _note(self, key: Key, status: ServerStatus, problem: str) -> None:
        """Stores what a server does, if it has changed."""
        if self._noted.get(key) == (status, problem):
            return
        values = {"status": status.value, "problem": problem[:1000]}
        await self._store.write_rows(lambda connection: write_manifest(connection, *key, values))
        self._noted[key] = (status, problem)
        self._clear_kept()

    async def _on_tools(self, server: StoredServer, key: Key, tools: Sequence[ListedTool]) -> None:
        """Stores a list, and records the definitions in it."""
        listed = list(tools)
        encoded = await asyncio.to_thread(encode_listed, listed)
        built = await asyncio.to_thread(self._build, server, listed)
        by_name = {tool.name.removeprefix(server.prefix): tool for tool in built.tools.list_all()}
        await self._definitions.compare_and_record(server.tenant_id, server.approval_name, by_name, server.id)
        values = {
            "tools": encoded.decode(),
            "digest": sha256(encoded).hexdigest(),
            "status": ServerStatus.READY.value,
            "problem": "",
            "is_stateful": self.connections.is_stateful(key),
        }

        def write(connection: Any) -> None:
            # What all users get is also what one gets who has not signed in yet.
            for holder in {key[1], None}:
                write_manifest(connection, server.id, holder, values)

        await self._store.write_rows(write)
        self._noted[key] = (ServerStatus.READY, "")
        self._clear_kept()
        self._bus.publish(Topic.MCP_SERVERS, b"")


def withheld_names(built: BuiltTools, tenant: TenantServers, server: StoredServer) -> list[str]:
    """The tools of a list whose definition is not the approved one, by their names without the prefix."""
    approved = tenant.approved.get(server.id, {})
    return [name for name, hashed in built.hashes.items() if approved.get(name) != hashed]
