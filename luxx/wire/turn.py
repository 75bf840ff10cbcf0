"""One agent's turn in a run: which events belong to it, its steps, and the deltas from which they grow.

A step is one ordered item of an assistant's message, with the same form in database, events and API. Deltas
are the fragments of a completion, in one form for all providers: a parser yields them in the order of the
stream. Text and thinking are fragments; a tool call's fragments share a `slot`; usage is cumulative for the
completion (the last one counts).
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.source import Source


class TurnRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The turn of a run: in a room the message that it writes, in a task the step that it carries out.

    Both are empty in a chat, whose run is one turn.
    """

    msg_id: str = ""
    step_id: str = ""

    @property
    def key(self) -> str:
        """What identifies the turn within its run; empty in a chat."""
        return self.msg_id or self.step_id


CHAT_TURN = TurnRef()

TURN_LENGTH = 80
"""Limit of characters of the key of a turn, in columns."""

MODEL_LENGTH = 300
"""Limit of characters of a model's name, in columns: a configured one, or the name of a file."""


class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of events. `seq` is set where a log is read as JSON; in a stream it is the frame's `id`.

    An event of a turn has the turn's `msg_id` in a room, its `step_id` in a task or in a plan of a
    chat, neither in the answer of a chat.
    """

    seq: int | UnsetType = UNSET
    run_id: str = ""
    timestamp: str = ""
    msg_id: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET


def turn_of(event: EventBase) -> TurnRef:
    """The turn that the event belongs to; CHAT_TURN for an event of the run."""
    if isinstance(event.msg_id, str):
        return TurnRef(msg_id=event.msg_id)
    return TurnRef(step_id=event.step_id) if isinstance(event.step_id, str) else CHAT_TURN


class StepFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a step. `file_id` is for `GET /files/{file_id}`, for the step's user only. `path` is within
    the workspace. `sha256` is of the file when the step was made; the file may have changed since. Only an
    image has `width` and `height`. Of an artifact, it has `artifact_id` and `version` instead of `file_id`
    and `path`, which are empty.
    """

    file_id: str
    name: str
    path: str
    media_type: str
    size: int
    width: int | UnsetType = UNSET
    height: int | UnsetType = UNSET
    sha256: str
    artifact_id: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


class WrittenArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that a turn made or changed; `version` is the last one that it wrote, `name` that of its
    file."""

    artifact_id: str
    name: str
    version: int


class StepType(StrEnum):
    THINKING = "thinking"
    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    USER = "user"


class StepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class CallOutcome(StrEnum):
    """`denied`: by level or rule; `rejected`: by a person; `corrected`: run with changes by a person."""

    DENIED = "denied"
    REJECTED = "rejected"
    CORRECTED = "corrected"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step. `content` of a tool_result is the result as JSON text `{"success", "data", "error"}`.

    `arguments` is the JSON text that the model wrote; `id_ref` is the call's id on both its steps. Only of a
    tool_call: `is_hosted` (the provider ran the tool itself, so there is no tool_result). Only of a
    tool_result: `outcome` (what people or rules decided on the call), `note` (the text on that for the
    model), `is_untrusted` (the result has untrusted content) and, of a composition, `calls` (how many calls
    it made). `files` are shown with a result, or with the text of a model that generated them. `sources`
    are the web pages that the provider names for a text. `notice` is a sentence of the server for people
    about a text or an image that is missing: a text step with it has no content. A `user` step is a message
    with which a person steered the answer, its `id_ref` the `queue_id`; Luxx's own have a `name`.
    `superseded`: a check refused the text, and another one follows. `edited_by`: the name of the person who
    wrote the text in place of the model's.
    """

    id: str
    index: int
    type: StepType
    content: str = ""
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    id_ref: str | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    status: StepStatus = StepStatus.DONE
    duration_ms: int | UnsetType = UNSET
    level: str | UnsetType = UNSET
    is_hosted: bool | UnsetType = UNSET
    outcome: CallOutcome | UnsetType = UNSET
    note: str | UnsetType = UNSET
    is_untrusted: bool | UnsetType = UNSET
    files: list[StepFile] | UnsetType = UNSET
    calls: int | UnsetType = UNSET
    sources: list[Source] | UnsetType = UNSET
    notice: str | UnsetType = UNSET
    superseded: bool | UnsetType = UNSET
    edited_by: str | UnsetType = UNSET


def step_id(index: int) -> str:
    """The id of the step at `index`."""
    return f"step-{index}"


def steps_text(steps: Iterable[Step]) -> str:
    """The text of the message: all text steps, in order of index.

    Interrupted text steps are left out, because their completion was repeated, and superseded ones.
    """
    texts = (step for step in steps if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED)
    return "".join(step.content for step in texts if step.superseded is not True)


def with_edited_text(steps: Iterable[Step], text: str, name: str) -> list[Step]:
    """The steps of an answer with the text that a person of this `name` wrote in place of the model's.

    It is the last text. Calls, results and messages of people stay, and so do files and sources of the old
    texts; thinking is left out, because it led to another text.
    """
    kept: list[Step] = []
    for step in steps:
        if step.type == StepType.TEXT and (step.files or step.sources):
            emptied = {"content": "", "notice": UNSET, "superseded": UNSET, "edited_by": UNSET}
            kept.append(msgspec.structs.replace(step, **emptied))
        elif step.type not in (StepType.TEXT, StepType.THINKING):
            kept.append(step)
    if kept and kept[-1].type == StepType.TEXT:
        kept[-1] = msgspec.structs.replace(kept[-1], content=text, status=StepStatus.DONE, edited_by=name)
    else:
        kept.append(Step(id="", index=0, type=StepType.TEXT, content=text, edited_by=name))
    numbered = enumerate(kept)
    return [msgspec.structs.replace(step, id=step_id(index), index=index) for index, step in numbered]


def written_artifacts(steps: Iterable[Step]) -> list[WrittenArtifact]:
    """The artifacts that the calls of these steps made or changed, in the order of their first one."""
    written: dict[str, WrittenArtifact] = {}
    for step in steps:
        if step.type != StepType.TOOL_RESULT or step.files is UNSET:
            continue
        for file in step.files:
            if isinstance(file.artifact_id, str) and isinstance(file.version, int):
                written[file.artifact_id] = WrittenArtifact(
                    artifact_id=file.artifact_id, name=file.name, version=file.version
                )
    return list(written.values())


def last_text(steps: Sequence[Step]) -> str:
    """The text of the message after the last message with which a person steered it, if there is one."""
    last = max((step.index for step in steps if step.type == StepType.USER), default=-1)
    return steps_text(steps[last + 1 :])


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. `total_tokens` is prompt plus completion unless the provider reports another total.

    `reasoning_tokens` are part of `completion_tokens`. `cached_tokens` (read from the provider's cache) and
    `cache_write_tokens` (written to it) are parts of `prompt_tokens` with separate prices at many providers.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


class ModelUsed(msgspec.Struct, frozen=True, kw_only=True):
    """The provider and the model that produced something; all null where that is not known.

    The name is the one that the provider had then.
    """

    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None


class FinishReason(StrEnum):
    """Why a completion ended. `context_full`: the model's context window was full. `content_filter`: a filter
    of the provider cut or withheld the answer; `refusal`: the model or its safety system declined. `loop`:
    Luxx cut a text that repeated itself without end. `unknown`: the provider gave no reason, or one that its
    dialect's table does not have.
    """

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTEXT_FULL = "context_full"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSED = "paused"
    LOOP = "loop"
    UNKNOWN = "unknown"


WITHHELD = frozenset({FinishReason.CONTENT_FILTER, FinishReason.REFUSAL})
"""The reasons of answers that were refused, in whole or from some point on."""

CUT_SHORT = frozenset({FinishReason.LENGTH, FinishReason.CONTEXT_FULL})
"""The reasons of answers that may end anywhere, also within the arguments of a call."""


class ThinkingDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    text: str


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    text: str


class TextWasThinking(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the completion so far was thinking, which the provider did not mark at its beginning."""


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment of a tool call. `slot` counts the calls of this completion from 0, in the order they began.

    `call_id` and `name` are complete on a slot's first delta and repeated on later ones; a provider
    that gives no id gets one from the parser. `arguments` is the next fragment of the JSON text.
    """

    slot: int
    call_id: str
    name: str
    arguments: str = ""


class HostedCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool that ran at the provider. It is shown and never run; `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str = "{}"


class UsageDelta(msgspec.Struct, frozen=True, kw_only=True):
    usage: Usage


class CitationDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A source that the provider names for its answer. `url` is empty for one that is no web page: a file
    or a document, whose name is the title."""

    source: Source


class ImageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """An image that the model generated, as a whole file."""

    media_type: str
    data: bytes


class ReplayDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Data that the provider needs back unchanged in later requests (signatures, reasoning items).

    Later deltas replace earlier ones by key; only the adapter that wrote the data reads it.
    """

    data: dict[str, Any]


REASONING_DETAILS_KEY = "reasoning_details"
"""The key in the replay note of the reasoning as servers of the OpenAI dialect want it back."""


class FinishDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a completion. `raw`: the provider's word for the reason. `refusal`: the model's own words
    with which it refused, where the provider gives them apart from the text. `notice`: the adapter's sentence
    about a text that does not exist; it becomes the `notice` of a step. `is_cut`: Luxx ended it, so its usage
    is not known."""

    reason: FinishReason
    raw: str = ""
    refusal: str = ""
    notice: str = ""
    is_cut: bool = False


Delta = (
    ThinkingDelta
    | TextDelta
    | TextWasThinking
    | ToolCallDelta
    | HostedCallDelta
    | CitationDelta
    | ImageDelta
    | UsageDelta
    | ReplayDelta
    | FinishDelta
)


class CompletionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What later requests need to know of the end of a completion.

    `is_paused`: the next completion continues it. `refusal`: see `FinishDelta`. `refused_by`: the name of the
    model that refused, which does not get the answer again. `has_notice`: its text is a sentence of an older
    version of Luxx, which no model gets.
    """

    is_paused: bool = False
    refusal: str = ""
    refused_by: str = ""
    has_notice: bool = False


ReplayNote = dict[str, Any]
"""What is stored of a completion for later requests, as JSON: the data of its ReplayDeltas, which only their
adapter reads, and its CompletionEnd, which `with_end` and `end_of` write and read."""

_PAUSED, _REFUSAL, _REFUSED_BY, _NOTICE = "paused", "refusal", "refused_by", "notice"
_KEYS_OF_END = frozenset({_PAUSED, _REFUSAL, _REFUSED_BY, _NOTICE})


def with_end(data: ReplayNote, end: CompletionEnd) -> ReplayNote:
    """The note of a completion with this data of its ReplayDeltas, which ended so."""
    said = {_REFUSAL: end.refusal, _PAUSED: end.is_paused, _REFUSED_BY: end.refused_by}
    return {**data, **{key: value for key, value in said.items() if value}}


def end_of(note: ReplayNote) -> CompletionEnd:
    """How the completion of this note ended; an imported note may hold any JSON."""
    if note.keys().isdisjoint(_KEYS_OF_END):
        return CompletionEnd()
    refusal, refused_by = note.get(_REFUSAL), note.get(_REFUSED_BY)
    return CompletionEnd(
        is_paused=_PAUSED in note,
        refusal=refusal if isinstance(refusal, str) else "",
        refused_by=refused_by if isinstance(refused_by, str) else "",
        has_notice=_NOTICE in note,
    )
