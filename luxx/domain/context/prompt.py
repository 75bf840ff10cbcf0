"""A prompt as an ordered list of sections, and the plan of what is sent of it within a context window.

A section has an owner, the package that writes it, and a budget of tokens. Texts before the history are the
system message, texts after it one last message of the user; tools are sent beside the messages. The history
gets what the others leave: of it the oldest turns are left out, and old tool results are shortened.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate, chain
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
from luxx.wire.message import ContextRecord, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.turn import ReplayNote, Step

SHARE_AFTER_CUT = 0.7
"""Of what fits, so that the next turns need no other cut and the provider's prompt cache can be used."""

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Of the counted to the estimated tokens of a prompt."""

MAX_BEGINNING = 1_000
"""Characters that remain of a shortened tool result; fewer for a small window."""

Estimate = Callable[[Sequence[PromptMessage]], int]
"""Gives the tokens of messages."""


class SectionKind(StrEnum):
    """What a section of a prompt is about, in the order of the sections."""

    SYSTEM = "system"
    TOOLS = "tools"
    SKILLS = "skills"
    MEMORY = "memory"
    SUMMARY = "summary"
    HISTORY = "history"
    TAIL = "tail"


_ORDER = {kind: place for place, kind in enumerate(SectionKind)}


class TextSection(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a prompt. `budget`: the most tokens that it takes, its end is cut; None: it is sent whole."""

    kind: SectionKind
    owner: str
    text: str
    budget: int | None = None

    def sent_text(self, estimate: Estimate) -> str:
        """The text within the budget."""
        text = self.text
        while self.budget is not None and text:
            tokens = estimate([SystemPrompt(text=text)])
            if tokens <= self.budget:
                break
            text = text[: min(len(text) - 1, len(text) * self.budget // tokens)]
        return text


class ToolsSection(msgspec.Struct, frozen=True, kw_only=True):
    """The tools and the demanded schema of the answer, which take this many tokens and are sent whole."""

    kind: ClassVar = SectionKind.TOOLS
    owner: str
    tokens: int


class HistorySection(msgspec.Struct, frozen=True, kw_only=True):
    """The messages before the run and its own steps. Its budget is what the other sections leave.

    `has_task`: the first of `past` is a task, which is always sent, and each message after it is a turn.
    Without, a turn begins with each user's message. `read_tool`: the name of the tool that reads whole
    results of the run, if the model has it. `images`: those of tool results that `model` gets.
    """

    kind: ClassVar = SectionKind.HISTORY
    owner: str
    past: Sequence[PastMessage]
    steps: Sequence[Step] = ()
    replay: Sequence[ReplayNote] = ()
    has_task: bool = False
    read_tool: str = ""
    images: ToolImages = NO_IMAGES
    model: str = ""

    def starts(self) -> list[int]:
        """The turns, by the number of messages that are left out if the prompt begins with them."""
        rest = self.past[self.has_task :]
        return [at for at, message in enumerate(rest) if self.has_task or message.user is not None]

    def task(self) -> list[PromptMessage]:
        """The task, if there is one."""
        return [*chain.from_iterable(past_prompts(each, NO_IMAGES) for each in self.past[: self.has_task])]

    def parts(self, left_out: int) -> tuple[list[list[PromptMessage]], list[PromptMessage]]:
        """The messages of each past message from this number on, then those of the run."""
        past = self.past[self.has_task + left_out :]
        rest = [past_prompts(message, self.images, self.model) for message in past]
        return rest, assistant_messages(self.steps, self.replay, self.images, self.model)

    def shortened(self, messages: list[PromptMessage], context: ContextRecord) -> list[PromptMessage]:
        """The messages with the first `context.results` of the tool results shortened."""
        left = context.results
        if not left:
            return messages
        readable = {step.id_ref for step in self.steps} if self.read_tool else set[object]()
        shortened: list[PromptMessage] = []
        for message in messages:
            if isinstance(message, ToolPrompt) and left:
                left -= 1
                tool = self.read_tool if message.call_id in readable else ""
                message = _short_result(message, context.window, tool)
            shortened.append(message)
        return shortened


Section = TextSection | ToolsSection | HistorySection


class SendPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="send"):
    """The plan to send these messages: how they were made, and their tokens before and after what was left
    out. `estimate`: the tokens by their bytes, without the correction by what the provider counted."""

    messages: list[PromptMessage]
    context: ContextRecord
    estimate: int
    before: int
    after: int

    @property
    def without_summary(self) -> "SendPrompt":
        """What is sent if nothing is summarised."""
        return self


class SummarizeFirst(msgspec.Struct, frozen=True, kw_only=True, tag="summarize_first"):
    """The plan to put a summary in the place of the first `messages` messages, which do not fit.

    `without_summary`: what is sent if there is no summary.
    """

    messages: int
    without_summary: SendPrompt


PromptPlan = SendPrompt | SummarizeFirst


class Prompt:
    """A prompt for one model call, with one history among its sections, which are given in any order."""

    def __init__(self, sections: Sequence[Section], estimate: Estimate) -> None:
        self.sections = sorted(sections, key=lambda section: _ORDER[section.kind])
        self._estimate = estimate
        (self._history,) = (each for each in sections if isinstance(each, HistorySection))
        self._tools = sum(each.tokens for each in sections if isinstance(each, ToolsSection))
        system, tail = self._text(before_history=True), self._text(before_history=False)
        self._head = [*([SystemPrompt(text=system)] if system else []), *self._history.task()]
        self._tail: list[PromptMessage] = [UserPrompt(text=tail)] if tail else []

    def _text(self, *, before_history: bool) -> str:
        """The texts of the sections before or after the history."""
        history = _ORDER[SectionKind.HISTORY]
        texts = [
            section.sent_text(self._estimate)
            for section in self.sections
            if isinstance(section, TextSection) and (_ORDER[section.kind] < history) == before_history
        ]
        return "\n\n".join(text for text in texts if text)

    @property
    def size(self) -> int:
        """How many messages and steps it is made of."""
        history = self._history
        return len(history.steps) + sum(1 + len(message.steps) for message in history.past)

    def messages(self, context: ContextRecord) -> list[PromptMessage]:
        """The messages to send without what `context` leaves out."""
        rest, current = self._history.parts(context.messages)
        sent = self._history.shortened([*chain.from_iterable(rest), *current], context)
        return [*self._head, *sent, *self._tail]

    def left_out_turns(self, context: ContextRecord) -> int:
        return sum(start < context.messages for start in self._history.starts())

    def plan(
        self,
        context: ContextRecord,
        window: int | None,
        limit: float | None,
        target: float,
        *,
        summarizes: bool = False,
    ) -> PromptPlan:
        """What `fitted` says or, with `summarizes`, a summary first where messages are left out that were
        sent before."""
        send = self.fitted(context, window, limit, target)
        if summarizes and send.context.messages > context.messages:
            return SummarizeFirst(messages=send.context.messages, without_summary=send)
        return send

    def fitted(
        self, context: ContextRecord, window: int | None, limit: float | None, target: float
    ) -> SendPrompt:
        """The prompt as `context` says, or with less if it has more tokens than the limit (None: no limit).

        As little is left out as the target needs: first the turns before the last two, then old tool results,
        then the turn before the last, then the newest results. Where the target cannot be reached the limit
        is enough, else as much as possible is left out. With a larger window than before it begins anew.
        """
        start = max((at for at in self._history.starts() if at <= context.messages), default=0)
        if window is not None and (window > context.window or not context.window):
            context = replace(context, messages=0, results=0, window=window)
        elif context.messages != start:
            context = replace(context, messages=start, results=0)
        factor = context.counted / context.estimated if context.counted and context.estimated else 1.0
        factor = min(max(factor, MIN_FACTOR), MAX_FACTOR)
        messages = self.messages(context)
        estimate = self._estimate(messages) + self._tools
        before = after = round(estimate * factor)
        if limit is not None and before > limit:
            context = replace(context, window=window or 0)
            context = self._smaller(context, limit / factor - self._tools, target / factor - self._tools)
            messages = self.messages(context)
            estimate = self._estimate(messages) + self._tools
            after = round(estimate * factor)
        return SendPrompt(messages=messages, context=context, estimate=estimate, before=before, after=after)

    def _smaller(self, context: ContextRecord, limit: float, target: float) -> ContextRecord:
        smallest = context
        for stage in self._stages(context):
            for smallest, size in stage:
                if size <= target:
                    return smallest
            if stage and stage[-1][1] <= limit:
                break
        return smallest

    def _stages(self, context: ContextRecord) -> Iterator[list[tuple[ContextRecord, int]]]:
        """What may be left out, with the tokens of the prompt then; later stages take more."""
        history = self._history
        rest, current = history.parts(context.messages)
        whole = [*chain.from_iterable(rest), *current]
        sizes = [self._estimate([one]) for one in history.shortened(whole, context)]
        all_short = history.shortened(whole, replace(context, results=len(whole)))
        saved = [size - self._estimate([one]) for size, one in zip(sizes, all_short, strict=True)]
        begins = [*accumulate(map(len, rest), initial=0)]
        always_sent = self._estimate([*self._head, *self._tail])
        sums = [*accumulate(reversed(sizes), initial=always_sent)][::-1]
        results = [at for at, message in enumerate(whole) if isinstance(message, ToolPrompt)]
        last_other = max((at for at, each in enumerate(whole) if not isinstance(each, ToolPrompt)), default=0)

        def from_turn(start: int, before: int) -> list[tuple[ContextRecord, int]]:
            """From this turn on; then also with one result after the other shortened, up to `before`."""
            at = begins[start - context.messages]
            removed = bisect_left(results, at)
            count, size = max(0, context.results - removed), sums[at]
            found = [(replace(context, messages=start, results=count), size)]
            for place in results[removed + count : bisect_left(results, before)]:
                count, size = count + 1, size - saved[place]
                found.append((replace(context, messages=start, results=count), size))
            return found

        starts = [start for start in history.starts() if start >= context.messages] or [context.messages]
        yield [from_turn(start, 0)[0] for start in starts[:-1]]
        yield from_turn(starts[-2:][0], last_other)
        yield from_turn(starts[-1], last_other)
        yield from_turn(starts[-1], len(whole))


def context_of(past: Sequence[PastMessage]) -> ContextRecord:
    """How the prompt of the newest answer was made."""
    records = (message.context for message in reversed(past) if message.context is not None)
    return next(records, ContextRecord())


def _short_result(result: ToolPrompt, window: int, read_tool: str) -> ToolPrompt:
    """The beginning of a result and a note, without its images; the text itself if that is not shorter."""
    beginning = result.content[: min(MAX_BEGINNING, window // 8) if window else MAX_BEGINNING]
    how = f"; {read_tool} with the ref {result.call_id} reads all of it, in parts" if read_tool else ""
    note = (
        f"[{len(result.content) - len(beginning):,} more characters left out to fit the context window{how}]"
    )
    short = f"{beginning}\n{note}"
    if result.images:
        short = f"{short}\n[{len(result.images)} images left out]"
        return replace(
            result, content=short if len(short) < len(result.content) else result.content, images=()
        )
    return result if len(short) >= len(result.content) else replace(result, content=short)
