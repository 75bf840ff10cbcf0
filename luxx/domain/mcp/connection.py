"""One process of an MCP server, with a session of the official SDK on its pipes.

A connection is not reused after its end. Not here: when a process is started and how often (`server`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import anyio

from luxx import __version__
from luxx.domain.mcp.call import call_until_answered, pages_required
from luxx.domain.mcp.elicitation import MOST_ASKED, CallsInProgress, Elicit
from luxx.domain.mcp.inbox import MIB, MOST_PARTS, Inbox, McpMessage, ProtocolAbuse, Secrets, parts
from luxx.domain.mcp.results import last_lines, reason_of_end, reason_of_silence
from luxx.domain.mcp.sdk import AnsweredWithError, AnswerItems, AnswerLost, ListedTool, Sdk, listed_tool
from luxx.errors import ToolFailed
from luxx.infra.clock import utc_now
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ExceededLimit
from luxx.tools.sandbox.resident import KEPT_STDERR_BYTES, Resident

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

MOST_PAGES = 50
MOST_LISTED_BYTES = MIB
MOST_LISTED = 256
"""Listing stops after this many bytes or tools; further tools are ignored."""

THREAD_BYTES = 64 * 1024
"""Longer messages are parsed in a thread."""

_OUTGOING_MESSAGES = 256
"""How many messages may wait for a server to read them."""

_END_SECONDS = 2.0
"""How long a process may run on after it has closed its output."""

_PING_SECONDS = 10.0
_LOST = "luxx-lost"
"""In `data` of an error that stands for an answer that cannot be read."""

_UNREADABLE = {"code": -32700, "message": "the answer cannot be read", "data": _LOST}
_TOO_MANY_PARTS = {
    "code": -32700,
    "message": f"the answer has more than {MOST_PARTS:,} parts",
    "data": _LOST,
}


class McpConnection:
    """Await `open` first; any task may use `call` and `list_tools`. `on_change`: called when the server
    announces that its list of tools has changed. `elicits`: whether the server may ask users during calls."""

    def __init__(
        self,
        resident: Resident,
        command: Sequence[str],
        sdk: Sdk,
        limits: ProgramLimits,
        secrets: Secrets,
        on_change: Callable[[], Awaitable[None]],
        *,
        elicits: bool = False,
    ) -> None:
        self._calls = CallsInProgress(sdk.types, secrets.hidden)
        self._elicits = elicits
        self._resident = resident
        self._command = command
        self._sdk = sdk
        self._limits = limits
        self._secrets = secrets
        self._on_change = on_change
        self._inbox = Inbox(time.monotonic)
        self._incoming_writer, self._incoming_reader = anyio.create_memory_object_stream[Any](0)
        self._outgoing_writer, self._outgoing_reader = anyio.create_memory_object_stream[Any](
            _OUTGOING_MESSAGES
        )
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self.ended_at: datetime | None = None
        self._why: str | None = None
        self._exceeded_limit: ExceededLimit | None = None
        self._session: Any = None
        self._items = AnswerItems(sdk)
        self._ping: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def is_alive(self) -> bool:
        return not (self._closing.is_set() or self._ended.is_set() or self._task.done())

    @property
    def why(self) -> str:
        """Why it has ended, as a predicate that follows the server's name."""
        return self._why or "has ended"

    @property
    def exceeded_limits(self) -> bool:
        """Whether it was ended for a limit other than processor time, which ordinary use exhausts."""
        return self._exceeded_limit not in (None, ExceededLimit.CPU)

    @property
    def output(self) -> str:
        """The last lines that it printed on stderr, without secrets."""
        return last_lines(self._stderr)

    @property
    def _stderr(self) -> str:
        tail = self._resident.stderr_tail
        # A longer output is cut at its beginning, perhaps within a secret.
        whole_lines = tail.partition(b"\n")[2] if len(tail) >= KEPT_STDERR_BYTES else tail
        return self._secrets.hidden(whole_lines.decode("utf-8", "replace"))

    async def open(self, seconds: float) -> None:
        """Waits until the MCP handshake is done. Raises ToolFailed with a predicate that follows the name."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise ToolFailed(reason_of_silence(seconds, self._stderr, self._limits, self._command)) from None

    async def list_tools(self, seconds: float) -> "list[ListedTool]":
        """Its tools, at most MOST_LISTED. Raises ToolFailed with a predicate that follows the name."""
        try:
            return await self._list_tools(seconds)
        except AnswerLost as error:
            raise ToolFailed(str(error)) from error

    async def _list_tools(self, seconds: float) -> "list[ListedTool]":
        types, cursor, bytes_before = self._sdk.types, None, self._inbox.listed_bytes
        tools: list[Tool] = []
        self._items.clear()
        try:
            async with asyncio.timeout(seconds):
                for _ in range(MOST_PAGES):
                    params = types.PaginatedRequestParams(cursor=cursor)
                    page = await self._ask(types.ListToolsRequest(params=params), types.ListToolsResult)
                    tools += page.tools
                    cursor = page.next_cursor
                    is_enough = self._inbox.listed_bytes - bytes_before > MOST_LISTED_BYTES
                    if cursor is None or is_enough or len(tools) > MOST_LISTED:
                        break
        except TimeoutError:
            raise ToolFailed(f"did not list its tools within {seconds:g} seconds") from None
        return [*map(listed_tool, tools[:MOST_LISTED]), *self._items.wrong_tools[:MOST_LISTED]]

    async def call(
        self, tool: str, arguments: dict[str, Any], seconds: float, elicit: Elicit | None = None
    ) -> "CallToolResult":
        """Call a tool; cancellation notifies the server. Raises ToolFailed and AnswerLost with a predicate
        that follows the server's name."""
        types = self._sdk.types
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        in_progress = None
        try:
            async with asyncio.timeout(seconds) as limit:
                with self._calls.during(elicit, limit) as in_progress:
                    return await call_until_answered(
                        types,
                        in_progress,
                        lambda _: self._ask(request, types.CallToolResult),
                        self._secrets.hidden,
                    )
        except TimeoutError:
            self._start_ping()
            if in_progress is not None and in_progress.asks_too_often:
                raise AnswerLost(f"asks more than {MOST_ASKED} times before it answers") from None
            raise AnswerLost(f"did not answer within {seconds:g} seconds") from None

    async def close(self, why: str | None = None) -> None:
        """End the process with all it started; pending calls fail with `why`."""
        self._why = self._why or why
        self._closing.set()
        await asyncio.wait({self._task})

    async def _ask(self, request: Any, kind: Any) -> Any:
        """Sends a request without the session's methods, which validate answers by the server's schemas."""
        try:
            return await self._session.send_request(request, kind)
        except self._sdk.error as error:
            if self._ended.is_set():
                raise AnswerLost(self.why) from error
            if (required := pages_required(self._sdk.types, error, self._secrets.hidden)) is not None:
                raise required from error
            problem = f"answered with an error: {self._secrets.cut(str(error), 1000)}"
            kind = AnswerLost if cast(Any, error).data == _LOST else AnsweredWithError
            raise kind(problem) from error
        except (ValueError, RuntimeError) as error:
            # pydantic's ValidationError is a ValueError.
            problem = "answered with a message that does not follow the protocol"
            raise AnswerLost(self.why if self._ended.is_set() else problem) from error

    async def _run(self) -> None:
        """Runs reader, writer and session; when one of them ends, all end."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._read_messages(), self._write_messages(), self._run_session())
        ]
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({tasks[0], tasks[2], closing}, return_when=asyncio.FIRST_COMPLETED)
            if self._why is None and not self._closing.is_set():
                self._why = await self._end_reason()
        finally:
            self.ended_at = utc_now()
            self._ended.set()
            for task in (*tasks, closing, *([self._ping] if self._ping else [])):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (
                self._incoming_writer,
                self._incoming_reader,
                self._outgoing_writer,
                self._outgoing_reader,
            ):
                stream.close()
            if not self._ready.done():
                self._ready.set_exception(ToolFailed(self.why))
                # Marks the exception as retrieved: no task may wait for it.
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
        parsed = await asyncio.to_thread(self._parse, message) if is_long else self._parse(message)
        if parsed is not None:
            await self._incoming_writer.send(self._sdk.message(parsed))

    def _parse(self, message: McpMessage) -> Any:
        """The message as an SDK type; an error if it is an unreadable answer, None if it is another one."""
        adapter = self._sdk.types.jsonrpc_message_adapter
        problem = _UNREADABLE
        try:
            if message.answers is None or parts(message.text) <= MOST_PARTS:
                return self._items.without_wrong_items(adapter.validate_json(message.text, by_name=False))
            problem = _TOO_MANY_PARTS
        except ValueError:
            if message.answers is None:
                return None
        failure = {"jsonrpc": "2.0", "id": message.answers, "error": problem}
        return adapter.validate_python(failure, by_name=False)

    async def _write_messages(self) -> None:
        async for session_message in self._outgoing_reader:
            message = session_message.message
            self._track(message)
            text = message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await self._resident.write(text.encode("utf-8", "replace") + b"\n")
            except OSError:
                return

    def _track(self, message: Any) -> None:
        """Tells the inbox to expect an answer to this request, or none any more to a cancelled one."""
        method, number = getattr(message, "method", None), getattr(message, "id", None)
        if method == "notifications/cancelled":
            self._inbox.forget(cast("dict[str, Any]", message.params or {}).get("requestId"))
        elif method is not None and type(number) is int:
            self._inbox.expect_answer(number, method)

    async def _run_session(self) -> None:
        info = self._sdk.types.Implementation(name="luxx", version=__version__)
        async with self._sdk.session(
            self._incoming_reader,
            self._outgoing_writer,
            client_info=info,
            elicitation_callback=self._calls.answer if self._elicits else None,
        ) as session:
            self._session = session
            try:
                await session.initialize()
            except (self._sdk.error, ValueError, RuntimeError) as error:
                self._why = f"failed the MCP handshake: {self._secrets.cut(str(error), 300)}"
                return
            if not self._ready.done():
                self._ready.set_result(None)
            await self._closing.wait()

    async def _end_reason(self) -> str:
        try:
            async with asyncio.timeout(_END_SECONDS):
                result = await self._resident.ended()
        except TimeoutError:
            return "was ended: it closed its output"
        except ToolFailed as error:
            return f"could not be started: {error.message}"
        if result.exit_code == 0 and result.exceeded_limit is None:
            return "has ended by itself"
        self._exceeded_limit = result.exceeded_limit
        return f"has ended: {reason_of_end(result, self._stderr, self._limits, self._command)}"

    def _start_ping(self) -> None:
        """Finds out whether only one call takes long: a server that answers no ping either is ended."""
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
            # An error also shows that the server answers.
            return
