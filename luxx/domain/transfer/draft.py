"""A conversation on its way in: what every format becomes, before it has ids and a place in time.

What does not fit is counted as lost; how drafts become rows is `arranging.py`'s.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec

from luxx.wire.message import Attachment, PromptImage
from luxx.wire.step import Step, StepStatus, StepType, step_id

MOST_CHARACTERS = 4_000_000
"""Of one text: as much as a run stores of one answer."""

TITLE_LENGTH = 300
PROMPT_LENGTH = 100_000
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)

JsonObject = dict[str, Any]


class Unusable(Exception):
    """A conversation that cannot be imported; says why."""


class Losses:
    """Counts, under plain names, what of a conversation is left behind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        if count:
            self.counts[what] += count


class DraftMessage(msgspec.Struct, kw_only=True):
    """`key` and `parent` are the file's own names; a time that is not known is worked out later.

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
    """A conversation with its messages in any order; `leaf` is the key of the last one of the shown path."""

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
    """A text out of a file, not without end; anything else is none."""
    if not isinstance(value, str):
        return ""
    if len(value) > MOST_CHARACTERS:
        losses.add(f"text past {MOST_CHARACTERS:,} characters")
    return value[:MOST_CHARACTERS]


def title_of(value: Any) -> str:
    """A title on one line; empty where there is none."""
    return " ".join(value[: TITLE_LENGTH * 4].split())[:TITLE_LENGTH] if isinstance(value, str) else ""


def prompt_of(text: str, losses: Losses) -> str | None:
    """A system prompt, cut to what a conversation may have."""
    if len(text) > PROMPT_LENGTH:
        losses.add(f"instructions past {PROMPT_LENGTH:,} characters")
    return text[:PROMPT_LENGTH].strip() or None


def object_of(value: Any) -> JsonObject:
    """A JSON object out of a file; anything else is an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """A JSON array out of a file; anything else is an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


# Times


def time_of(value: Any, losses: Losses) -> datetime | None:
    """Seconds since 1970 or ISO 8601 as a time of this world: after 1970, and not to come."""
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
        losses.add("times that make no sense")
        return None
    return moment


# Steps


class StepWriter:
    """Puts the steps of one assistant message in a row and keeps calls and results together."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._open: dict[str, str] = {}
        self._called: list[str] = []

    def new_call_id(self) -> str:
        """An id for a call that came without one."""
        return f"call_{len(self.steps)}"

    def open_call(self) -> tuple[str, str] | None:
        """Id and name of the latest call that can still get a result."""
        # Not the last of the dict: it would pass over all that was taken out at its end, each time.
        while self._called and self._called[-1] not in self._open:
            self._called.pop()
        return (self._called[-1], self._open[self._called[-1]]) if self._called else None

    def add_text(self, type_: StepType, text: str, *, is_new_paragraph: bool = True) -> None:
        """Text or thinking. `is_apart`: text begins a paragraph where it follows other text."""
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
        """A result; one without its call gets one, because no model takes it else.

        Who wrote it is not known, so it counts as written by strangers.
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
            # The results end a completion: what it called and got no answer to stays without one.
            self._open.clear()
            self._called.clear()
        self.steps.append(msgspec.structs.replace(step, id=step_id(index), index=index))
