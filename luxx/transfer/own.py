"""Our own documents, read back: `document.py` says what is in one, here it becomes a draft.

What a file says is believed as far as its shape goes. References to other things of the server it
came from (providers, stored files) are not: they would name somebody else's here.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from luxx.transfer.document import VERSION, ExportDocument, ExportedMessage
from luxx.transfer.draft import (
    TITLE_LENGTH,
    Draft,
    DraftMessage,
    Json,
    Losses,
    Unusable,
    list_of,
    object_of,
    text_of,
    time_of,
)
from luxx.wire.message import Attachment
from luxx.wire.step import Step, StepStatus, StepType, step_id

MOST_NOTES = 2_000_000
"""Characters of one message's replay notes as JSON; an adapter's are some thousands."""

OPEN = frozenset({StepStatus.PENDING, StepStatus.RUNNING})


def draft_of(document: Json, losses: Losses) -> Draft:
    """Raises Unusable where the document is not what its version says."""
    if document.get("version") != VERSION:
        raise Unusable(f"it is not version {VERSION} of the format; a newer Luxx may have made it")
    _drop_references(document, losses)
    try:
        read = msgspec.convert(document, ExportDocument)
    except msgspec.ValidationError as error:
        raise Unusable(f"it is not as an export is: {str(error)[:300]}") from error
    told = read.conversation
    return Draft(
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


def _drop_references(document: Json, losses: Losses) -> None:
    """Takes the ids out of attachments: what they name is on the server that wrote the file."""
    for message in list_of(document.get("messages")):
        attachments = [object_of(each) for each in list_of(object_of(message).get("attachments"))]
        for attachment in attachments:
            for name in [name for name in attachment if name.endswith("_id")]:
                if attachment.pop(name) is not None:
                    losses.add("attached files that are not in the document")


def _message(message: ExportedMessage, losses: Losses) -> DraftMessage:
    is_users = message.role == "user"
    return DraftMessage(
        key=message.id,
        parent=message.parent_id,
        role=message.role,
        text=text_of(message.text, losses) if is_users else "",
        attachments=[_attachment(each, losses) for each in message.attachments] if is_users else [],
        steps=[] if is_users else _steps(message.steps, losses),
        replay=_notes(message, losses),
        token_count=message.token_count,
        usage=message.usage,
        status=message.status,
        sender_name=message.sender_name,
        sender_color=message.sender_color,
        round_number=message.round_number,
        created_at=time_of(_iso(message.created_at), losses),
    )


def _attachment(attachment: Attachment, losses: Losses) -> Attachment:
    return msgspec.structs.replace(attachment, content=text_of(attachment.content, losses))


def _notes(message: ExportedMessage, losses: Losses) -> list[Json]:
    if len(msgspec.json.encode(message.replay)) > MOST_NOTES:
        losses.add("notes for going on with the model")
        return []
    return message.replay


def _steps(steps: list[Step], losses: Losses) -> list[Step]:
    """The steps numbered from 0, none of them open; every result in the completion of its call."""
    kept: list[Step] = []
    called: set[Any] = set()
    for step in steps:
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
        status = StepStatus.INTERRUPTED if step.status in OPEN else step.status
        content = text_of(step.content, losses)
        kept.append(
            msgspec.structs.replace(step, id=step_id(index), index=index, status=status, content=content)
        )
    return kept


def _iso(moment: datetime) -> str:
    return moment.isoformat()
