"""Traces: what a run did, without the data of the person, and whether a pattern may be learned from it."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from luxx.domain.conversations.access import assistant_steps, user_content
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.features.patterns.service import MAX_GOAL
from luxx.features.patterns.slots import PatternSignature, signature_of, slotted
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.check import Verdict, VerdictResult
from luxx.wire.event import Event
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import Step, StepType, steps_text
from luxx.wire.turn_event import DoomLoopDetected, PatternUsed, PlanUpdated, Tainted

LEAST_CALLS = 3
"""Tool calls of a run that a pattern is learned from."""

MOST_SHOWN, MOST_CALL, MOST_RESULT = 30, 300, 1_000
"""Calls of a run that a model is shown, and characters of the arguments of one and of the answer."""

ASKING_TOOLS = frozenset({"ask_clarification", "ask_decision"})

_events, _messages = table_of(RunEventRow), table_of(MessageRow)
_read = (
    select(_events.c.data)
    .where(
        _events.c.run_id == bindparam("run"),
        _events.c.type.in_(["pattern_used", "tainted", "doom_loop_detected", "verdict", "plan_updated"]),
    )
    .order_by(_events.c.seq)
)
_event = msgspec.json.Decoder(Event)


class TraceOutcome(StrEnum):
    """How a run ended, for patterns. `doubtful` teaches nothing."""

    SUCCESS = "success"
    FAILURE = "failure"
    DOUBTFUL = "doubtful"


class TracedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call with its arguments as slots and general words."""

    tool: str
    about: str


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did. All texts are slotted; the calls are those that succeeded. `signature`: of the request;
    `decisions`: questions and their answers; `corrections`: what a person wrote meanwhile."""

    run_id: str
    goal: str
    signature: PatternSignature
    calls: list[TracedCall]
    plan: list[str] = []
    decisions: list[str] = []
    corrections: list[str] = []
    result: str = ""
    duration_ms: int = 0

    @property
    def tools(self) -> list[str]:
        """The names of the tools, each once, in the order of their first calls."""
        return list(dict.fromkeys(call.tool for call in self.calls))


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a run. `used`: the patterns that it was given. `trace` null: nothing is learned from
    it."""

    outcome: TraceOutcome
    duration_ms: int
    used: list[PatternUsed]
    trace: Trace | None = None


def look_at(session: Session, run: RunRow, conversation: ConversationRow) -> Looked:
    """What a chat's run that has ended says about patterns."""
    rows = session.connection().execute(_read, {"run": run.id})
    events = [_event.decode(row.data) for row in rows]
    used = [one for one in events if isinstance(one, PatternUsed)]
    outcome = _outcome(session, run, events)
    found = Looked(outcome=outcome, duration_ms=_duration_ms(run), used=used)
    is_tainted = any(isinstance(one, Tainted) for one in events)
    if outcome != TraceOutcome.SUCCESS or used or is_tainted or conversation.record is False:
        return found
    question = session.get(MessageRow, run.question_id or "")
    answer = session.get(MessageRow, run.message_id or "")
    if question is None or answer is None:
        return found
    steps, goal = assistant_steps(answer.content), user_content(question.content).text[:MAX_GOAL]
    calls = _calls(steps)
    if len(calls) < LEAST_CALLS:
        return found
    tools, signature = sorted({call.tool for call in calls}), signature_of(goal)
    if not signature.words:
        return found
    plans = [one for one in events if isinstance(one, PlanUpdated)]
    trace = Trace(
        run_id=run.id,
        goal=slotted(goal, tools),
        signature=signature,
        calls=calls[:MOST_SHOWN],
        plan=[slotted(todo.title, tools) for todo in plans[-1].todos] if plans else [],
        decisions=_slotted(_decisions(steps), tools),
        corrections=_slotted((one.content for one in steps if _is_of_person(one)), tools),
        result=slotted(steps_text(steps)[:MOST_RESULT], tools),
        duration_ms=found.duration_ms,
    )
    return msgspec.structs.replace(found, trace=trace)


def _outcome(session: Session, run: RunRow, events: Sequence[Event]) -> TraceOutcome:
    if run.status == RunStatus.CANCELLED.value or _is_regenerated(session, run):
        return TraceOutcome.DOUBTFUL
    is_invalid = any(isinstance(one, Verdict) and one.result == VerdictResult.INVALID for one in events)
    is_in_loop = any(isinstance(one, DoomLoopDetected) for one in events)
    if run.status == RunStatus.FAILED.value or is_invalid or is_in_loop:
        return TraceOutcome.FAILURE
    return TraceOutcome.SUCCESS if run.stop_reason == StopReason.FINISHED.value else TraceOutcome.DOUBTFUL


def _is_regenerated(session: Session, run: RunRow) -> bool:
    """Whether the message that the run answers has another answer."""
    answers = select(func.count()).where(
        _messages.c.parent_id == run.question_id, _messages.c.role == "assistant"
    )
    return run.question_id is not None and (session.scalar(answers) or 0) > 1


def _duration_ms(run: RunRow) -> int:
    begun: datetime = run.started_at or run.created_at
    return round(((run.finished_at or begun) - begun).total_seconds() * 1000)


def _calls(steps: Sequence[Step]) -> list[TracedCall]:
    succeeded = {step.id_ref for step in steps if step.type == StepType.TOOL_RESULT and step.success is True}
    calls = [step for step in steps if step.type == StepType.TOOL_CALL and step.id_ref in succeeded]
    names = {str(step.name) for step in calls}
    return [
        TracedCall(tool=str(step.name), about=slotted(_values(step.arguments)[:MOST_CALL], names))
        for step in calls
    ]


def _values(arguments: Any) -> str:
    """The texts and numbers in the arguments of a call; the names of the fields are those of the tool."""
    try:
        decoded = msgspec.json.decode(str(arguments or "{}"), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return ""
    return " ; ".join(str(value) for value in decoded.values() if isinstance(value, str | int | float))


def _decisions(steps: Sequence[Step]) -> Iterable[str]:
    results = {step.id_ref: step for step in steps if step.type == StepType.TOOL_RESULT}
    for step in steps:
        if step.type == StepType.TOOL_CALL and step.name in ASKING_TOOLS and step.id_ref in results:
            yield f"{_values(step.arguments)} : {results[step.id_ref].content}"[:MOST_RESULT]


def _is_of_person(step: Step) -> bool:
    return step.type == StepType.USER and not isinstance(step.name, str)


def _slotted(texts: Iterable[str], tools: Collection[str]) -> list[str]:
    return [slotted(text[:MOST_RESULT], tools) for text in texts][:10]
