"""The calls of the MCP servers that people added: by this process, or by the owner of the connection.

Not here: who owns a connection (`service`), and questions to the user (`asking`).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.mcp.call import McpCall
from luxx.domain.mcp.connections import Key, McpConnections, ServerPlaces
from luxx.domain.mcp.elicitation import AskedOfUser, Continued
from luxx.domain.mcp.models import ServerStatus, connection_key
from luxx.domain.mcp.owners.eliciting import McpElicitations, PausedCall, decode_asked, read_paused
from luxx.domain.mcp.owners.rows import (
    CallEnd,
    NewOwnerCall,
    OwnerCall,
    as_json,
    call_key,
    delete_call,
    owner_of,
)
from luxx.domain.mcp.owners.service import McpOwners, ProcessLeases
from luxx.domain.mcp.results import unknown_outcome
from luxx.domain.mcp.sdk import AnsweredWithError
from luxx.domain.mcp.sign_in import NeedsSignIn, RefusedStranger
from luxx.domain.mcp.stored import StoredServer, is_stateful, read_server
from luxx.errors import LuxxError, ToolFailed
from luxx.infra.bus.core import Bus
from luxx.infra.clock import new_id
from luxx.infra.store.engine import Store
from luxx.tools.core import CommandPermission, ToolCaller, ToolContext
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepFile

LOST_OWNER = "lost the process that had its connection"
LOST_CALLER = "has been called by a process that ended before the answer"

Note = Callable[[Key, ServerStatus, str], Awaitable[None]]

logger = structlog.get_logger()


class McpCalls:
    """One per process. `note` stores what a server does."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        places: ServerPlaces,
        connections: McpConnections,
        leases: ProcessLeases,
        note: Note,
    ) -> None:
        self.asked = McpElicitations(store, places.vault)
        self.owners = McpOwners(store, bus, leases, self._perform, connections, self.asked)
        self._store = store
        self._places = places
        self._connections = connections
        self._note = note

    def owner_of(self, connection: Connection, server: StoredServer, user_id: int) -> str | None:
        """The process that has the connection that this user's calls use, if one has it for all."""
        key = connection_key(server.id, server.holder(user_id))
        return owner_of(connection, key, self.owners.leases.alive)

    async def refresh(self, server: StoredServer, user_id: int) -> None:
        """Lists the tools anew. The result is in the manifest. Raises LuxxError if no process could try."""
        key = (server.id, server.holder(user_id))
        if await self._store.read_rows(lambda connection: is_stateful(connection, server, user_id)):
            await self._routed(server, key, _listing(user_id))
        else:
            await self._refresh_here(server, key)

    async def _refresh_here(self, server: StoredServer, key: Key) -> None:
        try:
            await (await self._connections.server(server, key)).refresh()
        except (NeedsSignIn, RefusedStranger) as error:
            await self._note(key, ServerStatus.NEEDS_SIGN_IN, error.message)
        except LuxxError as error:
            await self._note(key, ServerStatus.FAILED, error.message)

    async def call(self, server: StoredServer, call: McpCall) -> ToolResult:
        """A call by a definition that may be old: the server may have been changed or deleted since."""
        user_id = call.context.caller.user_id
        row_id = _row_id(call.context)

        def read(connection: Connection) -> tuple[StoredServer | None, bool, PausedCall | None]:
            found = read_server(connection, server.id)
            is_routed = found is not None and is_stateful(connection, found, user_id)
            may_wait = not is_routed and call.context.caller.run_id is not None
            return found, is_routed, read_paused(connection, row_id) if may_wait else None

        current, is_routed, paused = await self._store.read_rows(read)
        if current is None or not current.enabled:
            raise ToolFailed(f"the MCP server {server.name} was {'disabled' if current else 'deleted'}")
        key = (current.id, current.holder(user_id))
        if is_routed:
            return await self._call_owner(current, key, call)
        is_begun = call.context.is_resumed if paused is None else paused.is_sent
        if is_begun and not call.is_read_only:
            return unknown_outcome(server.name, LOST_CALLER)
        if call.context.caller.run_id is None:
            return await self._call_here(current, key, call)
        return await self._call_in_run(current, key, call, self._new(row_id, call), paused)

    async def _call_in_run(
        self, server: StoredServer, key: Key, call: McpCall, new: NewOwnerCall, paused: PausedCall | None
    ) -> ToolResult:
        """A call whose server may ask the user something before it is made again."""

        has_row = paused is not None

        async def ask_all(asked: AskedOfUser) -> Continued:
            nonlocal has_row
            has_row = True
            return await answers(await self.asked.pause(new, asked, self.owners.leases.process))

        async def answers(asked: AskedOfUser) -> Continued:
            continued = await self.asked.answer(server.name, new.id, asked, call.context)
            await self.asked.send(new.id)
            return continued

        continued = await answers(paused.asked) if paused is not None and not paused.is_sent else None
        try:
            result = await self._call_here(server, key, replace(call, ask_all=ask_all, continued=continued))
        except LuxxError:
            # The same call may be made again.
            if has_row:
                await self._forget(new.id)
            raise
        if has_row:
            await self._forget(new.id)
        return result

    async def _forget(self, row_id: str) -> None:
        await self._store.write_rows(lambda connection: delete_call(connection, row_id))

    def _new(self, row_id: str, call: McpCall) -> NewOwnerCall:
        workspace = call.context.permissions.workspace
        return NewOwnerCall(
            id=row_id,
            run_id=call.context.caller.run_id,
            user_id=call.context.caller.user_id,
            tool=call.tool,
            arguments=as_json(call.arguments),
            is_read_only=call.is_read_only,
            mirrors_arguments=call.mirrors_arguments,
            workspace=None if workspace is None else str(workspace),
        )

    async def _call_owner(self, server: StoredServer, key: Key, call: McpCall) -> ToolResult:
        context, new = call.context, self._new(_row_id(call.context), call)
        while (end := await self._routed(server, key, new, context)).asked:
            await self.asked.answer(server.name, new.id, decode_asked(end.asked), context)
        context.metadata.files.extend(end.files)
        if end.is_lost or end.result is None:
            return unknown_outcome(server.name, LOST_OWNER)
        return end.result

    async def _routed(
        self, server: StoredServer, key: Key, new: NewOwnerCall, context: ToolContext | None = None
    ) -> CallEnd:
        """The end of a call by the owner of the connection. Raises ToolFailed and NeedsSignIn."""
        end = await self.owners.call(
            connection_key(*key),
            server.id,
            key[1],
            new,
            is_resumed=context is not None and context.is_resumed,
            is_cancelled=lambda: context is None or new.run_id is None or context.actions.cancelled(),
        )
        if end.needs_sign_in or end.failed:
            # The same call may be made again.
            await self._forget(new.id)
            raise NeedsSignIn(server.id, server.name) if end.needs_sign_in else ToolFailed(end.failed)
        return end

    async def _perform(self, call: OwnerCall, server: StoredServer | None) -> CallEnd:
        """Carries out a call over a connection of this process."""
        if server is None or not server.enabled:
            return CallEnd(failed=f"the MCP server was {'disabled' if server else 'deleted'}")
        key, files = (server.id, call.holder), list[StepFile]()
        if not call.tool:
            await self._refresh_here(server, key)
            return CallEnd()

        async def keep_images(images: Sequence[bytes]) -> list[StepFile | str]:
            workspace = None if call.workspace is None else Path(call.workspace)
            stored = await self._places.store_images(call.user_id, workspace, images)
            files.extend(one for one in stored if isinstance(one, StepFile))
            return stored

        caller = ToolCaller(user_id=call.user_id, username="", permission_level=CommandPermission.READ_ONLY)
        own = McpCall(
            tool=call.tool,
            arguments=msgspec.json.decode(call.arguments),
            is_read_only=call.is_read_only,
            context=ToolContext(caller=caller),
            keep_images=keep_images,
            mirrors_arguments=call.mirrors_arguments,
            elicit=partial(self.owners.elicit, call),
        )
        try:
            return CallEnd(result=await self._call_here(server, key, own), files=files)
        except NeedsSignIn:
            return CallEnd(needs_sign_in=True)
        except LuxxError as error:
            return CallEnd(failed=error.message)
        except Exception as error:
            logger.error("mcp_call_failed", server=server.name, error=repr(error))
            return CallEnd(is_lost=True)

    async def _call_here(self, server: StoredServer, key: Key, call: McpCall) -> ToolResult:
        try:
            result = await (await self._connections.server(server, key)).call(call)
        except NeedsSignIn as error:
            await self._note(key, ServerStatus.NEEDS_SIGN_IN, error.message)
            raise
        except AnsweredWithError:
            raise
        except LuxxError as error:
            status = ServerStatus.NEEDS_SIGN_IN if isinstance(error, RefusedStranger) else ServerStatus.FAILED
            await self._note(key, status, error.message.removeprefix(f"the MCP server {server.name} "))
            raise
        await self._note(key, ServerStatus.READY, "")
        return result


def _row_id(context: ToolContext) -> str:
    """The id of the row of a call: that of a run is found again."""
    run_id = context.caller.run_id
    return new_id() if run_id is None else call_key(run_id, context.metadata.call_id)


def _listing(user_id: int) -> NewOwnerCall:
    """The call that lists the tools anew."""
    return NewOwnerCall(
        id=new_id(),
        run_id=None,
        user_id=user_id,
        tool="",
        arguments="{}",
        is_read_only=True,
        mirrors_arguments=False,
        workspace=None,
    )
