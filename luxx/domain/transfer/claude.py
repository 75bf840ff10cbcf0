"""Reads Claude's export, `chat_messages` with blocks of content, into a draft.

Newer exports name the parent of every message and have branches; older ones are linear.
"""

import json
from typing import Any

from luxx.domain.transfer.chatgpt_messages import UNKNOWN, valid_name
from luxx.domain.transfer.document import result_text
from luxx.domain.transfer.draft import (
    ConversationDraft,
    DraftMessage,
    JsonObject,
    Losses,
    StepBuilder,
    UnusableConversation,
    list_of,
    object_of,
    text_of,
    time_of,
    title_of,
)
from luxx.wire.message import Attachment
from luxx.wire.turn import StepType

ROOT = "00000000-0000-4000-8000-000000000000"
"""The parent that the first message of a conversation names."""

IGNORED_BLOCKS = frozenset({"token_budget", "flag"})
"""Blocks without content for a reader."""

MAX_CLAUDE_ATTACHMENTS = 20
WITHOUT_TEXT = "(a file)"
"""Text of a user message without text: models refuse an empty message."""


def draft_of(conversation: JsonObject, losses: Losses) -> ConversationDraft:
    """Raises UnusableConversation if the conversation has no list of messages."""
    raw_messages = conversation.get("chat_messages")
    if not isinstance(raw_messages, list):
        raise UnusableConversation("its list of messages is missing")
    messages = _messages([object_of(message) for message in list_of(raw_messages)], losses)
    leaf = conversation.get("current_leaf_message_uuid")
    keys = {message.key for message in messages}
    losses.add("the project", 1 if conversation.get("project") else 0)
    return ConversationDraft(
        title=title_of(conversation.get("name")),
        messages=messages,
        leaf=leaf if isinstance(leaf, str) and leaf in keys else _latest(messages),
        pinned=conversation.get("is_starred") is True,
        created_at=time_of(conversation.get("created_at"), losses),
        updated_at=time_of(conversation.get("updated_at"), losses),
        losses=losses,
    )


def _latest(messages: list[DraftMessage]) -> str | None:
    """The last message in the file that has no answer."""
    parents = {message.parent for message in messages}
    return next((message.key for message in reversed(messages) if message.key not in parents), None)


def _messages(raw_messages: list[JsonObject], losses: Losses) -> list[DraftMessage]:
    has_tree = any(isinstance(message.get("parent_message_uuid"), str) for message in raw_messages)
    messages: list[DraftMessage] = []
    replaced: dict[str, str | None] = {}
    for index, message in enumerate(raw_messages):
        key = message.get("uuid")
        key = key if isinstance(key, str) and key else f"message {index}"
        parent = message.get("parent_message_uuid") if has_tree else None
        if not has_tree and messages:
            parent = messages[-1].key
        parent = parent if isinstance(parent, str) and parent != ROOT else None
        draft_message = _message(message, key, parent, losses)
        if draft_message is None:
            replaced[key] = parent
        else:
            messages.append(draft_message)
    for message in messages:
        message.parent = _kept_ancestor(message.parent, replaced)
    return messages


def _kept_ancestor(parent: str | None, replaced: dict[str, str | None]) -> str | None:
    """The nearest kept message above."""
    visited: set[str] = set()
    while parent is not None and parent in replaced and parent not in visited:
        visited.add(parent)
        parent = replaced[parent]
    parent = None if parent in visited else parent
    replaced.update(dict.fromkeys(visited, parent))
    return parent


def _message(message: JsonObject, key: str, parent: str | None, losses: Losses) -> DraftMessage | None:
    sender = message.get("sender")
    if sender not in ("human", "assistant"):
        losses.add("messages of an unknown author")
        return None
    draft_message = DraftMessage(
        key=key,
        parent=parent,
        role="user" if sender == "human" else "assistant",
        created_at=time_of(message.get("created_at"), losses),
        status="partial" if message.get("truncated") is True else "complete",
    )
    if sender == "human":
        draft_message.text = _user_text(message, losses)
        draft_message.attachments = _attachments(message, losses)
        if not draft_message.text.strip():
            draft_message.text = ", ".join(file.name for file in draft_message.attachments) or _file_names(
                message
            )
        return draft_message if draft_message.text else None
    draft_message.steps = _steps(message, losses)
    return draft_message if draft_message.steps else None


def _user_text(message: JsonObject, losses: Losses) -> str:
    texts: list[str] = []
    for block in map(object_of, list_of(message.get("content"))):
        if block.get("type") in ("text", "voice_note"):
            texts.append(text_of(block.get("text"), losses))
        elif str(block.get("type")) not in IGNORED_BLOCKS:
            losses.add(UNKNOWN)
    joined = "\n\n".join(text for text in texts if text.strip())
    return text_of(joined, losses) or text_of(message.get("text"), losses)


def _attachments(message: JsonObject, losses: Losses) -> list[Attachment]:
    """The files whose text is in the export; of the others the export has only the name."""
    kept: list[Attachment] = []
    for file in map(object_of, list_of(message.get("attachments"))):
        content = file.get("extracted_content")
        if not isinstance(content, str) or len(kept) >= MAX_CLAUDE_ATTACHMENTS:
            losses.add("attached files")
            continue
        name = title_of(file.get("file_name"))[-255:] or "pasted.txt"
        suffix = name.rpartition(".")[2] if "." in name else ""
        kept.append(Attachment(name=name, extension=suffix[:20], content=text_of(content, losses)))
    names = {file.name for file in kept}
    files = [object_of(file).get("file_name") for file in list_of(message.get("files"))]
    losses.add("attached files", sum(str(name) not in names for name in files))
    return kept


def _file_names(message: JsonObject) -> str:
    files = list_of(message.get("files")) + list_of(message.get("attachments"))
    names = [title_of(object_of(file).get("file_name")) for file in files[:MAX_CLAUDE_ATTACHMENTS]]
    return ", ".join(name for name in names if name) or (WITHOUT_TEXT if files else "")


def _steps(message: JsonObject, losses: Losses) -> list[Any]:
    writer = StepBuilder()
    for block in map(object_of, list_of(message.get("content"))):
        _add_step(block, writer, losses)
    losses.add("attached files", len(list_of(message.get("files"))))
    if not writer.steps:
        writer.add_text(StepType.TEXT, text_of(message.get("text"), losses))
    return writer.steps


def _add_step(block: JsonObject, writer: StepBuilder, losses: Losses) -> None:
    match block.get("type"):
        case "text":
            # Adjacent blocks of text are one text.
            is_new_paragraph = bool(writer.steps) and writer.steps[-1].type != StepType.TEXT
            writer.add_text(
                StepType.TEXT, text_of(block.get("text"), losses), is_new_paragraph=is_new_paragraph
            )
            losses.add("references to sources", len(list_of(block.get("citations"))))
        case "thinking":
            writer.add_text(StepType.THINKING, text_of(block.get("thinking"), losses))
        case "tool_use":
            arguments = json.dumps(object_of(block.get("input")), ensure_ascii=False)
            call_id = _call_id(block.get("id")) or writer.new_call_id()
            writer.add_call(call_id, valid_name(block.get("name")), text_of(arguments, losses))
        case "tool_result":
            text, is_error = _result(block, losses), block.get("is_error") is True
            call = writer.open_call()
            call_id = _call_id(block.get("tool_use_id")) or (call[0] if call else writer.new_call_id())
            result = result_text(text, is_error=is_error)
            writer.add_result(call_id, valid_name(block.get("name")), result, success=not is_error)
        case kind:
            losses.add(UNKNOWN, 0 if isinstance(kind, str) and kind in IGNORED_BLOCKS else 1)


def _call_id(value: Any) -> str:
    return valid_name(value) if isinstance(value, str) and value else ""


def _result(block: JsonObject, losses: Losses) -> str:
    content = block.get("content")
    if isinstance(content, str):
        return text_of(content, losses)
    texts: list[str] = []
    for part in map(object_of, list_of(content)):
        lines = [text_of(part.get(name), losses) for name in ("title", "url", "text")]
        text = "\n".join(line for line in lines if line)
        losses.add("parts of tool results that are not text", 0 if text else 1)
        texts += [text] if text else []
    return text_of("\n\n".join(texts), losses)
