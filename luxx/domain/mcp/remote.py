"""A remote MCP server as one user, or all, use it: keeps a session open, and opens a new one after its loss.

Not here: its tools (`offering`), HTTP (`http`), which servers there are (`stored`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

import structlog
from msgspec.structs import replace

from luxx.domain.mcp.call import McpCall, call_until_answered, pages_required
from luxx.domain.mcp.elicitation import (
    ANSWER_SECONDS,
    MOST_ASKED,
    CallInProgress,
    CallsInProgress,
)
from luxx.domain.mcp.link import LOST, UNSENT, Link
from luxx.domain.mcp.models import ServerTransport
from luxx.domain.mcp.results import images_of_answer, result_of_answer, unknown_outcome
from luxx.domain.mcp.sdk import (
    CLOSED,
    SESSION_GONE,
    AnsweredWithError,
    AnswerItems,
    AnswerLost,
    ListedTool,
    Sdk,
    SessionGone,
    listed_tool,
    load_sdk,
)
from luxx.domain.mcp.sign_in import NeedsSignIn
from luxx.errors import ToolFailed
from luxx.wire.tool import ToolResult

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp_types import CallToolResult

OPEN_SESSION = "luxx.domain.mcp.http:open_session"
"""Loaded with the SDK, which is large."""

START_SECONDS = 30.0
CALL_SECONDS = 60.0
END_SECONDS = 5.0
"""How long the end of a session may take, which is announced to its server."""

SPARE_SECONDS = 5.0
STATELESS_REVISION = "2026-07-28"
"""The first revision of the protocol without sessions."""

MOST_PAGES = 50
MOST_LISTED = 256
"""Listing stops after this many tools; further ones are ignored."""

_MOST_SHOWN = 500
_CHANGED = "was changed or deleted; try again"

logger = structlog.get_logger()


class RemoteServer:
    """`on_tools` is called with the server's list of tools, each time that it is read."""

    def __init__(
        self,
        name: str,
        link: Link,
        on_tools: Callable[[Sequence[ListedTool]], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.link = link
        self.used_at = clock()
        self._on_tools = on_tools
        self._clock = clock
        self._connection: RemoteConnection | None = None
        self._opening: asyncio.Task[RemoteConnection] | None = None
        self._calls = 0
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        return self._calls > 0 or self._opening is not None

    @property
    def is_stateful(self) -> bool:
        """Whether its server keeps a session: over HTTP those of the older revisions do."""
        if self.link.transport is not ServerTransport.HTTP:
            return True
        return self._connection is not None and self._connection.revision < STATELESS_REVISION

    async def call(self, call: McpCall) -> ToolResult:
        """Calls a tool. A call that has no answer is repeated once if that does no harm.

        Raises ToolFailed.
        """
        self._begin()
        try:
            return await self._call(call)
        except ToolFailed as failure:
            error = self.link.sign_in or failure
            if isinstance(error, NeedsSignIn):
                raise error from failure
            problem = self.link.secrets.hidden(error.message)
            raise type(error)(f"the MCP server {self.name} {problem}") from error
        finally:
            self._calls -= 1
            self.used_at = self._clock()

    def _begin(self) -> None:
        """Any request of a session may say that a sign-in is needed; it holds while something waits."""
        if self._calls == 0:
            self.link.sign_in = None
        self._calls += 1

    async def _call(self, call: McpCall) -> ToolResult:
        for may_repeat in (True, False):
            connection = await self.connected()
            try:
                answer = await connection.call(call, CALL_SECONDS)
            except SessionGone:
                await self._drop(connection)
                if may_repeat:
                    continue
                raise ToolFailed("has ended the session twice") from None
            except AnswerLost as error:
                if not connection.is_alive:
                    await self._drop(connection)
                if may_repeat and call.is_read_only:
                    continue
                return self._unknown(str(error))
            except TimeoutError:
                return self._unknown(f"did not answer within {CALL_SECONDS:g} seconds")
            return await self._result(call, answer)
        raise AssertionError("unreachable")

    def _unknown(self, why: str) -> ToolResult:
        return unknown_outcome(self.name, self.link.secrets.hidden(why))

    async def _result(self, call: McpCall, answer: "CallToolResult") -> ToolResult:
        images = await asyncio.to_thread(images_of_answer, answer)
        result = result_of_answer(answer, await call.keep_images(images) if images else ())
        if result.success:
            return result
        hidden = self.link.secrets.hidden_in
        return replace(result, data=hidden(result.data), error=hidden(result.error))

    async def refresh(self) -> None:
        """Reads the list of tools. Raises NeedsSignIn; ToolFailed with a predicate that follows the name."""
        self._begin()
        try:
            await self._refresh()
        except ToolFailed as error:
            raise self.link.sign_in or error from error
        finally:
            self._calls -= 1

    async def _refresh(self) -> None:
        for may_repeat in (True, False):
            connection = await self.connected()
            try:
                tools = await connection.list_tools(START_SECONDS)
            except (SessionGone, AnswerLost) as error:
                await self._drop(connection)
                if not may_repeat:
                    raise ToolFailed(str(error)) from error
            except TimeoutError:
                raise ToolFailed(f"did not list its tools within {START_SECONDS:g} seconds") from None
            else:
                await self._on_tools(tools)
                return

    async def connected(self) -> "RemoteConnection":
        """The open session, or a new one. Raises ToolFailed with a predicate that follows the name."""
        self.used_at = self._clock()
        if self._connection is not None and self._connection.is_alive:
            return self._connection
        if self._is_closed:
            raise ToolFailed(_CHANGED)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._on_opened)
        try:
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_closed or task is None or task.cancelling():
                raise
            raise ToolFailed(_CHANGED) from None

    async def _open(self) -> "RemoteConnection":
        sdk = await asyncio.to_thread(load_sdk)
        open_session = await asyncio.to_thread(resolve_name, OPEN_SESSION)
        items = AnswerItems(sdk)
        calls = CallsInProgress(sdk.types, self.link.hidden)
        # A server that has asked a person is silent until the answer.
        session = open_session(self.link, items, ANSWER_SECONDS + CALL_SECONDS + SPARE_SECONDS, calls.answer)
        connection = RemoteConnection(session, self.link, sdk, items, calls)
        try:
            await connection.open(START_SECONDS)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        logger.info("mcp_server_connected", server=self.name, revision=connection.revision)
        return connection

    def _on_opened(self, task: "asyncio.Task[RemoteConnection]") -> None:
        self._opening = None
        if not task.cancelled():
            # Marks the exception as retrieved: the caller may be gone.
            task.exception()

    async def close(self) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _drop(self, connection: "RemoteConnection") -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()


class RemoteConnection:
    """An open session. Await `open` first; any task may use `call` and `list_tools`."""

    def __init__(
        self,
        session: AbstractAsyncContextManager["ClientSession"],
        link: Link,
        sdk: Sdk,
        items: AnswerItems,
        calls: CallsInProgress,
    ) -> None:
        self._calls = calls
        self._opened = session
        self._link = link
        self._sdk = sdk
        self._items = items
        self._session: ClientSession | None = None
        self._is_listed = False
        self._ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def is_alive(self) -> bool:
        return not (self._closing.is_set() or self._task.done())

    @property
    def revision(self) -> str:
        """The revision of the protocol."""
        return "" if self._session is None else self._session.protocol_version or ""

    async def open(self, seconds: float) -> None:
        """Waits for the session. Raises ToolFailed with a predicate that follows the server's name."""
        try:
            async with asyncio.timeout(seconds):
                self._session = await asyncio.shield(self._ready)
        except TimeoutError:
            raise ToolFailed(f"did not answer within {seconds:g} seconds") from None

    async def list_tools(self, seconds: float) -> list[ListedTool]:
        """Its tools, at most MOST_LISTED. Raises what `call` raises."""
        types, cursor = self._sdk.types, None
        tools: list[Any] = []
        self._items.clear()
        cursors: set[str | None] = set()
        async with asyncio.timeout(seconds):
            while cursor not in cursors and len(cursors) < MOST_PAGES and len(tools) <= MOST_LISTED:
                cursors.add(cursor)
                params = types.PaginatedRequestParams(cursor=cursor)
                page = await self._ask(lambda session, params=params: session.list_tools(params=params))
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        kept = {tool.name for tool in tools}
        for name in self._items.names:
            if name not in kept:
                # The protocol has clients leave out such tools; the SDK does.
                self._items.add_wrong(name, "x-mcp-header: no valid name of a header")
        self._is_listed = True
        return [*map(listed_tool, tools[:MOST_LISTED]), *self._items.wrong_tools[:MOST_LISTED]]

    async def call(self, call: McpCall, seconds: float) -> "CallToolResult":
        """Calls a tool; cancellation reaches the server.

        Raises ToolFailed with a predicate that follows the name, SessionGone, AnswerLost, TimeoutError, and
        what `ask_all` raises.
        """
        in_progress = None
        try:
            async with asyncio.timeout(seconds) as limit:
                with self._calls.during(call.elicit, limit) as in_progress:
                    return await self._call(call, in_progress, seconds)
        except TimeoutError:
            if in_progress is not None and in_progress.asks_too_often:
                raise AnswerLost(f"asks more than {MOST_ASKED} times before it answers") from None
            raise

    async def _call(self, call: McpCall, in_progress: CallInProgress, seconds: float) -> "CallToolResult":
        types = self._sdk.types
        if call.mirrors_arguments and not self._is_listed:
            # The SDK sends arguments as headers, too, where the list of tools says so.
            await self.list_tools(seconds)

        async def send(more: dict[str, Any]) -> Any:
            params = types.CallToolRequestParams(name=call.tool, arguments=call.arguments, **more)
            request = types.CallToolRequest(params=params)
            return await self._ask(lambda session: session.send_request(request, self._sdk.answer))

        hidden = self._link.hidden
        return await call_until_answered(types, in_progress, send, hidden, call.ask_all, call.continued)

    async def close(self) -> None:
        """Ends the session, within END_SECONDS."""
        self._closing.set()
        _, late = await asyncio.wait({self._task}, timeout=END_SECONDS)
        for task in late:
            task.cancel()
            await asyncio.wait({task}, timeout=END_SECONDS)

    async def _ask(self, ask: Callable[["ClientSession"], Awaitable[Any]]) -> Any:
        if self._session is None or not self.is_alive:
            raise AnswerLost("has closed the connection")
        try:
            return await ask(self._session)
        except self._sdk.error as error:
            raise self._failure(error) from error
        except (ValueError, RuntimeError) as error:
            # pydantic's ValidationError is a ValueError.
            raise AnswerLost("answered with a message that does not follow the protocol") from error

    def _failure(self, error: Any) -> Exception:
        text: str = error.message
        if text == SESSION_GONE:
            return SessionGone("has ended the session")
        if error.data == UNSENT:
            return ToolFailed(text)
        if error.data == LOST:
            return AnswerLost(text)
        if error.code == CLOSED and not isinstance(error.data, dict):
            problem = self._link.problem
            return AnswerLost("closed the connection" if problem is None else problem.message)
        if (required := pages_required(self._sdk.types, error, self._link.hidden)) is not None:
            return required
        return AnsweredWithError(f"answered with an error: {self._link.secrets.cut(text, _MOST_SHOWN)}")

    async def _run(self) -> None:
        """Holds the session open; it has to be closed by the task that opened it."""
        try:
            async with self._opened as session:
                self._ready.set_result(session)
                await self._closing.wait()
        except (Exception, BaseExceptionGroup) as error:
            if not self._ready.done():
                self._ready.set_exception(ToolFailed(self._reason(error)))
            else:
                logger.info("mcp_session_ended", reason=type(error).__name__)
        finally:
            if not self._ready.done():
                self._ready.set_exception(ToolFailed("ended the connection before the MCP handshake"))
            if self._session is None:
                # Marks the exception as retrieved: no task may wait for it.
                self._ready.exception()

    def _reason(self, error: BaseException) -> str:
        """Why there is no session, as a predicate that follows the server's name."""
        if self._link.problem is not None:
            return self._link.problem.message
        cause: Any = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cast(Any, cause).exceptions[0]
        # The SDK's parser has a line for each kind of message that it tried.
        said = str(cause).partition(" validation error")[0].rstrip("0123456789: ")
        return f"failed the MCP handshake: {self._link.secrets.cut(said, _MOST_SHOWN)}"
