"""The orchestration of a task's run: which steps begin (`runs/orchestration/interface.py`).

The rows of the steps have their statuses and outputs; they are written with the events that say so, in one
transaction. The log says which turns are in progress, and what people asked for.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn
from luxx.domain.agents.queries import AgentSettings
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LimitReached, LuxxError
from luxx.features.tasks.graph import PLAN, RESULT, TaskStepStatus
from luxx.features.tasks.models import NewTaskStep, TaskStatus
from luxx.features.tasks.planning import (
    Planner,
    PlanWish,
    plan_note_of,
    plan_outcome,
    plan_turn,
    planning_entry,
)
from luxx.features.tasks.run_rows import (
    TaskInput,
    TaskValues,
    write_begun,
    write_ended,
    write_plan,
    write_result,
    write_skipped,
)
from luxx.features.tasks.steps import StepGraph
from luxx.features.tasks.turns import (
    CUT_RESULT,
    READ_ARTIFACT_TOOL,
    STEP_PROMPT,
    BegunTurn,
    StepEnd,
    begin_result,
    begin_step,
    input_turn,
    step_end,
    turn_input_of,
)
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.inputs import InputKind, RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    RunTotals,
    TurnStart,
    Wait,
)
from luxx.runs.turn.context import Heard
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.tools.permissions.rules import ACTIVATE_TOOL
from luxx.wire.event import ErrorEvent, LoggedEvent, TurnNote
from luxx.wire.orchestration_event import (
    PlanCreated,
    Planning,
    SteerAction,
    Steered,
    StepComplete,
    StepSkipped,
    StepStart,
    TaskComplete,
    TaskPaused,
)
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import CUT_SHORT
from luxx.wire.turn_event import Warning

_request = msgspec.json.Decoder(ChatRequest)
_task_input = msgspec.json.Decoder(TaskInput)


class TaskOrchestration:
    """One task's run in one drive. See `Orchestration`.

    `held` are the steps that wait for approval.
    """

    def __init__(
        self,
        head: RunHead,
        planner: Planner,
        task: TaskValues,
        statuses: Mapping[str, TaskStepStatus],
        held: Collection[str] = (),
    ) -> None:
        self._head = head
        self._planner = planner
        self._resolve = planner.resolve
        self._task, self._held = task, set(held)
        self._graph = StepGraph(task.steps, statuses, task.results)
        self._is_pausing = False
        self._is_approved = not self._task.require_approval
        self._skipping: set[str] = set()
        self._error: LuxxError | None = None
        self._result: str | None = None
        self._has_result_turn = False

    def apply(self, logged: LoggedEvent) -> None:
        event = logged.event
        match event:
            case StepStart() if isinstance(logged.note, TurnNote):
                self._has_result_turn = self._has_result_turn or event.step_id == RESULT
            case Planning() | PlanCreated():
                self._end_planning()
            case Steered(action=SteerAction.PAUSE):
                self._is_pausing = True
            case Steered(action=SteerAction.APPROVE):
                self._is_approved = self._is_approved or not event.turns
                self._held -= set(event.turns)
            case Steered(action=SteerAction.SKIP):
                self._skipping |= set(event.turns) & self._graph.open.keys()
            case TaskPaused():
                self._is_pausing = False
                self._end_planning()
            case _:
                pass
        self._graph.apply(logged)

    def _end_planning(self) -> None:
        """A planning turn ends with the plan, the next attempt or a pause."""
        for key in [one for one in self._graph.open if one.startswith(PLAN)]:
            del self._graph.open[key]

    def is_open(self, key: str) -> bool:
        return key in self._graph.open

    def open_turns(self) -> list[TurnStart]:
        return [self._turn_of(step_id, note) for step_id, note in self._graph.open.items()]

    def _turn_of(self, step_id: str, note: TurnNote) -> TurnStart:
        request = _request.decode(note.request)
        if step_id.startswith(PLAN):
            return plan_turn(request, plan_note_of(note))
        return input_turn(step_id, turn_input_of(note), request)

    def heard(self, key: str) -> Sequence[Heard]:
        del key
        return ()

    def to_cut(self) -> Collection[str]:
        return list(self._graph.open) if self._is_pausing or self._error is not None else list(self._skipping)

    @property
    def max_turns(self) -> int | None:
        return self._task.max_concurrent_steps

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        if self._is_pausing or self._error is not None:
            return Wait() if running else self._stopped()
        if self._graph.open.keys() - running:
            return Begin.these(sorted(self._graph.open.keys() - running))
        if not self._graph.steps:
            return Wait() if running else Begin.these([PLAN])
        if not self._is_approved:
            return Wait()
        free = max(0, self._task.max_concurrent_steps - len(running) + waiting)
        if following := self._graph.ready(self._held)[:free]:
            return Begin.these(following)
        if running or self._graph.ready():
            return Wait()  # For a slot, or for the approval of a step.
        if not self._has_result_turn and len(self._graph.results.outputs) > 1:
            return Begin.these([RESULT])
        return self._finished()

    def _stopped(self) -> End:
        if self._error is None:
            return End(entries=[TaskPaused()], status=RunStatus.PAUSED)
        return self._ended_by(self._error)

    def _ended_by(self, error: LuxxError) -> End:
        event = ErrorEvent(message=error.message, code=error.kind)
        entries: list[LogEntry] = [event, TaskComplete(status=TaskStatus.FAILED.value)]
        if isinstance(error, LimitReached):
            if error.stop_reason != StopReason.TIME:
                # The task waits for a budget; it continues with `resume`.
                return End(entries=[event, TaskPaused()], status=RunStatus.PAUSED, error=error)
            return End(
                entries=entries, status=RunStatus.COMPLETED, stop_reason=error.stop_reason, error=error
            )
        return End(entries=entries, status=RunStatus.FAILED, stop_reason=StopReason.ERROR.value, error=error)

    def _finished(self) -> End:
        error = self._graph.failure()
        status = TaskStatus.COMPLETED if error is None else TaskStatus.FAILED
        outputs = self._graph.results.outputs
        if self._result is None and len(outputs) == 1:
            self._result = next(iter(outputs.values()))
        return End(
            entries=[TaskComplete(status=status.value, result=self._result)],
            status=RunStatus.COMPLETED if error is None else RunStatus.FAILED,
            stop_reason=(StopReason.FINISHED if error is None else StopReason.STEPS_FAILED).value,
            error=error,
            write=None if self._result is None else partial(write_result, self._task.task_id, self._result),
        )

    def on_stop(self, error: LuxxError | None) -> End:
        if error is not None:
            return self._ended_by(error)
        return End(
            entries=[TaskComplete(status=TaskStatus.TERMINATED.value)],
            status=RunStatus.CANCELLED,
            stop_reason=StopReason.CANCELLED.value,
        )

    # Turns

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        del totals
        turns: list[TurnStart] = []
        entries: list[LogEntry] = []
        started: list[str] = []
        failed: list[tuple[str, list[str], str]] = []
        stored: list[dict[str, str]] = []
        for step_id in begin.keys[:most]:
            if step_id in self._graph.open:
                turns.append(self._turn_of(step_id, self._graph.open[step_id]))
                continue
            try:
                begun = self._begin(session, step_id)
            except LuxxError as error:
                entries += self._refuse(step_id, error, failed)
                continue
            turns.append(begun.start)
            entries.append(begun.entry)
            stored += begun.stored
            if step_id in self._graph.steps:
                self._graph.start(step_id)
                started.append(step_id)
        return Opening(
            turns=turns,
            entries=entries,
            write=partial(write_begun, self._task.task_id, started, failed, stored) if entries else None,
        )

    def _begin(self, session: Session, step_id: str) -> BegunTurn:
        user_id = self._head.user_id
        if step_id == PLAN:
            wish = PlanWish(goal=self._task.goal, slots=self._task.max_concurrent_steps)
            request, note = self._planner.begin(session, user_id, self._settings(session, None), wish)
            start = plan_turn(request, note)
            entry = planning_entry(self._task.task_id, start, note)
            return BegunTurn(start=start, entry=entry, stored=[])
        asked, results = [f"The task: {self._task.name}\n{self._task.goal}"], self._graph.results
        if step_id == RESULT:
            more = [READ_ARTIFACT_TOOL] if any(results.artifacts.values()) else []
            settings = replace(self._settings(session, None), tools=[READ_RESULT_TOOL, *more])
            request = self._resolve(session, user_id, settings)
            return begin_result(asked, self._head.id, results, request)
        step, attempt = self._graph.steps[step_id], self._task.attempts.get(step_id, 0) + 1
        request = self._resolve(session, user_id, self._settings(session, step))
        if step.required_tools or step.required_skills:
            self._planner.references.check_step(session, caller_of_turn(session, user_id), step, request)
        prompts = (request.system_prompt, STEP_PROMPT)
        request = replace(request, system_prompt="\n\n".join(part for part in prompts if part))
        return begin_step(asked, self._head.id, step, attempt, results, request)

    def _settings(self, session: Session, step: NewTaskStep | None) -> AgentSettings:
        """The settings of the step's agent, else of the task's, with the provider of the task."""
        agent = self._planner.settings_for(session, self._head.user_id, self._task.chosen(step))
        if step is None or step.required_tools is None:
            return agent
        # A step that reads results can read on in those that were cut.
        more = [READ_RESULT_TOOL] if step.depends_on else []
        more += [READ_ARTIFACT_TOOL] if self._graph.results.of(step.depends_on).artifacts else []
        more += [ACTIVATE_TOOL] if step.required_skills else []
        return replace(agent, tools=[*step.required_tools, *more], chosen_by=f"the step {step.id}")

    def _refuse(
        self, step_id: str, error: LuxxError, failed: list[tuple[str, list[str], str]]
    ) -> list[LogEntry]:
        """The events of a turn that cannot begin."""
        if step_id not in self._graph.steps:
            if step_id == PLAN:
                self._error = error
                return []
            self._has_result_turn = True
            return [Warning(message=f"The final result could not be written: {error.message}")]
        entries, skipped = self._graph.refuse(step_id, error)
        failed.append((step_id, skipped, error.message))
        return entries

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        if isinstance(ending.error, LimitReached):
            self._error = ending.error
        step_id = start.turn.step_id
        if step_id.startswith(PLAN):
            return self._close_plan(start, state, ending, cut)
        if step_id == RESULT:
            return self._close_result(start, step_end(state, ending), cut)
        closed = self._graph.close(start, state, ending, cut, is_skipped=step_id in self._skipping)
        self._skipping.discard(step_id)
        write = partial(write_ended, self._task.task_id, self._head.id, state, closed)
        return Closing(events=closed.events, write=write, size=len(closed.end.output))

    def _close_result(self, start: TurnStart, end: StepEnd, cut: UsageEntry | None) -> Closing:
        events = cost_entries(start.purpose, cut)
        if end.status == TaskStepStatus.COMPLETED:
            self._result = end.output
            if end.finish in CUT_SHORT:
                events.append(Warning(message=CUT_RESULT))
        elif end.error is not None:
            events.append(Warning(message=f"The final result could not be written: {end.error}"))
        else:
            self._has_result_turn = False  # It was cut by a pause and is written after it.
        complete = StepComplete(step_id=RESULT, status=end.status.value, duration_ms=0, finish=end.finish)
        return Closing(events=[*events, complete])

    def _close_plan(
        self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None
    ) -> Closing:
        step_id = start.turn.step_id
        events = cost_entries(start.purpose, cut)
        outcome = plan_outcome(self._task.task_id, start, self._graph.open[step_id], state, ending)
        self._error = self._error or outcome.error
        if outcome.steps is None:
            return Closing(events=[*events, *outcome.entries])
        steps = outcome.steps
        self._graph.plan(steps, {})
        write = partial(write_plan, self._task.task_id, steps)
        return Closing(events=[*events, *outcome.entries], write=write)

    # Inputs

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        entries: list[LogEntry] = []
        skipped: dict[str, list[str]] = {}
        for given in inputs:
            data = _task_input.decode(given.data)
            named = tuple(data.step_ids)
            match given.kind:
                case InputKind.PAUSE:
                    entries.append(Steered(action=SteerAction.PAUSE, user=data.user))
                case InputKind.APPROVE:
                    entries.append(Steered(action=SteerAction.APPROVE, user=data.user, turns=named))
                case InputKind.SKIP:
                    entries.append(Steered(action=SteerAction.SKIP, user=data.user, turns=named))
                    for step_id in data.step_ids:
                        if self._graph.status(step_id) == TaskStepStatus.PENDING:
                            skipped[step_id] = self._graph.fail(step_id, TaskStepStatus.SKIPPED)
                        elif data.skipped is not None:
                            skipped[step_id] = data.skipped
                case _:
                    pass
        for step_id, others in skipped.items():
            entries.append(StepSkipped(step_id=step_id, because=""))
            entries += [StepSkipped(step_id=one, because=step_id) for one in others]
        return InputEffect(entries=entries, write=partial(write_skipped, self._task.task_id, skipped))
