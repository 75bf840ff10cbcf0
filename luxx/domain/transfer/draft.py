"""The intermediate form of an imported conversation, which every format is read into.

It has no ids yet and may lack times. `Losses` counts what is left out. `child.py`, a process, makes the rows.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from luxx.wire.message import (
    MAX_ATTACHED_TEXT,
    MAX_ATTACHMENTS,
    MAX_EXTENSION,
    MAX_FILE_NAME,
    MAX_MESSAGE_TEXT,
    Attachment,
    PromptImage,
)
from luxx.wire.model_settings import MODEL_SETTINGS, MemoryMode, ModelSettings, PlanningMode, RoutingMode
from luxx.wire.turn import Step, StepStatus, StepType, step_id

MAX_TEXT_CHARACTERS = 4_000_000
"""Maximum characters of one text: what a run stores of one answer."""

TITLE_LENGTH = 300
PROMPT_LENGTH = 100_000  # Characters, like the title's: the limits of the API for a conversation.
EARLIEST_TIME = datetime(1970, 1, 1, tzinfo=UTC)

JsonObject = dict[str, Any]


class UnusableConversation(Exception):
    """A conversation that cannot be imported, with the reason."""


class Losses:
    """Counts what an import leaves out of a conversation, by the words that the report shows."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        if count:
            self.counts[what] += count


class DraftMessage(msgspec.Struct, kw_only=True):
    """`key` and `parent` are the file's own ids; a missing time is computed later.

    `images` are those of the attachments, by their new `blob_id`. `replay` is what the adapters recorded, one
    object per completion, to send it back unchanged.
    """

    key: str
    parent: str | None
    role: str
    text: str = ""
    attachments: list[Attachment] = []
    images: dict[str, PromptImage] = {}
    steps: list[Step] = []
    replay: list[JsonObject] = []
    token_count: int = 0
    usage: Any = None
    status: str = "complete"
    finish: str | None = None
    provider_name: str | None = None
    model: str | None = None
    sender_name: str | None = None
    sender_color: str | None = None
    round_number: int | None = None
    created_at: datetime | None = None


class ConversationDraft(ModelSettings, frozen=True, kw_only=True):
    """A conversation with its messages in any order; `leaf` is the key of the last message of the selected
    path."""

    title: str
    messages: list[DraftMessage]
    leaf: str | None = None
    model: str | None = None
    system_prompt: str | None = None
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    sliding_window: int | None = None
    memory: MemoryMode | None = None
    record: bool | None = None
    pinned: bool = False
    archived: bool = False
    tags: list[str] = []
    created_at: datetime | None = None
    updated_at: datetime | None = None
    losses: Losses


CONVERSATION_SETTINGS = (
    "model", "system_prompt", "planning", "routing", "sliding_window", "memory", "record", "pinned",
    "archived", *MODEL_SETTINGS,
)  # fmt: skip
ORIGIN_DETAILS = ("finish", "provider_name", "model")
"""What a file says about the model of a message. A provider's id belongs to its server."""

MESSAGE_DETAILS = ("token_count", "status", "sender_name", "sender_color", "round_number", *ORIGIN_DETAILS)
"""Fields that documents, drafts and rows have in common."""


# Texts


def text_of(value: Any, losses: Losses) -> str:
    """A string of the file, cut to MAX_TEXT_CHARACTERS; "" for any other value."""
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_TEXT_CHARACTERS:
        losses.add(f"text past {MAX_TEXT_CHARACTERS:,} characters")
    return value[:MAX_TEXT_CHARACTERS]


def title_of(value: Any) -> str:
    """A title on one line; empty if there is none."""
    # The first cut keeps the work small for a title of megabytes; the rest allows for repeated spaces.
    return " ".join(value[: TITLE_LENGTH * 4].split())[:TITLE_LENGTH] if isinstance(value, str) else ""


def prompt_of(text: str, losses: Losses) -> str | None:
    """A system prompt, cut to the limit of a conversation."""
    if len(text) > PROMPT_LENGTH:
        losses.add(f"instructions past {PROMPT_LENGTH:,} characters")
    return text[:PROMPT_LENGTH].strip() or None


def object_of(value: Any) -> JsonObject:
    """A JSON object of the file; {} for any other value."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """A JSON array of the file; [] for any other value."""
    return cast("list[Any]", value) if isinstance(value, list) else []


# Times


def time_of(value: Any, losses: Losses) -> datetime | None:
    """A time given in seconds since 1970 or ISO 8601; None if it is before 1970 or over a day ahead."""
    if value is None:
        return None
    moment: datetime | None = None
    try:
        if isinstance(value, str | datetime):
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value[:64])
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(float(value), UTC)
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is None or not EARLIEST_TIME <= moment <= datetime.now(UTC) + timedelta(days=1):
        losses.add("invalid times")
        return None
    return moment


# Steps


class StepBuilder:
    """Builds the steps of one assistant message and keeps calls and results together."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        # The calls that can still get a result, as names by id; and the ids of all calls in order.
        self._open: dict[str, str] = {}
        self._call_ids: list[str] = []

    def new_call_id(self) -> str:
        """An id for a call without one."""
        return f"call_{len(self.steps)}"

    def open_call(self) -> tuple[str, str] | None:
        """Id and name of the latest call that can still get a result."""
        # `next(reversed(self._open))` would pass over all deleted entries each time: quadratic.
        while self._call_ids and self._call_ids[-1] not in self._open:
            self._call_ids.pop()
        return (self._call_ids[-1], self._open[self._call_ids[-1]]) if self._call_ids else None

    def add_text(self, type_: StepType, text: str, *, is_new_paragraph: bool = True) -> None:
        """Adds text or thinking. `is_new_paragraph`: text after other text starts a new paragraph."""
        if not text:
            return
        if (
            type_ == StepType.TEXT
            and is_new_paragraph
            and any(step.type == type_ for step in self.steps[-3:])
        ):
            text = f"\n\n{text}"
        self._add(Step(id="", index=0, type=type_, content=text))

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        self._add(
            Step(id="", index=0, type=StepType.TOOL_CALL, id_ref=call_id, name=name, arguments=arguments)
        )
        self._open[call_id] = name
        self._call_ids.append(call_id)

    def add_result(self, call_id: str, name: str, content: str, *, success: bool) -> None:
        """Adds a result, and a call if its call is missing, because models refuse a result without a call.

        Its author is unknown, so it counts as untrusted.
        """
        if call_id not in self._open:
            call_id = self.new_call_id()
            self.add_call(call_id, name, "{}")
        del self._open[call_id]
        self._add(
            Step(
                id="",
                index=0,
                type=StepType.TOOL_RESULT,
                id_ref=call_id,
                name=name,
                content=content,
                success=success,
                status=StepStatus.DONE if success else StepStatus.ERROR,
                is_untrusted=True,
            )
        )

    def _add(self, step: Step) -> None:
        index = len(self.steps)
        if step.type != StepType.TOOL_RESULT and index and self.steps[-1].type == StepType.TOOL_RESULT:
            # Results end a completion: a call without a result stays without one.
            self._open.clear()
            self._call_ids.clear()
        self.steps.append(replace(step, id=step_id(index), index=index))


# Limits


MAX_STEPS = 100_000
"""Maximum steps of one answer: what a run of ten completions can store."""

MAX_CONTENT = 64 * 1024 * 1024
"""Maximum stored bytes of one answer, which is read, sent and backed up as a whole."""

WITHOUT_TEXT = "(no text)"
"""Replaces the text of a user message without text, which the API and the models refuse."""

UNNAMED_FILE = "file"
_encode = msgspec.json.Encoder().encode


def cut_to_limits(draft: ConversationDraft) -> None:
    """Cuts the draft's messages to the limits of the API."""
    for message in draft.messages:
        if message.role == "user":
            _cut_user_message(message, draft.losses)
            continue
        if len(message.steps) > MAX_STEPS:
            draft.losses.add(f"steps past {MAX_STEPS:,} of an answer", len(message.steps) - MAX_STEPS)
            message.steps = message.steps[:MAX_STEPS]
        count = _steps_within(message.steps, MAX_CONTENT)
        draft.losses.add(f"steps past {MAX_CONTENT // 2**20} MiB of an answer", len(message.steps) - count)
        message.steps = message.steps[:count]


def _steps_within(steps: list[Step], bytes_left: int) -> int:
    """How many of the first steps fit into the bytes, each with the comma after it in the JSON array."""
    for index, step in enumerate(steps):
        bytes_left -= len(_encode(step)) + 1
        if bytes_left < 0:
            return index
    return len(steps)


def _cut_user_message(message: DraftMessage, losses: Losses) -> None:
    message.text = _cut(message.text, MAX_MESSAGE_TEXT, "text of a user's message", losses)
    if not message.text.strip():
        losses.add("messages without visible text")
        message.text = WITHOUT_TEXT
    if len(message.attachments) > MAX_ATTACHMENTS:
        losses.add(f"attached files past {MAX_ATTACHMENTS}", len(message.attachments) - MAX_ATTACHMENTS)
        for file in message.attachments[MAX_ATTACHMENTS:]:
            if isinstance(file.blob_id, str):
                message.images.pop(file.blob_id, None)
        message.attachments = message.attachments[:MAX_ATTACHMENTS]
    message.attachments = [_cut_attachment(file, losses) for file in message.attachments]


def _cut_attachment(file: Attachment, losses: Losses) -> Attachment:
    return replace(
        file,
        name=_cut(file.name, MAX_FILE_NAME, "names of attached files", losses) or UNNAMED_FILE,
        extension=_cut(file.extension, MAX_EXTENSION, "extensions of attached files", losses),
        content=_cut(file.content, MAX_ATTACHED_TEXT, "attached text", losses),
    )


def _cut(text: str, max_length: int, what: str, losses: Losses) -> str:
    if len(text) > max_length:
        losses.add(f"{what} past {max_length:,} characters")
    return text[:max_length]
