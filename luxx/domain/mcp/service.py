"""All configured MCP servers: starts them in the background, offers their tools, reports their status."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.approval import Withheld
from luxx.domain.mcp.offering import build_offered_tools, server_prefix
from luxx.domain.mcp.sdk import ListedTool
from luxx.domain.mcp.server import McpServer, ServerState
from luxx.errors import ToolFailed
from luxx.infra.config.schema import Config, McpServerConfig, ToolLimits
from luxx.tools.core import FoundTool, ToolDefinition, ToolRegistry, ToolSet
from luxx.tools.hooks import StoreImages, store_no_images
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.tools.sandbox.plan import ProgramLimits, limits_for
from luxx.tools.sandbox.service import Sandbox
from luxx.tools.sources import ToolSource
from luxx.wire.tool import CommandPermission

FOLDER = "mcp"
"""A directory below the root of the workspaces, with one directory for each server."""

LIMITS = "mcp"
"""The tool name of these servers in `tools.limits`."""

BUILT_IN_LIMITS = ProgramLimits(cpu_seconds=3600, memory_mb=1024, processes=128, open_files=4096)
"""Node.js opens hundreds of files and has a dozen threads. After its processor time a server is restarted."""

MOST_TRIES = 20
"""Failed starts of a server before Luxx stops trying; with the pauses they take about an hour."""

RECHECK_SECONDS = 5.0
"""How often the database is asked whether withheld tools were approved; only while there are some."""

TenantIds = Callable[[], Awaitable[Mapping[str, int]]]
WithheldOf = Callable[[int, str, Mapping[str, ToolDefinition]], Awaitable[dict[str, Withheld]]]
"""Called with tenant id, server and its tools; returns the tools to withhold. Names without server prefix."""

logger = structlog.get_logger()


class McpStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a server. `reason`: why it failed; `output`: what it then had printed on stderr; `since`:
    when it came into this state; `names`: of the offered tools; `left_out`: unusable tools, with
    reasons; `withheld`: tools whose definition has changed since its approval."""

    name: str
    tenant: str
    trusted: bool
    level: int
    state: ServerState
    reason: str
    output: str
    since: datetime | None
    tools: int
    names: list[str]
    left_out: list[str]
    withheld: list[str]


@dataclass(slots=True)
class _Entry:
    """A server and the state of its last list of tools."""

    config: McpServerConfig
    prefix: str
    server: McpServer | None = None
    reason: str = ""
    tenant_id: int = 0
    left_out: list[str] = field(default_factory=list[str])
    listed: ToolRegistry = field(default_factory=ToolRegistry)
    offered: ToolRegistry = field(default_factory=ToolRegistry)
    withheld: dict[str, Withheld] = field(default_factory=dict[str, Withheld])
    is_checked: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    was_tried: asyncio.Event = field(default_factory=asyncio.Event)


class _TenantTools(ToolSet):
    """The tools of the servers of one tenant."""

    def __init__(self, entries: Sequence[_Entry], tenant_id: int) -> None:
        self._entries = entries
        self._tenant_id = tenant_id

    def lookup(self, name: str) -> FoundTool | None:
        return next((found for tools in self._offered() if (found := tools.lookup(name)) is not None), None)

    def list_all(self) -> list[ToolDefinition]:
        return [tool for tools in self._offered() for tool in tools.list_all()]

    def _offered(self) -> Iterator[ToolRegistry]:
        return (entry.offered for entry in self._entries if entry.tenant_id == self._tenant_id)


class McpServers(ToolSource):
    """The source of the tools of MCP servers: each server belongs to one tenant.

    `tenant_ids` returns the tenants by name. Without configured servers it does not load the SDK.
    """

    def __init__(
        self,
        config: Config,
        sandbox: Sandbox,
        tenant_ids: TenantIds,
        withheld_of: WithheldOf,
        store_images: StoreImages = store_no_images,
    ) -> None:
        self._withheld_of = withheld_of
        self._store_images = store_images
        self._sandbox = sandbox
        self._tenant_ids = tenant_ids
        self._root = Path(config.workspace.root)
        self._limits = limits_of_servers(config.tools.limits)
        self._entries = [_Entry(one, server_prefix(one.tenant, one.name)) for one in config.mcp.servers]
        self._tasks: list[asyncio.Task[None]] = []

    def for_caller(self, session: Session, caller: Caller) -> ToolSet:
        return self.tools_for(caller.tenant_id)

    def tools_for(self, tenant_id: int) -> ToolSet:
        """The tools of this tenant's servers as they are offered at each moment, in the order of the
        configuration."""
        return _TenantTools(self._entries, tenant_id)

    async def wait_for(self, names: Iterable[str]) -> None:
        """Waits until each server of these tools was tried, so that a resumed run finds its tools."""
        wanted = [entry for entry in self._entries if any(name.startswith(entry.prefix) for name in names)]
        with suppress(TimeoutError):
            async with asyncio.timeout(max((entry.config.start_seconds for entry in wanted), default=0)):
                for entry in wanted:
                    await entry.was_tried.wait()

    def open(self) -> None:
        """Starts the configured servers in the background."""
        if self._entries:
            self._tasks.append(asyncio.create_task(self._start_all()))
            self._tasks.append(asyncio.create_task(self._recheck_regularly()))

    async def close(self) -> None:
        """Ends all servers with every process they started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(entry.server.close() for entry in self._entries if entry.server is not None))

    @property
    def statuses(self) -> list[McpStatus]:
        """In the order of the configuration."""
        return [_status(entry) for entry in self._entries]

    def statuses_for(self, tenant_id: int) -> list[McpStatus]:
        """The servers of this tenant, in the order of the configuration."""
        return [_status(entry) for entry in self._entries if entry.tenant_id == tenant_id]

    async def retry(self, tenant_id: int, name: str) -> None:
        """Starts a server of this tenant if it does not run."""
        for entry in self._entries:
            if (entry.tenant_id, entry.config.name) == (tenant_id, name):
                await self._try(entry)

    def tools_of(self, tenant_id: int, name: str) -> tuple[list[ToolDefinition], dict[str, str]]:
        """The tools that a server of this tenant listed, and why those are withheld that are, by name."""
        entry = next(
            entry for entry in self._entries if (entry.tenant_id, entry.config.name) == (tenant_id, name)
        )
        withheld = {entry.prefix + tool: str(why) for tool, why in entry.withheld.items()}
        return entry.listed.list_all(), withheld

    async def recheck_withheld(self) -> None:
        """Offers withheld tools that were approved since, by this process or another one."""
        for entry in self._entries:
            if entry.withheld or not entry.is_checked:
                with suppress(ToolFailed):
                    await self._offer(entry)

    async def try_all(self) -> list[McpStatus]:
        """Starts each server once and returns the statuses, for `luxx doctor`."""
        await self._make_servers()
        await asyncio.gather(*(self._try(entry) for entry in self._entries))
        return self.statuses

    async def _start_all(self) -> None:
        await self._make_servers()
        await asyncio.gather(*(self._start_with_retries(entry) for entry in self._entries))

    async def _recheck_regularly(self) -> None:
        """Runs until it is cancelled; needed because another process may write the approval."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            await self.recheck_withheld()

    async def _make_servers(self) -> None:
        try:
            tenant_ids = await self._tenant_ids()
        except Exception as error:
            # The database's own checks report the failure. The servers stay off until Luxx restarts.
            logger.error("mcp_tenants_unknown", error=repr(error))
            tenant_ids = {}
        for entry in self._entries:
            config = entry.config
            if config.tenant not in tenant_ids:
                entry.reason = f"is not started: there is no tenant named {config.tenant!r}"
                continue
            entry.tenant_id = tenant_ids[config.tenant]
            workspace = Path(config.workspace) if config.workspace else directory_of(self._root, entry.prefix)
            entry.server = McpServer(
                config, workspace, self._limits, self._sandbox, partial(self._on_tools, entry)
            )

    async def _start_with_retries(self, entry: _Entry) -> None:
        """Tries until the server has listed its tools. Afterwards a call of a tool restarts it if needed."""
        server = entry.server
        for _ in range(MOST_TRIES):
            is_up = await self._try(entry)
            entry.was_tried.set()
            if is_up or server is None:
                return
            await asyncio.sleep(max(server.seconds_to_wait, 1.0))
        if server is not None:
            entry.reason = f"{server.why}; Luxx tries again only after a restart"
            logger.error("mcp_server_failed_permanently", server=entry.config.name, reason=entry.reason)

    async def _try(self, entry: _Entry) -> bool:
        if entry.server is None:
            return False
        try:
            await entry.server.connected()
        except Exception:
            # McpServer has logged it, and an unexpected error is retried like any other.
            return False
        return True

    async def _on_tools(self, entry: _Entry, server: McpServer, tools: Sequence[ListedTool]) -> None:
        built = await asyncio.to_thread(
            build_offered_tools,
            entry.config,
            entry.prefix,
            tools,
            server.call,
            self._store_images,
        )
        entry.listed, entry.left_out = built.tools, built.left_out
        if entry.left_out:
            logger.warning("mcp_tools_left_out", server=entry.config.name, reasons=entry.left_out[:10])
        await self._offer(entry)

    async def _offer(self, entry: _Entry) -> None:
        """Offers the listed tools that are not withheld. If the database cannot be read, offers none and
        raises ToolFailed."""
        async with entry.lock:
            by_name = {tool.name.removeprefix(entry.prefix): tool for tool in entry.listed.list_all()}
            before, entry.is_checked = entry.withheld, False
            try:
                entry.withheld = await self._withheld_of(entry.tenant_id, entry.config.name, by_name)
            except SQLAlchemyError as error:
                entry.offered = ToolRegistry()
                logger.warning(
                    "mcp_definitions_unknown", server=entry.config.name, error=type(error).__name__
                )
                raise ToolFailed("offers no tools: the database with the approvals cannot be read") from error
            entry.is_checked = True
            entry.offered = entry.listed.without({entry.prefix + name for name in entry.withheld})
        if entry.withheld and entry.withheld != before:
            logger.warning(
                "mcp_tools_withheld",
                server=entry.config.name,
                tenant=entry.config.tenant,
                tools=[f"{name} {why}" for name, why in entry.withheld.items()][:10],
            )


def directory_of(root: Path, prefix: str) -> Path:
    """The own directory of a server that is a program, by the prefix of its tools' names."""
    return root / FOLDER / prefix.removeprefix(MCP_PREFIX).removesuffix("__")


def limits_of_servers(configured: Sequence[ToolLimits]) -> ProgramLimits:
    """The limits of a server with all it starts. Processor time counts over its whole life, so only an entry
    for these servers sets it."""
    limits = limits_for(LIMITS, CommandPermission.EXECUTE, configured, BUILT_IN_LIMITS)
    own = [one.cpu_seconds for one in configured if one.tool == LIMITS and one.cpu_seconds is not None]
    return replace(limits, cpu_seconds=own[-1] if own else BUILT_IN_LIMITS.cpu_seconds)


def _status(entry: _Entry) -> McpStatus:
    server, names = entry.server, [tool.name for tool in entry.offered.list_all()]
    state = ServerState.NOT_STARTED if server is None else server.state
    return McpStatus(
        name=entry.config.name,
        tenant=entry.config.tenant,
        trusted=entry.config.trusted,
        level=entry.config.level,
        state=ServerState.FAILED if entry.reason else state,
        reason=entry.reason or ("" if server is None else server.why),
        output="" if server is None else server.output,
        since=None if server is None else server.since,
        tools=len(names),
        names=names,
        left_out=entry.left_out,
        withheld=[f"{name} {why}" for name, why in entry.withheld.items()],
    )
