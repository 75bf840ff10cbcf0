"""The turns of steps: what each reads, and how it ended. Those of tasks, and of plans in chats."""

from collections.abc import Mapping, Sequence

import msgspec

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.tokens import text_tokens
from luxx.errors import LimitReached
from luxx.features.tasks.graph import RESULT, TaskStepStatus
from luxx.features.tasks.models import NewTaskStep
from luxx.runs.log.events import LogEntry
from luxx.runs.models import TOOL_LENGTH
from luxx.runs.orchestration.interface import TurnStart
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Ending, finish_of, full_output_row
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.wire.event import TurnNote
from luxx.wire.message import UserContent, fenced
from luxx.wire.orchestration_event import StepStart
from luxx.wire.run import RunStatus
from luxx.wire.turn import (
    CUT_SHORT,
    WITHHELD,
    FinishReason,
    TurnRef,
    WrittenArtifact,
    steps_text,
    written_artifacts,
)

OUTPUT_CHARACTERS, OUTPUT_SHARE = 24_000, 0.3
"""The most that a step reads of all outputs that it depends on, and the share of its model's context window
that they may take; longer ones are cut, and kept whole by reference."""

STEP_PROMPT = (
    "You carry out one step of a larger task. Do only this step. Your last message is its result: other "
    "steps read it, so it must stand for itself. If the step cannot be done, say so and why."
)
READ_ARTIFACT_TOOL = "read_artifact"
RESULT_PROMPT = (
    "All steps of a task are done. Write its final result for the person who set the goal, from the results "
    "of the steps. Refer to a step as [its id] where you use its result, and name what is missing."
)
REFUSED_RESULT = "The model, or a filter of its provider, stopped the answer of this step."
REPEATED = "The model repeated itself, so this step was ended."
NO_RESULT = "The model ended this step without any text, so it has no result."
SKIPPED_BY_A_PERSON = "skipped by a person"
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
    limit: int,
    *,
    can_read: bool = True,
    finishes: Mapping[str, str | None] | None = None,
    artifacts: Mapping[str, Sequence[str]] | None = None,
) -> tuple[str, list[str]]:
    """The outputs of steps as text, each with its id, within about `limit` characters in all; and which are
    cut. `can_read`: the model has the tool that reads the rest. `finishes`: why the outputs ended.
    `artifacts`: the sentences about those that the steps wrote.

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
        parts += (artifacts or {}).get(step_id, ())
    return "\n\n".join(parts), cut


def _artifact_line(step_id: str, written: WrittenArtifact, *, can_read: bool) -> str:
    """The name is quoted, because a model chose it."""
    name, more = _encode(written.name).decode(), f" {READ_ARTIFACT_TOOL} reads it." if can_read else ""
    what = f"version {written.version} of the artifact {written.artifact_id}"
    return f"Step [{step_id}] wrote {what}: {name}.{more}"


def output_ref(step_id: str) -> str:
    """The reference with which `result_read` reads the whole output of a step."""
    return f"step:{step_id}"


class StepResults(msgspec.Struct, kw_only=True):
    """The outputs of completed steps by their ids, why these ended, which tool tainted them, if one did, and
    the artifacts that they wrote."""

    outputs: dict[str, str] = {}
    finishes: dict[str, str | None] = {}
    tainted: dict[str, str] = {}
    artifacts: dict[str, list[WrittenArtifact]] = {}

    def of(self, step_ids: Sequence[str]) -> "StepResults":
        """Those of these steps that are completed, in this order."""
        read = [one for one in step_ids if one in self.outputs]
        return StepResults(
            outputs={one: self.outputs[one] for one in read},
            finishes=self.finishes,
            tainted={one: self.tainted[one] for one in read if one in self.tainted},
            artifacts={one: self.artifacts[one] for one in read if self.artifacts.get(one)},
        )


def shown_outputs(results: StepResults, request: ChatRequest) -> tuple[str, list[str]]:
    """All outputs as text for the turn of a request, and which are cut, see `cut_outputs`."""
    limit, window = OUTPUT_CHARACTERS, request.context_window
    can_read = READ_ARTIFACT_TOOL in request.tools
    if window is not None and OUTPUT_SHARE * window < limit:
        text = "".join(results.outputs.values())
        limit = min(limit, int(OUTPUT_SHARE * window * len(text) / max(1, text_tokens(text))))
    return cut_outputs(
        results.outputs,
        limit,
        can_read=bool(request.tools),
        finishes=results.finishes,
        artifacts={
            step_id: [_artifact_line(step_id, one, can_read=can_read) for one in written]
            for step_id, written in results.artifacts.items()
        },
    )


class BegunTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that begins, its event, and the outputs that it reads in a shortened form."""

    start: TurnStart
    entry: LogEntry
    stored: list[dict[str, str]]


def begin_step(
    asked: Sequence[str],
    run_id: str,
    step: NewTaskStep,
    attempt: int,
    results: StepResults,
    request: ChatRequest,
) -> BegunTurn:
    """The turn of a step, which reads `asked`, its own goal and the outputs of the steps that it depends
    on."""
    step_id = str(step.id)
    parts = [*asked, f"Your step [{step_id}]: {step.name}\n{step.goal}".strip()]
    if step.expected_output:
        parts.append(f"Expected result:\n{step.expected_output}")
    if step.thought_prompt:
        parts.append(step.thought_prompt)
    if step.required_skills:
        parts.append(f"Activate these skills first: {', '.join(step.required_skills)}.")
    event = StepStart(step_id=step_id, name=step.name, attempt=attempt)
    return _begun(run_id, event, parts, results.of(step.depends_on), request)


def begin_result(asked: Sequence[str], run_id: str, results: StepResults, request: ChatRequest) -> BegunTurn:
    """The turn that writes the final result of a task."""
    request = msgspec.structs.replace(request, system_prompt=RESULT_PROMPT)
    event = StepStart(step_id=RESULT, name="Result", attempt=1)
    return _begun(run_id, event, asked, results.of(list(results.outputs)), request)


def _begun(
    run_id: str, event: StepStart, parts: Sequence[str], read: StepResults, request: ChatRequest
) -> BegunTurn:
    results, cut = shown_outputs(read, request)
    text = "\n\n".join([*parts, results] if results else parts)
    given = TurnInput(text=text, tainted_by=next(iter(read.tainted.values()), None))
    note = TurnNote(request=msgspec.Raw(_encode(request)), data=msgspec.Raw(_encode(given)))
    return BegunTurn(
        start=input_turn(str(event.step_id), given, request),
        entry=(event, note),
        stored=[full_output_row(run_id, output_ref(one), read.outputs[one]) for one in cut],
    )


def input_turn(step_id: str, given: TurnInput, request: ChatRequest) -> TurnStart:
    """The turn of a step, or of the final result, that reads this."""
    past = [PastMessage(user=UserContent(text=given.text))]
    return TurnStart(turn=TurnRef(step_id=step_id), request=request, past=past, tainted_by=given.tainted_by)


class StepEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the turn of a step ended; `finish` is why its last model call did, `artifacts` what it wrote."""

    status: TaskStepStatus
    output: str
    error: str | None
    finish: str | None = None
    artifacts: list[WrittenArtifact] = []


def step_end(state: TurnState, ending: Ending) -> StepEnd:
    """Completed with the text of the turn, failed, or pending again if a person or a limit cut it.

    A step without a result, because the model wrote none or it was refused, has failed: other steps would
    build on it.
    """
    text = steps_text(state.steps).replace("\0", "\ufffd")
    finish, artifacts = finish_of(state, ending), written_artifacts(state.steps)
    if not text.strip() and artifacts:
        text = "\n".join(f"Written: {one.name} (version {one.version})" for one in artifacts)
    if ending.status == RunStatus.COMPLETED and ending.error is None:
        missing = _missing_result(state, text, finish)
        status = TaskStepStatus.COMPLETED if missing is None else TaskStepStatus.FAILED
        return StepEnd(status=status, output=text, error=missing, finish=finish, artifacts=artifacts)
    if ending.status == RunStatus.CANCELLED or isinstance(ending.error, LimitReached):
        return StepEnd(status=TaskStepStatus.PENDING, output=text, error=None)
    error = "the step failed" if ending.error is None else ending.error.message.replace("\0", "\ufffd")
    return StepEnd(status=TaskStepStatus.FAILED, output=text, error=error, finish=finish)


def _missing_result(state: TurnState, text: str, finish: str | None) -> str | None:
    """Why there is no result; None: there is one."""
    if finish in WITHHELD and text:
        return REFUSED_RESULT
    if finish == FinishReason.LOOP:
        return REPEATED
    notices = [one.notice for one in state.steps if isinstance(one.notice, str)]
    return None if text.strip() else " ".join(notices) or NO_RESULT


def taint_of(start: TurnStart, state: TurnState) -> str | None:
    """The tool that brought untrusted content into the result of a turn; None: there is none."""
    tainted_by = start.tainted_by or state.tainted_by
    return None if tainted_by is None else tainted_by[:TOOL_LENGTH]
