"""Our own documents, read back: `document.py` says what is in one, here it becomes a draft.

What a file says is believed as far as its shape goes. References to other things of the server it
came from (providers, stored files) are not: they would name somebody else's here. Nor is what it says of
an image: that is seen by its bytes.
"""

import base64
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from luxx.domain.files.attachments import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, image_type
from luxx.domain.transfer.document import VERSION, ExportDocument, ExportedAttachment, ExportedMessage
from luxx.domain.transfer.draft import (
    MOST_CHARACTERS,
    TITLE_LENGTH,
    ConversationDraft,
    DraftMessage,
    JsonObject,
    Losses,
    Unusable,
    list_of,
    object_of,
    text_of,
    time_of,
)
from luxx.infra.clock import new_id
from luxx.wire.message import Attachment, PromptImage
from luxx.wire.step import Step, StepStatus, StepType, step_id

MOST_NOTES = 2_000_000
"""Characters of one message's replay notes as JSON; an adapter's are some thousands."""

TOO_LARGE = "attached images past what a message takes"

MOST_NAMED = 10_000
"""Characters of a call's name and id, as of an answer of a model; other steps have none."""

MOST_BASE64 = (MAX_IMAGE_BYTES + 2) // 3 * 4
"""Characters of the longest image that is taken."""

UNFINISHED = frozenset({StepStatus.PENDING, StepStatus.RUNNING})


def draft_of(document: JsonObject, losses: Losses) -> ConversationDraft:
    """Raises Unusable where the document is not what its version says."""
    if document.get("version") != VERSION:
        raise Unusable(f"it is not version {VERSION} of the format; a newer Luxx may have made it")
    for message in list_of(document.get("messages")):
        _check_attachments(object_of(message), losses)
    try:
        read = msgspec.convert(document, ExportDocument)
    except msgspec.ValidationError as error:
        raise Unusable(f"it is not as an export is: {str(error)[:300]}") from error
    told = read.conversation
    return ConversationDraft(
        title=told.title[:TITLE_LENGTH] if told.title.strip() else "",
        messages=[_message(message, losses) for message in read.messages],
        leaf=told.selected_leaf_id,
        model=told.model,
        system_prompt=told.system_prompt,
        temperature=told.temperature,
        max_tokens=told.max_tokens,
        thinking_enabled=told.thinking_enabled,
        pinned=told.pinned,
        archived=told.archived,
        tags=told.tags,
        created_at=time_of(_iso(told.created_at), losses),
        updated_at=time_of(_iso(told.updated_at), losses),
        losses=losses,
    )


def _check_attachments(message: JsonObject, losses: Losses) -> None:
    """Takes ids out: what they name is on the server that wrote the file. Leaves images that are some."""
    count = size = 0
    for attachment in map(object_of, list_of(message.get("attachments"))):
        told = attachment.pop("data", None)
        ids = [attachment.pop(name) for name in list(attachment) if name.endswith("_id")]
        for name in ("media_type", "size"):
            attachment.pop(name, None)
        if told is None:
            losses.add("attached files that are not in the document", sum(id_ is not None for id_ in ids))
            continue
        attachment.setdefault("content", "")
        if isinstance(told, str) and len(told) > MOST_BASE64:
            losses.add(TOO_LARGE)
            continue
        data = _bytes_of(told)
        kind = image_type(data)
        if kind is None:
            losses.add("attached images that are none")
        elif len(data) > MAX_IMAGE_BYTES or count == MAX_IMAGES or size + len(data) > MAX_IMAGES_BYTES:
            losses.add(TOO_LARGE)
        else:
            count += 1
            size += len(data)
            attachment |= {"content": "", "data": data, "media_type": kind, "size": len(data)}


def _bytes_of(told: Any) -> bytes:
    """What base64 stands for; nothing where it is none."""
    try:
        return base64.b64decode(told, validate=True) if isinstance(told, str) else b""
    except ValueError:
        return b""


def _message(message: ExportedMessage, losses: Losses) -> DraftMessage:
    is_users = message.role == "user"
    images: dict[str, PromptImage] = {}
    return DraftMessage(
        key=message.id,
        parent=message.parent_id,
        role=message.role,
        text=text_of(message.text, losses) if is_users else "",
        attachments=[_attachment(each, images, losses) for each in message.attachments] if is_users else [],
        images=images,
        steps=[] if is_users else _steps(message.steps, losses),
        replay=_replay_notes(message, losses),
        token_count=message.token_count,
        usage=message.usage,
        status=message.status,
        sender_name=message.sender_name,
        sender_color=message.sender_color,
        round_number=message.round_number,
        created_at=time_of(_iso(message.created_at), losses),
    )


def _attachment(file: ExportedAttachment, images: dict[str, PromptImage], losses: Losses) -> Attachment:
    """As the new message keeps it; an image's bytes go to `images`."""
    plain = Attachment(name=file.name, extension=file.extension, content=text_of(file.content, losses))
    if not (isinstance(file.data, bytes) and isinstance(file.media_type, str)):
        return plain
    blob_id = new_id()
    images[blob_id] = PromptImage(media_type=file.media_type, data=file.data)
    return msgspec.structs.replace(plain, media_type=file.media_type, size=len(file.data), blob_id=blob_id)


def _replay_notes(message: ExportedMessage, losses: Losses) -> list[JsonObject]:
    if len(msgspec.json.encode(message.replay)) > MOST_NOTES:
        losses.add("notes for going on with the model")
        return []
    return message.replay


def _steps(steps: list[Step], losses: Losses) -> list[Step]:
    """The steps numbered from 0, none of them open; every result in the completion of its call."""
    kept: list[Step] = []
    called: set[Any] = set()
    for step in steps:
        if _is_too_long(step):
            losses.add("steps with a name or arguments past what is stored")
            continue
        if step.type == StepType.TOOL_RESULT:
            if step.id_ref not in called:
                losses.add("tool results that belong to no call")
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
        # Whatever the file says of it: who wrote the file is not known.
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
                # Files stay behind, and their ids are nobody's here.
                images=UNSET,
            )
        )
    return kept


def _is_too_long(step: Step) -> bool:
    """Whether no run would have stored it; cut, its arguments would be no JSON, and its id another's."""
    told = (step.name, step.id_ref, step.level)
    arguments = step.arguments if isinstance(step.arguments, str) else ""
    named = sum(len(text) for text in told if isinstance(text, str))
    note = step.note if isinstance(step.note, str) else ""
    return named > MOST_NAMED or max(len(arguments), len(note)) > MOST_CHARACTERS


def _iso(moment: datetime) -> str:
    return moment.isoformat()
