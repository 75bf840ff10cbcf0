"""Entries of a chat's log, made of steps: closed, marked, answered. Pure."""

import msgspec
from msgspec import UNSET

from luxx.runs.events import Entry
from luxx.runs.models import CALL_ID_LENGTH
from luxx.tools.history import CallStatus, Executed
from luxx.wire.event import ProcessStep
from luxx.wire.step import CallOutcome, Step, StepStatus, StepType, step_id
from luxx.wire.tool import ToolCall, ToolResult

_encode = msgspec.json.Encoder().encode

INTERRUPTED = ToolResult.fail(
    "The server stopped while this tool was running, so it is not known whether it took effect. "
    "It was not run again."
)

NOT_RUN = ToolResult.fail(
    "This call was not run: the run has made all the calls of tools that it may. Answer with what is known."
)


def whole_result(run_id: str, call_id: str, output: str) -> dict[str, str]:
    """The row of an output that was cut, in what every database takes: no NUL, no endless id."""
    return {"run_id": run_id, "call_id": call_id[:CALL_ID_LENGTH], "output": output.replace("\0", "\ufffd")}


def added(sum_: float | None, cost: float | None) -> float | None:
    """A run's cost with one more completion; not known where that one's is not."""
    return None if cost is None else (sum_ or 0.0) + cost


def closing(steps: list[Step]) -> list[Entry]:
    """The entries that log closed steps."""
    return [ProcessStep(step=step) for step in steps]


def marked(step: Step, status: StepStatus, duration_ms: int | None = None) -> ProcessStep:
    """The entry that gives a logged step another status."""
    duration = UNSET if duration_ms is None else duration_ms
    return ProcessStep(step=msgspec.structs.replace(step, status=status, duration_ms=duration))


def call_of(step: Step) -> ToolCall:
    """The call that a step says the model made."""
    return ToolCall(call_id=str(step.id_ref), name=str(step.name), arguments=str(step.arguments or "{}"))


def carried_out(call: Step, index: int, executed: Executed) -> ProcessStep:
    """The entry of the result of a call that was carried out, or refused."""
    entry = answered(call, index, executed.result, executed.duration_ms)
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


def answered(call: Step, index: int, result: ToolResult, duration_ms: int | None = None) -> ProcessStep:
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
