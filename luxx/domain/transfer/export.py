"""Writes a conversation from the database into a file, row by row, in one read transaction.

One transaction, so that the tree is consistent; a file, so that a slow client keeps no transaction open and a
long conversation takes no memory.
"""

import html
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, Any

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, Row, bindparam, func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import assistant_steps, own_conversation, read_path_ids, user_content
from luxx.domain.conversations.images import image_ids, read_images
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import ConversationView, MessageView, conversation_view, message_view
from luxx.domain.transfer.document import (
    FORMAT,
    VERSION,
    ExportedAttachment,
    ExportedConversation,
    ExportedMessage,
)
from luxx.domain.transfer.draft import MESSAGE_DETAILS
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import first_given, table_of
from luxx.wire.message import Quotation, UserContent, fenced
from luxx.wire.todos import REMINDER
from luxx.wire.tool import PATTERN_STEP, SKILL_STEP, SKILL_STEPS
from luxx.wire.turn import Step, StepStatus, StepType, Usage

MARKUP = re.compile(r"([\\`*_\[\]<>#|~&])")


def heading_of(conversation: ConversationView, hidden_count: int) -> str:
    """The title and settings of the conversation; `hidden_count` messages are on other branches."""
    lines = [f"# {inline(conversation.title)}", "", f"- created {_time(conversation.created_at)}"]
    if conversation.model:
        lines.append(f"- model {inline(conversation.model)}")
    if conversation.tags:
        lines.append(f"- tags {inline(', '.join(conversation.tags))}")
    if hidden_count:
        many = "1 more message is on another branch, which is"
        if hidden_count > 1:
            many = f"{hidden_count:,} more messages are on other branches, which are"
        lines.append(f"- {many} not shown here")
    if conversation.system_prompt:
        lines += ["", *collapsible("Instructions", conversation.system_prompt)]
    return "\n".join(lines) + "\n"


def message_text(message: MessageView) -> str:
    """One message under its own heading."""
    who = inline(message.sender_name or ("You" if message.role == "user" else "Assistant"))
    state = "" if message.status == "complete" else f", {message.status}"
    if message.finish is not None and message.finish not in ("stop", "error"):
        state += f", ended by {inline(message.finish.replace('_', ' '))}"
    lines = ["", f"## {who}", "", f"{_time(message.created_at)}{_origin(message)}{state}", ""]
    if isinstance(message.reply_to, str):
        lines += [_reply(message.quoted or None), ""]
    if message.role == "user":
        lines += quoted(message.text)
        for attachment in message.attachments:
            lines += ["", *collapsible(f"Attached: {attachment.name}", attachment.content)]
    for step in message.steps:
        lines += [*_step(step), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _reply(answered: Quotation | None) -> str:
    if answered is None:
        return "*In reply to a message that was deleted.*"
    return f"*In reply to {inline(answered.sender_name)}: {inline(answered.text)}*"


def quoted(text: str) -> list[str]:
    """Text as a Markdown quotation."""
    return [f"> {line}".rstrip() for line in _lines(text)]


def collapsible(summary: str, text: str, kind: str = "") -> list[str]:
    """Text behind a summary that expands it."""
    title = html.escape(" ".join(summary.split()))
    block = fenced("\n".join(_lines(text)), kind)
    return ["<details>", f"<summary>{title}</summary>", "", block, "", "</details>"]


def inline(text: str) -> str:
    """Text inside a line, with Markdown characters escaped."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def _step(step: Step) -> list[str]:
    name = step.name if isinstance(step.name, str) else "a tool"
    match step.type:
        case StepType.TEXT if isinstance(step.notice, str):
            return [f"*{inline(step.notice)}*"]
        case StepType.TEXT if step.superseded is True:
            return collapsible("Text that a check refused and that was written again", step.content)
        case StepType.TEXT if step.status != StepStatus.INTERRUPTED:
            author = [f"*Edited by {inline(step.edited_by)}:*", ""] if isinstance(step.edited_by, str) else []
            return [*author, *quoted(step.content)]
        case StepType.TEXT:
            return collapsible("Text that a crash interrupted and that was generated again", step.content)
        case StepType.USER if step.name == REMINDER:
            return ["*The model was reminded of what was left to do.*"]
        case StepType.USER if step.name == PATTERN_STEP:
            return ["*The model was given a learned pattern.*"]
        case StepType.USER if step.name in SKILL_STEPS:
            by = "The person" if step.name == SKILL_STEP else "The words of the message"
            return [f"*{by} activated the skill {inline(str(step.id_ref))}.*"]
        case StepType.USER:
            return ["**While it was answering:**", "", *quoted(step.content)]
        case StepType.THINKING:
            return collapsible("Thinking", step.content)
        case StepType.TOOL_CALL:
            arguments = step.arguments if isinstance(step.arguments, str) else ""
            return collapsible(f"Called {name}", arguments, "json")
        case StepType.TOOL_RESULT:
            return collapsible(
                f"{'Failed' if step.success is False else 'Result'}: {name}", step.content, "json"
            )


def _origin(message: MessageView) -> str:
    """The model and the provider of a message, where they are known."""
    if not message.model:
        return ""
    provider = f" of {inline(message.provider_name)}" if message.provider_name else ""
    return f", {inline(message.model)}{provider}"


def _lines(text: str) -> Iterator[str]:
    yield from text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


ROWS_AT_ONCE = 100

_messages = table_of(MessageRow)
_by_conversation = (
    select(_messages)
    .where(_messages.c.conversation_id == bindparam("b_id"))
    .order_by(_messages.c.id)
    .execution_options(yield_per=ROWS_AT_ONCE)
)
_by_ids = select(MessageRow).where(MessageRow.id.in_(bindparam("b_ids", expanding=True)))
_count = select(func.count()).where(_messages.c.conversation_id == bindparam("b_id"))
_encode = msgspec.json.Encoder().encode
_replay = msgspec.json.Decoder(list[dict[str, Any]])
_usage = msgspec.json.Decoder(Usage)

Export = Callable[[Session, Caller, str, IO[bytes]], str]
"""Writes the caller's conversation with this id to a file and returns its title. Raises NotFound."""


def write_json(session: Session, caller: Caller, conversation_id: str, file: IO[bytes]) -> str:
    """Writes the document of `document.py` as one JSON object."""
    row = own_conversation(session, caller, conversation_id)
    header_fields = {
        "format": FORMAT,
        "version": VERSION,
        "exported_at": utc_now(),
        "conversation": ExportedConversation(
            **first_given(conversation_view(row), names=ExportedConversation.__struct_fields__)
        ),
    }
    file.write(_encode(header_fields)[:-1] + b',"messages":[')
    separator = b""
    connection = session.connection()
    for message in connection.execute(_by_conversation, {"b_id": row.id}):
        file.write(separator + _encode(_exported(connection, message)))
        separator = b","
    file.write(b"]}")
    return row.title


def write_markdown(session: Session, caller: Caller, conversation_id: str, file: IO[bytes]) -> str:
    """Writes the selected path as Markdown."""
    conversation = conversation_view(own_conversation(session, caller, conversation_id))
    leaf_id = conversation.selected_leaf_id
    ids = [] if leaf_id is None else read_path_ids(session.connection(), leaf_id)
    total = session.scalar(_count, {"b_id": conversation.id}) or 0
    file.write(heading_of(conversation, total - len(ids)).encode())
    for start in range(0, len(ids), ROWS_AT_ONCE):
        page_ids = ids[start : start + ROWS_AT_ONCE]
        rows = {row.id: row for row in session.scalars(_by_ids, {"b_ids": page_ids})}
        for id_ in page_ids:
            file.write(message_text(message_view(rows[id_])).encode())
        session.expunge_all()
    return conversation.title


def _exported(connection: Connection, row: Row[Any]) -> ExportedMessage:
    user = user_content(row.content) if row.role == "user" else None
    return ExportedMessage(
        id=row.id,
        parent_id=row.parent_id,
        role=row.role,
        text=user.text if user else "",
        attachments=_attachments(connection, row.id, user) if user else [],
        steps=[] if user else assistant_steps(row.content),
        replay=_replay.decode(row.replay) if row.replay else [],
        usage=_usage.decode(row.usage) if row.usage else None,
        created_at=row.created_at,
        **first_given(row, names=MESSAGE_DETAILS),
    )


def _attachments(connection: Connection, message_id: str, content: UserContent) -> list[ExportedAttachment]:
    """The message's texts and images, without the ids of the images."""
    named_ids = image_ids(content)
    images = read_images(connection, message_id, named_ids) if named_ids else {}
    exported: list[ExportedAttachment] = []
    for file in content.attachments:
        image = images.get(file.blob_id) if isinstance(file.blob_id, str) else None
        exported.append(
            ExportedAttachment(
                name=file.name,
                extension=file.extension,
                content=file.content,
                media_type=file.media_type,
                size=file.size,
                data=image.data if image is not None else UNSET,
                offset=file.offset,
            )
        )
    return exported
