"""Calls over stateful connections: the process that drives a run waits, the owner of the connection calls.

A call is a row, so that either process may die; messages of the bus only wake the other one. A connection is
owned by a `luxx worker` where one runs, else by the process that needs it first. Not here: the statements
(`rows`), and the connections themselves (`connections`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.mcp.elicitation import CANCELLED, Elicitation, ElicitationAnswer
from luxx.domain.mcp.models import CallState
from luxx.domain.mcp.owners import rows
from luxx.domain.mcp.owners.eliciting import McpElicitations
from luxx.domain.mcp.owners.rows import LOST, AliveProcesses, CallEnd, CallView, NewOwnerCall, OwnerCall
from luxx.domain.mcp.stored import StoredServer, read_server
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.store.engine import Store

POLL_SECONDS = 1.0
"""How often a call looks at its row without a message; a lost owner is noticed within this time."""

CLOSE_SECONDS = 5.0
"""How long a stopping process waits for the calls that it carries out."""

logger = structlog.get_logger()


class ProcessLeases(msgspec.Struct, kw_only=True):
    """What a process knows of the others. `is_worker`, `may_claim_lost`: set when it starts."""

    process: str
    alive: AliveProcesses
    has_workers: Callable[[Connection], bool]
    is_worker: bool = False
    may_claim_lost: Callable[[], bool] = lambda: True

    def may_claim(self, connection: Connection) -> bool:
        """Whether this process takes connections that nobody has."""
        return self.may_claim_lost() and (self.is_worker or not self.has_workers(connection))


Perform = Callable[[OwnerCall, StoredServer | None], Awaitable[CallEnd]]
"""Carries a call out at a server; None: the server was deleted."""


class OpenConnections(Protocol):
    """The open connections of a process."""

    def stateful_keys(self) -> set[str]:
        """The keys of those that only one process may have."""
        ...

    async def close_keys(self, keys: set[str]) -> None: ...


class McpOwners:
    """One per process. `perform` carries a call out over one of the connections of this process."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        leases: ProcessLeases,
        perform: Perform,
        connections: OpenConnections,
        asked: McpElicitations,
    ) -> None:
        self.leases = leases
        self.asked = asked
        self._store = store
        self._bus = bus
        self._perform = perform
        self._connections = connections
        self._waiting: dict[str, asyncio.Event] = {}
        self._ends: dict[str, CallEnd] = {}
        self._taken: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        bus.subscribe(Topic.MCP_CALL, lambda _process, call_id: self._on_call(call_id.decode()))
        bus.subscribe(Topic.MCP_CALL_ENDED, lambda _process, call_id: self._wake(call_id.decode()))
        bus.subscribe(Topic.MCP_CALL_CANCELLED, lambda _process, call_id: self._stop(call_id.decode()))

    async def call(
        self,
        key: str,
        server_id: str | None,
        holder: int | None,
        new: NewOwnerCall,
        *,
        is_resumed: bool,
        is_cancelled: Callable[[], bool],
    ) -> CallEnd:
        """Makes a call and waits for its end. `is_resumed`: an earlier process may have begun it, and then it
        is not made again. If the task is cancelled, so is the call where `is_cancelled` says so; else another
        process goes on to wait for it."""
        process = self.leases.process

        def begin(connection: Connection) -> tuple[str | None, bool]:
            rows.ensure_connection(connection, key, server_id, holder)
            # Outside of runs each call has an id of its own.
            is_begun = new.run_id is not None and rows.await_call(
                connection, new.id, process, is_resumed=is_resumed
            )
            if not is_begun:
                rows.add_call(connection, key, new, process)
            return self._claim(connection, key), is_begun

        event = self._waiting[new.id] = asyncio.Event()
        try:
            owner, is_begun = await self._store.write_rows(begin)
            self._notify_owner(owner, new.id)
            return await self._ended(key, new.id, event, looks_first=is_begun)
        except asyncio.CancelledError:
            if is_cancelled():
                self._run(self._cancel(new.id))
            raise
        finally:
            self._waiting.pop(new.id, None)
            self._ends.pop(new.id, None)

    async def _ended(self, key: str, call_id: str, event: asyncio.Event, *, looks_first: bool) -> CallEnd:
        while True:
            if not looks_first:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await event.wait()
            if (end := self._ends.get(call_id)) is not None:
                return end
            looks_first = False
            event.clear()
            view = await self._store.read_rows(
                lambda connection: rows.see_call(connection, call_id, self.leases.alive)
            )
            if view is None:
                return CallEnd(failed="was changed or deleted; try again")
            if view.status is CallState.ENDED:
                return view.end or LOST
            if view.asked is not None:
                return CallEnd(asked=view.asked)
            await self._go_on(key, call_id, view)

    async def _go_on(self, key: str, call_id: str, view: CallView) -> None:
        """Finds another owner where the last one was lost, and repeats messages that may be lost."""
        owner = view.owner if view.has_owner else None
        if owner is None:
            owner = await self._store.write_rows(lambda connection: self._claim(connection, key))
        if view.status is CallState.WAITING or not view.has_owner:
            self._notify_owner(owner, call_id)

    def _claim(self, connection: Connection, key: str) -> str | None:
        leases = self.leases
        return rows.claim(connection, key, leases.process, leases.alive, leases.may_claim)

    def _notify_owner(self, owner: str | None, call_id: str) -> None:
        """Without an owner all processes get the message, of which a worker takes the connection."""
        if owner == self.leases.process:
            self._on_call(call_id)
        else:
            self._bus.publish(Topic.MCP_CALL, call_id.encode(), to=owner)

    async def _cancel(self, call_id: str) -> None:
        owner = await self._store.write_rows(lambda connection: rows.cancel_call(connection, call_id))
        if owner == self.leases.process:
            self._stop(call_id)
        elif owner is not None:
            self._bus.publish(Topic.MCP_CALL_CANCELLED, call_id.encode(), to=owner)

    # The owner

    def _on_call(self, call_id: str) -> None:
        if call_id in self._taken:
            # A call that is carried out already: there may be an answer to what it asks.
            self.asked.wake(call_id)
        else:
            task = self._taken[call_id] = self._run(self._carry_out(call_id))
            task.add_done_callback(lambda _: self._taken.pop(call_id, None))

    def _stop(self, call_id: str) -> None:
        if (task := self._taken.get(call_id)) is not None:
            task.cancel()

    def _wake(self, call_id: str) -> None:
        if (event := self._waiting.get(call_id)) is not None:
            event.set()

    async def _carry_out(self, call_id: str) -> None:
        try:
            taken = await self._store.write_rows(lambda connection: self._take(connection, call_id))
            if taken is None:
                return
            call, server = taken
            try:
                end = await self._perform(call, server)
            except asyncio.CancelledError:
                end = LOST
                await asyncio.shield(self._run(self._finish(call, end)))
                raise
            await self._finish(call, end)
        except SQLAlchemyError as error:
            # Its row is found again when the database is.
            logger.warning("mcp_call_not_written", call=call_id, error=type(error).__name__)

    def _take(self, connection: Connection, call_id: str) -> tuple[OwnerCall, StoredServer | None] | None:
        """A waiting call, which has begun now, and its server; None: it is not this process's."""
        process = self.leases.process
        call = rows.take(connection, call_id, process)
        if call is None:
            key = rows.connection_of(connection, call_id)
            if key is None or self._claim(connection, key) != process:
                return None
            call = rows.take(connection, call_id, process)
        return None if call is None else (call, read_server(connection, str(call.server_id)))

    async def _finish(self, call: OwnerCall, end: CallEnd) -> None:
        if not await self._store.write_rows(lambda connection: rows.finish(connection, call, end)):
            logger.warning("mcp_call_of_lost_connection", call=call.id)
        elif call.id in self._waiting:
            self._ends[call.id] = end
            self._wake(call.id)
        else:
            self._bus.publish(Topic.MCP_CALL_ENDED, call.id.encode(), to=call.caller)

    async def elicit(self, call: OwnerCall, elicitation: Elicitation) -> ElicitationAnswer:
        """Has the run's user asked, and waits for the answer. Nobody is asked outside of runs."""
        if call.run_id is None:
            return CANCELLED
        asked_id = await self._store.write_rows(
            lambda connection: self.asked.put(connection, call, elicitation)
        )
        answer = None
        if asked_id is not None:
            self._notify_caller(call)
            answer = await self.asked.wait(call, asked_id)
        if answer is None:
            # The run has ended, so nobody wants the result.
            self._stop(call.id)
        return answer or CANCELLED

    def _notify_caller(self, call: OwnerCall) -> None:
        if call.id in self._waiting:
            self._wake(call.id)
        else:
            self._bus.publish(Topic.MCP_CALL_ENDED, call.id.encode(), to=call.caller)

    async def look(self) -> None:
        """Takes over what lost owners had, and finds calls whose messages were lost. Call it regularly where
        there are several processes."""
        leases = self.leases

        def work(connection: Connection) -> rows.OwnerLook:
            may_claim = leases.may_claim(connection)
            return rows.look(connection, leases.process, leases.alive, may_claim=may_claim)

        opened = self._connections.stateful_keys()
        found = await self._store.read_rows(work)
        if lost := opened.difference(found.own):
            logger.warning("mcp_connections_lost", connections=len(lost))
            await self._connections.close_keys(lost)
        if found.lost:
            await self._store.write_rows(
                lambda connection: [self._claim(connection, key) for key in found.lost]
            )
            logger.info("mcp_connections_taken_over", connections=len(found.lost))
        for call_id in found.waiting:
            self._on_call(call_id)
        for call_id in found.cancelled:
            self._stop(call_id)

    async def close(self) -> None:
        """Waits for the calls that are carried out here, for CLOSE_SECONDS; others end as after a loss."""
        if taken := list(self._taken.values()):
            await asyncio.wait(taken, timeout=CLOSE_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def release(self) -> None:
        """Gives up the connections of this process; they are closed."""
        try:
            await self._store.write_rows(lambda connection: rows.release(connection, self.leases.process))
        except SQLAlchemyError as error:
            # The lease expires soon.
            logger.warning("mcp_connections_not_released", error=type(error).__name__)

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
