"""A prompt as an ordered list of sections, and what of its history is sent as a ContextRecord says.

A section has an owner, the package that writes it, and a budget of tokens. Texts before the history are the
system message, texts after it one last message of the user; tools are sent beside the messages. The history
gets what the others leave; `window.py` decides what is left out of it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from luxx.domain.context.messages import (
    NO_IMAGES,
    PastMessage,
    ToolImages,
    assistant_messages,
    past_prompts,
)
from luxx.domain.context.tokens import beginning, message_tokens, text_tokens
from luxx.wire.event import CompletionNote, CostUpdate, CutNote, LoggedEvent
from luxx.wire.message import (
    AssistantPrompt,
    ContextRecord,
    KeptList,
    Place,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.todos import TodoRecord
from luxx.wire.turn import ReplayNote, Step, StepType, end_of
from luxx.wire.turn_event import ContextCompressed, PlanUpdated

HEAD_CHARACTERS, TAIL_CHARACTERS = 300, 150
"""What remains of a result that was cleared."""

SUMMARY_TITLE = "[Summary of the earlier conversation, which is not repeated here]"


class SectionKind(StrEnum):
    """What a section of a prompt is about, in the order of the sections."""

    SYSTEM = "system"
    TOOLS = "tools"
    SKILLS = "skills"
    SUMMARY = "summary"
    HISTORY = "history"
    MEMORY = "memory"
    TAIL = "tail"


_ORDER = {kind: place for place, kind in enumerate(SectionKind)}


class TextSection(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a prompt. `budget`: the most tokens that it takes, its end is cut; None: it is sent whole."""

    kind: SectionKind
    owner: str
    text: str
    budget: int | None = None

    def sent_text(self) -> str:
        """The text within the budget."""
        return self.text if self.budget is None else beginning(self.text, self.budget)


class ToolsSection(msgspec.Struct, frozen=True, kw_only=True):
    """The tools and the demanded schema of the answer, which take this many tokens and are sent whole."""

    kind: ClassVar = SectionKind.TOOLS
    owner: str
    tokens: int


Section = TextSection | ToolsSection


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent or left out as a whole: a message of a user, or a completion with the results of its
    calls.

    So no call is without its result, and the thinking of a completion is not changed. `tokens` are estimated,
    `result_tokens` those of the results among them. A turn begins with a unit that `starts_turn`.
    """

    place: Place
    prompts: tuple[PromptMessage, ...]
    tokens: int
    result_tokens: int = 0
    starts_turn: bool = False

    @property
    def is_user(self) -> bool:
        return isinstance(self.prompts[0], UserPrompt)

    @property
    def has_thinking(self) -> bool:
        first = self.prompts[0]
        return isinstance(first, AssistantPrompt) and bool(first.thinking)


class History:
    """The messages before a run and its own steps, as units that are made and counted once.

    `has_task`: the first of `past` is a task, which is always sent, and each message after it is a turn.
    Without, a turn begins with each user's message. Results of `protected` tools are never cleared.
    `read_tool`: the name of the tool that reads whole results of the run, if the model has it. `images`:
    those of tool results that `model` gets.
    """

    def __init__(
        self,
        past: Sequence[PastMessage],
        *,
        has_task: bool = False,
        protected: Iterable[str] = (),
        read_tool: str = "",
        images: ToolImages = NO_IMAGES,
        model: str = "",
    ) -> None:
        self.has_task = has_task
        self._protected = frozenset(protected)
        self._read_tool = read_tool
        self._images, self._model = images, model
        tasks, rest = past[:has_task], past[has_task:]
        self.task = [*chain.from_iterable(past_prompts(each, NO_IMAGES) for each in tasks)]
        self.units: list[Unit] = []
        for number, message in enumerate(rest):
            prompts = past_prompts(message, images, model)
            self.units += self._units(number, 0, prompts, starts_turn=has_task or message.user is not None)
        self._own = len(rest)
        self._complete = len(self.units)
        self._steps = self._notes = 0
        """How many steps and notes of the run the complete units have."""
        self._cleared: dict[Place, Unit] = {}

    def extend(
        self, steps: Sequence[Step], notes: Sequence[CompletionNote], objection: ReplayNote | None = None
    ) -> None:
        """Adds what is new of the turn in progress, before a model call: then all its calls have results.
        `objection`: that of checks before this call."""
        del self.units[self._complete :]
        new_steps, replay = steps[self._steps :], [dict(note.replay) for note in notes[self._notes :]]
        if objection:
            replay.append(objection)
        messages = assistant_messages(new_steps, replay, self._images, self._model, self._steps)
        last = self.units[-1].place if self.units else (-1, 0)
        part = last[1] + 1 if last[0] == self._own else 0
        self.units += self._units(self._own, part, messages, starts_turn=self.has_task)
        is_paused = bool(replay) and end_of(replay[-1]).is_paused
        if new_steps and new_steps[-1].type == StepType.TOOL_RESULT and not is_paused and not objection:
            # What follows belongs to another completion, unless one has paused before its first step.
            self._complete, self._steps, self._notes = len(self.units), len(steps), len(notes)

    def window_begin(self, size: int) -> int:
        """The message with which the newest `size` messages begin, or the one of a user before it."""
        users = (unit.place[0] for unit in self.units if unit.is_user)
        return max((at for at in users if at <= self._own - size), default=0)

    def sent(self, record: ContextRecord) -> list[Unit]:
        """The units to send without what the record leaves out, and its summary."""
        at = self.begin(record)
        rest = [self.cleared(unit) if unit.place < record.cleared else unit for unit in self.units[at:]]
        if not at:
            return rest
        kept = set(record.kept)
        below = [self.cleared(unit) for unit in self.units[:at] if unit.place in kept]
        if not any(unit.is_user for unit in chain(below, rest)):
            # Messages of a room were deleted since, so that the numbers mean later ones.
            below += [unit for unit in self.units[:at] if unit.is_user][-1:]
        begins_with_user = bool(below) and below[0].is_user and not self.has_task
        if begins_with_user and record.first:
            below[0] = _shortened_message(below[0], record.first)
        if record.summary:
            below.insert(int(begins_with_user), summary_unit(record.summary))
        return below + rest

    def index(self, place: Place) -> int:
        """How many units stand before a place."""
        return bisect_left(self.units, place, key=lambda unit: unit.place)

    def begin(self, record: ContextRecord) -> int:
        """How many units stand before the cut; none if the messages there were deleted since."""
        at = self.index(record.cut)
        return at if at < len(self.units) else 0

    def cleared(self, unit: Unit) -> Unit:
        """The unit with its results shortened, except failed ones and those of protected tools."""
        if not unit.result_tokens:
            return unit
        found = self._cleared.get(unit.place)
        if found is None:
            found = self._cleared[unit.place] = _unit(
                unit.place, [self._short(each) for each in unit.prompts], starts_turn=unit.starts_turn
            )
        return found

    def is_cleared(self, unit: Unit, record: ContextRecord) -> bool:
        """Whether results of a unit that is sent are shortened."""
        found = self._cleared.get(unit.place)
        return unit.place < record.cleared and found is unit

    def is_protected(self, unit: Unit) -> bool:
        """Whether it has a result of a protected tool, or the text of a skill."""
        first, results = unit.prompts[0], (each for each in unit.prompts if isinstance(each, ToolPrompt))
        is_skill = isinstance(first, UserPrompt) and first.is_skill
        return is_skill or any(each.name in self._protected for each in results)

    def _short(self, message: PromptMessage) -> PromptMessage:
        if not isinstance(message, ToolPrompt) or not message.success or message.name in self._protected:
            return message
        return _short_result(message, self._read_tool)

    def _units(
        self, number: int, part: int, prompts: Iterable[PromptMessage], *, starts_turn: bool
    ) -> Iterator[Unit]:
        """The units of one message of the history, of which the first has this part."""
        group: list[PromptMessage] = []
        for prompt in [*prompts, None]:
            if group and not isinstance(prompt, ToolPrompt):
                yield _unit((number, part), group, starts_turn=starts_turn and not part)
                group, part = [], part + 1
            if prompt is not None:
                group.append(prompt)


def _unit(place: Place, prompts: Sequence[PromptMessage], *, starts_turn: bool = False) -> Unit:
    results = sum(message_tokens(each) for each in prompts if isinstance(each, ToolPrompt))
    others = sum(message_tokens(each) for each in prompts if not isinstance(each, ToolPrompt))
    return Unit(
        place=place,
        prompts=tuple(prompts),
        tokens=results + others,
        result_tokens=results,
        starts_turn=starts_turn,
    )


def summary_unit(summary: str) -> Unit:
    """The message that stands for what a summary replaced."""
    return _unit((-1, 0), [UserPrompt(text=f"{SUMMARY_TITLE}\n\n{summary}")])


def _shortened_message(unit: Unit, length: int) -> Unit:
    """The unit of a user's message with this many of its characters."""
    message = unit.prompts[0]
    if not isinstance(message, UserPrompt) or len(message.text) <= length:
        return unit
    left_out = f"[{len(message.text) - length:,} more characters left out to fit the context window]"
    short = UserPrompt(text=f"{message.text[:length]}\n{left_out}", name=message.name)
    return _unit(unit.place, [short], starts_turn=unit.starts_turn)


class Prompt:
    """A prompt for the model calls of one drive: its sections, which are given in any order, and its
    history."""

    def __init__(self, sections: Sequence[Section], history: History) -> None:
        self.history = history
        self._arrange(sections)

    def set_last(self, section: TextSection) -> None:
        """Puts the section in place of the one that its owner had before."""
        self._arrange([*(each for each in self.sections if each.owner != section.owner), section])

    def _arrange(self, sections: Sequence[Section]) -> None:
        self.sections = sorted(sections, key=lambda section: _ORDER[section.kind])
        system, tail = self._text(before_history=True), self._text(before_history=False)
        self._head = [*([SystemPrompt(text=system)] if system else []), *self.history.task]
        self._tail: list[PromptMessage] = [UserPrompt(text=tail, is_inner=True)] if tail else []
        tools = sum(each.tokens for each in sections if isinstance(each, ToolsSection))
        self.fixed_tokens = tools + sum(map(message_tokens, chain(self._head, self._tail)))
        """The estimated tokens of what is always sent."""

    def _text(self, *, before_history: bool) -> str:
        """The texts of the sections before or after the history."""
        history = _ORDER[SectionKind.HISTORY]
        texts = [
            section.sent_text()
            for section in self.sections
            if isinstance(section, TextSection) and (_ORDER[section.kind] < history) == before_history
        ]
        return "\n\n".join(text for text in texts if text)

    @property
    def tail(self) -> int:
        """How many messages follow the history, which later prompts do not have."""
        return len(self._tail)

    def messages(self, record: ContextRecord, until: Place | None = None) -> list[PromptMessage]:
        """The messages to send without what the record leaves out, or of them those before a place."""
        units = self.history.sent(record)
        sent = chain.from_iterable(unit.prompts for unit in units if until is None or unit.place < until)
        return [*self._head, *sent, *self._tail]

    def estimate(self, record: ContextRecord) -> int:
        """The tokens of the prompt, without the correction by what the provider counted."""
        return self.fixed_tokens + sum(unit.tokens for unit in self.history.sent(record))

    def parts(self, record: ContextRecord) -> dict[SectionKind, int]:
        """The tokens of `estimate`, by what they are for; a task counts as history."""
        parts = dict.fromkeys(SectionKind, 0)
        for section in self.sections:
            is_text = isinstance(section, TextSection)
            parts[section.kind] += text_tokens(section.sent_text()) if is_text else section.tokens
        sent = self.history.sent(record)
        parts[SectionKind.SUMMARY] = sum(unit.tokens for unit in sent if unit.place < (0, 0))
        tokens = chain((unit.tokens for unit in sent), map(message_tokens, self.history.task))
        parts[SectionKind.HISTORY] = sum(tokens) - parts[SectionKind.SUMMARY]
        kinds = [kind for kind in (SectionKind.SYSTEM, SectionKind.SKILLS) if parts[kind]]
        parts[kinds[0] if kinds else SectionKind.TAIL] += self.estimate(record) - sum(parts.values())
        return parts


def context_of(past: Sequence[PastMessage]) -> ContextRecord:
    """How the prompt of the newest answer was made, with the text of its summary, the to-do list, and the
    list of skills and agents."""
    records = [message.context for message in reversed(past) if message.context is not None]
    newest = records[0] if records else ContextRecord()
    if newest.is_summarized and not newest.summary:
        newest = replace(newest, summary=next((each.summary for each in records if each.summary), ""))
    todos = next((each.todos for each in records if each.todos is not None), None)
    listed = next((each.listed for each in records if each.listed is not None), None)
    return replace(
        newest,
        todos=None if todos is None else todos.of_earlier(),
        listed=listed if listed is not None and listed.made_for else None,
    )


def with_list(record: ContextRecord, listed: KeptList | None) -> ContextRecord:
    """The record of a turn that gives this list to later prompts, unless it has left something out before."""
    return record if listed is None or record.listed == KeptList() else replace(record, listed=listed)


def stored_record(record: ContextRecord, past: Sequence[PastMessage]) -> ContextRecord:
    """The record as it is stored with an answer after `past`: without a summary or lists that an earlier one
    has."""
    if record.todos is not None:
        record = replace(record, todos=record.todos.to_store())
    if not record.summary and record.listed is None:
        return record
    earlier = context_of(past)
    return replace(
        record,
        summary="" if record.summary == earlier.summary else record.summary,
        listed=None if record.listed == earlier.listed else record.listed,
    )


def context_after(context: ContextRecord, logged: LoggedEvent) -> ContextRecord:
    """The record after an event that leaves something out or changes the to-do list, or after a completion,
    whose prompt may have been counted. Where something was left out, the next run makes its list of skills
    and agents anew: the beginning of its prompt is another one in any case."""
    kept = {"todos": context.todos, "listed": None if context.listed is None else KeptList()}
    match logged.event, logged.note:
        case ContextCompressed(summary=str() as summary), CutNote(record=record):
            return replace(record, summary=summary, is_summarized=True, **kept)
        case ContextCompressed(), CutNote(record=record):
            summary = context.summary if record.is_summarized else ""
            return replace(record, summary=summary, **kept)
        case ContextCompressed(messages=messages, window=window), _:
            return replace(context, messages=messages, window=window or 0)
        case PlanUpdated(todos=todos, by=by), _:
            return replace(context, todos=TodoRecord(items=tuple(todos), by=by))
        case CostUpdate(), CompletionNote(estimate=estimate, estimator=estimator, usage=usage):
            if estimate:
                context = replace(
                    context, estimated=estimate, counted=usage.prompt_tokens, estimator=estimator
                )
            return context if context.todos is None else replace(context, todos=context.todos.after_call())
        case _:
            return context


def _short_result(result: ToolPrompt, read_tool: str) -> ToolPrompt:
    """The beginning and the end of a result without its images; the text itself if that is not shorter.

    The text is the same in later turns, in which only the results of their own run can be read.
    """
    left_out = len(result.content) - HEAD_CHARACTERS - TAIL_CHARACTERS
    reading = f"; {read_tool} with the ref {result.call_id} reads all of it during this turn, in parts"
    how = reading if read_tool else ""
    note = f"[{left_out:,} characters left out to fit the context window{how}]"
    short = f"{result.content[:HEAD_CHARACTERS]}\n{note}\n{result.content[-TAIL_CHARACTERS:]}"
    content = short if len(short) < len(result.content) else result.content
    if not result.images:
        return result if content is result.content else replace(result, content=content)
    return replace(result, content=f"{content}\n[{len(result.images)} images left out]", images=())
