"""One process of an MCP server with a session of the official SDK on its pipes, from its start to its end.

Used up once it has ended, for whatever reason. Not here: when one is started and how often (server).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
from msgspec.structs import replace

from luxx import __version__
from luxx.domain.mcp.inbox import MIB, MOST_PARTS, Inbox, McpMessage, ProtocolAbuse, Secrets, parts
from luxx.errors import ToolFailed
from luxx.tools.builtin.programs import why_ended
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ExceededLimit
from luxx.tools.sandbox.resident import Resident

_OWN_LOGGERS = ("mcp", "client")
_MISSING = "the extra 'mcp' is not installed: pip install 'luxx[mcp]'"


class Sdk(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of it: the class of sessions, the words of the protocol, and how both are carried."""

    session: Any
    types: Any
    message: Any
    error: type[Exception]


async def load_sdk() -> Sdk:
    """In a thread: the server goes on meanwhile. Raises ToolFailed where it is not installed."""
    return await asyncio.to_thread(_load)


def _load() -> Sdk:
    try:
        found = Sdk(
            session=import_module("mcp.client.session").ClientSession,
            types=import_module("mcp_types"),
            message=import_module("mcp.shared.message").SessionMessage,
            error=import_module("mcp.shared.exceptions").MCPError,
        )
    except ImportError as error:
        raise ToolFailed(_MISSING) from error
    for name in _OWN_LOGGERS:
        # They tell in the server's words what it sent wrong; what is worth telling is told of it here.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return found


if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

MOST_PAGES = 50
MOST_LISTED_BYTES = MIB
MOST_LISTED = 256
"""No more pages are asked for past so many bytes or tools, and no more tools are looked at."""

THREAD_BYTES = 64 * 1024
"""Messages longer than this are read in a thread."""

_WAITING = 256
"""Messages that wait for a server to read them."""

_LAST_WORD_SECONDS = 2.0
_PING_SECONDS = 10.0
_UNREADABLE = {"code": -32700, "message": "the answer cannot be read"}
_TOO_MUCH = {"code": -32700, "message": f"the answer has more than {MOST_PARTS:,} parts"}


class McpConnection:
    """`open` first; `call` and `list_tools` from any task. `on_change`: the server's tools are others now."""

    def __init__(
        self,
        resident: Resident,
        sdk: Sdk,
        limits: ProgramLimits,
        secrets: Secrets,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._resident = resident
        self._sdk = sdk
        self._limits = limits
        self._secrets = secrets
        self._on_change = on_change
        self._inbox = Inbox(time.monotonic)
        self._incoming_writer, self._incoming_reader = anyio.create_memory_object_stream[Any](0)
        self._outgoing_writer, self._outgoing_reader = anyio.create_memory_object_stream[Any](_WAITING)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._why: str | None = None
        self._exceeded_limit: ExceededLimit | None = None
        self._session: Any = None
        self._ping: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def is_alive(self) -> bool:
        return not (self._closing.is_set() or self._ended.is_set() or self._task.done())

    @property
    def why(self) -> str:
        """Why it has ended, in words that follow "it"."""
        return self._why or "has ended"

    @property
    def exceeded_limits(self) -> bool:
        """Whether it was ended for what it used; all the processor time of a life may well be needed."""
        return self._exceeded_limit not in (None, ExceededLimit.CPU)

    async def open(self, seconds: float) -> None:
        """Waits until both have agreed on a protocol. Raises ToolFailed with words that follow "it"."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise ToolFailed(f"was not ready within {seconds:g} seconds") from None

    async def list_tools(self, seconds: float) -> "list[Tool]":
        """All its tools, or the first 256. Raises ToolFailed with words that follow "it"."""
        types, cursor, had = self._sdk.types, None, self._inbox.listed_bytes
        found: list[Tool] = []
        try:
            async with asyncio.timeout(seconds):
                for _ in range(MOST_PAGES):
                    params = types.PaginatedRequestParams(cursor=cursor)
                    page = await self._ask(types.ListToolsRequest(params=params), types.ListToolsResult)
                    found += page.tools
                    cursor = page.next_cursor
                    is_enough = self._inbox.listed_bytes - had > MOST_LISTED_BYTES
                    if cursor is None or is_enough or len(found) > MOST_LISTED:
                        break
        except TimeoutError:
            raise ToolFailed(f"did not list its tools within {seconds:g} seconds") from None
        return found[:MOST_LISTED]

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> "CallToolResult":
        """Cancelled, it tells the server. Raises ToolFailed with words that follow "it"."""
        types = self._sdk.types
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(types.CallToolRequest(params=params), types.CallToolResult)
        except TimeoutError:
            self._start_ping()
            raise ToolFailed(f"did not answer within {seconds:g} seconds") from None

    async def close(self, why: str | None = None) -> None:
        """End the process with all it started; calls under way learn why."""
        self._why = self._why or why
        self._closing.set()
        await asyncio.wait({self._task})

    async def _ask(self, request: Any, kind: Any) -> Any:
        """Sent past the session's own methods: those check answers by schemas of the server's choice."""
        try:
            return await self._session.send_request(request, kind)
        except self._sdk.error as error:
            problem = f"answered with an error: {self._secrets.cut(str(error), 1000)}"
            raise ToolFailed(self.why if self._ended.is_set() else problem) from error
        except (ValueError, RuntimeError) as error:
            # pydantic's word for what does not fit the protocol is a ValueError.
            problem = "answered with something that is not of the protocol"
            raise ToolFailed(self.why if self._ended.is_set() else problem) from error

    async def _run(self) -> None:
        """All of its life; whatever ends one part ends the others."""
        parts = [
            asyncio.create_task(one)
            for one in (self._read_messages(), self._write_messages(), self._run_session())
        ]
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({parts[0], parts[2], closing}, return_when=asyncio.FIRST_COMPLETED)
            if self._why is None and not self._closing.is_set():
                self._why = await self._end_reason()
        finally:
            self._ended.set()
            for task in (*parts, closing, *([self._ping] if self._ping else [])):
                task.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            for stream in (
                self._incoming_writer,
                self._incoming_reader,
                self._outgoing_writer,
                self._outgoing_reader,
            ):
                stream.close()
            if not self._ready.done():
                self._ready.set_exception(ToolFailed(self.why))
                # Nobody may be waiting for it any more.
                self._ready.exception()
            await self._resident.close()

    async def _read_messages(self) -> None:
        try:
            while piece := await self._resident.read():
                for message in self._inbox.take(piece):
                    await self._pass_on(message)
        except ProtocolAbuse as error:
            self._why = f"was ended: it {error}"
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    async def _pass_on(self, message: McpMessage) -> None:
        if message.is_change:
            await self._on_change()
            return
        is_long = len(message.text) > THREAD_BYTES
        read = await asyncio.to_thread(self._read, message) if is_long else self._read(message)
        if read is not None:
            await self._incoming_writer.send(self._sdk.message(read))

    def _read(self, message: McpMessage) -> Any:
        """In the words of the SDK; None where nothing can be made of it, and nobody waits for it."""
        adapter = self._sdk.types.jsonrpc_message_adapter
        problem = _UNREADABLE
        try:
            if message.answers is None or parts(message.text) <= MOST_PARTS:
                return adapter.validate_json(message.text, by_name=False)
            problem = _TOO_MUCH
        except ValueError:
            if message.answers is None:
                return None
        failure = {"jsonrpc": "2.0", "id": message.answers, "error": problem}
        return adapter.validate_python(failure, by_name=False)

    async def _write_messages(self) -> None:
        async for carried in self._outgoing_reader:
            message = carried.message
            self._note(message)
            text = message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await self._resident.write(text.encode("utf-8", "replace") + b"\n")
            except OSError:
                return

    def _note(self, message: Any) -> None:
        """An answer is awaited to what goes out, or to what went out before not any more."""
        method, number = getattr(message, "method", None), getattr(message, "id", None)
        if method == "notifications/cancelled":
            self._inbox.forget(cast("dict[str, Any]", message.params or {}).get("requestId"))
        elif method is not None and type(number) is int:
            self._inbox.asked(number, method)

    async def _run_session(self) -> None:
        info = self._sdk.types.Implementation(name="luxx", version=__version__)
        async with self._sdk.session(
            self._incoming_reader, self._outgoing_writer, client_info=info
        ) as session:
            self._session = session
            try:
                await session.initialize()
            except (self._sdk.error, ValueError, RuntimeError) as error:
                self._why = f"could not be agreed with on a protocol: {self._secrets.cut(str(error), 300)}"
                return
            if not self._ready.done():
                self._ready.set_result(None)
            await self._closing.wait()

    async def _end_reason(self) -> str:
        try:
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                ran = await self._resident.ended()
        except TimeoutError:
            return "was ended: it closed its output"
        except ToolFailed as error:
            return f"could not be started: {error.message}"
        if ran.exit_code == 0 and ran.exceeded_limit is None:
            return "has ended by itself"
        self._exceeded_limit = ran.exceeded_limit
        stderr_text = self._secrets.hidden(ran.stderr.decode("utf-8", "replace"))
        return f"has ended: {why_ended(replace(ran, stderr=stderr_text.encode()), self._limits)}"

    def _start_ping(self) -> None:
        """Whether it is only this call that takes long; a server that answers nothing is ended."""
        if self._ping is None or self._ping.done():
            self._ping = asyncio.create_task(self._wait_for_ping())

    async def _wait_for_ping(self) -> None:
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self._session.send_ping()
        except TimeoutError:
            self._why = "was ended: it did not answer any more"
            self._closing.set()
        except (self._sdk.error, ValueError, RuntimeError):
            # An error is an answer, too.
            return


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: dict[str, Any]
    is_read_only: bool


def listed_tool(tool: "Tool") -> ListedTool:
    """The words of the protocol in those of the house."""
    hints = tool.annotations
    title = tool.title or (None if hints is None else hints.title)
    return ListedTool(
        name=tool.name,
        description=tool.description or title or tool.name,
        parameters=tool.input_schema,
        is_read_only=hints is not None and hints.read_only_hint is True,
    )
