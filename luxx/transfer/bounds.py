"""What a message may hold to be imported: no more than one that is sent here, or that a model answers with.

What is past a bound is cut and counted as lost; the bounds of images are in `own.py`, which reads them.
"""

import msgspec
from msgspec.structs import replace

from luxx.transfer.draft import Draft, DraftMessage, Losses
from luxx.wire.message import (
    MAX_ATTACHED_TEXT,
    MAX_ATTACHMENTS,
    MAX_EXTENSION,
    MAX_FILE_NAME,
    MAX_SAID,
    Attachment,
)
from luxx.wire.step import Step

MOST_STEPS = 100_000
"""Of one answer: what a run of ten completions can store."""

MOST_CONTENT = 64 * 1024 * 1024
"""Bytes of one answer as it is stored: it is read, sent and backed up whole."""

WITHOUT_TEXT = "(no text)"
"""Stands where a person's message says nothing: it cannot be sent so, and models refuse it."""

UNNAMED = "file"

_encode = msgspec.json.Encoder().encode


def keep_within_bounds(draft: Draft) -> None:
    """Cuts the draft's messages to what the API would have taken."""
    for message in draft.messages:
        if message.role == "user":
            _cut_said(message, draft.losses)
            continue
        if len(message.steps) > MOST_STEPS:
            draft.losses.add(f"steps past {MOST_STEPS:,} of an answer", len(message.steps) - MOST_STEPS)
            message.steps = message.steps[:MOST_STEPS]
        kept = _steps_within(message.steps, MOST_CONTENT)
        draft.losses.add(f"steps past {MOST_CONTENT // 2**20} MiB of an answer", len(message.steps) - kept)
        message.steps = message.steps[:kept]


def _steps_within(steps: list[Step], most: int) -> int:
    """How many of the steps, from the first, are stored in so many bytes."""
    for place, step in enumerate(steps):
        most -= len(_encode(step)) + 1
        if most < 0:
            return place
    return len(steps)


def _cut_said(message: DraftMessage, losses: Losses) -> None:
    message.text = _cut(message.text, MAX_SAID, "text of a person's message", losses)
    if not message.text.strip():
        losses.add("messages in which nothing can be seen")
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
        name=_cut(file.name, MAX_FILE_NAME, "names of attached files", losses) or UNNAMED,
        extension=_cut(file.extension, MAX_EXTENSION, "extensions of attached files", losses),
        content=_cut(file.content, MAX_ATTACHED_TEXT, "attached text", losses),
    )


def _cut(text: str, most: int, what: str, losses: Losses) -> str:
    if len(text) > most:
        losses.add(f"{what} past {most:,} characters")
    return text[:most]
