"""Delegation, for the drive of a run: its calls of `delegate` get runs of their own, and wait for their ends.

Only the drive's own task writes its log. So a call that wants something said there puts an order, and rings;
the drive carries it out between the ends of its tools. The event that names the subagent's run and the row of
that run are one transaction under the fence: whoever takes the run up finds it by the call, and waits on.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files

from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.errors import ToolFailed
from luxx.infra.clock import new_id
from luxx.infra.store.engine import Store
from luxx.runs.engine.processes import Engine
from luxx.runs.log.events import Entry
from luxx.runs.subagents import (
    cancel_subagent,
    cancel_subagents,
    count_below,
    end_of,
    insert_run,
    new_run,
    status_of,
)
from luxx.runs.turn.spec import ChatBrief, ChatRequest, beginning
from luxx.runs.turn.state import ChatLog, ChatState
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.tools.core import ToolContext
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.tools.history import Executed
from luxx.wire.delegation import Assignment, Delegated, SubagentEnd
from luxx.wire.event import SubagentAssigned
from luxx.wire.rule import Narrowing
from luxx.wire.run import ENDED, Run, RunStatus
from luxx.wire.step import Step

MOST_AT_ONCE = 4
"""Subagents of one run that work at the same time; others of the same answer wait for them."""

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.1, 1.0
"""How soon a subagent is looked at again that is not driven here: the sooner, the shorter it has been."""

LAST_LOOK_AT_WAITING_SECONDS = 10.0
"""The same of one that waits for a person, which may take days; if it goes on here, that is known at once."""

STOP_SECONDS = 0.35
"""How long a run that ends waits for its subagents to: its own end is promised within half a second."""

TASK_CHARACTERS = 500
"""Of a task, in the event; the whole of it is in the call's arguments."""

SYSTEM_PROMPT = files("luxx.runs.turn").joinpath("subagent.md").read_text("utf-8").strip()


class Order:
    """Something to be written into the log; `done` once it is."""

    def __init__(self, event: SubagentAssigned, request: ChatRequest | None = None) -> None:
        self.event = event
        self.request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def refuse(self, words: str) -> None:
        """Raises ToolFailed in the call that ordered it."""
        if not self.done.done():
            self.done.set_exception(ToolFailed(words))


class Delegator:
    """For one drive. `depth` is how deep may be delegated at all, `most` how many subagents the first run may
    have below it (0: any number), `share` how many calls of tools one more subagent may make."""

    def __init__(
        self,
        brief: ChatBrief,
        log: ChatLog,
        store: Store,
        engine: Engine,
        *,
        depth: int,
        most: int,
        share: Callable[[ChatState], int | None],
    ) -> None:
        self._brief = brief
        self._log = log
        self._store = store
        self._engine = engine
        self._depth = depth
        self._most = most
        self._share = share
        self._gate = asyncio.Semaphore(MOST_AT_ONCE)
        self._orders: list[Order] = []
        self._ends: dict[str, SubagentEnd] = {}
        self._asked: set[str] = set()
        self.bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done where there are orders."""

    def told(self, call: Step, context: ToolContext) -> ToolContext:
        """The context for one call, with the way to delegate."""
        return replace(context, delegate=partial(self._delegate, call, context))

    async def carry_out(self) -> None:
        """Writes what was ordered, and has new subagents driven. Raises LostRun."""
        self.bell = asyncio.get_running_loop().create_future()
        orders, self._orders = self._orders, []
        for order in orders:
            if order.request is None:
                await self._log.append([order.event])
            elif await self._is_full():
                order.refuse(
                    f"this run has had {self._most} subagents, as many as this server allows; do it yourself"
                )
            else:
                await self._begin(order, order.request)
            if not order.done.done():
                order.done.set_result(None)

    def marked(self, executed: Executed) -> Executed:
        """What strangers wrote for the subagent may be in its answer."""
        end = self._ends.get(executed.call_id)
        return replace(executed, is_untrusted=True) if end is not None and end.is_tainted else executed

    def ended(self, results: list[Executed]) -> list[Entry]:
        """What is to be logged of subagents with these results."""
        found = [(one.call_id, self._ends[one.call_id]) for one in results if one.call_id in self._ends]
        entries: list[Entry] = []
        for call_id, end in found:
            known = self._known(call_id)
            if known is not None:
                entries.append(replace(known, status=RunStatus(end.status), tool_calls=end.tool_calls))
        return entries

    def free_of_skills(self, call: Step, context: ToolContext) -> ToolContext:
        """For a call that has its subagent already: a skill of the same answer came after it."""
        is_begun = self._known(str(call.id_ref)) is not None
        return replace(context, narrowed=beginning(self._brief).narrowed) if is_begun else context

    async def settle(self, executed: Executed) -> None:
        """Ends the subagent of a call that ended without it, because the call is not allowed any more."""
        known = self._known(executed.call_id)
        if known is None or known.status in ENDED or executed.call_id in self._ends:
            return
        run_id = known.subagent_run_id
        await self._store.write_rows(lambda connection: cancel_subagent(connection, run_id))
        await self._engine.cancel(run_id)
        await self._engine.wait(run_id, STOP_SECONDS)
        end = await self._store.read_rows(lambda connection: end_of(connection, run_id))
        if end is not None:
            status = end.status if RunStatus(end.status) in ENDED else RunStatus.CANCELLED.value
            self._ends[executed.call_id] = replace(end, status=status)

    async def stop(self) -> None:
        """Ends the subagents that have not ended, for the run ends; they are given a moment."""
        if all(one.status in ENDED for one in self._log.state.subagents):
            return
        run_id = self._brief.run_id
        found = await self._store.write_rows(lambda connection: cancel_subagents(connection, run_id))
        for subagent in found:
            await self._engine.cancel(subagent)
        if found:
            waits = [asyncio.create_task(self._engine.wait(one, STOP_SECONDS)) for one in found]
            await asyncio.wait(waits, timeout=STOP_SECONDS)

    async def _delegate(self, call: Step, context: ToolContext, wanted: Assignment) -> SubagentEnd:
        call_id = str(call.id_ref)
        before = self._known(call_id)
        if call_id in self._asked or (before and before.task != wanted.task[:TASK_CHARACTERS]):
            # A tool that makes calls of others may try, in one drive or over several.
            raise ToolFailed("one call can delegate once only; make a call for each subagent")
        self._asked.add(call_id)
        async with self._gate:
            known = self._known(call_id)
            if known is None:
                request = self._request(call_id, context, wanted)
                known = SubagentAssigned(
                    subagent_run_id=new_id(),
                    call_id=call_id,
                    task=wanted.task[:TASK_CHARACTERS],
                    status=RunStatus.RUNNING,
                )
                await self._order(Order(known, request))
            end = await self._end_of(known)
        self._ends[call_id] = end
        return _answered(end)

    def _known(self, call_id: str) -> SubagentAssigned | None:
        return next((one for one in self._log.state.subagents if one.call_id == call_id), None)

    def _request(self, call_id: str, context: ToolContext, wanted: Assignment) -> ChatRequest:
        """What the subagent's run is asked. Raises ToolFailed for more than the run itself has."""
        asked = self._brief.request
        depth = 1 if asked.delegated is None else asked.delegated.depth + 1
        if depth > self._depth:
            raise ToolFailed(f"subagents are {self._depth} deep here already; do this yourself")
        own = asked.tools if depth < self._depth else [name for name in asked.tools if name != DELEGATE_TOOL]
        unknown = sorted(set(wanted.tools or ()) - {*own, READ_RESULT_TOOL})
        if unknown:
            raise ToolFailed(f"you cannot give {', '.join(unknown)[:500]}; you have: {', '.join(own)}")
        tools = own if wanted.tools is None else [name for name in own if name in wanted.tools]
        # With any tool comes the one that reads on where an answer of it was cut.
        given = (*tools, READ_RESULT_TOOL) if tools else ()
        delegated = Delegated(
            call_id=call_id,
            task=wanted.task,
            depth=depth,
            root_run_id=self._brief.run_id if asked.delegated is None else asked.delegated.root_run_id,
            most_calls=self._share(self._log.state),
            tainted_by=context.tainted_by,
            # A list of tools only hides others from a model; this refuses them.
            narrowed=(*context.narrowed, Narrowing(by="", entries=given)),
        )
        return replace(
            asked,
            model=wanted.model or asked.model,
            tools=tools,
            takes_images=False,
            system_prompt=wanted.system_prompt or SYSTEM_PROMPT,
            response_schema=None,
            delegated=delegated,
        )

    async def _order(self, order: Order) -> None:
        self._orders.append(order)
        if not self.bell.done():
            self.bell.set_result(None)
        await order.done

    async def _is_full(self) -> bool:
        asked = self._brief.request.delegated
        root = self._brief.run_id if asked is None else asked.root_run_id
        if not self._most:
            return False
        return await self._store.read_rows(lambda connection: count_below(connection, root)) >= self._most

    async def _begin(self, order: Order, request: ChatRequest) -> None:
        run: Run = new_run(order.event.subagent_run_id, self._brief)

        def also(connection: Connection) -> None:
            insert_run(connection, run, self._brief, request, self._engine.process)

        await self._log.append([order.event], also=also)
        await self._engine.begin(run)

    async def _end_of(self, known: SubagentAssigned) -> SubagentEnd:
        """Once there is one. That it waits for a person is said in the log, once for each time."""
        run_id, began, is_told = known.subagent_run_id, time.monotonic(), known.status == RunStatus.WAITING
        while True:
            await self._engine.wait(run_id, None)
            status = await self._store.read_rows(lambda connection: status_of(connection, run_id))
            if status is None or status in ENDED:
                break
            if (status == RunStatus.WAITING) != is_told:
                is_told, began = status == RunStatus.WAITING, time.monotonic()
                await self._order(Order(replace(known, status=status)))
            # It waits for a person or a place, or another process drives it.
            longest = LAST_LOOK_AT_WAITING_SECONDS if is_told else LAST_LOOK_SECONDS
            pause = min(max(FIRST_LOOK_SECONDS, (time.monotonic() - began) / 10), longest)
            await self._engine.wait_for_start(run_id, pause)
        end = await self._store.read_rows(lambda connection: end_of(connection, run_id))
        if end is None:
            raise ToolFailed("the subagent's run was deleted before it ended")
        return end


def _answered(end: SubagentEnd) -> SubagentEnd:
    """The end of a subagent that has an answer. Raises ToolFailed for another, with what it said before."""
    if end.status == RunStatus.COMPLETED and end.answer:
        return end
    match end.status:
        case RunStatus.CANCELLED:
            why = "was ended by a person"
        case RunStatus.FAILED:
            why = f"failed: {end.error or 'the reason is not known'}"
        case _:
            why = f"ended without an answer ({end.stop_reason}){f': {end.error}' if end.error else ''}"
    said = f" It had said: {end.answer[:TASK_CHARACTERS]}" if end.answer else ""
    raise ToolFailed(f"the subagent (run {end.run_id}) {why}.{said}")
