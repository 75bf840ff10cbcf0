"""The log entries of a turn's steps, calls and results; and which calls are not run, and why."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from luxx.runs.log.events import LogEntry
from luxx.runs.models import CALL_ID_LENGTH
from luxx.runs.turn.state import TurnState, open_calls
from luxx.tools.history import CallStatus, Executed
from luxx.wire.event import ProcessStep
from luxx.wire.tool import ToolCall, ToolResult
from luxx.wire.turn import CUT_SHORT, CallOutcome, Step, StepStatus, StepType, step_id

_encode = msgspec.json.Encoder().encode

INTERRUPTED = ToolResult.fail(
    "The server stopped while this tool was running, so it is not known whether it took effect. "
    "It was not run again."
)

CUT = ToolResult.fail(
    "This call was not run: your answer reached its limit of tokens before the arguments were complete. Make "
    "the call again with shorter arguments, or in several parts."
)

NOT_RUN = ToolResult.fail(
    "This call was not run: the run has reached its limit of tool calls. Answer with what is known."
)


def refused_calls(state: TurnState, excess: Sequence[Step]) -> dict[int, ToolResult]:
    """The results of the open calls that are not run, by index: those in `excess` of a limit, and those whose
    arguments did not arrive whole because the completion was cut."""
    refused = {call.index: NOT_RUN for call in excess}
    if state.notes and state.notes[-1].finish in CUT_SHORT:
        refused |= {call.index: CUT for call in open_calls(state) if not _has_whole_arguments(call)}
    return refused


def refused_entries(state: TurnState, refused: Mapping[int, ToolResult]) -> list[LogEntry]:
    """The entries of calls that are not run, with their results."""
    entries: list[LogEntry] = []
    for index, at in enumerate(refused, len(state.steps)):
        call = state.steps[at]
        entries += [status_entry(call, StepStatus.ERROR), result_entry(call, index, refused[at])]
    return entries


def _has_whole_arguments(call: Step) -> bool:
    try:
        return isinstance(msgspec.json.decode(str(call.arguments)), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def full_output_row(run_id: str, call_id: str, output: str) -> dict[str, str]:
    """The row of the full output of a shortened result; NUL is replaced and the id cut for PostgreSQL."""
    return {"run_id": run_id, "call_id": call_id[:CALL_ID_LENGTH], "output": output.replace("\0", "\ufffd")}


def closed_entries(steps: list[Step]) -> list[LogEntry]:
    """The entries that log closed steps."""
    return [ProcessStep(step=step) for step in steps]


def status_entry(step: Step, status: StepStatus, duration_ms: int | None = None) -> ProcessStep:
    """The entry that gives a logged step another status."""
    duration = UNSET if duration_ms is None else duration_ms
    return ProcessStep(step=msgspec.structs.replace(step, status=status, duration_ms=duration))


def call_of(step: Step) -> ToolCall:
    """The tool call of a step."""
    return ToolCall(call_id=str(step.id_ref), name=str(step.name), arguments=str(step.arguments or "{}"))


def executed_entry(call: Step, index: int, executed: Executed) -> ProcessStep:
    """The entry of the result of an executed or refused call."""
    entry = result_entry(call, index, executed.result, executed.duration_ms)
    outcome = CallOutcome.CORRECTED if executed.is_corrected else UNSET
    if executed.status in (CallStatus.DENIED, CallStatus.REJECTED):
        outcome = CallOutcome(executed.status.value)
    step = msgspec.structs.replace(
        entry.step,
        outcome=outcome,
        note=UNSET if executed.note is None else executed.note,
        is_untrusted=True if executed.is_untrusted else UNSET,
        images=list(executed.images) or UNSET,
        calls=executed.calls or UNSET,
    )
    return ProcessStep(step=step)


def result_entry(call: Step, index: int, result: ToolResult, duration_ms: int | None = None) -> ProcessStep:
    """The entry of a call's result, as the step of this index."""
    return ProcessStep(
        step=Step(
            id=step_id(index),
            index=index,
            type=StepType.TOOL_RESULT,
            content=_encode(result).decode(),
            name=call.name,
            id_ref=call.id_ref,
            success=result.success,
            status=StepStatus.DONE if result.success else StepStatus.ERROR,
            duration_ms=UNSET if duration_ms is None else duration_ms,
        )
    )
