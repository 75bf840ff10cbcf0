"""The intermediate form of an imported conversation, which every format is read into.

It has no ids yet and may lack times. `Losses` counts what does not fit; `arranging.py` makes the rows.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec

from luxx.wire.message import Attachment, PromptImage
from luxx.wire.step import Step, StepStatus, StepType, step_id

MAX_TEXT_CHARACTERS = 4_000_000
"""Maximum characters of one text: what a run stores of one answer."""

TITLE_LENGTH = 300
PROMPT_LENGTH = 100_000
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)

JsonObject = dict[str, Any]


class Unusable(Exception):
    """A conversation that cannot be imported, with the reason."""


class Losses:
    """Counts, under plain names, what is lost of a conversation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        if count:
            self.counts[what] += count


class DraftMessage(msgspec.Struct, kw_only=True):
    """`key` and `parent` are the file's own ids; a missing time is computed later.

    `images` are those of the attachments, by their new `blob_id`.
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
    sender_name: str | None = None
    sender_color: str | None = None
    round_number: int | None = None
    created_at: datetime | None = None


class ConversationDraft(msgspec.Struct, kw_only=True):
    """A conversation with its messages in any order; `leaf` is the key of the last message of the selected
    path."""

    title: str
    messages: list[DraftMessage]
    leaf: str | None = None
    model: str | None = None
    system_prompt: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    thinking_enabled: bool | None = None
    pinned: bool = False
    archived: bool = False
    tags: list[str] = []
    created_at: datetime | None = None
    updated_at: datetime | None = None
    losses: Losses


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
    """A time given in seconds since 1970 or ISO 8601; None unless it is after 1970 and not in the future."""
    if value is None:
        return None
    moment: datetime | None = None
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value[:64])
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(float(value), UTC)
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is None or not EARLIEST <= moment <= datetime.now(UTC) + timedelta(days=1):
        losses.add("invalid times")
        return None
    return moment


# Steps


class StepWriter:
    """Builds the steps of one assistant message and keeps calls and results together."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._open: dict[str, str] = {}
        self._called: list[str] = []

    def new_call_id(self) -> str:
        """An id for a call without one."""
        return f"call_{len(self.steps)}"

    def open_call(self) -> tuple[str, str] | None:
        """Id and name of the latest call that can still get a result."""
        # Not the last entry of the dict, which would skip all deleted entries at its end each time.
        while self._called and self._called[-1] not in self._open:
            self._called.pop()
        return (self._called[-1], self._open[self._called[-1]]) if self._called else None

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

    def call(self, call_id: str, name: str, arguments: str) -> None:
        self._add(
            Step(id="", index=0, type=StepType.TOOL_CALL, id_ref=call_id, name=name, arguments=arguments)
        )
        self._open[call_id] = name
        self._called.append(call_id)

    def result(self, call_id: str, name: str, content: str, *, success: bool) -> None:
        """Adds a result, and a call if its call is missing, because models refuse a result without a call.

        Its author is unknown, so it counts as untrusted.
        """
        if call_id not in self._open:
            call_id = self.new_call_id()
            self.call(call_id, name, "{}")
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
            self._called.clear()
        self.steps.append(msgspec.structs.replace(step, id=step_id(index), index=index))
