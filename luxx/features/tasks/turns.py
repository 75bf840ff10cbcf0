"""The turns of a task: the plan, its steps and the final result; what each reads, and what it writes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection

from luxx.domain.context.messages import PastMessage
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LimitReached
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import NewTaskStep
from luxx.features.tasks.run_rows import BY_A_PERSON, FINISH_STEP, TaskValues, skip_steps
from luxx.infra.clock import utc_now
from luxx.runs.log.events import LogEntry
from luxx.runs.models import TOOL_LENGTH
from luxx.runs.orchestration.interface import TurnStart
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.state import ChatRequest, TurnState, model_used
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries, finish_of, full_output_row
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.wire.event import TurnNote
from luxx.wire.message import UserContent, fenced
from luxx.wire.orchestration_event import StepComplete, StepSkipped, StepStart
from luxx.wire.run import RunStatus
from luxx.wire.turn import CUT_SHORT, WITHHELD, StepStatus, StepType, TurnRef, steps_text

PLAN, RESULT = "task:plan", "task:result"
"""The `step_id` of the turns that plan and that write the final result; no step has such an id."""

OUTPUT_CHARACTERS = 24_000
"""What a step reads of all outputs that it depends on; longer ones are cut, and kept whole by reference."""

STEP_PROMPT = (
    "You carry out one step of a larger task. Do only this step. Your last message is its result: other "
    "steps read it, so it must stand for itself. If the step cannot be done, say so and why."
)
RESULT_PROMPT = (
    "All steps of a task are done. Write its final result for the person who set the goal, from the results "
    "of the steps. Refer to a step as [its id] where you use its result, and name what is missing."
)
REFUSED_RESULT = "The model, or a filter of its provider, stopped the answer of this step."
NO_RESULT = "The model ended this step without any text, so it has no result."
CUT_RESULT = "The final result was cut at the limit of tokens of its model."
_encode = msgspec.json.Encoder().encode


class TurnInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the turn of a step reads, as it is kept in the note of its event.

    `tainted_by`: the tool that brought untrusted content into the results that it reads.
    """

    text: str
    tainted_by: str | None = None


_turn_input = msgspec.json.Decoder(TurnInput)


def turn_input_of(note: TurnNote) -> TurnInput:
    """The input in the note of the event with which the turn of a step began."""
    assert isinstance(note.data, msgspec.Raw)
    return _turn_input.decode(note.data)


def cut_outputs(
    outputs: Mapping[str, str],
    limit: int = OUTPUT_CHARACTERS,
    *,
    can_read: bool = True,
    finishes: Mapping[str, str | None] | None = None,
) -> tuple[str, list[str]]:
    """The outputs of steps as text, each with its id, within about `limit` characters in all; and which are
    cut. `can_read`: the model has the tool that reads the rest. `finishes`: why the outputs ended.

    Short outputs stay whole; what they leave of the limit is shared by the long ones.
    """
    cut: list[str] = []
    shares: dict[str, int] = {}
    left, count = limit, len(outputs)
    for step_id, output in sorted(outputs.items(), key=lambda item: len(item[1])):
        shares[step_id] = min(len(output), left // count)
        left, count = left - shares[step_id], count - 1
    parts: list[str] = []
    for step_id, output in outputs.items():
        shown, more_text = output[: shares[step_id]], ""
        if len(shown) < len(output):
            cut.append(step_id)
            how = f"{READ_RESULT_TOOL} with the ref {output_ref(step_id)} reads them"
            more = len(output) - len(shown)
            more_text = f"\n[{more:,} more characters; {how if can_read else 'they are left out'}]"
        is_cut_short = (finishes or {}).get(step_id) in CUT_SHORT
        how_it_ended = " (cut at the limit of tokens of its model)" if is_cut_short else ""
        # Fenced, so that no output can be taken for that of another step or for the task.
        parts.append(f"Result of step [{step_id}]{how_it_ended}:\n{fenced(shown, '')}{more_text}")
    return "\n\n".join(parts), cut


def output_ref(step_id: str) -> str:
    """The reference with which `result_read` reads the whole output of a step."""
    return f"step:{step_id}"


class BegunTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that begins, its event, and the outputs that it reads in a shortened form."""

    start: TurnStart
    entry: LogEntry
    stored: list[dict[str, str]]


def begin_step(task: TaskValues, run_id: str, step: NewTaskStep, request: ChatRequest) -> BegunTurn:
    """The turn of a step with the outputs of the steps that it depends on."""
    step_id = str(step.id)
    request = msgspec.structs.replace(
        request, system_prompt="\n\n".join(part for part in (request.system_prompt, STEP_PROMPT) if part)
    )
    parts = [
        f"The task: {task.name}\n{task.goal}",
        f"Your step [{step_id}]: {step.name}\n{step.goal}".strip(),
    ]
    if step.expected_output:
        parts.append(f"Expected result:\n{step.expected_output}")
    if step.thought_prompt:
        parts.append(step.thought_prompt)
    if step.required_skills:
        parts.append(f"Activate these skills first: {', '.join(step.required_skills)}.")
    event = StepStart(step_id=step_id, name=step.name, attempt=task.attempts.get(step_id, 0) + 1)
    inputs = {one: task.outputs[one] for one in step.depends_on if one in task.outputs}
    return _begun(task, run_id, event, parts, inputs, request)


def begin_result(task: TaskValues, run_id: str, request: ChatRequest) -> BegunTurn:
    """The turn that writes the final result of the task."""
    request = msgspec.structs.replace(request, system_prompt=RESULT_PROMPT)
    event = StepStart(step_id=RESULT, name="Result", attempt=1)
    return _begun(task, run_id, event, [f"The task: {task.name}\n{task.goal}"], task.outputs, request)


def _begun(
    task: TaskValues,
    run_id: str,
    event: StepStart,
    parts: list[str],
    inputs: Mapping[str, str],
    request: ChatRequest,
) -> BegunTurn:
    results, cut = cut_outputs(inputs, can_read=bool(request.tools), finishes=task.finishes)
    text = "\n\n".join([*parts, results] if results else parts)
    tainted = next((task.tainted[one] for one in inputs if one in task.tainted), None)
    given = TurnInput(text=text, tainted_by=tainted)
    note = TurnNote(request=msgspec.Raw(_encode(request)), data=msgspec.Raw(_encode(given)))
    return BegunTurn(
        start=input_turn(str(event.step_id), given, request),
        entry=(event, note),
        stored=[full_output_row(run_id, output_ref(one), inputs[one]) for one in cut],
    )


def input_turn(step_id: str, given: TurnInput, request: ChatRequest) -> TurnStart:
    """The turn of a step, or of the final result, that reads this."""
    past = [PastMessage(user=UserContent(text=given.text))]
    return TurnStart(turn=TurnRef(step_id=step_id), request=request, past=past, tainted_by=given.tainted_by)


class StepEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the turn of a step ended; `finish` is why its last model call did."""

    status: TaskStepStatus
    output: str
    error: str | None
    finish: str | None = None


def step_end(state: TurnState, ending: Ending) -> StepEnd:
    """Completed with the text of the turn, failed, or pending again if a person or a limit cut it.

    A step without a result, because the model wrote none or it was refused, has failed: other steps would
    build on it.
    """
    text = steps_text(state.steps).replace("\0", "\ufffd")
    finish = finish_of(state, ending)
    if ending.status == RunStatus.COMPLETED and ending.error is None:
        missing = _missing_result(state, text, finish)
        status = TaskStepStatus.COMPLETED if missing is None else TaskStepStatus.FAILED
        return StepEnd(status=status, output=text, error=missing, finish=finish)
    if ending.status == RunStatus.CANCELLED or isinstance(ending.error, LimitReached):
        return StepEnd(status=TaskStepStatus.PENDING, output=text, error=None)
    error = "the step failed" if ending.error is None else ending.error.message.replace("\0", "\ufffd")
    return StepEnd(status=TaskStepStatus.FAILED, output=text, error=error, finish=finish)


def _missing_result(state: TurnState, text: str, finish: str | None) -> str | None:
    """Why there is no result; None: there is one."""
    if finish in WITHHELD and text:
        return REFUSED_RESULT
    notices = [one.notice for one in state.steps if isinstance(one.notice, str)]
    return None if text.strip() else " ".join(notices) or NO_RESULT


def close_step(
    task_id: str,
    run_id: str,
    start: TurnStart,
    state: TurnState,
    end: StepEnd,
    started: datetime,
    *,
    skipped: Sequence[str],
    cut: UsageEntry | None,
) -> Closing:
    """What the end of a step's turn writes; `skipped` are the steps that cannot be carried out after it."""
    now, step_id = utc_now(), start.turn.step_id
    duration = max(0, int((now - started).total_seconds() * 1000))
    events = cost_entries(start.purpose, cut)
    used: dict[str, Any] = {
        **msgspec.structs.asdict(model_used(start.request, state)),
        "finish": end.finish,
    }
    complete = StepComplete(step_id=step_id, status=end.status.value, duration_ms=duration, **used)
    if end.error is not None:
        complete = msgspec.structs.replace(complete, error=end.error)
    events += [complete, *(StepSkipped(step_id=one, because=step_id) for one in skipped)]
    questions = [one.question.question_id for one in state.questions if one.answer is None]
    row: dict[str, Any] = {
        "b_task": task_id, "b_id": step_id, "status": end.status.value, "output": end.output,
        "error": end.error, "tainted_by": taint_of(start, state),
        "skipped_because": BY_A_PERSON if end.status == TaskStepStatus.SKIPPED else None,
        "tool_calls": _encode(_calls_of(state)).decode(),
        "usage": _encode(state.usage).decode(), "cost": state.cost, "duration_ms": duration, **used,
        "finished_at": now,
    }  # fmt: skip

    def write(connection: Connection) -> None:
        connection.execute(FINISH_STEP, row)
        skip_steps(connection, task_id, skipped, step_id, end.status)
        if questions:
            close_questions(connection, run_id, questions)

    return Closing(events=events, changes={}, write=write, size=len(end.output))


def taint_of(start: TurnStart, state: TurnState) -> str | None:
    """The tool that brought untrusted content into the result of a turn; None: there is none."""
    tainted_by = start.tainted_by or state.tainted_by
    return None if tainted_by is None else tainted_by[:TOOL_LENGTH]


def _calls_of(state: TurnState) -> list[dict[str, Any]]:
    """The tool calls of a step, in short: name, arguments, status."""
    return [
        {"id": step.id_ref, "name": step.name, "arguments": step.arguments, "status": step.status.value}
        for step in state.steps
        if step.type == StepType.TOOL_CALL and step.status != StepStatus.INTERRUPTED
    ]
