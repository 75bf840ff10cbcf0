"""What the terminal shows of a task's run: its plan, its steps, its result, and how far it is. Pure."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from luxx.app.cli.menu import Choice, choice_question
from luxx.app.cli.runs.transcript import FollowedSubject, RunFrame, RunTranscript
from luxx.app.cli.screen import FINISH_NOTES, GrowingText, Piece, PieceKind, note
from luxx.features.tasks.graph import PLAN, RESULT, TaskStepStatus
from luxx.features.tasks.models import TaskStatus
from luxx.wire.turn import StepType

GREEN, RED, BLUE = "#3fa34d", "#d64545", "#3f7fd6"
MARKS = {
    TaskStepStatus.COMPLETED.value: ("✓", GREEN),
    TaskStepStatus.FAILED.value: ("✗", RED),
    TaskStepStatus.SKIPPED.value: ("–", ""),
}


class ShownTaskStep(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a step that the terminal needs."""

    id: str
    name: str
    depends_on: list[str]
    status: str
    require_approval: bool = False
    approved_at: str | None = None


class ShownTask(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a task that the terminal needs; lists have counts instead of the steps."""

    id: str
    name: str
    goal: str
    status: str
    require_approval: bool = False
    run_id: str | None = None
    priority: int = 3
    start_at: datetime | None = None
    due_at: datetime | None = None
    snoozed_until: datetime | None = None
    steps: list[ShownTaskStep] = []
    step_counts: dict[str, int] = {}


@dataclass(slots=True)
class StepProgress:
    """How far a step is."""

    name: str
    depends_on: list[str]
    status: str = TaskStepStatus.PENDING.value
    needs_approval: bool = False


class StepLines:
    """The lines about steps that are carried out: of a task, or of the plan of an answer in a chat."""

    def __init__(self, steps: dict[str, StepProgress]) -> None:
        self.steps = steps

    def receive(self, frame: RunFrame) -> list[Piece]:
        """The lines of an event about the plan or a step; none for other events."""
        match frame.type:
            case "planning":
                again = "" if frame.attempt == 1 else f", attempt {frame.attempt}"
                return [note(f"planning{again}")]
            case "plan_created":
                return self._plan(frame)
            case "pattern_used":
                return [note(f"The plan has the pattern “{frame.name}” as reference.")]
            case "step_start":
                return self._start(frame)
            case "step_complete":
                return self._complete(frame)
            case "step_skipped":
                return self._skip(frame)
            case _:
                return []

    def _plan(self, frame: RunFrame) -> list[Piece]:
        self.steps = {
            step.id: StepProgress(name=step.name, depends_on=step.depends_on) for step in frame.steps
        }
        lines = [
            f"the plan has {len(frame.steps)} steps:" if len(frame.steps) > 1 else "the plan has 1 step:"
        ]
        for step in frame.steps:
            after = f" (after {', '.join(step.depends_on)})" if step.depends_on else ""
            lines.append(f"  [{step.id}] {step.name}{after}")
        return [note(line) for line in lines]

    def _start(self, frame: RunFrame) -> list[Piece]:
        if frame.step_id == RESULT:
            return [note("▶ the result", BLUE)]
        step = self.steps.setdefault(frame.step_id, StepProgress(name=frame.name, depends_on=[]))
        step.status, step.needs_approval = TaskStepStatus.RUNNING.value, False
        again = "" if frame.attempt == 1 else f", attempt {frame.attempt}"
        return [note(f"▶ [{frame.step_id}] {step.name}{again}", BLUE)]

    def _complete(self, frame: RunFrame) -> list[Piece]:
        step = self.steps.setdefault(frame.step_id, StepProgress(name=frame.step_id, depends_on=[]))
        step.status = frame.status
        if frame.status == TaskStepStatus.PENDING:
            return [note(f"  [{frame.step_id}] {step.name} was cut")]
        mark, color = MARKS.get(frame.status, ("·", ""))
        why = f": {frame.error}" if frame.error else ""
        if not why and frame.finish in FINISH_NOTES:
            why = f": its result {FINISH_NOTES[frame.finish]}"
        return [
            note(f"{mark} [{frame.step_id}] {step.name} ({frame.duration_ms / 1000:.1f} s){why}", color),
        ]

    def _skip(self, frame: RunFrame) -> list[Piece]:
        step = self.steps.setdefault(frame.step_id, StepProgress(name=frame.step_id, depends_on=[]))
        step.status, step.needs_approval = TaskStepStatus.SKIPPED.value, False
        why = f"because of [{frame.because}]" if frame.because else "by a person"
        return [note(f"– [{frame.step_id}] {step.name}: left out {why}")]


class TaskTranscript(RunTranscript):
    """The transcript of a task's run. Its result goes to stdout."""

    def __init__(self, task: ShownTask, *, is_verbose: bool = False) -> None:
        self._path = f"/tasks/{task.id}"
        subject = FollowedSubject(
            what="task",
            id=task.id,
            again=f"luxx task run --resume {task.id}",
            stop_path=f"{self._path}/pause",
        )
        super().__init__(subject, is_verbose=is_verbose)
        self._needs_approval = task.require_approval
        self._lines = StepLines(
            {
                step.id: StepProgress(
                    name=step.name,
                    depends_on=list(step.depends_on),
                    status=step.status,
                    needs_approval=step.require_approval and step.approved_at is None,
                )
                for step in task.steps
            }
        )
        self._result = GrowingText()
        self._result_texts: dict[int, str] = {}

    def receive_event(self, frame: RunFrame) -> list[Piece]:
        match frame.type:
            case "run":
                self._result_texts.clear()
                return []
            case "process_step":
                return self._grow_result(frame) if frame.step_id == RESULT else []
            case "step_complete":
                return self._complete(frame)
            case "steered":
                return self._steer(frame)
            case "task_complete":
                return self._end(frame)
            case "task_paused" if self.error:
                return [note(self.error)]
            case _:
                return self._lines.receive(frame)

    def _close(self, frame: RunFrame) -> None:
        super()._close(frame)
        if frame.type == "task_complete" and self.error:
            self.status = TaskStatus.FAILED.value
        if frame.type == "task_paused" and not self.status:
            self.error = ""  # A resume followed.

    def _complete(self, frame: RunFrame) -> list[Piece]:
        self.end_turn(frame.step_id)
        if frame.step_id == RESULT:
            return []
        lines = self._lines.receive(frame)
        return lines if frame.status == TaskStepStatus.PENDING else [*lines, *self._counts()]

    def _steer(self, frame: RunFrame) -> list[Piece]:
        match frame.action:
            case "approve":
                approved = frame.turns if isinstance(frame.turns, tuple) else ()
                if not approved:
                    self._needs_approval = False
                for step_id in approved:
                    if step_id in self._lines.steps:
                        self._lines.steps[step_id].needs_approval = False
                what = ", ".join(f"[{one}]" for one in approved) or "the task"
                return [note(f"{frame.user} approves {what}")]
            case "pause":
                return [note(f"{frame.user} pauses the task")]
            case _:
                return []

    def _grow_result(self, frame: RunFrame) -> list[Piece]:
        """The result grows on the screen while a model writes it."""
        step = frame.step
        if step is None or step.type != StepType.TEXT:
            return []
        self._result_texts[step.index] = step.added_to(self._result_texts.get(step.index, ""))
        self._result.text = "".join(self._result_texts[index] for index in sorted(self._result_texts))
        return self._result.rest()

    def _end(self, frame: RunFrame) -> list[Piece]:
        pieces: list[Piece] = []
        if frame.result:
            self._result.text = frame.result
            pieces = self._result.rest(is_whole=True)
            if not frame.result.endswith("\n"):
                pieces.append(Piece(PieceKind.TEXT, "\n"))
        why = f": {self.error}" if self.error else ""
        return [*pieces, note(f"{frame.status}{why} ({self.progress()})")]

    def _counts(self) -> list[Piece]:
        """For output without a terminal, the progress as a line; a terminal shows it below the text."""
        return [Piece(PieceKind.PROGRESS, self.progress())]

    def turn_name(self, frame: RunFrame) -> str:
        if frame.step_id.startswith(PLAN):
            return "the plan"
        return (
            "the result" if frame.step_id == RESULT else f"[{frame.step_id}]" if frame.step_id else "the task"
        )

    def choices(self) -> list[Choice]:
        if self.status or not self.is_caught_up or not self._lines.steps:
            return []
        if self._needs_approval:
            return [self._approval_of_task()]
        return [
            self._approval_of_step(step_id, step)
            for step_id, step in self._lines.steps.items()
            if step.needs_approval
            and step.status == TaskStepStatus.PENDING
            and all(self._is_completed(one) for one in step.depends_on)
        ]

    def _is_completed(self, step_id: str) -> bool:
        return step_id in self._lines.steps and self._lines.steps[step_id].status == TaskStepStatus.COMPLETED

    def _approval_of_task(self) -> Choice:
        options = [
            ("approve", "the task runs"),
            ("pause", "the task pauses"),
            ("cancel", "the run ends, and the task is terminated"),
        ]
        question = choice_question(
            "approve:", f"May this task run? It has {len(self._lines.steps)} steps.", options
        )
        requests: list[tuple[str, object]] = [
            (f"{self._path}/approve", {}),
            (f"{self._path}/pause", None),
            (f"{self._path}/cancel", None),
        ]
        return Choice(question=question, requests=requests)

    def _approval_of_step(self, step_id: str, step: StepProgress) -> Choice:
        options = [
            ("approve", "the step begins"),
            ("skip", "leave it out, and the steps that need it"),
            ("pause", "the task pauses"),
        ]
        question = choice_question(f"approve:{step_id}", f"May [{step_id}] {step.name} begin?", options)
        requests: list[tuple[str, object]] = [
            (f"{self._path}/approve", {"step_ids": [step_id]}),
            (f"{self._path}/steps/{step_id}/skip", None),
            (f"{self._path}/pause", None),
        ]
        return Choice(question=question, requests=requests)

    def progress(self) -> str:
        of_status = dict.fromkeys(TaskStepStatus, 0)
        for step in self._lines.steps.values():
            of_status[TaskStepStatus(step.status)] += 1
        running = [one for one, step in self._lines.steps.items() if step.status == TaskStepStatus.RUNNING]
        parts = [
            f"{of_status[TaskStepStatus.COMPLETED]} of {len(self._lines.steps)} steps done"
            if self._lines.steps
            else "",
            f"{len(running)} running ({', '.join(running)})" if running else "",
            f"{of_status[TaskStepStatus.FAILED]} failed" if of_status[TaskStepStatus.FAILED] else "",
            f"{of_status[TaskStepStatus.SKIPPED]} left out" if of_status[TaskStepStatus.SKIPPED] else "",
            self.totals(),
        ]
        return ", ".join(part for part in parts if part)
