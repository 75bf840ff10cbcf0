"""The steps of a graph while a run carries them out: what is ready, what is in progress, what an end skips.

It knows no rows: a task stores the steps (`orchestration.py`), a planned chat has them in its log only.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError
from luxx.features.tasks.checks import graph_of
from luxx.features.tasks.graph import StepStatuses, TaskStepStatus, pending_after
from luxx.features.tasks.models import NewTaskStep
from luxx.features.tasks.turns import SKIPPED_BY_A_PERSON, StepEnd, StepResults, step_end, taint_of
from luxx.infra.clock import utc_now
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.interface import TurnStart
from luxx.runs.turn.state import TurnState, model_used
from luxx.runs.turn.turn_log import Ending, cost_entries
from luxx.wire.event import LoggedEvent, TurnNote
from luxx.wire.orchestration_event import Planning, StepComplete, StepSkipped, StepStart
from luxx.wire.turn import ModelUsed


class ClosedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a step's turn, with its events; `skipped` are the steps that cannot be carried out after
    it, and `questions` the ids of those that nobody needs to answer any more."""

    step_id: str
    end: StepEnd
    events: list[LogEntry]
    skipped: list[str]
    used: ModelUsed
    duration_ms: int
    finished_at: datetime
    tainted_by: str | None
    questions: list[str]


class StepGraph:
    """The steps of one run, with their results, and the turns in progress: `open` has their notes by key,
    also those of turns that are no step."""

    def __init__(
        self, steps: Sequence[NewTaskStep], statuses: Mapping[str, TaskStepStatus], results: StepResults
    ) -> None:
        self.results = results
        self.open: dict[str, TurnNote] = {}
        self._started: dict[str, datetime] = {}
        self.plan(steps, statuses)

    def plan(self, steps: Sequence[NewTaskStep], statuses: Mapping[str, TaskStepStatus]) -> None:
        """Sets the steps and their statuses; those without one are pending."""
        self.steps = {str(one.id): one for one in steps}
        self._graph = graph_of(steps)
        self._statuses = StepStatuses(self._graph, statuses)

    def apply(self, logged: LoggedEvent) -> None:
        """Takes note of a turn that began or ended."""
        event, step_id = logged.event, str(logged.event.step_id)
        match event:
            case StepStart() | Planning() if isinstance(logged.note, TurnNote):
                self.open[step_id] = logged.note
                self._started[step_id] = datetime.fromisoformat(event.timestamp)
            case StepComplete():
                self.open.pop(step_id, None)
            case _:
                pass

    def status(self, step_id: str) -> TaskStepStatus | None:
        """The status of a step; None: there is no such step."""
        return self._statuses.get(step_id)

    def begun_at(self, key: str) -> datetime | None:
        """When the turn of this key began, as the log says it."""
        return self._started.get(key)

    def restore(self, step_id: str, end: StepEnd, tainted_by: str | None = None) -> None:
        """Sets how a step ended, as the log of an earlier drive says it."""
        self._statuses.set(step_id, end.status)
        if end.status == TaskStepStatus.COMPLETED:
            self._keep(step_id, end, tainted_by)

    def _keep(self, step_id: str, end: StepEnd, tainted_by: str | None) -> None:
        self.results.outputs[step_id], self.results.finishes[step_id] = end.output, end.finish
        if tainted_by is not None:
            self.results.tainted[step_id] = tainted_by
        if end.artifacts:
            self.results.artifacts[step_id] = end.artifacts

    def ready(self, held: Collection[str] = ()) -> list[str]:
        """The steps that can begin now, in their order, without the `held` ones."""
        return [one for one in self._statuses.ready() if one not in held]

    def failure(self) -> LuxxError | None:
        """The error that names the failed steps; None if no step failed."""
        return self._statuses.failure()

    def start(self, step_id: str) -> None:
        """The turn of a step begins."""
        self._statuses.set(step_id, TaskStepStatus.RUNNING)

    def fail(self, step_id: str, status: TaskStepStatus = TaskStepStatus.FAILED) -> list[str]:
        """Sets the status of a step; returns the pending steps that cannot be carried out any more."""
        self._statuses.set(step_id, status)
        skipped = pending_after(self._graph, step_id, self._statuses)
        for one in skipped:
            self._statuses.set(one, TaskStepStatus.SKIPPED)
        return skipped

    def refuse(self, step_id: str, error: LuxxError) -> tuple[list[LogEntry], list[str]]:
        """The events of a step that cannot begin, and the steps that are skipped because of it."""
        skipped = self.fail(step_id)
        complete = StepComplete(
            step_id=step_id, status=TaskStepStatus.FAILED.value, duration_ms=0, error=error.message
        )
        return [complete, *_skipped_events(skipped, step_id)], skipped

    def close(
        self,
        start: TurnStart,
        state: TurnState,
        ending: Ending,
        cut: UsageEntry | None,
        *,
        is_skipped: bool = False,
    ) -> ClosedStep:
        """Sets the status and the result of a step whose turn ended. `is_skipped`: a person cut it."""
        step_id, end = start.turn.step_id, step_end(state, ending)
        skipped: list[str] = []
        if is_skipped:
            end = replace(end, status=TaskStepStatus.SKIPPED, error=SKIPPED_BY_A_PERSON)
            skipped = self.fail(step_id, TaskStepStatus.SKIPPED)
        elif end.status == TaskStepStatus.FAILED:
            skipped = self.fail(step_id)
        else:
            self._statuses.set(step_id, end.status)
        tainted_by = taint_of(start, state)
        if end.status == TaskStepStatus.COMPLETED:
            self._keep(step_id, end, tainted_by)
        now = utc_now()
        duration = max(0, int((now - (self._started.get(step_id) or now)).total_seconds() * 1000))
        used = model_used(start.request, state)
        complete = StepComplete(
            step_id=step_id, status=end.status.value, duration_ms=duration, finish=end.finish,
            **msgspec.structs.asdict(used),
        )  # fmt: skip
        if end.error is not None:
            complete = replace(complete, error=end.error)
        return ClosedStep(
            step_id=step_id,
            end=end,
            events=[*cost_entries(start.purpose, cut), complete, *_skipped_events(skipped, step_id)],
            skipped=skipped,
            used=used,
            duration_ms=duration,
            finished_at=now,
            tainted_by=tainted_by,
            questions=[one.question.question_id for one in state.questions if one.answer is None],
        )


def _skipped_events(skipped: Sequence[str], because: str) -> list[LogEntry]:
    return [StepSkipped(step_id=one, because=because) for one in skipped]
