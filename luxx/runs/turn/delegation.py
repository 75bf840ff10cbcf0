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
from luxx.runs.engine.processes import RunEngine
from luxx.runs.log.events import LogEntry
from luxx.runs.subagents import (
    cancel_subagent,
    cancel_subagents,
    count_below,
    insert_run,
    new_run,
    read_end,
    status_of,
)
from luxx.runs.turn.spec import ChatRequest, RunSpec, initial_state
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

MAX_CONCURRENT_SUBAGENTS = 4
"""Subagents of one run that work at the same time; others of the same answer wait for them."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0
"""How soon a subagent is looked at again that is not driven here: the sooner, the shorter it has been."""

MAX_WAITING_POLL_SECONDS = 10.0
"""The same of one that waits for a person, which may take days; if it goes on here, that is known at once."""

STOP_SECONDS = 0.35
"""How long a run that ends waits for its subagents to: its own end is promised within half a second."""

TASK_CHARACTERS = 500
"""Of a task, in the event; the whole of it is in the call's arguments."""

SYSTEM_PROMPT = files("luxx.runs.turn").joinpath("subagent.md").read_text("utf-8").strip()


class AppendRequest:
    """Something to be written into the log; `done` once it is."""

    def __init__(self, event: SubagentAssigned, request: ChatRequest | None = None) -> None:
        self.event = event
        self.request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def refuse(self, message: str) -> None:
        """Raises ToolFailed in the call that ordered it."""
        if not self.done.done():
            self.done.set_exception(ToolFailed(message))


class Delegator:
    """For one drive. `depth` is how deep may be delegated at all, `most` how many subagents the first run may
    have below it (0: any number), `share` how many calls of tools one more subagent may make."""

    def __init__(
        self,
        spec: RunSpec,
        log: ChatLog,
        store: Store,
        engine: RunEngine,
        *,
        depth: int,
        max_subagents: int,
        share: Callable[[ChatState], int | None],
    ) -> None:
        self._spec = spec
        self._log = log
        self._store = store
        self._engine = engine
        self._depth = depth
        self._max_subagents = max_subagents
        self._share = share
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_SUBAGENTS)
        self._append_requests: list[AppendRequest] = []
        self._ends: dict[str, SubagentEnd] = {}
        self._delegated_calls: set[str] = set()
        self.requests_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done where there are orders."""

    def with_delegate(self, call: Step, context: ToolContext) -> ToolContext:
        """The context for one call, with the way to delegate."""
        return replace(context, delegate=partial(self._delegate, call, context))

    async def write_requested(self) -> None:
        """Writes what was ordered, and has new subagents driven. Raises LostRun."""
        self.requests_ready = asyncio.get_running_loop().create_future()
        append_requests, self._append_requests = self._append_requests, []
        for append_request in append_requests:
            if append_request.request is None:
                await self._log.append([append_request.event])
            elif await self._has_reached_limit():
                append_request.refuse(
                    f"this run has had {self._max_subagents} subagents, as many as this server allows; do it yourself"
                )
            else:
                await self._start_subagent(append_request, append_request.request)
            if not append_request.done.done():
                append_request.done.set_result(None)

    def with_taint(self, executed: Executed) -> Executed:
        """What strangers wrote for the subagent may be in its answer."""
        end = self._ends.get(executed.call_id)
        return replace(executed, is_untrusted=True) if end is not None and end.is_tainted else executed

    def end_entries(self, results: list[Executed]) -> list[LogEntry]:
        """What is to be logged of subagents with these results."""
        found = [(one.call_id, self._ends[one.call_id]) for one in results if one.call_id in self._ends]
        entries: list[LogEntry] = []
        for call_id, end in found:
            assigned = self._assigned(call_id)
            if assigned is not None:
                entries.append(replace(assigned, status=RunStatus(end.status), tool_calls=end.tool_calls))
        return entries

    def without_later_skills(self, call: Step, context: ToolContext) -> ToolContext:
        """For a call that has its subagent already: a skill of the same answer came after it."""
        is_started = self._assigned(str(call.id_ref)) is not None
        return replace(context, narrowed=initial_state(self._spec).narrowed) if is_started else context

    async def end_subagent(self, executed: Executed) -> None:
        """Ends the subagent of a call that ended without it, because the call is not allowed any more."""
        assigned = self._assigned(executed.call_id)
        if assigned is None or assigned.status in ENDED or executed.call_id in self._ends:
            return
        run_id = assigned.subagent_run_id
        await self._store.write_rows(lambda connection: cancel_subagent(connection, run_id))
        await self._engine.cancel(run_id)
        await self._engine.wait(run_id, STOP_SECONDS)
        end = await self._store.read_rows(lambda connection: read_end(connection, run_id))
        if end is not None:
            status = end.status if RunStatus(end.status) in ENDED else RunStatus.CANCELLED.value
            self._ends[executed.call_id] = replace(end, status=status)

    async def stop(self) -> None:
        """Ends the subagents that have not ended, for the run ends; they are given a moment."""
        if all(one.status in ENDED for one in self._log.state.subagents):
            return
        run_id = self._spec.run_id
        found = await self._store.write_rows(lambda connection: cancel_subagents(connection, run_id))
        for subagent in found:
            await self._engine.cancel(subagent)
        if found:
            waits = [asyncio.create_task(self._engine.wait(one, STOP_SECONDS)) for one in found]
            await asyncio.wait(waits, timeout=STOP_SECONDS)

    async def _delegate(self, call: Step, context: ToolContext, assignment: Assignment) -> SubagentEnd:
        call_id = str(call.id_ref)
        existing = self._assigned(call_id)
        if call_id in self._delegated_calls or (
            existing and existing.task != assignment.task[:TASK_CHARACTERS]
        ):
            # A tool that makes calls of others may try, in one drive or over several.
            raise ToolFailed("one call can delegate once only; make a call for each subagent")
        self._delegated_calls.add(call_id)
        async with self._semaphore:
            assigned = self._assigned(call_id)
            if assigned is None:
                request = self._request(call_id, context, assignment)
                assigned = SubagentAssigned(
                    subagent_run_id=new_id(),
                    call_id=call_id,
                    task=assignment.task[:TASK_CHARACTERS],
                    status=RunStatus.RUNNING,
                )
                await self._append(AppendRequest(assigned, request))
            end = await self._wait_for_end(assigned)
        self._ends[call_id] = end
        return _require_answer(end)

    def _assigned(self, call_id: str) -> SubagentAssigned | None:
        return next((one for one in self._log.state.subagents if one.call_id == call_id), None)

    def _request(self, call_id: str, context: ToolContext, assignment: Assignment) -> ChatRequest:
        """What the subagent's run is asked. Raises ToolFailed for more than the run itself has."""
        asked = self._spec.request
        depth = 1 if asked.delegated is None else asked.delegated.depth + 1
        if depth > self._depth:
            raise ToolFailed(f"subagents are {self._depth} deep here already; do this yourself")
        own_tools = (
            asked.tools if depth < self._depth else [name for name in asked.tools if name != DELEGATE_TOOL]
        )
        unknown = sorted(set(assignment.tools or ()) - {*own_tools, READ_RESULT_TOOL})
        if unknown:
            raise ToolFailed(f"you cannot give {', '.join(unknown)[:500]}; you have: {', '.join(own_tools)}")
        tools = (
            own_tools
            if assignment.tools is None
            else [name for name in own_tools if name in assignment.tools]
        )
        # With any tool comes the one that reads on where an answer of it was cut.
        granted_tools = (*tools, READ_RESULT_TOOL) if tools else ()
        delegated = Delegated(
            call_id=call_id,
            task=assignment.task,
            depth=depth,
            root_run_id=self._spec.run_id if asked.delegated is None else asked.delegated.root_run_id,
            most_calls=self._share(self._log.state),
            tainted_by=context.tainted_by,
            # A list of tools only hides others from a model; this refuses them.
            narrowed=(*context.narrowed, Narrowing(by="", entries=granted_tools)),
        )
        return replace(
            asked,
            model=assignment.model or asked.model,
            tools=tools,
            takes_images=False,
            system_prompt=assignment.system_prompt or SYSTEM_PROMPT,
            response_schema=None,
            delegated=delegated,
        )

    async def _append(self, append_request: AppendRequest) -> None:
        self._append_requests.append(append_request)
        if not self.requests_ready.done():
            self.requests_ready.set_result(None)
        await append_request.done

    async def _has_reached_limit(self) -> bool:
        asked = self._spec.request.delegated
        root = self._spec.run_id if asked is None else asked.root_run_id
        if not self._max_subagents:
            return False
        return (
            await self._store.read_rows(lambda connection: count_below(connection, root))
            >= self._max_subagents
        )

    async def _start_subagent(self, append_request: AppendRequest, request: ChatRequest) -> None:
        run: Run = new_run(append_request.event.subagent_run_id, self._spec)

        def extra_write(connection: Connection) -> None:
            insert_run(connection, run, self._spec, request, self._engine.process)

        await self._log.append([append_request.event], extra_write=extra_write)
        await self._engine.begin(run)

    async def _wait_for_end(self, assigned: SubagentAssigned) -> SubagentEnd:
        """Once there is one. That it waits for a person is said in the log, once for each time."""
        run_id, began, is_reported = (
            assigned.subagent_run_id,
            time.monotonic(),
            assigned.status == RunStatus.WAITING,
        )
        while True:
            await self._engine.wait(run_id, None)
            status = await self._store.read_rows(lambda connection: status_of(connection, run_id))
            if status is None or status in ENDED:
                break
            if (status == RunStatus.WAITING) != is_reported:
                is_reported, began = status == RunStatus.WAITING, time.monotonic()
                await self._append(AppendRequest(replace(assigned, status=status)))
            # It waits for a person or a place, or another process drives it.
            longest = MAX_WAITING_POLL_SECONDS if is_reported else MAX_POLL_SECONDS
            pause = min(max(MIN_POLL_SECONDS, (time.monotonic() - began) / 10), longest)
            await self._engine.wait_for_start(run_id, pause)
        end = await self._store.read_rows(lambda connection: read_end(connection, run_id))
        if end is None:
            raise ToolFailed("the subagent's run was deleted before it ended")
        return end


def _require_answer(end: SubagentEnd) -> SubagentEnd:
    """The end of a subagent that has an answer. Raises ToolFailed for another, with what it said before."""
    if end.status == RunStatus.COMPLETED and end.answer:
        return end
    match end.status:
        case RunStatus.CANCELLED:
            reason = "was ended by a person"
        case RunStatus.FAILED:
            reason = f"failed: {end.error or 'the reason is not known'}"
        case _:
            reason = f"ended without an answer ({end.stop_reason}){f': {end.error}' if end.error else ''}"
    partial_answer = f" It had said: {end.answer[:TASK_CHARACTERS]}" if end.answer else ""
    raise ToolFailed(f"the subagent (run {end.run_id}) {reason}.{partial_answer}")
