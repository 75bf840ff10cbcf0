"""The document of an exported conversation, reading it into a draft, and the rows and report of an import.

Increase `version` when current readers could misread the new format. Only the shape of a document is trusted.
References to other data of its server (providers, stored files) are dropped, because here they would name
other users' data. The type of an image comes from its bytes.
"""

import base64
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.domain.files.image_formats import has_too_many_pixels
from luxx.domain.files.names import image_type
from luxx.domain.transfer.draft import (
    CONVERSATION_SETTINGS,
    MAX_TEXT_CHARACTERS,
    MESSAGE_DETAILS,
    TITLE_LENGTH,
    ConversationDraft,
    DraftMessage,
    JsonObject,
    Losses,
    UnusableConversation,
    list_of,
    object_of,
    text_of,
    time_of,
)
from luxx.infra.clock import new_id
from luxx.infra.store.tables import first_given
from luxx.wire.message import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    OBJECTION_KEY,
    Attachment,
    PromptImage,
    objection_in,
    objection_note,
)
from luxx.wire.model_settings import MemoryMode, ModelSettings, PlanningMode, RoutingMode, SlidingWindow
from luxx.wire.tool import ToolResult
from luxx.wire.turn import MODEL_LENGTH, Step, StepStatus, StepType, Usage, step_id

FORMAT = "luxx.conversation"
VERSION = 1

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MessageKey = Annotated[str, Meta(min_length=1, max_length=64)]


class ExportedAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """A text with its full content, or an image with its type, size and base64 bytes; `offset`: see
    `Attachment`."""

    name: str
    extension: str
    content: str
    media_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    offset: int | UnsetType = UNSET


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
    finish: Annotated[str, Meta(max_length=20)] | None = None
    provider_name: Annotated[str, Meta(max_length=100)] | None = None
    model: Annotated[str, Meta(max_length=MODEL_LENGTH)] | None = None
    sender_name: Annotated[str, Meta(max_length=200)] | None = None
    sender_color: Annotated[str, Meta(max_length=20)] | None = None
    round_number: Int32 | None = None
    created_at: datetime


class ExportedConversation(ModelSettings, frozen=True, kw_only=True):
    """A conversation's settings, without the provider, which belongs to its server."""

    id: MessageKey
    title: str
    model: Annotated[str, Meta(max_length=200)] | None = None
    system_prompt: Annotated[str, Meta(max_length=100_000)] | None = None
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    sliding_window: SlidingWindow | None = None
    memory: MemoryMode | None = None
    record: bool | None = None
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


class ReadyConversation(ModelSettings, frozen=True, kw_only=True, tag="conversation"):
    """The columns of a conversation that an import sets."""

    id: str
    title: str
    model: str | None
    system_prompt: str | None
    planning: PlanningMode | None
    routing: RoutingMode | None = None
    sliding_window: int | None = None
    memory: MemoryMode | None = None
    record: bool | None = None
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
    finish: str | None
    provider_name: str | None
    model: str | None
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


OBJECTION_OF_FILE = "A check of this answer found a problem."
MAX_REPLAY_CHARACTERS = 2_000_000
"""Maximum characters of one message's replay data as JSON; adapters write some thousands."""

TOO_LARGE = "attached images past the limit of a message"

MAX_NAME_CHARACTERS = 10_000
"""Maximum characters of a call's name and id, as in a model's answer; other steps have none."""

MAX_BASE64_CHARACTERS = (MAX_IMAGE_BYTES + 2) // 3 * 4
"""Characters of the longest accepted image."""

UNFINISHED = frozenset({StepStatus.PENDING, StepStatus.RUNNING})


def draft_of_document(document: JsonObject, losses: Losses) -> ConversationDraft:
    """Raises UnusableConversation if the document does not match its version."""
    if document.get("version") != VERSION:
        raise UnusableConversation(
            f"it is not version {VERSION} of the format; a newer Luxx may have made it"
        )
    for message in list_of(document.get("messages")):
        _check_attachments(object_of(message), losses)
    try:
        read = msgspec.convert(document, ExportDocument)
    except msgspec.ValidationError as error:
        raise UnusableConversation(f"it is not a valid export: {str(error)[:300]}") from error
    exported = read.conversation
    return ConversationDraft(
        title=exported.title[:TITLE_LENGTH] if exported.title.strip() else "",
        messages=[_message(message, losses) for message in read.messages],
        leaf=exported.selected_leaf_id,
        tags=exported.tags,
        created_at=time_of(exported.created_at, losses),
        updated_at=time_of(exported.updated_at, losses),
        losses=losses,
        **first_given(exported, names=CONVERSATION_SETTINGS),
    )


def _check_attachments(message: JsonObject, losses: Losses) -> None:
    """Drops ids, which name data of the server that wrote the file, and attachments that are not images."""
    count = size = 0
    for attachment in map(object_of, list_of(message.get("attachments"))):
        encoded = attachment.pop("data", None)
        ids = [attachment.pop(name) for name in list(attachment) if name.endswith("_id")]
        for name in ("media_type", "size"):
            attachment.pop(name, None)
        if encoded is None:
            losses.add("attached files that are not in the document", sum(id_ is not None for id_ in ids))
            continue
        attachment.setdefault("content", "")
        if isinstance(encoded, str) and len(encoded) > MAX_BASE64_CHARACTERS:
            losses.add(TOO_LARGE)
            continue
        data = _bytes_of(encoded)
        kind = image_type(data)
        if kind is None:
            losses.add("attachments that are not images")
        elif (
            len(data) > MAX_IMAGE_BYTES
            or count == MAX_IMAGES
            or size + len(data) > MAX_IMAGES_BYTES
            or has_too_many_pixels(data)
        ):
            losses.add(TOO_LARGE)
        else:
            count += 1
            size += len(data)
            attachment |= {"content": "", "data": data, "media_type": kind, "size": len(data)}


def _bytes_of(encoded: Any) -> bytes:
    """The decoded base64; b"" if it is not base64."""
    try:
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else b""
    except ValueError:
        return b""


def _note(note: JsonObject) -> JsonObject:
    """What the provider needs again. The words of an objection are not taken from a file: the model would get
    them as a message of the user that no page shows."""
    objection = objection_in(note)
    if objection is None:
        return {key: value for key, value in note.items() if key != OBJECTION_KEY}
    return note | objection_note(OBJECTION_OF_FILE, objection[0])


def _message(message: ExportedMessage, losses: Losses) -> DraftMessage:
    is_users = message.role == "user"
    images: dict[str, PromptImage] = {}
    replay = [_note(each) for each in message.replay]
    if len(msgspec.json.encode(replay)) > MAX_REPLAY_CHARACTERS:
        losses.add("replay data of the model")
        replay = []
    return DraftMessage(
        key=message.id,
        parent=message.parent_id,
        role=message.role,
        text=text_of(message.text, losses) if is_users else "",
        attachments=[_attachment(each, images, losses) for each in message.attachments] if is_users else [],
        images=images,
        steps=[] if is_users else _steps(message.steps, losses),
        replay=replay,
        usage=message.usage,
        created_at=time_of(message.created_at, losses),
        **first_given(message, names=MESSAGE_DETAILS),
    )


def _attachment(file: ExportedAttachment, images: dict[str, PromptImage], losses: Losses) -> Attachment:
    """The attachment for the new message; adds an image's bytes to `images`."""
    plain = Attachment(name=file.name, extension=file.extension, content=text_of(file.content, losses))
    if not (isinstance(file.data, bytes) and isinstance(file.media_type, str)):
        return plain
    blob_id = new_id()
    images[blob_id] = PromptImage(media_type=file.media_type, data=file.data)
    offset = max(0, file.offset) if isinstance(file.offset, int) else UNSET
    return msgspec.structs.replace(
        plain, media_type=file.media_type, size=len(file.data), blob_id=blob_id, offset=offset
    )


def _steps(steps: list[Step], losses: Losses) -> list[Step]:
    """The steps numbered from 0, all ended; every result in the completion of its call."""
    kept: list[Step] = []
    called: set[Any] = set()
    for step in steps:
        if _is_too_long(step):
            losses.add("steps with a name or arguments that are too long")
            continue
        if step.type == StepType.TOOL_RESULT:
            if step.id_ref not in called:
                losses.add("tool results without a call")
                continue
            called.remove(step.id_ref)
        elif kept and kept[-1].type == StepType.TOOL_RESULT:
            called.clear()
        if step.type == StepType.TOOL_CALL:
            if step.id_ref is UNSET or step.name is UNSET:
                losses.add("tool calls without a name")
                continue
            called.add(step.id_ref)
        index = len(kept)
        status = StepStatus.INTERRUPTED if step.status in UNFINISHED else step.status
        content = text_of(step.content, losses)
        note = text_of(step.note, losses) if isinstance(step.note, str) else UNSET
        # Always: the author of the file is unknown.
        is_untrusted = True if step.type == StepType.TOOL_RESULT else UNSET
        kept.append(
            msgspec.structs.replace(
                step,
                id=step_id(index),
                index=index,
                status=status,
                content=content,
                note=note,
                is_untrusted=is_untrusted,
                # Files are not imported, so their ids mean nothing here.
                files=UNSET,
            )
        )
    return kept


def _is_too_long(step: Step) -> bool:
    """Whether a run would not have stored it; if cut, its arguments would be invalid JSON and its id could
    name another call."""
    names = (step.name, step.id_ref, step.level, step.edited_by)
    arguments = step.arguments if isinstance(step.arguments, str) else ""
    name_length = sum(len(text) for text in names if isinstance(text, str))
    note = step.note if isinstance(step.note, str) else ""
    return name_length > MAX_NAME_CHARACTERS or max(len(arguments), len(note)) > MAX_TEXT_CHARACTERS
