"""The document of an exported conversation, the report of an import, and the rows that the reader writes.

Increase `version` when current readers could misread the new format.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.wire.delta import Usage
from luxx.wire.step import Step
from luxx.wire.tool import ToolResult

FORMAT = "luxx.conversation"
VERSION = 1

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MessageKey = Annotated[str, Meta(min_length=1, max_length=64)]


class ExportedAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """A text with its full content, or an image with its type, size and base64 bytes."""

    name: str
    extension: str
    content: str
    media_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    data: bytes | UnsetType = UNSET


class ExportedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the tree. A user's has `text` and `attachments`, an assistant's has `steps`.

    `replay` is what the provider needs again when the conversation continues.
    """

    id: MessageKey
    parent_id: MessageKey | None
    role: Literal["user", "assistant"]
    text: str = ""
    attachments: list[ExportedAttachment] = []
    steps: list[Step] = []
    replay: list[dict[str, Any]] = []
    token_count: Int32 = 0
    usage: Usage | None = None
    status: Literal["complete", "partial", "failed"] = "complete"
    sender_name: Annotated[str, Meta(max_length=200)] | None = None
    sender_color: Annotated[str, Meta(max_length=20)] | None = None
    round_number: Int32 | None = None
    created_at: datetime


class ExportedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's settings, without the provider, which belongs to its server."""

    id: MessageKey
    title: str
    model: Annotated[str, Meta(max_length=200)] | None = None
    system_prompt: Annotated[str, Meta(max_length=100_000)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    thinking_enabled: bool | None = None
    pinned: bool = False
    archived: bool = False
    tags: Annotated[list[Annotated[str, Meta(max_length=50)]], Meta(max_length=50)] = []
    selected_leaf_id: MessageKey | None = None
    created_at: datetime
    updated_at: datetime


class ExportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation with all its branches; `messages` are oldest first."""

    format: Literal["luxx.conversation"]
    version: Literal[1]
    exported_at: datetime
    conversation: ExportedConversation
    messages: list[ExportedMessage]


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be imported of one conversation; `conversation` is its title."""

    conversation: str
    what: str
    count: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that was not imported, and why."""

    title: str
    reason: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """Long lists have only their first entries; `…_total` and `conversations` count all."""

    conversations: int
    messages: int
    conversation_ids: list[str]
    lost: list[Loss]
    lost_total: int
    skipped: list[Skipped]
    skipped_total: int


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
    """An image of a message, under the `blob_id` in the message's content."""

    id: str
    message_id: str
    media_type: str
    data: bytes


ReadyRow = ReadyConversation | ReadyMessage | ReadyImage


class ImportedRows(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """The whole file was read; `size` is the size of its rows in bytes."""

    report: ImportReport
    size: int


class ImportRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The file cannot be imported; `kind` is that of the API error."""

    kind: str
    reason: str
    is_too_large: bool = False


ImportOutcome = ImportedRows | ImportRefused


def result_text(text: str, *, is_error: bool) -> str:
    """The JSON text of a tool result with this text."""
    result = ToolResult.fail(text) if is_error else ToolResult.ok(text)
    return msgspec.json.encode(result).decode()
