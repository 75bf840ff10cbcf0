"""Traces: what a run of a chat or a task did, without the data of the person, and whether a pattern may be
learned from it.
"""

import re
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
from luxx.features.patterns.slots import PatternSignature, signature_of, slotted, slotted_line
from luxx.features.tasks.models import TaskRow, TaskStepRow
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.check import Verdict, VerdictResult
from luxx.wire.event import Event, ProcessStep, QuestionAnswered, QuestionAsked
from luxx.wire.orchestration_event import PlanCreated
from luxx.wire.run import (
    LOOP_DECISION,
    PATTERN_DECISION,
    AnsweredBy,
    PatternChoice,
    QuestionKind,
    RunKind,
    RunStatus,
    StopReason,
)
from luxx.wire.turn import Step, StepStatus, StepType, steps_text
from luxx.wire.turn_event import DoomLoopDetected, PatternUsed, PlanUpdated, Tainted

LEAST_CALLS = 3
"""Tool calls of a run that a pattern is made of."""

MOST_SHOWN, MOST_CALL, MOST_RESULT = 30, 300, 1_000
"""Calls of a run that a model is shown, and characters of the arguments of one and of the answer."""

MOST_WORDS_OF_PERSON, MOST_STEPS_READ = 10, 500

ASKING_TOOLS = frozenset({"ask_clarification", "ask_decision"})

_CORRECTS = re.compile(
    r"(?i)\s*(?:no\b(?! (?:problem|worries|thanks|need)\b)|wrong|that(?:['’]s| is) (?:wrong|not)|"
    r"not (?:like|what)|don['’]?t|do not|instead|rather|i meant|i wanted|actually|"
    r"不对|错了|不是|应该|改成|不要|别|重新)"
)
"""How the message after an answer begins if it corrects the answer."""

_events, _messages = table_of(RunEventRow), table_of(MessageRow)
_of_run = (
    select(_events.c.data)
    .where(_events.c.run_id == bindparam("run"), _events.c.type.in_(bindparam("types", expanding=True)))
    .order_by(_events.c.seq)
)
_READ = (
    *("pattern_used", "tainted", "doom_loop_detected", "verdict", "plan_updated", "plan_created"),
    *("question_asked", "question_answered"),
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


class PersonsWord(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said meanwhile, as slots and general words. `asked`: the question; empty: they said it
    by themselves, to correct something. `near`: the tool that was called before it, or empty."""

    said: str
    asked: str = ""
    near: str = ""

    @property
    def text(self) -> str:
        return f"{self.asked}: {self.said}" if self.asked else self.said


class _TaskCall(msgspec.Struct):
    """What is needed of a stored call of a task's step."""

    name: str | None = None
    arguments: Any = None
    status: str = ""


_task_calls = msgspec.json.Decoder(list[_TaskCall])


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did. All texts are slotted; the calls are those that succeeded. `signature`: of the request;
    `decisions`: questions and the answers of a person; `corrections`: what a person wrote meanwhile."""

    run_id: str
    goal: str
    signature: PatternSignature
    calls: list[TracedCall]
    plan: list[str] = []
    decisions: list[PersonsWord] = []
    corrections: list[PersonsWord] = []
    result: str = ""
    duration_ms: int = 0

    @property
    def tools(self) -> list[str]:
        """The names of the tools, each once, in the order of their first calls."""
        return list(dict.fromkeys(call.tool for call in self.calls))


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a run. `used`: the patterns that it was given. `trace` null: nothing is learned from
    it. `makes_one`: a new pattern may be made of it."""

    outcome: TraceOutcome
    duration_ms: int
    used: list[PatternUsed]
    trace: Trace | None = None
    makes_one: bool = False


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, with all data. `steps`: of the answer or of the steps of a plan, in order; `near`: the
    tool before a question, by its call or the step of its task."""

    goal: str
    calls: list[tuple[str, str]]
    plan: list[str]
    steps: Sequence[Step] = ()
    result: str = ""
    near: dict[str, str] = {}
    is_tainted: bool = False
    later: str = ""


def look_at(session: Session, run: RunRow) -> Looked | None:
    """What the run of a chat or a task that has ended says about patterns; None: what it was for is gone."""
    rows = session.connection().execute(_of_run, {"run": run.id, "types": _READ})
    events = [_event.decode(row.data) for row in rows]
    used = [one for one in events if isinstance(one, PatternUsed)]
    outcome = _outcome(session, run, events)
    found = Looked(outcome=outcome, duration_ms=_duration_ms(run), used=used)
    is_tainted = any(isinstance(one, Tainted) for one in events)
    of_task = run.kind == RunKind.TASK.value
    subject = session.get(TaskRow if of_task else ConversationRow, run.subject_id)
    if subject is None:
        return None
    if outcome != TraceOutcome.SUCCESS or is_tainted:
        return found
    if isinstance(subject, TaskRow):
        work = _work_of_task(session, subject)
    else:
        work = _work_of_chat(session, run, subject, events)
    if work is None or work.is_tainted:
        return found
    trace = _traced(run.id, work, events, found.duration_ms)
    has_enough = len(work.calls) >= LEAST_CALLS
    if not trace.signature.words or not (has_enough or used or of_task):
        return found
    if work.later:  # The person was not content, so it is no success.
        found = msgspec.structs.replace(found, outcome=TraceOutcome.DOUBTFUL)
    return msgspec.structs.replace(found, trace=trace, makes_one=has_enough and not work.later)


def _work_of_chat(
    session: Session, run: RunRow, conversation: ConversationRow, events: Sequence[Event]
) -> _Work | None:
    question = session.get(MessageRow, run.question_id or "")
    answer = session.get(MessageRow, run.message_id or "")
    if conversation.record is False or question is None or answer is None:
        return None
    answered = assistant_steps(answer.content)
    plan = [
        f"{one.name}: {one.goal}" for event in events if isinstance(event, PlanCreated) for one in event.steps
    ]
    steps = [*_steps_of_plan(session, run.id), *answered] if plan else answered
    todos = [one for one in events if isinstance(one, PlanUpdated)]
    return _Work(
        goal=user_content(question.content).text[:MAX_GOAL],
        calls=_calls(steps),
        plan=plan or ([todo.title for todo in todos[-1].todos] if todos else []),
        steps=steps,
        result=steps_text(answered)[:MOST_RESULT],
        near=_tools_before(steps),
        later=_correction_of(session, run),
    )


def _work_of_task(session: Session, task: TaskRow) -> _Work:
    own = select(TaskStepRow).where(TaskStepRow.task_id == task.id).order_by(TaskStepRow.position)
    rows = session.scalars(own).all()
    calls, near = list[tuple[str, str]](), dict[str, str]()
    for row in rows:
        succeeded = [one for one in _task_calls.decode(row.tool_calls) if one.status == StepStatus.DONE]
        calls += [(str(one.name), _values(one.arguments)) for one in succeeded]
        if succeeded:
            near[row.id] = str(succeeded[0].name)
    return _Work(
        goal=f"{task.name}\n{task.goal}"[:MAX_GOAL],
        calls=calls,
        plan=[f"{row.name}: {row.goal}" for row in rows],
        result=(task.result or "")[:MOST_RESULT],
        near=near,
        is_tainted=any(row.tainted_by is not None for row in rows),
    )


def _traced(run_id: str, work: _Work, events: Sequence[Event], duration_ms: int) -> Trace:
    tools = sorted({name for name, _ in work.calls})
    decisions, corrections = _words_in(events, work.near)
    corrections += [
        PersonsWord(said=step.content, near=work.near.get(step.id, ""))
        for step in work.steps
        if _is_of_person(step)
    ]
    if work.later:
        corrections.append(PersonsWord(said=work.later))
    return Trace(
        run_id=run_id,
        goal=slotted(work.goal, tools),
        signature=signature_of(work.goal),
        calls=[TracedCall(tool=name, about=slotted(about[:MOST_CALL], tools)) for name, about in work.calls][
            :MOST_SHOWN
        ],
        plan=[slotted(one[:MOST_RESULT], tools) for one in work.plan[:MOST_SHOWN]],
        decisions=_slotted(decisions, tools),
        corrections=_slotted(corrections, tools),
        result=slotted(work.result, tools),
        duration_ms=duration_ms,
    )


def _words_in(events: Sequence[Event], near: dict[str, str]) -> tuple[list[PersonsWord], list[PersonsWord]]:
    """The decisions in the answers of people, and the corrections."""
    asked = {one.question_id: one for one in events if isinstance(one, QuestionAsked)}
    decisions, corrections = list[PersonsWord](), list[PersonsWord]()
    for event in events:
        if not isinstance(event, QuestionAnswered) or event.answered_by != AnsweredBy.PERSON:
            continue
        question = asked.get(event.question_id)
        if question is None or question.decision_type == LOOP_DECISION:
            continue
        words = event.answer if isinstance(event.answer, list) else [event.answer]
        note = [event.note] if isinstance(event.note, str) else []
        tool = near.get(question.call_id) or near.get(str(question.step_id), "")
        if question.decision_type == PATTERN_DECISION:
            own = [one for one in (*words, *note) if one not in (PatternChoice.USE, PatternChoice.SKIP)]
            corrections += [PersonsWord(said=one) for one in own]
        elif question.kind == QuestionKind.PERMISSION:
            corrections += [PersonsWord(said=one, near=str(question.tool)) for one in note]
        elif question.kind in (QuestionKind.CLARIFICATION, QuestionKind.DECISION):
            decisions.append(PersonsWord(asked=question.prompt, said=", ".join([*words, *note]), near=tool))
    return decisions, corrections


def _slotted(words: Iterable[PersonsWord], tools: Collection[str]) -> list[PersonsWord]:
    """The first words, without data and without those that say nothing then."""
    slots = (
        PersonsWord(
            asked=slotted_line(one.asked, tools, MOST_CALL).rstrip(" ?:.？：。"),
            said=slotted_line(one.said, tools, MOST_CALL),
            near=one.near if one.near in tools else "",
        )
        for one in words
    )
    return [one for one in slots if signature_of(one.said).words][:MOST_WORDS_OF_PERSON]


def _outcome(session: Session, run: RunRow, events: Sequence[Event]) -> TraceOutcome:
    if run.status == RunStatus.CANCELLED.value or _is_regenerated(session, run):
        return TraceOutcome.DOUBTFUL
    is_invalid = any(isinstance(one, Verdict) and one.result == VerdictResult.INVALID for one in events)
    is_in_loop = any(isinstance(one, DoomLoopDetected) for one in events)
    if is_invalid or is_in_loop:
        return TraceOutcome.FAILURE
    # A run fails because of its provider or its server, which says nothing about the pattern.
    is_whole = run.status == RunStatus.COMPLETED.value and run.stop_reason == StopReason.FINISHED.value
    return TraceOutcome.SUCCESS if is_whole else TraceOutcome.DOUBTFUL


def _is_regenerated(session: Session, run: RunRow) -> bool:
    """Whether the message that the run answers has another answer."""
    answers = select(func.count()).where(
        _messages.c.parent_id == run.question_id, _messages.c.role == "assistant"
    )
    return run.question_id is not None and (session.scalar(answers) or 0) > 1


def _correction_of(session: Session, run: RunRow) -> str:
    """The message after the answer, if it corrects the answer, or an empty text."""
    following = select(_messages.c.content).where(
        _messages.c.parent_id == run.message_id, _messages.c.role == "user"
    )
    content = session.scalar(following.order_by(_messages.c.id).limit(1)) if run.message_id else None
    text = "" if content is None else user_content(content).text
    return text if _CORRECTS.match(text) else ""


def _duration_ms(run: RunRow) -> int:
    begun: datetime = run.started_at or run.created_at
    return round(((run.finished_at or begun) - begun).total_seconds() * 1000)


def _steps_of_plan(session: Session, run_id: str) -> list[Step]:
    """The steps in the turns of a plan, each in its last form."""
    rows = session.connection().execute(
        _of_run.limit(MOST_STEPS_READ), {"run": run_id, "types": ["process_step"]}
    )
    last: dict[tuple[str, int], Step] = {}
    for row in rows:
        event = _event.decode(row.data)
        if isinstance(event, ProcessStep) and isinstance(event.step_id, str):
            last[event.step_id, event.step.index] = event.step
    return list(last.values())


def _calls(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """The names and the values in the arguments of the calls that succeeded."""
    succeeded = {step.id_ref for step in steps if step.type == StepType.TOOL_RESULT and step.success is True}
    return [
        (str(step.name), _values(step.arguments))
        for step in steps
        if step.type == StepType.TOOL_CALL and step.id_ref in succeeded
    ]


def _tools_before(steps: Sequence[Step]) -> dict[str, str]:
    """The tool of the call before each step, by the id of the step and of its call."""
    before, found = "", dict[str, str]()
    for step in steps:
        if before:
            found.setdefault(step.id, before)
            found.setdefault(str(step.id_ref), before)
        is_call = step.type == StepType.TOOL_RESULT and step.success is True
        if is_call and isinstance(step.name, str) and step.name not in ASKING_TOOLS:
            before = step.name
    return found


def _values(arguments: Any) -> str:
    """The texts and numbers in the arguments of a call; the names of the fields are those of the tool."""
    try:
        decoded = msgspec.json.decode(str(arguments or "{}"), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return ""
    return " ; ".join(str(value) for value in decoded.values() if isinstance(value, str | int | float))


def _is_of_person(step: Step) -> bool:
    return step.type == StepType.USER and not isinstance(step.name, str)
