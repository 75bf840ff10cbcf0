"""One configured MCP server: starts its process when needed, and restarts it with a backoff.

All users of a tenant share it. Not here: its tools (`offering`), the process itself (`connection`), the
results of calls (`results`).
"""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import structlog
from msgspec.structs import replace

from luxx.domain.files.storage import measure
from luxx.domain.mcp.call import McpCall
from luxx.domain.mcp.connection import McpConnection
from luxx.domain.mcp.inbox import MIB, Secrets
from luxx.domain.mcp.results import images_of_answer, result_of_answer, unknown_outcome
from luxx.domain.mcp.sdk import AnswerLost, ListedTool, Sdk, load_sdk
from luxx.errors import Conflict, ToolFailed
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import McpServerConfig
from luxx.infra.data_permissions import make_directory
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.resident import ResidentSpec
from luxx.tools.sandbox.service import Sandbox
from luxx.wire.tool import ToolResult

GROWTH_FACTOR = 2
"""A server's directory may hold, or grow by, this many times `disk_mb`, which bounds one process's writes."""


class McpDirectory:
    """The working directory of a server, with a bound on its size.

    `is_own`: Luxx created it for this server, and its size is bounded. A configured directory may hold the
    operator's files, and only its growth is bounded.
    """

    def __init__(self, workspace: Path, disk_mb: int, *, is_own: bool) -> None:
        self._workspace = workspace
        self._max_bytes = GROWTH_FACTOR * disk_mb * MIB
        self._initial_bytes: int | None = 0
        self._is_measured = is_own

    def make(self) -> None:
        """Creates and measures it. Raises ToolFailed with a predicate that follows the server's name."""
        try:
            make_directory(self._workspace.parent)
            self._workspace.mkdir(mode=0o700, exist_ok=True)
            current_bytes = self._measured()
        except OSError as error:
            raise ToolFailed(
                f"could not be started: {self._workspace} cannot be created: {error.strerror}"
            ) from error
        if not self._is_measured:
            self._initial_bytes, self._is_measured = current_bytes, True
        if self._initial_bytes is None:
            # The operator's files are too many to be measured, so the growth is unknown.
            return
        if current_bytes is None:
            raise ToolFailed(
                f"is not started: {self._workspace} holds too much to be measured; delete some of it"
            )
        if current_bytes - self._initial_bytes > self._max_bytes:
            raise ToolFailed(
                f"is not started: {self._workspace} holds {current_bytes // MIB:,} MiB by now; "
                "delete some of it, or raise disk_mb of mcp in tools.limits"
            )

    def _measured(self) -> int | None:
        fd = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return measure(fd)
        except Conflict:
            return None
        finally:
            os.close(fd)


@dataclass(slots=True)
class Backoff:
    """Pauses between repetitions of an action: none before the first, then `first` seconds, doubled up to
    `longest`. They start over if the action is due and not done for `reset_after` seconds.
    """

    clock: Callable[[], float]
    first: float
    longest: float
    reset_after: float
    pause: float = field(default=0.0, init=False)
    last: float = field(default=0.0, init=False)

    @property
    def seconds_to_wait(self) -> float:
        return max(self.last + self.pause - self.clock(), 0.0) if self.pause else 0.0

    def done(self, *, is_reset: bool = False) -> None:
        """Record that the action was done now. `is_reset`: the pauses start over in any case."""
        now = self.clock()
        is_reset = is_reset or not self.pause or now - self.last >= self.pause + self.reset_after
        self.pause = self.first if is_reset else min(self.pause * 2, self.longest)
        self.last = now


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between a failure and the next start; each consecutive failure doubles them."""

RESET_AFTER_SECONDS = 60.0
"""The end of a server that has run this long is no consecutive failure."""

logger = structlog.get_logger()


class ServerState(StrEnum):
    NOT_STARTED = "not_started"
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


class McpServer:
    """`on_tools` is called with the server's list of tools, at each start and when the list changes.
    `elicits`: whether the server may ask users during calls."""

    def __init__(
        self,
        config: McpServerConfig,
        workspace: Path,
        limits: ProgramLimits,
        sandbox: Sandbox,
        on_tools: Callable[["McpServer", Sequence[ListedTool]], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
        *,
        elicits: bool = False,
    ) -> None:
        self.config = config
        self._elicits = elicits
        self.reason = ""
        self._workspace = Path(os.path.abspath(workspace))
        self._reads = tuple(Path(os.path.abspath(path)) for path in config.reads)
        self._limits = limits
        self._secrets = Secrets(config.env)
        self._directory = McpDirectory(self._workspace, limits.disk_mb, is_own=not config.workspace)
        self._sandbox = sandbox
        self._on_tools = on_tools
        self._clock = clock
        self._connection: McpConnection | None = None
        self._starting: asyncio.Task[McpConnection] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._is_changed = False
        self._refreshes = Backoff(clock, FIRST_PAUSE, LONGEST_PAUSE, RESET_AFTER_SECONDS)
        self._failures = Backoff(clock, FIRST_PAUSE, LONGEST_PAUSE, math.inf)
        self._started_at = 0.0
        self._output = ""
        self._since: datetime | None = None
        self._is_closed = False

    @property
    def state(self) -> ServerState:
        if self._starting is not None:
            return ServerState.STARTING
        if self._connection is not None and self._connection.is_alive:
            return ServerState.RUNNING
        return ServerState.FAILED if self.reason or self._connection else ServerState.NOT_STARTED

    @property
    def why(self) -> str:
        """Why it has failed, as a predicate that follows its name, also while it is started again."""
        if self.state == ServerState.RUNNING:
            return ""
        return self.reason or ("" if self._connection is None else self._secrets.hidden(self._connection.why))

    @property
    def output(self) -> str:
        """The last lines that it printed on stderr before it failed, without secrets."""
        if self.state == ServerState.RUNNING:
            return ""
        return self._output if self.reason or self._connection is None else self._connection.output

    @property
    def since(self) -> datetime | None:
        """When it came into its state; None if it has not been started."""
        connection = self._connection
        has_just_ended = self.state == ServerState.FAILED and not self.reason
        return connection.ended_at if has_just_ended and connection is not None else self._since

    async def call(self, call: McpCall) -> ToolResult:
        """Call one of its tools; starts the server if needed. Without an answer the result says that the call
        may have been carried out. Raises ToolFailed."""
        try:
            connection = await self.connected()
            answer = await connection.call(call.tool, call.arguments, self.config.call_seconds, call.elicit)
            images = await asyncio.to_thread(images_of_answer, answer)
            result = result_of_answer(answer, await call.keep_images(images) if images else ())
        except AnswerLost as error:
            return unknown_outcome(self.config.name, self._secrets.hidden(str(error)))
        except ToolFailed as error:
            problem = self._secrets.hidden(error.message)
            raise type(error)(f"the MCP server {self.config.name} {problem}") from error
        if result.success:
            return result
        hidden = self._secrets.hidden_in
        return replace(result, data=hidden(result.data), error=hidden(result.error))

    async def connected(self) -> McpConnection:
        """The running process, or a new one. Raises ToolFailed with a predicate that follows the name."""
        connection = self._connection
        if connection is not None and connection.is_alive:
            return connection
        if self._starting is None:
            self._check_pause(connection)
            self._since = utc_now()
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._on_start_done)
        return await asyncio.shield(self._starting)

    async def close(self) -> None:
        self._is_closed = True
        for task in (self._starting, self._refreshing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close("was ended: Luxx stops")

    @property
    def seconds_to_wait(self) -> float:
        """Seconds until it may be started again."""
        return self._failures.seconds_to_wait

    def _check_pause(self, last: McpConnection | None) -> None:
        if self._is_closed:
            raise ToolFailed("is not started any more: Luxx stops")
        if last is not None and not self.reason:
            seconds = self._clock() - self._started_at
            is_reset = seconds >= RESET_AFTER_SECONDS and not last.exceeded_limits
            self._output = last.output
            self._failed(last.why, is_reset=is_reset)
            if self._failures.pause == FIRST_PAUSE:
                # The first failure after a long run: restart at once.
                return
        if (wait := self.seconds_to_wait) > 0:
            raise ToolFailed(f"{self.reason}; it can be started again in {max(round(wait), 1)} seconds")

    def _failed(self, why: str, *, is_reset: bool = False) -> None:
        self._failures.done(is_reset=is_reset)
        self.reason = self._secrets.hidden(why)
        self._since = utc_now()
        name, tenant = self.config.name, self.config.tenant
        logger.warning("mcp_server_failed", server=name, tenant=tenant, reason=self.reason)

    def _on_start_done(self, task: "asyncio.Task[McpConnection]") -> None:
        self._starting = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(
                error.message if isinstance(error, ToolFailed) else f"could not be started: {error!r}"
            )

    async def _start(self) -> McpConnection:
        sdk = await asyncio.to_thread(load_sdk)
        connection = await self._launch(sdk)
        try:
            await connection.open(self.config.start_seconds)
            await self._on_tools(self, await self._list(connection))
        except BaseException as error:
            await connection.close(error.message if isinstance(error, ToolFailed) else None)
            self._output = connection.output
            raise
        self._connection, self._started_at, self.reason = connection, self._clock(), ""
        self._since, self._output = utc_now(), ""
        logger.info("mcp_server_started", server=self.config.name, tenant=self.config.tenant)
        if self._is_changed:
            await self._changed()
        return connection

    async def _launch(self, sdk: Sdk) -> McpConnection:
        await asyncio.to_thread(self._directory.make)
        program_spec = ResidentSpec(
            argv=tuple(self.config.command),
            workspace=self._workspace,
            limits=self._limits,
            reads=self._reads,
            variables={name: value for name, _, value in (one.partition("=") for one in self.config.env)},
        )
        try:
            resident = await self._sandbox.start_resident(program_spec)
        except ToolFailed as error:
            raise ToolFailed(f"could not be started: {error.message}") from error
        return McpConnection(
            resident,
            self.config.command,
            sdk,
            self._limits,
            self._secrets,
            self._changed,
            elicits=self._elicits,
        )

    async def _list(self, connection: McpConnection) -> list[ListedTool]:
        return await connection.list_tools(self.config.start_seconds)

    async def _changed(self) -> None:
        self._is_changed = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        while self._is_changed:
            await asyncio.sleep(self._refreshes.seconds_to_wait)
            connection = self._connection
            if connection is None or not connection.is_alive:
                # A change during a start: `_start` handles it.
                return
            self._is_changed = False
            try:
                await self._on_tools(self, await self._list(connection))
            except ToolFailed as error:
                reason = self._secrets.hidden(error.message)
                logger.warning("mcp_list_failed", server=self.config.name, reason=reason)
            self._refreshes.done()
