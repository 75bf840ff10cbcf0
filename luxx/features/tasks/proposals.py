"""Plans that are only proposed: `POST /tasks/plan` draws one in a run of its own and stores no task.

The request of the run has all that planning needs, so any process can continue it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import Conflict, LimitReached, LuxxError, ProviderFailed
from luxx.features.tasks.checks import (
    TaskErrors,
    add_missing_agent,
    check_names,
    check_task,
    usable_agents,
)
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import NewPlan, NewTaskStep, PlanView, TaskStatus
from luxx.features.tasks.orchestration import TaskOrchestration
from luxx.features.tasks.planning import (
    Planner,
    PlanNote,
    PlanWish,
    plan_note_of,
    plan_outcome,
    plan_turn,
    planning_entry,
)
from luxx.features.tasks.run_rows import ChosenModels, pause_steps, read_task
from luxx.runs.admission import Admission
from luxx.runs.log.events import LogEntry, read_last_error, read_log
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.models import find_run, run_view
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    Orchestration,
    RunTotals,
    TurnStart,
    Wait,
)
from luxx.runs.service import RunService
from luxx.runs.streams.watch import RunWatch
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.context import Heard
from luxx.runs.turn.run_rows import RunHead, RunOwner
from luxx.runs.turn.spending import no_budget_left
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries
from luxx.wire.event import ErrorEvent, LoggedEvent, TurnNote
from luxx.wire.orchestration_event import PlanCreated, Planning, StepComplete, TaskComplete, TaskPaused
from luxx.wire.run import ENDED, Run, RunKind, RunStatus, StopReason


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The first planning turn of a proposed plan."""

    request: ChatRequest
    note: PlanNote


class TaskRunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored request of a run of the kind `task`. `plan` is set if the run only proposes a plan."""

    plan: PlanRequest | None = None


PLAN_SUBJECT = "plan"
"""The `subject_id` of runs that propose a plan: they have no task."""

_request = msgspec.json.Decoder(ChatRequest)
_run_request = msgspec.json.Decoder(TaskRunRequest)
_encode = msgspec.json.Encoder().encode


def load_task_run(session: Session, head: RunHead, planner: Planner) -> Orchestration:
    """The orchestration of a run of the kind `task`."""
    plan = _run_request.decode(head.request).plan
    if plan is not None:
        return PlanOrchestration(plan)
    return TaskOrchestration(head, planner, *read_task(session, head.subject_id))


def fail_task(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Pauses the run of a task that cannot be driven: its running steps begin again after `resume`. A run
    that only proposes a plan ends."""
    close_questions(connection, run.id)
    event = ErrorEvent(message=error.message, code=error.kind)
    if run.subject_id == PLAN_SUBJECT:
        complete = TaskComplete(status=TaskStatus.FAILED.value)
        return RunFailure(events=[event, complete], status=RunStatus.FAILED)
    pending = [
        StepComplete(step_id=step_id, status=TaskStepStatus.PENDING.value, duration_ms=0)
        for step_id in pause_steps(connection, run.subject_id)
    ]
    return RunFailure(events=[event, *pending, TaskPaused()], status=RunStatus.PAUSED)


class PlanOrchestration:
    """The run that proposes one plan. See `Orchestration`."""

    def __init__(self, plan: PlanRequest) -> None:
        self._plan = plan
        self._open: tuple[str, TurnNote] | None = None
        self._is_done = False
        self._error: LuxxError | None = None

    def apply(self, logged: LoggedEvent) -> None:
        match logged.event:
            case Planning() if isinstance(logged.note, TurnNote):
                self._open = (str(logged.event.step_id), logged.note)
            case PlanCreated():
                self._open, self._is_done = None, True
            case _:
                pass

    def is_open(self, key: str) -> bool:
        return self._open is not None and self._open[0] == key

    def open_turns(self) -> list[TurnStart]:
        if self._open is None:
            return []
        note = self._open[1]
        return [plan_turn(_request.decode(note.request), plan_note_of(note))]

    def heard(self, key: str) -> Sequence[Heard]:
        del key
        return ()

    def to_cut(self) -> Collection[str]:
        return ()

    @property
    def max_turns(self) -> int | None:
        return None

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        del waiting, totals
        if running:
            return Wait()
        if self._error is not None:
            return _failed(self._error)
        if self._is_done:
            complete = TaskComplete(status=TaskStatus.COMPLETED.value)
            return End(entries=[complete], status=RunStatus.COMPLETED, stop_reason=StopReason.FINISHED.value)
        return Begin()

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        del session, begin, most, totals
        if self._open is not None:
            return Opening(turns=self.open_turns())
        start = plan_turn(self._plan.request, self._plan.note)
        return Opening(turns=[start], entries=[planning_entry(None, start, self._plan.note)])

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        assert self._open is not None
        events = cost_entries(start.purpose, cut)
        outcome = plan_outcome(None, start, self._open[1], state, ending)
        self._error = outcome.error
        return Closing(events=[*events, *outcome.entries])

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        del session, inputs  # No route gives this run any.
        return InputEffect()

    def on_stop(self, error: LuxxError | None) -> End:
        if error is not None:
            return _failed(error)
        return End(
            entries=[TaskComplete(status=TaskStatus.TERMINATED.value)],
            status=RunStatus.CANCELLED,
            stop_reason=StopReason.CANCELLED.value,
        )


def _failed(error: LuxxError) -> End:
    entries: list[LogEntry] = [
        ErrorEvent(message=error.message, code=error.kind),
        TaskComplete(status=TaskStatus.FAILED.value),
    ]
    if isinstance(error, LimitReached):
        return End(entries=entries, status=RunStatus.COMPLETED, stop_reason=error.stop_reason, error=error)
    return End(entries=entries, status=RunStatus.FAILED, stop_reason=StopReason.ERROR.value, error=error)


@dataclass(frozen=True, slots=True)
class PlanService:
    """Proposes plans. One per process."""

    admission: Admission
    runs: RunService
    planner: Planner

    async def propose(self, caller: Caller, new: NewPlan) -> Run:
        """Starts the run that draws the plan.

        Raises InvalidInput or NotFound with every problem, TooMany, TooLarge or Unavailable.
        """
        return await self.admission.begin(await self._admit(caller, new))

    async def propose_and_watch(self, caller: Caller, new: NewPlan, *, accumulated: bool) -> RunWatch:
        """`propose`, with a watch attached before the run begins."""
        run = await self._admit(caller, new)
        return await self.admission.begin_watched(run, accumulated=accumulated)

    async def plan(self, caller: Caller, run: Run) -> PlanView:
        """The plan, once the run has ended.

        Raises ProviderFailed if no valid plan was drawn, TooMany or InvalidInput if a limit was reached,
        Conflict if the run was cancelled, Unavailable if the server stops. Their details have the `run_id`.
        """
        return await self.runs.wait_for(run, lambda session: _plan_of(session, caller, run.id))

    async def _admit(self, caller: Caller, new: NewPlan) -> Run:
        def insert(session: Session) -> Run:
            self._check(session, caller, new)
            wish = PlanWish(goal=new.goal, constraints=new.constraints, tools=new.tools, agents=new.agents)
            chosen = ChosenModels(agent_id=new.agent_id, provider_id=new.provider_id)
            settings = self.planner.settings_for(session, caller.user_id, chosen)
            request, note = self.planner.begin(session, caller.user_id, settings, wish)
            stored = _encode(TaskRunRequest(plan=PlanRequest(request=request, note=note))).decode()
            owner = RunOwner(caller.user_id, caller.tenant_id)
            limits = self.admission.limits_for(session, caller, request.provider_id)
            return self.admission.insert(session, owner, RunKind.TASK, PLAN_SUBJECT, stored, limits=limits)

        size = len(new.goal) + len(new.constraints or "")
        return await self.admission.admit(caller, insert, size=size)

    def _check(self, session: Session, caller: Caller, new: NewPlan) -> None:
        """Raises one error with everything that the request names and the caller cannot use."""
        errors = TaskErrors()
        check_task(session, caller, errors, provider_id=new.provider_id, agent_id=new.agent_id)
        known_agents = usable_agents(session, caller, {*(new.agents or ())})
        for index, agent_id in enumerate(new.agents or ()):
            if agent_id not in known_agents:
                add_missing_agent(f"$.agents[{index}]", agent_id, errors)
        if new.tools:
            usable = self.planner.references.usable_tools(session, caller.in_project(None))
            check_names("$.tools", "tool", new.tools, {tool.name for tool in usable}, errors)
        errors.raise_if_any()


def _plan_of(session: Session, caller: Caller, run_id: str) -> PlanView | None:
    """The plan of a run that has ended; None while it is in progress. Raises what `PlanService.plan` does."""
    run = run_view(find_run(session, caller, run_id))
    if run.status not in ENDED:
        return None
    detail = {"run_id": run.id}
    last_error = read_last_error(session.connection(), run.id)
    if run.status == RunStatus.CANCELLED:
        raise Conflict("the planning was cancelled", kind="run_cancelled", detail=detail)
    if run.status == RunStatus.FAILED:
        kind = None if last_error is None else last_error.code
        raise ProviderFailed(run.error or "no plan was drawn", kind=kind, detail=detail)
    events = [logged.event for logged in read_log(session.connection(), run.id)]
    created = next((event for event in events if isinstance(event, PlanCreated)), None)
    if created is None:
        raise no_budget_left(last_error, detail)
    steps = [msgspec.convert(msgspec.to_builtins(step), NewTaskStep) for step in created.steps]
    assert not isinstance(created.estimate, msgspec.UnsetType)
    return PlanView(run_id=run.id, steps=steps, estimate=created.estimate, usage=run.usage, cost=run.cost)
