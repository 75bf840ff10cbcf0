"""Rows of imported conversations, between the process that reads and the one that writes. Words only.

They travel as JSON, one a line; a conversation comes before its messages, a message after its parent
and before its images.
"""

from datetime import datetime

import msgspec

from luxx.transfer.document import ImportReport


class ReadyConversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation"):
    """The columns of a conversation that an import sets."""

    id: str
    title: str
    model: str | None
    system_prompt: str | None
    temperature: float | None
    max_tokens: int | None
    thinking_enabled: bool | None
    pinned: bool
    archived: bool
    tags: str
    selected_leaf_id: str | None
    created_at: datetime
    updated_at: datetime


class ReadyMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """The columns of a message that an import sets; `content`, `replay` and `usage` are JSON."""

    id: str
    conversation_id: str
    parent_id: str | None
    role: str
    content: str
    replay: str | None
    token_count: int
    usage: str | None
    status: str
    sender_name: str | None
    sender_color: str | None
    round_number: int | None
    created_at: datetime


class ReadyImage(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """An image that a message carries, under the `blob_id` that its content has for it."""

    id: str
    message_id: str
    media_type: str
    data: bytes


ReadyRow = ReadyConversation | ReadyMessage | ReadyImage


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """The whole file was read; `size` is what its rows take up, in bytes."""

    report: ImportReport
    size: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The file cannot be imported; `kind` as in an answer's detail."""

    kind: str
    reason: str
    is_too_large: bool = False


Outcome = Read | Refused
