"""The prompts of a turn: what its next model call sends, what is left out to fit the context window, and what
the turn is given of memory.
"""

from functools import partial
from itertools import chain
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from luxx.domain.context.messages import PastMessage, RequestImages
from luxx.domain.context.prompt import History, Prompt, Section, SectionKind, ToolsSection
from luxx.domain.context.recalled import recalled_section
from luxx.domain.context.suggested import suggested_section
from luxx.domain.context.summary import summary_messages
from luxx.domain.context.todo_list import recited
from luxx.domain.context.tokens import correction, estimated_tokens
from luxx.domain.context.window import (
    OUTPUT_SHARE,
    Cut,
    WindowLimits,
    begun_anew,
    next_cut,
    slid,
    truncated,
    window_limits,
)
from luxx.errors import ContextTooLong
from luxx.infra.config.schema import ContextConfig
from luxx.infra.store.tables import first_given
from luxx.providers.adapter import CompletionRequest, run_sized
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.context import Recall, RunContext
from luxx.runs.turn.resources import PromptResources, asks_to_think
from luxx.runs.turn.state import GivenPrompt, RunSpec, TurnState
from luxx.runs.turn.verification import objection_text
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.wire.event import CallPurpose, CutNote, RecallNote
from luxx.wire.message import CompressionStrategy, ContextRecord, PromptMessage, objection_note, tool_images
from luxx.wire.run import InConversation, RoutedChoice, RunKind
from luxx.wire.tool import ToolChoice, ToolChoiceMode
from luxx.wire.turn import ReplayNote, Usage, steps_text
from luxx.wire.turn_event import ContextCompressed, MemoryRecalled, Tainted

LEARNED_SHARE = 0.9
"""Of a prompt that was refused as too long, what is taken for the window of its model from then on."""

MEMORY_SEARCH = "memory_search"
"""The tool that finds the same facts, which names what brought untrusted ones into a run."""

MAX_QUERY = 2_000
"""Characters of the message that a turn answers which are searched with."""

MAX_BEFORE = 500
"""Those of the message before it, which says what a short message is about."""


class TurnPrompt:
    """Makes the prompts of a turn for one drive and one model. What was made and counted for one call is kept
    for the next, so that a call costs what is new of the history."""

    def __init__(self, spec: RunSpec, resources: PromptResources, config: ContextConfig) -> None:
        self._spec = spec
        self._resources = resources
        self._config = config
        self._images = RequestImages()
        self._made_of: Any = None
        self._prompt = Prompt([], History([]))
        self.objection: ReplayNote = {}
        """The part of the note of the next completion about what checks object to."""

    @property
    def prompt(self) -> Prompt:
        """The prompt of the next call."""
        return self._prompt

    async def read(self, state: TurnState) -> None:
        """Reads what the next call sends besides the log; the other methods are about this call."""
        await self._read_images(state)
        size = 0 if self._made_of else sum(1 + len(message.steps) for message in self._spec.past)
        await run_sized(size + len(state.steps), self._make, state)

    async def next_cut(self, state: TurnState) -> Cut | None:
        """What must be left out before the call, which is logged first; None: nothing more than before."""
        window, is_larger = self._window(state.context), self._has_larger_window(state.context)
        is_safe = self.tokens(state.context) <= self._safe_tokens(window)
        begin = self._window_begin(state.context)
        if state.is_compressed or (not is_larger and is_safe and not begin):
            return None
        record = self.record(state)
        cut = await self._decided(record, is_asked=False)
        if cut is None and record is not state.context:
            strategy = CompressionStrategy.TRUNCATE if begin else None
            before, after = self.tokens(state.context), self.tokens(record)
            return Cut(record=record, strategy=strategy, before=before, after=after)
        return cut

    async def asked_cut(self, state: TurnState) -> Cut | None:
        """What is left out because a person wants it, whatever fits; None: nothing, or too little."""
        return await self._decided(self.record(state), is_asked=True)

    async def _decided(self, record: ContextRecord, *, is_asked: bool) -> Cut | None:
        limits, summarizes = self.limits(record), self._summarizes
        decide = partial(next_cut, self._prompt, record, limits, summarizes=summarizes, is_asked=is_asked)
        return await run_sized(len(self._prompt.history.units), decide)

    def record(self, state: TurnState) -> ContextRecord:
        """How the next prompt is made if it fits: anew for a model with a larger window, and without what a
        sliding window leaves out."""
        record = state.context
        if self._has_larger_window(record) and record.learned_by != self._spec.request.model:
            record = begun_anew(record, self.limits(record))
        if begin := self._window_begin(record):
            record = slid(self._prompt.history, record, begin, self.limits(record))
        return record

    def _window_begin(self, record: ContextRecord) -> int:
        """The message with which the sliding window begins; 0: it leaves no more out than the record does."""
        size = self._spec.request.sliding_window
        size = self._config.sliding_window if size is None else size
        begin = self._prompt.history.window_begin(size) if size else 0
        return begin if begin > record.messages else 0

    def _has_larger_window(self, record: ContextRecord) -> bool:
        known = self.card_window
        return known is not None and 0 < record.window < min(known, self._config.max_tokens)

    @property
    def _summarizes(self) -> bool:
        """Whether older turns are summarised: not where a model only chooses or plans."""
        return self._spec.purpose == CallPurpose.ANSWER

    def entry(
        self,
        state: TurnState,
        cut: Cut,
        *,
        overflow: bool = False,
        summary: str | UnsetType = UNSET,
        usage: Usage | UnsetType = UNSET,
    ) -> LogEntry:
        """The event of a cut; of one with a `summary`, with the usage of its call."""
        limits = self.limits(cut.record)
        earlier, later = self._prompt.history.sent(state.context), self._prompt.history.sent(cut.record)
        left = {unit.place for unit in later}
        replaced = [unit for unit in earlier if unit.place not in left or unit.place < (0, 0)]
        event = ContextCompressed(
            messages=cut.record.messages,
            turns=sum(unit.starts_turn for unit in self._left_out(cut.record)),
            results=sum(self._prompt.history.is_cleared(unit, cut.record) for unit in later),
            tokens_before=cut.before,
            tokens_after=cut.after,
            window=self.card_window,
            overflow=overflow,
            was_compressed=cut.strategy is not None,
            compression_strategy=UNSET if cut.strategy is None else cut.strategy,
            original_message_count=sum(len(unit.prompts) for unit in earlier),
            final_message_count=sum(len(unit.prompts) for unit in later),
            estimated_tokens=cut.after,
            token_budget=limits.usable,
            budget_utilization_pct=round(100 * cut.after / limits.usable, 1),
            summarized_message_count=0 if summary is UNSET else sum(len(unit.prompts) for unit in replaced),
            summary=summary,
            summary_usage=usage,
        )
        until = "" if summary is UNSET else self._until(cut.record)
        return event, CutNote(record=replace(cut.record, summary="", todos=None, until=until))

    def _until(self, record: ContextRecord) -> str:
        """The newest message of a room before the cut; empty in a chat."""
        past = self._spec.past
        return past[min(record.messages, len(past) - 1)].until if past else ""

    def _left_out(self, record: ContextRecord) -> list[Any]:
        kept, units = set(record.kept), self._prompt.history.units
        return [unit for unit in units[: self._prompt.history.begin(record)] if unit.place not in kept]

    def request(self, state: TurnState, *, with_tools: bool) -> CompletionRequest:
        """The request for the next model call of the run.

        Without tools the model must call none: they stand in the request all the same, because the cache of
        the provider begins with them.

        Raises ContextTooLong if the last turn alone does not fit the model's window.
        """
        window, tokens = self.card_window, self.tokens(state.context)
        if window is not None and tokens > window:
            raise ContextTooLong(
                f"This message and what belongs to it take about {tokens:,} tokens, but the context "
                f"window of {self._spec.request.model} has {window:,}. Send less at once, offer fewer "
                "tools, or choose a model with a larger window."
            )
        request = self._completion_request(self._prompt.messages(state.context))
        if request.tools and not with_tools:
            return replace(request, tool_choice=ToolChoice(mode=ToolChoiceMode.NONE))
        return request

    def summary_request(self, state: TurnState, cut: Cut, max_tokens: int) -> CompletionRequest | None:
        """The request for the summary of what the cut leaves out; None if even that exceeds the window.

        It has no `tool_choice`: with another one than before, a provider would not use its cache.
        """
        limits = self.limits(state.context)
        fits = self.tokens(state.context) + max_tokens <= limits.window
        messages = self._prompt.messages(state.context, None if fits else cut.record.cut)
        request = self._completion_request(summary_messages(messages, limits.summary))
        if not fits:
            tokens = estimated_tokens(request.messages, request.tools) * correction(state.context)
            if tokens + max_tokens > limits.window:
                return None
        return replace(request, max_tokens=max_tokens, response_schema=None, stop=[], tool_choice=None)

    def _completion_request(self, messages: list[PromptMessage]) -> CompletionRequest:
        request = self._spec.request
        given = request.origin if isinstance(request.origin, GivenPrompt) else None
        return CompletionRequest(
            model=request.model,
            messages=messages,
            tools=self._resources.tools,
            needs_tools=given is not None and bool(given.tools),
            response_schema=request.response_schema,
            stop=request.stop,
            tool_choice=None if given is None else given.tool_choice,
            parallel_tool_calls=None if given is None else given.parallel_tool_calls,
            caches_prompt=True,
            tail=self._prompt.tail,
            prompted_thinking=asks_to_think(request, self._resources.card),
            **first_given(request),
        )

    def estimate(self, record: ContextRecord) -> int:
        """The tokens of the prompt, without the correction by what the provider counted."""
        return self._prompt.estimate(record)

    def tokens(self, record: ContextRecord) -> int:
        """The tokens of the prompt as the provider may count them."""
        return round(self._prompt.estimate(record) * correction(record))

    def parts(self, record: ContextRecord) -> dict[SectionKind, int]:
        """The tokens of the parts of the prompt that it has; together they are `tokens`."""
        parts: dict[SectionKind, int] = {}
        factor, total, before = correction(record), 0, 0
        for kind, tokens in self._prompt.parts(record).items():
            total += tokens
            until = round(total * factor)
            if until > before:
                parts[kind] = until - before
            before = until
        return parts

    def after_overflow(self, state: TurnState) -> LogEntry | None:
        """The event that leaves out half of the prompt that was refused; None if nothing can be left out.

        The size of the prompt is remembered as that of the model's window.
        """
        record = state.context
        tokens = self.tokens(record)
        cut = truncated(self._prompt, record, self.limits(record), most=tokens // 2)
        if cut is None:
            return None
        learned = int(LEARNED_SHARE * tokens)
        known = replace(cut.record, learned=learned, learned_by=self._spec.request.model, window=learned)
        return self.entry(state, replace(cut, record=known), overflow=True)

    def limits(self, record: ContextRecord) -> WindowLimits:
        """The limits of the prompt for the model of the turn."""
        longest = self._spec.request.max_tokens or self._resources.card.max_output
        return window_limits(self._window(record), longest, self._config)

    def _window(self, record: ContextRecord) -> int | None:
        """The context window of the model, if it is known or its provider has refused a prompt."""
        windows = [self.card_window] if self.card_window is not None else []
        if record.learned and record.learned_by == self._spec.request.model:
            windows.append(record.learned)
        return min(windows, default=None)

    def _safe_tokens(self, window: int | None) -> float:
        """A prompt of so many tokens is below the trigger, however long the answer may be."""
        most = self._config.max_tokens
        return self._config.trigger * (1 - OUTPUT_SHARE) * min(most, most if window is None else window) - 1

    @property
    def card_window(self) -> int | None:
        """The context window of the model, if it is known."""
        return self._resources.card.known_window

    async def _read_images(self, state: TurnState) -> None:
        """Chooses the newest images for the next request, and reads those of tool results. A model that is
        not known to read images gets none of these: its server could refuse the request."""
        past, resources = self._spec.past, self._resources
        steps = chain(*(message.steps for message in past), state.steps)
        of_tools = {image.sha256: image for image in tool_images(steps)} if resources.card.images else {}
        if of_tools:
            contents = [message.steps if message.user is None else message.user for message in past]
            given = {key for message in past for key in message.images}
            read = partial(resources.read_files, self._spec.user_id)
            await self._images.choose([*contents, state.steps], of_tools, given, read)

    def _make(self, state: TurnState) -> None:
        """Makes the prompt, or adds what is new to it where only the history has grown."""
        newest, tools = self._images.newest, self._resources.tools
        made_of = (newest, list(self._images.tools))
        if made_of != self._made_of:
            self._made_of, spec = made_of, self._spec
            history = History(
                spec.past if newest is None else [message.with_images(newest) for message in spec.past],
                has_task=spec.kind != RunKind.CHAT,
                protected=self._config.protected_tools,
                read_tool=READ_RESULT_TOOL if any(tool.name == READ_RESULT_TOOL for tool in tools) else "",
                images=self._images.tools,
                model=spec.request.model,
            )
            tool_tokens = estimated_tokens((), tools, spec.request.response_schema)
            sections: list[Section] = [
                *self._resources.sections, ToolsSection(owner="tools", tokens=tool_tokens)
            ]  # fmt: skip
            if state.recalled:
                sections.append(recalled_section(state.recalled))
            if suggested := suggested_in(spec):
                sections.append(suggested_section(suggested))
            self._prompt = Prompt(sections, history)
        self.objection = self._objection(state)
        self._prompt.history.extend(state.steps, state.notes, self.objection)
        if state.context.todos is not None:
            self._prompt.set_last(recited(state.context.todos))

    def _objection(self, state: TurnState) -> ReplayNote:
        if not state.objections:
            return {}
        return objection_note(objection_text(state, self.card_window), len(state.steps))


def suggested_in(spec: RunSpec) -> list[RoutedChoice]:
    """The skills and agents whose names the turn gets: those of a message in a conversation."""
    if not isinstance(spec.request.origin, InConversation) or spec.turn.key:
        return []
    return [one for one in spec.request.routed if not (one.acts or one.clause)]


# What is remembered for a turn


async def log_recalled(run: RunContext, recall: Recall) -> None:
    """Logs what is remembered for the turn, unless it has begun or nothing fits."""
    state = run.log.state
    if state.recalled is not None or state.notes:
        return
    found = await recall.find(run.spec, query_of(run.spec.past))
    if found.facts:
        event = MemoryRecalled(memories_used=[fact.id for fact in found.facts])
        entries: list[LogEntry] = [(event, RecallNote(facts=found.facts))]
        if state.tainted_by is None and not all(fact.is_trusted for fact in found.facts):
            entries.append(Tainted(by=MEMORY_SEARCH))
        await run.log.append(entries, extra_write=found.write)


def query_of(past: list[PastMessage]) -> str:
    """The newest message that a turn reads, and the one before it."""
    texts: list[str] = []
    for message in reversed(past):
        if text := _text(message):
            texts.append(text[: MAX_BEFORE if texts else MAX_QUERY])
        if len(texts) == 2:
            break
    return "\n".join(texts)


def _text(message: PastMessage) -> str:
    return (steps_text(message.steps) if message.user is None else message.user.text).strip()
