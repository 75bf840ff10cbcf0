"""Delegation, for one drive of a run: a `delegate` call starts a subagent's run for each of its tasks and
waits for their ends.

Only the drive's own task writes the run's log. A call that needs an entry appends an `AppendRequest` and sets
`requests_ready`; the drive writes it while it waits for its tools. The event that names the subagent's run
and the row of that run are written in one transaction under the fence. So a process that claims the run later
finds the subagents by their call id and the index of their task.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.routing.uses import count_use
from luxx.errors import Conflict, InvalidInput, NotFound, ToolFailed
from luxx.infra.clock import new_id
from luxx.runs.cancel import mark_cancelled
from luxx.runs.log.events import LogEntry
from luxx.runs.models import RunRow
from luxx.runs.slots import SubagentSlots, TurnSlots
from luxx.runs.turn.context import RunContext, SubagentEngine
from luxx.runs.turn.resources import ResourceFinder
from luxx.runs.turn.rights import agent_request, root_of_cited
from luxx.runs.turn.run_rows import (
    answered_message,
    count_descendants,
    insert_run,
    new_run,
    read_end,
    status_of,
)
from luxx.runs.turn.state import ChatRequest
from luxx.runs.turn.turn_log import initial_state
from luxx.tools.core import ToolContext
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.tools.history import Executed
from luxx.wire.delegation import (
    DELEGATE_TOOL,
    TASK_CHARACTERS,
    Assignment,
    Delegation,
    DelegationStrategy,
    SubagentEnd,
    TaskOutcome,
    problem_of,
    with_earlier,
)
from luxx.wire.run import ENDED, Delegated, RunStatus
from luxx.wire.tool import Narrowing
from luxx.wire.turn import Step
from luxx.wire.turn_event import SubagentAssigned

MAX_CONCURRENT_SUBAGENTS = 4
"""Subagents of one run that work concurrently; further ones wait."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0
"""Poll interval for a subagent that another process drives: a tenth of the time waited, in these bounds."""

MAX_WAITING_POLL_SECONDS = 10.0
"""Longest poll interval for a subagent that waits for a person; a start in this process ends the wait."""

STOP_SECONDS = 0.35
"""How long an ending run waits for its subagents to end: a cancel must end the run within 0.5 s."""

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


class DelegatedTask(msgspec.Struct, frozen=True):
    """A task of a call. `prompt`: what its subagent is sent, the task and the answers before it."""

    call_id: str
    index: int
    strategy: DelegationStrategy | None
    assignment: Assignment
    prompt: str
    context: ToolContext

    @property
    def key(self) -> "TaskKey":
        return self.call_id, self.index


TaskKey = tuple[str, int]


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
    _ends: dict[TaskKey, SubagentEnd] = field(default_factory=dict[TaskKey, SubagentEnd], init=False)
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
        """Marks the result as untrusted where a subagent is tainted: it may repeat untrusted content."""
        is_tainted = any(end.is_tainted for key, end in self._ends.items() if key[0] == executed.call_id)
        return replace(executed, is_untrusted=True) if is_tainted else executed

    def end_entries(self, results: list[Executed]) -> list[LogEntry]:
        """The entries on ended subagents that belong to these results and are not in the log."""
        return [
            _ended(assigned, self._ends[assigned.call_id, assigned.index])
            for executed in results
            for assigned in self._unended(executed.call_id)
            if (assigned.call_id, assigned.index) in self._ends
        ]

    def without_later_skills(self, call: Step, context: ToolContext) -> ToolContext:
        """The context without the limits of skills that were activated after the call began to delegate."""
        if not any(one.call_id == call.id_ref for one in self.run.log.state.subagents):
            return context
        return context.with_permissions(narrowed=initial_state(self.run.spec).narrowed)

    async def end_subagents(self, executed: Executed) -> None:
        """Ends the subagents of a call that ended before them, because the call is no longer allowed."""
        ended = self._ends.keys()
        left = [one for one in self._unended(executed.call_id) if (one.call_id, one.index) not in ended]
        if not left:
            return
        await self._cancel([one.subagent_run_id for one in left])
        for assigned in left:
            reading = partial(read_end, run_id=assigned.subagent_run_id)
            end = await self.run.services.store.read_rows(reading)
            if end is not None:
                status = end.status if RunStatus(end.status) in ENDED else RunStatus.CANCELLED.value
                self._ends[assigned.call_id, assigned.index] = replace(end, status=status)

    async def stop(self) -> None:
        """Cancels the unfinished subagents when the turn ends; waits up to STOP_SECONDS for their ends."""
        await self._cancel(
            [one.subagent_run_id for one in self.run.log.state.subagents if one.status not in ENDED]
        )

    async def _cancel(self, unfinished: Sequence[str]) -> None:
        subagent_ids = await self.run.services.store.write_rows(
            lambda connection: mark_cancelled(connection, RunRow.id.in_(unfinished))
        )
        for subagent_id in subagent_ids:
            await self.engine.cancel(subagent_id)
        if subagent_ids:
            waits = [asyncio.create_task(self.engine.wait(one, STOP_SECONDS)) for one in subagent_ids]
            await asyncio.wait(waits, timeout=STOP_SECONDS)

    async def _delegate(
        self, call: Step, context: ToolContext, delegation: Delegation
    ) -> Sequence[TaskOutcome]:
        call_id, strategy = str(call.id_ref), delegation.strategy
        tasks = [
            DelegatedTask(call_id, index, strategy, one, one.task, context)
            for index, one in enumerate(delegation.assignments)
        ]
        if call_id in self._delegated_calls or any(self._has_other(task) for task in tasks):
            # A composition's members share its call id; they may try in one drive or in several.
            raise ToolFailed("a call can delegate only once; make one call for each subagent")
        self._delegated_calls.add(call_id)
        if strategy == DelegationStrategy.SEQUENTIAL:
            return await self._one_after_another(tasks)
        working = [asyncio.create_task(self._outcome(task)) for task in tasks]
        try:
            return await asyncio.gather(*working)
        finally:
            for one in working:
                one.cancel()

    async def _one_after_another(self, tasks: Sequence[DelegatedTask]) -> Sequence[TaskOutcome]:
        outcomes: list[TaskOutcome] = []
        for task in tasks:
            context = task.context
            if any(outcome.end is not None and outcome.end.is_tainted for outcome in outcomes):
                context = context.with_permissions(tainted_by=context.permissions.tainted_by or DELEGATE_TOOL)
            prompt = with_earlier(task.assignment.task, outcomes)
            outcomes.append(await self._outcome(replace(task, prompt=prompt, context=context)))
        return outcomes

    async def _outcome(self, task: DelegatedTask) -> TaskOutcome:
        try:
            async with self._semaphore:
                assigned = self._assigned(task.key)
                await self._slots.begin(task.key, must_have_slot=assigned is None)
                try:
                    end = await self._wait_for_end(assigned or await self._start(task))
                finally:
                    await self._slots.end(task.key)
        except ToolFailed as error:
            return TaskOutcome(assignment=task.assignment, problem=error.message)
        self._ends[task.key] = end
        started = self._assigned(task.key)
        if task.strategy is not None and started is not None and started.status not in ENDED:
            # The result of the call comes when all tasks have ended; one task is logged with its result.
            await self._append(AppendRequest(_ended(started, end)))
        return TaskOutcome(assignment=task.assignment, end=end, problem=problem_of(end))

    async def _start(self, task: DelegatedTask) -> SubagentAssigned:
        agent_name, template = await self._template(task.assignment)
        request = self._request(task, template)
        assigned = SubagentAssigned(
            subagent_run_id=new_id(),
            call_id=task.call_id,
            task=task.assignment.task[:TASK_CHARACTERS],
            status=RunStatus.RUNNING,
            index=task.index,
            agent_id=template.agent_id if agent_name else None,
            agent_name=agent_name,
            strategy=task.strategy,
        )
        await self._append(AppendRequest(assigned, request))
        return assigned

    def _assigned(self, key: TaskKey) -> SubagentAssigned | None:
        return next((one for one in self.run.log.state.subagents if (one.call_id, one.index) == key), None)

    def _unended(self, call_id: str) -> list[SubagentAssigned]:
        """The subagents of a call whose end is not in the log."""
        subagents = self.run.log.state.subagents
        return [one for one in subagents if one.call_id == call_id and one.status not in ENDED]

    def _has_other(self, task: DelegatedTask) -> bool:
        """Whether the call had another task here, in an earlier drive."""
        assigned = self._assigned(task.key)
        return assigned is not None and assigned.task != task.assignment.task[:TASK_CHARACTERS]

    async def _template(self, assignment: Assignment) -> tuple[str, ChatRequest]:
        """The name of the task's agent, empty without one, and the run's request with that agent's values.
        Raises ToolFailed for an agent that is unknown or disabled."""
        name, request = assignment.agent, replace(self.run.spec.request, system_prompt="")
        if name is None:
            return "", request
        user_id = self.run.spec.user_id
        try:
            return await self.run.services.store.read(
                lambda session: agent_request(self.resources.providers, session, user_id, name, request)
            )
        except (NotFound, InvalidInput, Conflict) as error:
            raise ToolFailed(error.message) from error

    def _request(self, task: DelegatedTask, template: ChatRequest) -> ChatRequest:
        """The request of the subagent's run. Raises ToolFailed for tools or a depth that are not allowed."""
        assignment, context = task.assignment, task.context
        run_request = self.run.spec.request
        depth = run_request.origin.depth + 1 if isinstance(run_request.origin, Delegated) else 1
        max_depth = self.run.services.config.limits.delegation_depth
        if depth > max_depth:
            raise ToolFailed(f"subagents may be nested at most {max_depth} deep; do this task in this run")
        own_tools = [name for name in run_request.tools if depth < max_depth or name != DELEGATE_TOOL]
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
            call_id=task.call_id,
            task=task.prompt,
            depth=depth,
            root_run_id=self._root_run_id,
            most_calls=self.run.spending.share_of_calls(self.run.log.state),
            tainted_by=context.permissions.tainted_by,
            # The list of tools only hides others from the model; `narrowed` refuses their calls.
            narrowed=(*context.permissions.narrowed, Narrowing(by="", entries=granted_tools)),
            agent_ids=run_request.rule_agents if assignment.agent else run_request.rule_agents[1:],
            numbers_pages=root_of_cited(self.run.spec) is not None,
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
            if agent_id := append_request.event.agent_id:
                count_use(connection, spec.tenant_id, "agent", str(agent_id))

        await self.run.log.append([append_request.event], extra_write=extra_write)
        await self.engine.begin(run)

    async def _wait_for_end(self, assigned: SubagentAssigned) -> SubagentEnd:
        """The end of the subagent, once it has ended. Logs each change to and from waiting for a person."""
        run_id, began = assigned.subagent_run_id, time.monotonic()
        key = assigned.call_id, assigned.index
        is_reported = assigned.status == RunStatus.WAITING
        while True:
            await self.engine.wait(run_id, None)
            status = await self.run.services.store.read_rows(lambda connection: status_of(connection, run_id))
            if status is None or status in ENDED:
                break
            if (status == RunStatus.WAITING) != is_reported:
                is_reported, began = status == RunStatus.WAITING, time.monotonic()
                await (self._slots.end(key) if is_reported else self._slots.begin(key, must_have_slot=False))
                await self._append(AppendRequest(replace(assigned, status=status)))
            # It waits for a person or a slot, or another process drives it.
            longest = MAX_WAITING_POLL_SECONDS if is_reported else MAX_POLL_SECONDS
            pause = min(max(MIN_POLL_SECONDS, (time.monotonic() - began) / 10), longest)
            await self.engine.wait_for_start(run_id, pause)
        end = await self.run.services.store.read_rows(lambda connection: read_end(connection, run_id))
        if end is None:
            raise ToolFailed("the subagent's run was deleted before it ended")
        return end


def _ended(assigned: SubagentAssigned, end: SubagentEnd) -> SubagentAssigned:
    return replace(assigned, status=RunStatus(end.status), tool_calls=end.tool_calls)
