"""Delegation, for one drive of a run: each `delegate` call starts a subagent's run and waits for its end.

Only the drive's own task writes the run's log. A call that needs an entry appends an `AppendRequest` and sets
`requests_ready`; the drive writes it while it waits for its tools. The event that names the subagent's run
and the row of that run are written in one transaction under the fence. So a process that claims the run later
finds the subagent by its call id.
"""

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files

from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, func, select

from luxx.errors import Conflict, InvalidInput, NotFound, ToolFailed
from luxx.infra.clock import new_id
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import mark_cancelled
from luxx.runs.log.events import LogEntry, read_log
from luxx.runs.models import RunRow
from luxx.runs.slots import SubagentSlots, TurnSlots
from luxx.runs.turn.context import RunContext, SubagentEngine
from luxx.runs.turn.resources import ResourceFinder
from luxx.runs.turn.run_rows import answered_message, insert_run, new_run
from luxx.runs.turn.state import ChatRequest, TurnState, count_calls, fold
from luxx.runs.turn.turn_log import initial_state
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.tools.core import ToolContext
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.tools.history import Executed
from luxx.wire.run import ENDED, Assignment, Delegated, RunStatus, SubagentEnd
from luxx.wire.tool import Narrowing
from luxx.wire.turn import Step, StepType, steps_text
from luxx.wire.turn_event import SubagentAssigned

MAX_CONCURRENT_SUBAGENTS = 4
"""Subagents of one run that work concurrently; further ones wait."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0
"""Poll interval for a subagent that another process drives: a tenth of the time waited, in these bounds."""

MAX_WAITING_POLL_SECONDS = 10.0
"""Longest poll interval for a subagent that waits for a person; a start in this process ends the wait."""

STOP_SECONDS = 0.35
"""How long an ending run waits for its subagents to end: a cancel must end the run within 0.5 s."""

TASK_CHARACTERS = 500
"""Longest task text in an event; the call's arguments have the full text."""

_runs = table_of(RunRow)
_select_end = select(_runs.c.status, _runs.c.stop_reason, _runs.c.error).where(
    _runs.c.id == bindparam("run_id")
)
_children = select(_runs.c.id).where(_runs.c.parent_run_id == bindparam("root")).cte(recursive=True)
_descendants = _children.union_all(
    select(_runs.c.id).join(_children, _runs.c.parent_run_id == _children.c.id)
)
_count_descendants = select(func.count()).select_from(_descendants)

SYSTEM_PROMPT = files("luxx.runs.turn").joinpath("subagent.md").read_text("utf-8").strip()


class AppendRequest:
    """A request to append an event to the log; `done` is set once it is written."""

    def __init__(self, event: SubagentAssigned, request: ChatRequest | None = None) -> None:
        self.event = event
        self.request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def refuse(self, message: str) -> None:
        """Raises ToolFailed in the call that made the request."""
        if not self.done.done():
            self.done.set_exception(ToolFailed(message))


@dataclass(slots=True, eq=False, repr=False)
class Delegator:
    """Starts and stops the subagents of one drive. `requests_ready`: there are append requests."""

    run: RunContext
    engine: SubagentEngine
    resources: ResourceFinder
    requests_ready: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future(), init=False
    )
    _semaphore: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_SUBAGENTS), init=False
    )
    _append_requests: list[AppendRequest] = field(default_factory=list[AppendRequest], init=False)
    _ends: dict[str, SubagentEnd] = field(default_factory=dict[str, SubagentEnd], init=False)
    _delegated_calls: set[str] = field(default_factory=set[str], init=False)
    _kept_slots: SubagentSlots | None = field(default=None, init=False)

    @property
    def _slots(self) -> SubagentSlots:
        """Made for the first subagent: few turns have one."""
        if self._kept_slots is None:
            spec, services = self.run.spec, self.run.services
            limits, on_return = services.config.limits, self.engine.release_slot
            slots = TurnSlots(services.store, limits, spec.run_id, spec.fence, spec.user_id, on_return)
            self._kept_slots = SubagentSlots(slots)
        return self._kept_slots

    def with_delegate(self, call: Step, context: ToolContext) -> ToolContext:
        """The context for one call, with the function that delegates."""
        return context.with_actions(delegate=partial(self._delegate, call, context))

    async def write_requested(self) -> None:
        """Writes the append requests and starts the new subagents. Raises LostRun."""
        self.requests_ready = asyncio.get_running_loop().create_future()
        append_requests, self._append_requests = self._append_requests, []
        for append_request in append_requests:
            if append_request.request is None:
                await self.run.log.append([append_request.event])
            elif await self._has_reached_limit():
                allowed = self.run.services.config.limits.subagents_per_run
                append_request.refuse(
                    f"this run has had {allowed} subagents, as many as this server allows; "
                    "do the task in this run"
                )
            else:
                await self._start_subagent(append_request, append_request.request)
            if not append_request.done.done():
                append_request.done.set_result(None)

    def with_taint(self, executed: Executed) -> Executed:
        """Marks the result of a tainted subagent as untrusted: it may repeat untrusted content."""
        end = self._ends.get(executed.call_id)
        return replace(executed, is_untrusted=True) if end is not None and end.is_tainted else executed

    def end_entries(self, results: list[Executed]) -> list[LogEntry]:
        """The entries on ended subagents that belong to these results."""
        ends = [(one.call_id, self._ends[one.call_id]) for one in results if one.call_id in self._ends]
        entries: list[LogEntry] = []
        for call_id, end in ends:
            assigned = self._assigned(call_id)
            if assigned is not None:
                entries.append(replace(assigned, status=RunStatus(end.status), tool_calls=end.tool_calls))
        return entries

    def without_later_skills(self, call: Step, context: ToolContext) -> ToolContext:
        """The context without the limits of skills that were activated after the call's subagent started."""
        is_started = self._assigned(str(call.id_ref)) is not None
        if not is_started:
            return context
        return context.with_permissions(narrowed=initial_state(self.run.spec).narrowed)

    async def end_subagent(self, executed: Executed) -> None:
        """Ends the subagent of a call that ended before it, because the call is no longer allowed."""
        assigned = self._assigned(executed.call_id)
        if assigned is None or assigned.status in ENDED or executed.call_id in self._ends:
            return
        run_id = assigned.subagent_run_id
        await self.run.services.store.write_rows(
            lambda connection: mark_cancelled(connection, RunRow.id == run_id)
        )
        await self.engine.cancel(run_id)
        await self.engine.wait(run_id, STOP_SECONDS)
        end = await self.run.services.store.read_rows(lambda connection: read_end(connection, run_id))
        if end is not None:
            status = end.status if RunStatus(end.status) in ENDED else RunStatus.CANCELLED.value
            self._ends[executed.call_id] = replace(end, status=status)

    async def stop(self) -> None:
        """Cancels the unfinished subagents when the turn ends; waits up to STOP_SECONDS for their ends."""
        unfinished = [one.subagent_run_id for one in self.run.log.state.subagents if one.status not in ENDED]
        subagent_ids = await self.run.services.store.write_rows(
            lambda connection: mark_cancelled(connection, RunRow.id.in_(unfinished))
        )
        for subagent_id in subagent_ids:
            await self.engine.cancel(subagent_id)
        if subagent_ids:
            waits = [asyncio.create_task(self.engine.wait(one, STOP_SECONDS)) for one in subagent_ids]
            await asyncio.wait(waits, timeout=STOP_SECONDS)

    async def _delegate(self, call: Step, context: ToolContext, assignment: Assignment) -> SubagentEnd:
        call_id = str(call.id_ref)
        existing = self._assigned(call_id)
        if call_id in self._delegated_calls or (
            existing and existing.task != assignment.task[:TASK_CHARACTERS]
        ):
            # A composition's members share its call id; they may try in one drive or in several.
            raise ToolFailed("a call can delegate only once; make one call for each subagent")
        self._delegated_calls.add(call_id)
        async with self._semaphore:
            assigned = self._assigned(call_id)
            await self._slots.begin(call_id, must_have_slot=assigned is None)
            try:
                end = await self._start_and_wait(call_id, context, assignment, assigned)
            finally:
                await self._slots.end(call_id)
        self._ends[call_id] = end
        return _require_answer(end)

    async def _start_and_wait(
        self,
        call_id: str,
        context: ToolContext,
        assignment: Assignment,
        assigned: SubagentAssigned | None,
    ) -> SubagentEnd:
        if assigned is None:
            template = await self._template(assignment)
            request = self._request(call_id, context, assignment, template)
            assigned = SubagentAssigned(
                subagent_run_id=new_id(),
                call_id=call_id,
                task=assignment.task[:TASK_CHARACTERS],
                status=RunStatus.RUNNING,
            )
            await self._append(AppendRequest(assigned, request))
        return await self._wait_for_end(assigned)

    def _assigned(self, call_id: str) -> SubagentAssigned | None:
        return next((one for one in self.run.log.state.subagents if one.call_id == call_id), None)

    async def _template(self, assignment: Assignment) -> ChatRequest:
        """The run's own request, with the values of the named agent. Raises ToolFailed for an unknown one."""
        name, request = assignment.agent, replace(self.run.spec.request, system_prompt="")
        if name is None:
            return request
        user_id = self.run.spec.user_id
        try:
            return await self.run.services.store.read(
                lambda session: self.resources.agent_request(session, user_id, name, request)
            )
        except (NotFound, InvalidInput, Conflict) as error:
            raise ToolFailed(error.message) from error

    def _request(
        self, call_id: str, context: ToolContext, assignment: Assignment, template: ChatRequest
    ) -> ChatRequest:
        """The request of the subagent's run. Raises ToolFailed for tools or a depth that are not allowed."""
        run_request = self.run.spec.request
        depth = run_request.origin.depth + 1 if isinstance(run_request.origin, Delegated) else 1
        max_depth = self.run.services.config.limits.delegation_depth
        if depth > max_depth:
            raise ToolFailed(f"subagents may be nested at most {max_depth} deep; do this task in this run")
        may_delegate = depth < max_depth
        own_tools = [name for name in run_request.tools if may_delegate or name != DELEGATE_TOOL]
        unknown = sorted(set(assignment.tools or ()) - {*own_tools, READ_RESULT_TOOL})
        if unknown:
            raise ToolFailed(
                f"you cannot give a subagent these tools: {', '.join(unknown)[:500]}; "
                f"yours are: {', '.join(own_tools)}"
            )
        wanted = own_tools if assignment.tools is None else assignment.tools
        tools = [name for name in own_tools if name in template.tools and name in wanted]
        # The tool that reads the rest of a shortened result comes with any other tool.
        granted_tools = (*tools, READ_RESULT_TOOL) if tools else ()
        origin = Delegated(
            message_id=answered_message(run_request),
            is_of_given=run_request.stores_nothing,
            call_id=call_id,
            task=assignment.task,
            depth=depth,
            root_run_id=self._root_run_id,
            most_calls=self.run.spending.share_of_calls(self.run.log.state),
            tainted_by=context.permissions.tainted_by,
            # The list of tools only hides others from the model; `narrowed` refuses their calls.
            narrowed=(*context.permissions.narrowed, Narrowing(by="", entries=granted_tools)),
            agent_ids=run_request.rule_agents if assignment.agent else run_request.rule_agents[1:],
        )
        return replace(
            template,
            model=assignment.model or template.model,
            tools=tools,
            takes_images=False,
            system_prompt=assignment.system_prompt or template.system_prompt or SYSTEM_PROMPT,
            response_schema=None,
            origin=origin,
        )

    async def _append(self, append_request: AppendRequest) -> None:
        self._append_requests.append(append_request)
        if not self.requests_ready.done():
            self.requests_ready.set_result(None)
        await append_request.done

    async def _has_reached_limit(self) -> bool:
        services, root = self.run.services, self._root_run_id
        limit = services.config.limits.subagents_per_run
        if not limit:
            return False
        return await services.store.read_rows(lambda connection: count_descendants(connection, root)) >= limit

    @property
    def _root_run_id(self) -> str:
        origin = self.run.spec.request.origin
        return origin.root_run_id if isinstance(origin, Delegated) else self.run.spec.run_id

    async def _start_subagent(self, append_request: AppendRequest, request: ChatRequest) -> None:
        spec = self.run.spec
        run_id = append_request.event.subagent_run_id
        run = new_run(run_id, spec.subject_id, request=request, parent_run_id=spec.run_id)

        def extra_write(connection: Connection) -> None:
            insert_run(connection, run, request, spec, self.engine.process)

        await self.run.log.append([append_request.event], extra_write=extra_write)
        await self.engine.begin(run)

    async def _wait_for_end(self, assigned: SubagentAssigned) -> SubagentEnd:
        """The end of the subagent, once it has ended. Logs each change to and from waiting for a person."""
        run_id, began = assigned.subagent_run_id, time.monotonic()
        is_reported = assigned.status == RunStatus.WAITING
        while True:
            await self.engine.wait(run_id, None)
            status = await self.run.services.store.read_rows(lambda connection: status_of(connection, run_id))
            if status is None or status in ENDED:
                break
            if (status == RunStatus.WAITING) != is_reported:
                is_reported, began = status == RunStatus.WAITING, time.monotonic()
                await (
                    self._slots.end(assigned.call_id)
                    if is_reported
                    else self._slots.begin(assigned.call_id, must_have_slot=False)
                )
                await self._append(AppendRequest(replace(assigned, status=status)))
            # It waits for a person or a slot, or another process drives it.
            longest = MAX_WAITING_POLL_SECONDS if is_reported else MAX_POLL_SECONDS
            pause = min(max(MIN_POLL_SECONDS, (time.monotonic() - began) / 10), longest)
            await self.engine.wait_for_start(run_id, pause)
        end = await self.run.services.store.read_rows(lambda connection: read_end(connection, run_id))
        if end is None:
            raise ToolFailed("the subagent's run was deleted before it ended")
        return end


def _require_answer(end: SubagentEnd) -> SubagentEnd:
    """`end` if it has an answer. Else raises ToolFailed with the reason and the text so far."""
    if end.status == RunStatus.COMPLETED and end.answer:
        return end
    match end.status:
        case RunStatus.CANCELLED:
            reason = "was cancelled"
        case RunStatus.FAILED:
            reason = f"failed: {end.error or 'the reason is not known'}"
        case _:
            reason = f"ended without an answer ({end.stop_reason}){f': {end.error}' if end.error else ''}"
    partial_answer = f" Its last text: {end.answer[:TASK_CHARACTERS]}" if end.answer else ""
    raise ToolFailed(f"the subagent (run {end.run_id}) {reason}.{partial_answer}")


def status_of(connection: Connection, run_id: str) -> RunStatus | None:
    """The status of the run; None if it was deleted."""
    row = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    return None if row is None else RunStatus(row.status)


def read_end(connection: Connection, run_id: str) -> SubagentEnd | None:
    """The end of a run, from its row and its log; None if it was deleted."""
    row = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    if row is None:
        return None
    state = fold(read_log(connection, run_id))
    return SubagentEnd(
        run_id=run_id,
        status=row.status,
        stop_reason=row.stop_reason,
        answer=_answer(state),
        error=row.error,
        tool_calls=count_calls(state),
        is_tainted=state.tainted_by is not None,
    )


def count_descendants(connection: Connection, root_run_id: str) -> int:
    """How many subagents the run has had, at all depths."""
    return int(connection.scalar(_count_descendants, {"root": root_run_id}) or 0)


def _answer(state: TurnState) -> str:
    """The text after the last tool call or, if that is empty, all text."""
    last = max((step.index for step in state.steps if step.type == StepType.TOOL_RESULT), default=-1)
    return steps_text(state.steps[last + 1 :]).strip() or steps_text(state.steps).strip()
