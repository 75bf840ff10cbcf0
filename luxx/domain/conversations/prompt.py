"""What a model receives of a conversation: makes the messages of a request, and leaves out the oldest turns
that do not fit the model's context window. `path.py` reads the stored messages.

Steps are a flat list. A completion ends where the results of its tools begin; a paused completion is merged
with the one that continues it. A call without a result is left out, because no provider accepts one.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from luxx.wire.message import (
    AssistantPrompt,
    Attachment,
    ContextRecord,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserContent,
    UserPrompt,
    fenced,
)
from luxx.wire.tool import ToolCall
from luxx.wire.turn import NOTICE_KEY, PAUSED_KEY, REFUSED_BY_KEY, Step, StepStatus, StepType

Replay = dict[str, Any]


class PastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the selected path: a user's content, or an assistant's steps and replay notes.

    `images` are those that the model gets: of a user's content by `blob_id`, of given results of tools, which
    are no files, by the `sha256` of the step. `context`: how the prompt of an answer was made. `name`: the
    author, where a client tells several apart.
    """

    user: UserContent | None = None
    images: Mapping[str, PromptImage] = {}
    steps: tuple[Step, ...] = ()
    replay: tuple[Replay, ...] = ()
    context: ContextRecord | None = None
    name: str = ""


ToolImages = Mapping[str, PromptImage]
"""The images of tool results that the model gets, by their `sha256`."""

NO_IMAGES: ToolImages = {}
MAX_NAMED_IMAGES = 10


def prompt_messages(
    system: str, past: Sequence[PastMessage], steps: Sequence[Step] = (), replay: Sequence[Replay] = ()
) -> list[PromptMessage]:
    """The prompt for the next completion: system prompt, past messages, then the steps of the current run."""
    messages: list[PromptMessage] = [SystemPrompt(text=system)] if system else []
    for message in past:
        messages.extend(_past_messages(message, NO_IMAGES))
    messages.extend(assistant_messages(steps, replay))
    return messages


def _past_messages(message: PastMessage, images: ToolImages, model: str = "") -> list[PromptMessage]:
    if message.user is None:
        own = {**images, **message.images} if message.images else images
        answer = assistant_messages(message.steps, message.replay, own, model)
        return _named(answer, message.name) if message.name else answer
    shown = [file for file in message.user.attachments if file.blob_id in message.images]
    prompt = UserPrompt(
        text=user_text(message.user, message.images),
        images=tuple(message.images[str(file.blob_id)] for file in shown),
        offsets=tuple(min(file.offset or 0, len(message.user.text)) for file in shown),
        name=message.name,
    )
    return [prompt]


def _named(messages: list[PromptMessage], name: str) -> list[PromptMessage]:
    return [replace(each, name=name) if isinstance(each, AssistantPrompt) else each for each in messages]


def user_text(content: UserContent, shown: Container[str] = ()) -> str:
    """A user's text followed by the attached files, each named and fenced; of an image the name, if any."""
    files = [file for file in content.attachments if file.name or not isinstance(file.blob_id, str)]
    return "\n\n".join([content.text, *(_attached(file, shown) for file in files)])


def assistant_messages(
    steps: Sequence[Step], replay: Sequence[Replay], images: ToolImages = NO_IMAGES, model: str = ""
) -> list[PromptMessage]:
    """The steps of an assistant's message as completions and tool results, in order.

    A completion that `model` refused is left out: vendors demand that, and refuse again with it.
    """
    messages: list[PromptMessage] = []
    completion_steps: list[Step] = []
    results: list[Step] = []
    notes = _join_paused(replay)
    for step in [*steps, None]:
        if step is not None and step.type == StepType.TOOL_RESULT:
            results.append(step)
            continue
        if step is None or results:
            note = next(notes, Replay())
            if not (model and note.get(REFUSED_BY_KEY) == model):
                messages.extend(_completion(completion_steps, results, note, images))
            completion_steps, results = [], []
        if step is not None and (step.type == StepType.TOOL_CALL or step.status != StepStatus.INTERRUPTED):
            completion_steps.append(step)
    # A completion that paused before its first step has no steps, but its note must be sent back.
    messages.extend(AssistantPrompt(replay=note) for note in notes if PAUSED_KEY in note)
    return messages


def _join_paused(replay: Sequence[Replay]) -> Iterator[Replay]:
    """One note per merged completion: the lists of a paused one's note are extended by the next note's."""
    joined: Replay = {}
    for note in replay:
        for key, value in note.items():
            _extend(joined, key, value)
        if PAUSED_KEY not in note:
            yield joined
            joined = {}
    if joined:
        yield joined


def _extend(joined: Replay, key: str, value: Any) -> None:
    """Extends in place, on copies of the lists: an imported message may have very many notes."""
    existing = joined.get(key)
    if not isinstance(value, list):
        joined[key] = value
    elif isinstance(existing, list):
        cast("list[Any]", existing).extend(cast("list[Any]", value))
    else:
        joined[key] = list(cast("list[Any]", value))


def _completion(
    completion_steps: list[Step], results: list[Step], replay: Replay, images: ToolImages
) -> list[PromptMessage]:
    # A repeated completion may use the same call ids as the interrupted one: the last step counts.
    calls_by_id = {step.id_ref: step for step in completion_steps if step.type == StepType.TOOL_CALL}
    answered_ids = {step.id_ref for step in results}
    calls = [step for id_ref, step in calls_by_id.items() if id_ref in answered_ids]
    text = "".join(step.content for step in completion_steps if step.type == StepType.TEXT)
    if NOTICE_KEY in replay:
        text = ""
    thinking = "".join(step.content for step in completion_steps if step.type == StepType.THINKING)
    if not (calls or text or PAUSED_KEY in replay):
        return []
    order = {step.id_ref: position for position, step in enumerate(calls)}
    in_order = sorted(results, key=lambda step: order.get(step.id_ref, 0))
    assistant = AssistantPrompt(
        text=text, thinking=thinking, tool_calls=[_call(step) for step in calls], replay=replay
    )
    return [assistant, *(_result(step, images) for step in in_order)]


def _call(step: Step) -> ToolCall:
    return ToolCall(
        call_id=_text_or_empty(step.id_ref),
        name=_text_or_empty(step.name),
        arguments=_text_or_empty(step.arguments) or "{}",
    )


def _result(step: Step, images: ToolImages) -> ToolPrompt:
    """The result with its images; those that the model does not get are named."""
    success = step.success is not UNSET and bool(step.success)
    own = step.images if isinstance(step.images, list) else []
    hidden = [image.name for image in own if image.sha256 not in images]
    more = f" and {len(hidden) - MAX_NAMED_IMAGES} more" if len(hidden) > MAX_NAMED_IMAGES else ""
    names = f"[Images not shown to this model: {', '.join(hidden[:MAX_NAMED_IMAGES])}{more}.]"
    return ToolPrompt(
        call_id=_text_or_empty(step.id_ref),
        name=_text_or_empty(step.name),
        content="\n\n".join(
            part for part in (step.content, _text_or_empty(step.note), names if hidden else "") if part
        ),
        success=success,
        images=tuple(images[image.sha256] for image in own if image.sha256 in images),
    )


def _text_or_empty(value: Any) -> str:
    return "" if value is UNSET else str(value)


def _attached(file: Attachment, shown: Container[str]) -> str:
    if isinstance(file.blob_id, str):
        return f"Attached image {file.name}{'' if file.blob_id in shown else ' (not shown to this model)'}."
    return f"Attached file {file.name}:\n{fenced(file.content, file.extension)}"


# The context window

SHARE_AFTER_CUT = 0.7
"""Of what fits, so that the next turns need no other cut and the provider's prompt cache can be used."""

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Of the counted to the estimated tokens of a prompt."""

MAX_BEGINNING = 1_000
"""Characters that remain of a shortened tool result; fewer for a small window."""


class FittedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The messages to send, how they were made, and their tokens before and after what was left out."""

    messages: list[PromptMessage]
    context: ContextRecord
    before: int
    after: int


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt is made of. `estimate` gives the tokens of messages; `tools` are those of the tools.

    `has_task`: the first of `past` is a task, which is always sent, and each message after it is a turn.
    Without, a turn begins with each user's message. `read_tool`: the name of the tool that reads whole
    results of the run, if the model has it. `images`: those of tool results that `model` gets.
    """

    estimate: Callable[[Sequence[PromptMessage]], int]
    system: str
    past: Sequence[PastMessage]
    steps: Sequence[Step] = ()
    replay: Sequence[Replay] = ()
    tools: int = 0
    has_task: bool = False
    read_tool: str = ""
    images: ToolImages = NO_IMAGES
    model: str = ""

    @property
    def size(self) -> int:
        """How many messages and steps it is made of."""
        return len(self.steps) + sum(1 + len(message.steps) for message in self.past)

    def messages(self, context: ContextRecord) -> list[PromptMessage]:
        """The messages to send without what `context` leaves out."""
        head, rest, current = self._parts(context)
        return [*head, *self._shortened([*chain.from_iterable(rest), *current], context)]

    def left_out_turns(self, context: ContextRecord) -> int:
        return sum(start < context.messages for start in self._starts())

    def fitted(
        self, context: ContextRecord, window: int | None, limit: float | None, target: float
    ) -> FittedPrompt:
        """The prompt as `context` says, or with less if it has more tokens than the limit (None: no limit).

        As little is left out as the target needs: first the turns before the last two, then old tool results,
        then the turn before the last, then the newest results. Where the target cannot be reached the limit
        is enough, else as much as possible is left out. With a larger window than before it begins anew.
        """
        start = max((at for at in self._starts() if at <= context.messages), default=0)
        if window is not None and (window > context.window or not context.window):
            context = replace(context, messages=0, results=0, window=window)
        elif context.messages != start:
            context = replace(context, messages=start, results=0)
        factor = context.counted / context.estimated if context.counted and context.estimated else 1.0
        factor = min(max(factor, MIN_FACTOR), MAX_FACTOR)
        messages = self.messages(context)
        before = after = round((self.estimate(messages) + self.tools) * factor)
        if limit is not None and before > limit:
            context = replace(context, window=window or 0)
            context = self._smaller(context, limit / factor - self.tools, target / factor - self.tools)
            messages = self.messages(context)
            after = round((self.estimate(messages) + self.tools) * factor)
        return FittedPrompt(messages=messages, context=context, before=before, after=after)

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
        head, rest, current = self._parts(context)
        whole = [*chain.from_iterable(rest), *current]
        sizes = [self.estimate([one]) for one in self._shortened(whole, context)]
        all_short = self._shortened(whole, replace(context, results=len(whole)))
        saved = [size - self.estimate([one]) for size, one in zip(sizes, all_short, strict=True)]
        begins = [*accumulate(map(len, rest), initial=0)]
        sums = [*accumulate(reversed(sizes), initial=self.estimate(head))][::-1]
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

        starts = [start for start in self._starts() if start >= context.messages] or [context.messages]
        yield [from_turn(start, 0)[0] for start in starts[:-1]]
        yield from_turn(starts[-2:][0], last_other)
        yield from_turn(starts[-1], last_other)
        yield from_turn(starts[-1], len(whole))

    def _starts(self) -> list[int]:
        """The turns, by the number of messages that are left out if the prompt begins with them."""
        rest = self.past[self.has_task :]
        return [at for at, message in enumerate(rest) if self.has_task or message.user is not None]

    def _parts(
        self, context: ContextRecord
    ) -> tuple[list[PromptMessage], list[list[PromptMessage]], list[PromptMessage]]:
        """What is always sent first, then the messages of each past message, then those of this run."""
        head = prompt_messages(self.system, self.past[: self.has_task])
        past = self.past[self.has_task + context.messages :]
        rest = [_past_messages(message, self.images, self.model) for message in past]
        return head, rest, assistant_messages(self.steps, self.replay, self.images, self.model)

    def _shortened(self, messages: list[PromptMessage], context: ContextRecord) -> list[PromptMessage]:
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
