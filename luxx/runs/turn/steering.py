"""What a person writes while an answer is made: a turn logs the messages that steer it as steps of the type
`user`, each in the transaction that deletes its row; the end of a chat's run says what becomes of the others.

`features/chats/queue.py` stores them, and sends the queued ones. Also what is logged like that before the
first model call: the texts of chosen skills and of a learned pattern, about which a person may be asked.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, Row, bindparam, delete, or_, select, true, update

from luxx.domain.context.messages import user_text
from luxx.domain.conversations.access import user_content
from luxx.domain.conversations.models import TODOS_MODE, ConversationRow, QueuedMessageRow
from luxx.domain.skills.tools import LoadedSkill, SkillPlaces, load_skill
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import Conflict, ToolFailed
from luxx.infra.store.tables import table_of
from luxx.runs.log.endings import QUEUE
from luxx.runs.log.events import LogEntry, record_ending
from luxx.runs.turn.asking import QuestionAsker
from luxx.runs.turn.context import Heard, RunContext
from luxx.runs.turn.rights import activation_entry, tainted_by
from luxx.runs.turn.state import QuestionRecord, RunSpec, TurnState, unfinished_steps
from luxx.runs.turn.todo_list import change_entries, reminder, settle_changes
from luxx.runs.turn.turn_log import NOTICES, Ending, may_be_steered
from luxx.tools.core import NeedsAnswer, ToolContext
from luxx.tools.permissions.rules import ACTIVATE_TOOL
from luxx.wire.event import ProcessStep
from luxx.wire.queue import WhenBusy
from luxx.wire.run import (
    PATTERN_DECISION,
    ChosenBy,
    Option,
    PatternChoice,
    Question,
    QuestionKind,
    RoutedChoice,
    RunPhase,
    RunStatus,
    WhenAsked,
)
from luxx.wire.tool import PATTERN_STEP, ROUTED_STEP, SKILL_STEP
from luxx.wire.turn import FinishReason, Step, StepStatus, StepType, step_id
from luxx.wire.turn_event import Tainted, pattern_used

_encode = msgspec.json.Encoder().encode
_queued, _conversations = table_of(QueuedMessageRow), table_of(ConversationRow)
_of_conversation = _queued.c.conversation_id == bindparam("conversation")
_is_change = _queued.c.mode == TODOS_MODE
_is_steer = or_(_queued.c.mode == WhenBusy.STEER.value, _is_change)
_given = select(_queued.c.id, _queued.c.content, _queued.c.mode).where(_of_conversation)
_steers = _given.where(_is_steer).order_by(_queued.c.position)
_changes = _given.where(_is_change).order_by(_queued.c.position)
_locked_steers, _locked_changes = _steers.with_for_update(), _changes.with_for_update()
_delete = delete(_queued).where(_queued.c.id.in_(bindparam("ids", expanding=True)))
_queue_up = (
    update(_queued)
    .where(_queued.c.id == bindparam("b_id"))
    .values(mode=WhenBusy.QUEUE.value, position=bindparam("b_position"))
)
_pause = update(_conversations).where(_conversations.c.id == bindparam("b_id")).values(queue_paused=true())
WAITING = (
    select(_queued.c.id, _queued.c.mode, _queued.c.position, _conversations.c.queue_paused)
    .join(_conversations, _conversations.c.id == _queued.c.conversation_id)
    .where(_of_conversation)
    .order_by(_queued.c.position)
)
"""The messages that wait in a conversation. The end of each answer reads them, so it is no function here."""


class Steer(msgspec.Struct, frozen=True):
    """A message that steers an answer, or a change of its to-do list, as its row has it."""

    id: str
    content: str
    mode: str


class SteersLeft(Exception):
    """A turn cannot end yet: a person has written for it meanwhile. Nothing was written."""


class TodosLeft(Exception):
    """A turn cannot end yet: a person has changed its to-do list meanwhile. Nothing was written."""


class SteersChanged(Exception):
    """A message was taken back or changed while it was being logged. Nothing was written."""


def read_steers(connection: Connection, conversation_id: str, *, only_todos: bool = False) -> list[Steer]:
    """What people gave to the answer in this conversation and is in no log yet, in order; with `only_todos`
    no messages."""
    statement = _changes if only_todos else _steers
    return [Steer(*row) for row in connection.execute(statement, {"conversation": conversation_id})]


def steer_entries(state: TurnState, steers: Sequence[Steer]) -> list[LogEntry]:
    """The entries that make them steps of the answer, after the steps of this state, or its to-do list."""
    changes = [steer.content for steer in steers if steer.mode == TODOS_MODE]
    messages = [steer for steer in steers if steer.mode != TODOS_MODE]
    entries: list[LogEntry] = [
        _spoken(index, user_text(user_content(steer.content)), steer.id)
        for index, steer in enumerate(messages, len(state.steps))
    ]
    return [*entries, *change_entries(state, changes)] if changes else entries


def taking(
    conversation_id: str,
    steers: Sequence[Steer],
    write: Callable[[Connection], None] | None = None,
    *,
    only_todos: bool = False,
) -> Callable[[Connection], None]:
    """What the transaction that logs them also does: deletes their rows, after `write`.

    Raises SteersChanged if they are not what they were when they were read.
    """

    def take(connection: Connection) -> None:
        if write is not None:
            write(connection)
        statement = _locked_changes if only_todos else _locked_steers
        found = connection.execute(statement, {"conversation": conversation_id})
        if [Steer(*row) for row in found][: len(steers)] != list(steers):
            raise SteersChanged
        connection.execute(_delete, {"ids": [steer.id for steer in steers]})

    return take


async def log_steers(
    run: RunContext,
    preceding: Sequence[LogEntry] = (),
    *,
    changes: dict[str, Any] | None = None,
    write: Callable[[Connection], None] | None = None,
    only_todos: bool = False,
) -> bool:
    """Logs `preceding` and what people gave to the answer, for the next call; False, with nothing written, if
    they gave nothing. Raises LostRun."""
    store, log, conversation_id = run.services.store, run.log, run.spec.subject_id
    read = partial(read_steers, conversation_id=conversation_id, only_todos=only_todos)
    while steers := await store.read_rows(read):
        entries = [*preceding, *steer_entries(log.state_after(preceding), steers)]
        extra_write = taking(conversation_id, steers, write, only_todos=only_todos)
        try:
            await log.append(entries, phase=RunPhase.THINKING, changes=changes, extra_write=extra_write)
        except SteersChanged:
            continue
        return True
    return False


async def log_given(run: RunContext) -> None:
    """Logs what people have given to the turn, before its next call, if it has words. Raises LostRun."""
    state = run.log.state
    if may_be_steered(run.spec, state):
        # What steers a plan waits for its end; a change of the to-do list does not.
        is_of_plan = run.spec.level and not run.signal.has_input
        only_todos = bool(is_of_plan) and (run.services.store.is_sqlite or not state.notes)
        run.signal.has_input = False
        await log_steers(run, only_todos=only_todos)
    elif heard := _unknown(state, run.heard()):
        steps = [_spoken(index, one.text, one.msg_id) for index, one in enumerate(heard, len(state.steps))]
        taints = [Tainted(by=one.tainted_by) for one in heard if one.tainted_by is not None]
        await run.log.append([*taints[:1], *steps], phase=RunPhase.THINKING)


def _unknown(state: TurnState, heard: Sequence[Heard]) -> list[Heard]:
    """What was said and is no step of the turn yet."""
    known = {step.id_ref for step in state.steps if step.type == StepType.USER} if heard else set[str]()
    return [one for one in heard if one.msg_id not in known]


def _spoken(index: int, text: str, id_: str) -> ProcessStep:
    """The step of what a person wrote."""
    return ProcessStep(
        step=Step(id=step_id(index), index=index, type=StepType.USER, content=text, id_ref=id_)
    )


async def log_completion_and_steers(
    run: RunContext, entries: Sequence[LogEntry], usage: UsageEntry | None
) -> bool:
    """Logs an ended completion with what steers the answer, which goes on with it; False, with nothing
    written, if nothing does any more."""
    preceding = with_text(run.log.state, entries)
    state = run.log.state_after(preceding)
    return await log_steers(
        run,
        preceding,
        changes={"usage": _encode(state.usage).decode(), "cost": state.cost},
        write=lambda connection: run.spending.close(connection, usage),
    )


async def log_reminder(run: RunContext, entries: Sequence[LogEntry], usage: UsageEntry | None) -> None:
    """Logs an ended completion and a reminder of what is left to do, with which the turn goes on; or with
    what people gave to the answer meanwhile."""
    is_of_chat = may_be_steered(run.spec, run.log.state_after(entries))
    if is_of_chat and await log_completion_and_steers(run, entries, usage):
        return
    preceding = with_text(run.log.state, entries)
    state = run.log.state_after(preceding)
    await run.log.append(
        [*preceding, reminder(run.spec, state)],
        phase=RunPhase.THINKING,
        changes={"usage": _encode(state.usage).decode(), "cost": state.cost},
        extra_write=lambda connection: run.spending.close(connection, usage),
    )


def with_text(state: TurnState, entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The entries of a completion, with a notice if it has no step: each has one before a step of a person,
    so that the steps say where it ended."""
    if not entries or unfinished_steps(state) or any(isinstance(each, ProcessStep) for each in entries):
        return [*entries]
    index = len(state.steps)
    notice = NOTICES[FinishReason.STOP]
    step = Step(id=step_id(index), index=index, type=StepType.TEXT, notice=notice)
    return [ProcessStep(step=step), *entries]


def settle_queue(
    connection: Connection, spec: RunSpec, waiting: Sequence[Row[*tuple[Any, ...]]], ending: Ending
) -> bool:
    """Says what becomes of the messages that wait when an answer ends; whether the next one is to be sent.

    Raises SteersLeft if the answer may go on and is steered, TodosLeft if a change of its to-do list is to be
    logged first. The conversation is locked.
    """
    waiting = _without_changes(connection, spec.subject_id, waiting, ending)
    if not waiting:
        return False
    steers = [row for row in waiting if row.mode == WhenBusy.STEER]
    if steers and ending.takes_steers:
        raise SteersLeft
    _put_first(connection, steers, waiting[0].position)
    if ending.status != RunStatus.COMPLETED:
        connection.execute(_pause, {"b_id": spec.subject_id})
        return False
    if waiting[0].queue_paused:
        return False
    record_ending(connection, spec.run_id, spec.fence, ending.status.value, QUEUE)
    return True


def pause_queue(connection: Connection, conversation_id: str) -> None:
    """Keeps what waits in a conversation whose run failed, until a person lets it go on."""
    waiting = connection.execute(WAITING, {"conversation": conversation_id}).all()
    waiting = _without_changes(connection, conversation_id, waiting)
    if waiting:
        steers = [row for row in waiting if row.mode == WhenBusy.STEER]
        _put_first(connection, steers, waiting[0].position)
        connection.execute(_pause, {"b_id": conversation_id})


def _without_changes(
    connection: Connection,
    conversation_id: str,
    waiting: Sequence[Row[*tuple[Any, ...]]],
    ending: Ending | None = None,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """The messages among what waits; a change of the to-do list is kept with the newest answer."""
    messages = [row for row in waiting if row.mode != TODOS_MODE]
    if len(messages) < len(waiting):
        if ending is not None and ending.takes_todos:
            raise TodosLeft
        settle_changes(connection, conversation_id)
    return messages


def _put_first(connection: Connection, steers: Sequence[Row[*tuple[Any, ...]]], lowest: int) -> None:
    """Queues messages that came too late to steer, in their order, before all others."""
    if steers:
        first = lowest - len(steers)
        rows = [{"b_id": row.id, "b_position": at} for at, row in enumerate(steers, first)]
        connection.execute(_queue_up, rows)


# What is given before the first call

PATTERN_OPTIONS = [
    Option(label=PatternChoice.USE.value, description="The model gets it as reference", is_recommended=True),
    Option(label=PatternChoice.SKIP.value, description="The model works without it"),
]


async def log_chosen_skills(
    run: RunContext, places: SkillPlaces, make_context: Callable[[], ToolContext]
) -> None:
    """Logs the texts of the skills that a person or the router chose for the answer, and the learned pattern
    that fits, before its first model call, once.

    Raises Conflict for one of a person that is gone since the message was sent.
    """
    state, spec = run.log.state, run.spec
    chosen: list[tuple[str, RoutedChoice | None]] = [(name, None) for name in spec.request.given_skills]
    chosen += [(one.name, one) for one in spec.request.routed if one.acts and one.kind == "skill"]
    patterns = [one for one in spec.request.routed if one.kind == "pattern"]
    is_given = state.skills or any(step.name == PATTERN_STEP for step in state.steps)
    if not (chosen or patterns) or state.notes or is_given or not may_be_steered(spec, state):
        return
    entries = list[LogEntry]()
    is_tainted = tainted_by(state, spec) is not None
    for name, by_router in chosen:
        loaded = await _loaded(places, make_context(), name, by_router)
        if loaded is None:
            continue
        by = ChosenBy.PERSON if by_router is None else ChosenBy.ROUTER
        index = len(state.steps) + sum(isinstance(entry, ProcessStep) for entry in entries)
        step = Step(
            id=step_id(index), index=index, type=StepType.USER, id_ref=loaded.skill.name,
            name=SKILL_STEP if by_router is None else ROUTED_STEP,
            content=loaded.text(by), is_untrusted=UNSET if loaded.is_reviewed else True,
        )  # fmt: skip
        activated = activation_entry(loaded.skill, by, None if by_router is None else by_router.score)
        entries += [ProcessStep(step=step), activated]
        if not (loaded.is_reviewed or is_tainted):
            is_tainted = True
            entries.append(Tainted(by=ACTIVATE_TOOL))
    for pattern in patterns:
        index = len(state.steps) + sum(isinstance(entry, ProcessStep) for entry in entries)
        entries += _pattern_entries(state, pattern, index)
    if entries:
        await run.log.append(entries, phase=RunPhase.THINKING)


async def _loaded(
    places: SkillPlaces, context: ToolContext, name: str, by_router: RoutedChoice | None
) -> LoadedSkill | None:
    """The skill. None: the router chose it, and meanwhile it is gone or its review has ended."""
    try:
        loaded = await load_skill(places, context, name)
    except ToolFailed as error:
        if by_router is not None:
            return None
        raise Conflict(error.message, kind="skill_unknown", detail={"lost": {"skills": [name]}}) from error
    return loaded if by_router is None or loaded.is_reviewed else None


def _pattern_entries(state: TurnState, pattern: RoutedChoice, index: int) -> list[LogEntry]:
    """The text of a pattern, with the words of a person who was asked; nothing if they want none."""
    asked, words = _asked_about(state, pattern), ""
    if asked is not None and asked.answer is not None:
        said, note = asked.answer.answer, asked.answer.note
        if said == PatternChoice.SKIP:
            return []
        own = [str(one) for one in (said, note) if isinstance(one, str) and one != PatternChoice.USE]
        words = f"\n\nThe person says about it: {' '.join(own)}" if own else ""
    step = Step(
        id=step_id(index), index=index, type=StepType.USER, id_ref=pattern.id, name=PATTERN_STEP,
        content=pattern.text + words,
    )  # fmt: skip
    return [ProcessStep(step=step), pattern_used(pattern)]


def _asked_about(state: TurnState, pattern: RoutedChoice) -> QuestionRecord | None:
    """The question whether this pattern is used, with its answer; None: nobody was asked."""
    return next((one for one in state.questions if one.question.call_id == _offer_id(pattern)), None)


def _offer_id(pattern: RoutedChoice) -> str:
    return f"pattern-{pattern.id}"


def waited_for_pattern(state: TurnState) -> bool:
    """Whether a person answered about a pattern and no model was called since."""
    is_given = bool(state.notes) or any(step.name == PATTERN_STEP for step in state.steps)
    return not is_given and any(one.question.decision_type == PATTERN_DECISION for one in state.questions)


async def asks_about_pattern(run: RunContext) -> bool:
    """Whether a person is asked now, before the first model call, if the pattern that fits is used. Raises
    RunCancelled."""
    request, state = run.spec.request, run.log.state
    pattern = next((one for one in request.routed if one.kind == "pattern" and one.is_offered), None)
    if pattern is None or state.notes or not may_be_steered(run.spec, state):
        return False
    if request.when_asked == WhenAsked.DENY or _asked_about(state, pattern) is not None:
        return False
    question = Question(
        kind=QuestionKind.DECISION,
        decision_type=PATTERN_DECISION,
        prompt=f"A way of working succeeded before for requests like this one: {pattern.name}. Use it?",
        context=pattern.text.partition("\n\n")[2],
        options=PATTERN_OPTIONS,
        timeout_seconds=run.services.config.limits.question_timeout_seconds or None,
    )
    call_id, pending = _offer_id(pattern), StepStatus.PENDING
    asking = Step(id="", index=0, type=StepType.TOOL_CALL, id_ref=call_id, status=pending)
    await QuestionAsker(run).ask_person([(asking, NeedsAnswer(question))])
    return True
