"""The to-do list of a turn: changes that a person makes meanwhile, and the reminder before an end, of open
items and of parts of the message that nothing was done about.

A person's change is a row of `queued_messages` until the turn logs it, as a message that steers the answer is
(`steering.py`). It says what it was made of, so it is applied to what the model has written by then.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, bindparam, delete, select

from luxx.domain.context.todo_list import item_lines, merged, within_limits
from luxx.domain.context.todo_rows import change_list
from luxx.domain.conversations.models import TODOS_MODE, ConversationRow, QueuedMessageRow
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.state import RunSpec, TurnState
from luxx.runs.turn.turn_log import REGULAR
from luxx.wire.event import CallPurpose, ProcessStep
from luxx.wire.run import InConversation, RoutedChoice
from luxx.wire.todos import REMINDER, TODO_TOOL, TodoAuthor, TodoChange, TodoItem
from luxx.wire.tool import skill_key
from luxx.wire.turn import Step, StepType, step_id
from luxx.wire.turn_event import PlanUpdated, Warning

CALLS_AFTER = 2
"""How many model calls follow a reminder at most; the last one without tools."""

REMINDED_TOKENS = 600

_decode = msgspec.json.Decoder(TodoChange).decode
_queued, _conversations = table_of(QueuedMessageRow), table_of(ConversationRow)
_is_change = _queued.c.mode == TODOS_MODE
_of_conversation = _queued.c.conversation_id == bindparam("conversation")
_changes = select(_queued.c.content).where(_of_conversation, _is_change).order_by(_queued.c.position)
_forget = delete(_queued).where(_of_conversation, _is_change)
_leaf = select(_conversations.c.selected_leaf_id).where(_conversations.c.id == bindparam("conversation"))


def changed(items: Sequence[TodoItem], contents: Sequence[str]) -> list[TodoItem]:
    """The items after a person's changes, as their rows have them."""
    return _changed(items, contents)[0]


def _changed(items: Sequence[TodoItem], contents: Sequence[str]) -> tuple[list[TodoItem], int]:
    """The items after a person's changes, and how many were left out because a list has no room for them."""
    after, left_out = list(items), 0
    for content in contents:
        change = _decode(content)
        both = merged(change, after)
        after = within_limits(both, change.todos)
        left_out += len(both) - len(after)
    return after, left_out


def change_entries(state: TurnState, contents: Sequence[str]) -> list[LogEntry]:
    """The entry that logs a person's changes, if they still change anything."""
    before = [] if state.context.todos is None else list(state.context.todos.items)
    after, left_out = _changed(before, contents)
    entries: list[LogEntry] = []
    if left_out:
        text = f"The to-do list is full: {left_out} of the items that were written meanwhile are left out."
        entries.append(Warning(message=text))
    return entries if after == before else [*entries, PlanUpdated(todos=after, by=TodoAuthor.PERSON)]


def settle_changes(connection: Connection, conversation_id: str) -> None:
    """Keeps a person's changes with the newest answer, where no turn can log them any more."""
    of_conversation = {"conversation": conversation_id}
    contents = connection.scalars(_changes, of_conversation).all()
    leaf_id = connection.scalar(_leaf, of_conversation)
    change_list(connection, leaf_id, lambda items: changed(items, contents))
    connection.execute(_forget, of_conversation)


def may_remind(spec: RunSpec, state: TurnState) -> bool:
    """Whether a turn that would end now reminds the model, once: of open items if it wrote the list, or of
    parts of the message whose skills are not active."""
    last, request = state.notes[-1], spec.request
    return (
        not state.reminded
        and last.finish in REGULAR
        and last.has_tools
        and request.response_schema is None
        and spec.purpose is CallPurpose.ANSWER
        and not request.stores_nothing
        and bool(_open_items(spec, state) or _left_clauses(spec, state))
    )


def _open_items(spec: RunSpec, state: TurnState) -> list[TodoItem]:
    todos = state.context.todos
    is_own = todos is not None and not todos.is_earlier and TODO_TOOL in spec.request.tools
    return todos.open if todos is not None and is_own else []


def _left_clauses(spec: RunSpec, state: TurnState) -> list[RoutedChoice]:
    """The parts of the message that ask for skills which are not active."""
    if not isinstance(spec.request.origin, InConversation) or spec.turn.key:
        return []
    active = {skill_key(skill.name) for skill in state.skills}
    return [one for one in spec.request.routed if one.clause and skill_key(one.name) not in active]


def is_reminded(state: TurnState) -> bool:
    """Whether the reminder is the last step: the model has not answered it."""
    return bool(state.steps) and state.steps[-1].name == REMINDER


def reminder(spec: RunSpec, state: TurnState) -> ProcessStep:
    """The step that reminds the model, after the steps of this state."""
    index = len(state.steps)
    items, clauses = _open_items(spec, state), _left_clauses(spec, state)
    lines = ["(From Luxx, not from the person.)"]
    if items:
        count = "1 item is" if len(items) == 1 else f"{len(items)} items are"
        lines[0] += f" {count} open in your to-do list:"
        lines += item_lines(items, REMINDED_TOKENS)
        lines.append(
            "Do what is left now. If something is done or not needed any more, say so with todo_write. If it "
            "must stay open, say why in one sentence. Do not repeat your answer."
        )
    if clauses:
        lines.append("These parts of the request match skills that you have not used:")
        lines += [f'- "{one.clause}": {one.name}' for one in clauses]
        lines.append(
            "Do now what is left of them, with activate_skill if the skill fits. If nothing is left, say "
            "only that. Do not repeat your answer."
        )
    step = Step(id=step_id(index), index=index, type=StepType.USER, name=REMINDER, content="\n".join(lines))
    return ProcessStep(step=step)


def most_calls(state: TurnState, most: int) -> int:
    """The limit of model calls with tools after a reminder, unless a person has written since."""
    said = [step for step in state.steps if step.type == StepType.USER]
    is_last = bool(said) and said[-1].name == REMINDER
    return min(most, state.reminded + CALLS_AFTER - 1) if is_last else most
