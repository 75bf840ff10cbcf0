"""Reads ChatGPT's export, a `mapping` of nodes that each name their parent, into a draft.

There an answer has many nodes (thoughts, a call, its result, text); here it is one message with many steps. A
chain of such nodes becomes one message unless it branches.
"""

import json
import re
from enum import StrEnum
from typing import Any

import msgspec

from luxx.domain.transfer.document import result_text
from luxx.domain.transfer.draft import (
    PROMPT_LENGTH,
    ConversationDraft,
    DraftMessage,
    JsonObject,
    Losses,
    StepBuilder,
    UnusableConversation,
    list_of,
    object_of,
    prompt_of,
    text_of,
    time_of,
    title_of,
)
from luxx.wire.message import fenced
from luxx.wire.turn import StepType

REFERENCE_MARKS = re.compile("\ue200[^\ue200\ue201]*\ue201")
"""References to search results, which the text encloses in private-use characters."""

NAME = re.compile(r"[^A-Za-z0-9_-]")
NAME_LENGTH = 64

PICTURES = "pictures"
SOUND = "sound recordings"
UNKNOWN = "contents of an unknown kind"


class ChatGptKind(StrEnum):
    """The role of a ChatGPT node in a Luxx conversation."""

    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    RESULT = "result"
    INSTRUCTIONS = "instructions"
    NOTHING = "nothing"


class ChatGptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One decoded message. `name` and `arguments` belong to a call, `is_error` to a result."""

    kind: ChatGptKind
    text: str = ""
    name: str = ""
    arguments: str = ""
    is_error: bool = False


NOTHING = ChatGptMessage(kind=ChatGptKind.NOTHING)


def read_message(message: JsonObject, losses: Losses) -> ChatGptMessage:
    """Decodes a message; NOTHING for those that have no meaning outside ChatGPT."""
    author, content = object_of(message.get("author")), object_of(message.get("content"))
    metadata = object_of(message.get("metadata"))
    role, kind = author.get("role"), content.get("content_type")
    if kind == "user_editable_context" or metadata.get("is_user_system_message") is True:
        return ChatGptMessage(kind=ChatGptKind.INSTRUCTIONS, text=_instructions(content, metadata, losses))
    if role == "system" or kind == "model_editable_context":
        losses.add("internal notes of ChatGPT", 1 if _text(content, Losses()) else 0)
        return NOTHING
    if metadata.get("is_visually_hidden_from_conversation") is True:
        losses.add("messages that ChatGPT hides")
        return NOTHING
    if role == "user":
        return ChatGptMessage(kind=ChatGptKind.TEXT, text=_text(content, losses))
    if role == "tool":
        text = _text(content, losses)
        return ChatGptMessage(
            kind=ChatGptKind.RESULT,
            text=text,
            name=valid_name(author.get("name")),
            is_error=kind == "system_error",
        )
    if role != "assistant":
        losses.add("messages of an unknown author")
        return NOTHING
    return _assistant(message, content, losses)


def valid_name(name: Any) -> str:
    """A name with only those characters that every provider accepts for a tool."""
    return NAME.sub("_", name)[:NAME_LENGTH] if isinstance(name, str) and name else "tool"


def _assistant(message: JsonObject, content: JsonObject, losses: Losses) -> ChatGptMessage:
    kind, recipient = content.get("content_type"), message.get("recipient")
    if kind == "thoughts":
        return ChatGptMessage(kind=ChatGptKind.THINKING, text=_thoughts(content, losses))
    if kind == "reasoning_recap":
        return NOTHING  # Text such as "Thought for 8 seconds".
    text = _text(content, losses)
    if isinstance(recipient, str) and recipient != "all":
        return ChatGptMessage(
            kind=ChatGptKind.CALL, name=valid_name(recipient), arguments=_arguments(text, kind)
        )
    if kind == "code" and text:
        language = content.get("language")
        name = NAME.sub("", language)[:20] if isinstance(language, str) else ""
        return ChatGptMessage(kind=ChatGptKind.TEXT, text=fenced(text, name))
    return ChatGptMessage(kind=ChatGptKind.TEXT, text=text)


def _arguments(text: str, kind: Any) -> str:
    """The arguments of a tool call, as a JSON object."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    return msgspec.json.encode({"code" if kind == "code" else "input": text}).decode()


def _instructions(content: JsonObject, metadata: JsonObject, losses: Losses) -> str:
    data = object_of(metadata.get("user_context_message_data"))
    texts = [
        text_of(content.get("user_profile") or data.get("about_user_message"), losses),
        text_of(content.get("user_instructions") or data.get("about_model_message"), losses),
    ]
    return "\n\n".join(text for text in texts if text.strip()) or _text(content, losses)


def _thoughts(content: JsonObject, losses: Losses) -> str:
    thoughts = content.get("thoughts")
    if isinstance(thoughts, str):
        return text_of(thoughts, losses)
    paragraphs: list[str] = []
    for thought in map(object_of, list_of(thoughts)):
        summary = text_of(thought.get("summary"), losses).strip()
        detail = text_of(thought.get("content"), losses).strip()
        paragraphs += [f"**{summary}**"] if summary else []
        paragraphs += [detail] if detail else []
    return text_of("\n\n".join(paragraphs), losses)


def _text(content: JsonObject, losses: Losses) -> str:
    """The readable text of content of any type."""
    kind = content.get("content_type")
    match kind:
        case "text" | "multimodal_text":
            parts = [_part(part, losses) for part in list_of(content.get("parts"))]
            text = "\n".join(part for part in parts if part)
        case "code" | "execution_output":
            text = text_of(content.get("text"), losses)
        case "tether_quote" | "sonic_webpage":
            lines = [text_of(content.get(name), losses) for name in ("title", "url", "text")]
            text = "\n".join(line for line in lines if line)
        case "tether_browsing_display":
            text = text_of(content.get("result") or content.get("summary"), losses)
        case "system_error":
            lines = [text_of(content.get(name), losses) for name in ("name", "text")]
            text = ": ".join(line for line in lines if line)
        case _:
            text = text_of(content.get("text"), losses)
            losses.add(UNKNOWN, 0 if text or kind is None else 1)
    return _without_marks(text_of(text, losses), losses)


def _part(part: Any, losses: Losses) -> str:
    if isinstance(part, str):
        return text_of(part, losses)
    fields = object_of(part)
    kind = fields.get("content_type")
    if kind == "image_asset_pointer":
        losses.add(PICTURES)
        return ""
    if isinstance(kind, str) and "audio" in kind and "transcription" not in kind:
        losses.add(SOUND)
        return ""
    text = text_of(fields.get("text"), losses)
    losses.add(UNKNOWN, 0 if text else 1)
    return text


def _without_marks(text: str, losses: Losses) -> str:
    if "\ue200" not in text:
        return text
    text, count = REFERENCE_MARKS.subn("", text)
    losses.add("references to search results", count)
    return text


UNFINISHED = frozenset({"in_progress", "finished_partial_completion"})
WITHOUT_TEXT = "(a picture or a recording)"
"""Text of a user message without text: models refuse an empty message."""


def draft_of(conversation: JsonObject, losses: Losses) -> ConversationDraft:
    """Raises UnusableConversation if the conversation has no tree of messages."""
    mapping = conversation.get("mapping")
    if not isinstance(mapping, dict):
        raise UnusableConversation("its mapping of messages is missing")
    tree = _Tree(object_of(mapping), losses)
    tree.read()
    for name, what in (("gizmo_id", "the custom GPT"), ("voice", "the voice")):
        losses.add(what, 1 if conversation.get(name) else 0)
    return ConversationDraft(
        title=title_of(conversation.get("title")),
        messages=tree.messages,
        leaf=tree.kept_message_key(conversation.get("current_node")) or tree.newest(),
        system_prompt=prompt_of("\n\n".join(tree.instructions), losses),
        pinned=conversation.get("is_starred") is True or bool(conversation.get("pinned_time")),
        archived=conversation.get("is_archived") is True,
        created_at=time_of(conversation.get("create_time"), losses),
        updated_at=time_of(conversation.get("update_time"), losses),
        losses=losses,
    )


class _Tree:
    """The nodes of one conversation; `messages` are the result."""

    def __init__(self, mapping: JsonObject, losses: Losses) -> None:
        self._nodes = {key: object_of(node) for key, node in mapping.items()}
        self._raw_messages = {key: object_of(node.get("message")) for key, node in self._nodes.items()}
        parent_values = {key: node.get("parent") for key, node in self._nodes.items()}
        self._parents = {key: name if isinstance(name, str) else None for key, name in parent_values.items()}
        self._losses = losses
        self._read = {
            key: read_message(self._raw_messages[key], losses)
            if isinstance(node.get("message"), dict)
            else NOTHING
            for key, node in self._nodes.items()
        }
        # Computed once per node: many nodes may share an ancestor, and its text may be long.
        self._kept = {key for key in self._nodes if self._has_something(key)}
        self._message_keys: dict[str, str] = {}
        self.messages: list[DraftMessage] = []
        self.instructions: dict[str, None] = {}
        self._instructions_length = 0

    def read(self) -> None:
        """Builds the messages, parents first, whatever order the file has."""
        order = self._parents_first()
        branches: dict[str | None, int] = {}
        for key in order:
            if key in self._kept:
                parent = self._kept_parent(key)
                branches[parent] = branches.get(parent, 0) + 1
        writers: dict[str, StepBuilder] = {}
        messages_by_key: dict[str, DraftMessage] = {}
        for key in order:
            message_read = self._read[key]
            if message_read.kind == ChatGptKind.INSTRUCTIONS:
                self._add_instructions(message_read.text)
            if key not in self._kept:
                continue
            parent, is_users = self._kept_parent(key), self._is_users(key)
            message_key = None if parent is None else self._message_keys[parent]
            if message_key is None or is_users or message_key not in writers or branches[parent] > 1:
                message_key = key
                messages_by_key[key] = self._start_message(key, parent)
                if not is_users:
                    writers[key] = StepBuilder()
            self._message_keys[key] = message_key
            if not is_users:
                self._add_step(key, writers[message_key], messages_by_key[message_key])
        for key, message in messages_by_key.items():
            if key in writers:
                message.steps = writers[key].steps
        self.messages = list(messages_by_key.values())

    def _add_instructions(self, text: str) -> None:
        """Adds each text once, up to the length of a system prompt."""
        if text.strip() and self._instructions_length <= PROMPT_LENGTH and text not in self.instructions:
            self.instructions[text] = None
            self._instructions_length += len(text)

    def kept_message_key(self, key: Any) -> str | None:
        """The message that contains the node, or else the nearest kept one above it."""
        if not isinstance(key, str) or key not in self._nodes:
            return None
        return self._message_keys.get(key if key in self._kept else self._kept_parent(key) or "")

    def newest(self) -> str | None:
        return self.messages[-1].key if self.messages else None

    def _has_something(self, key: str) -> bool:
        message_read = self._read[key]
        if message_read.kind in (ChatGptKind.NOTHING, ChatGptKind.INSTRUCTIONS):
            return False
        return (
            bool(message_read.text.strip())
            or message_read.kind in (ChatGptKind.CALL, ChatGptKind.RESULT)
            or self._has_files(key)
        )

    def _is_users(self, key: str) -> bool:
        return object_of(self._raw_messages[key].get("author")).get("role") == "user"

    def _has_files(self, key: str) -> bool:
        """Whether a user sent something other than text: its message is kept."""
        if not self._is_users(key):
            return False
        parts = list_of(object_of(self._raw_messages[key].get("content")).get("parts"))
        return any(isinstance(part, dict) for part in parts) or bool(self._files(key))

    def _files(self, key: str) -> list[Any]:
        return list_of(object_of(self._raw_messages[key].get("metadata")).get("attachments"))

    def _parents_first(self) -> list[str]:
        """All nodes, parents first. Cuts cycles; a node whose parent is missing becomes a root."""
        order: dict[str, None] = {}
        for start in self._nodes:
            path: list[str] = []
            visited: set[str] = set()
            key: str | None = start
            while key is not None and key in self._nodes and key not in order and key not in visited:
                path.append(key)
                visited.add(key)
                key = self._parents[key]
            if key is not None and key in visited:
                self._losses.add("positions of messages in a cycle")
                self._parents[path[-1]] = None
            elif key is not None and key not in order:
                self._losses.add("positions of messages whose predecessor is missing")
            order.update(dict.fromkeys(reversed(path)))
        return list(order)

    def _kept_parent(self, key: str) -> str | None:
        """The nearest kept node above; stores the result, so that long chains are not walked again and
        again."""
        skipped: list[str] = []
        parent = self._parents[key]
        while parent is not None and parent in self._nodes and parent not in self._kept:
            skipped.append(parent)
            parent = self._parents[parent]
        kept_parent = parent if parent is not None and parent in self._nodes else None
        self._parents.update(dict.fromkeys([key, *skipped], kept_parent))
        return kept_parent

    def _start_message(self, key: str, parent: str | None) -> DraftMessage:
        is_users, files, text = self._is_users(key), self._files(key), self._read[key].text
        self._losses.add("attached files", len(files))
        if not text.strip():
            names = (text_of(object_of(file).get("name"), self._losses)[:255] for file in files)
            text = ", ".join([name for name in names if name][:20]) or WITHOUT_TEXT
        return DraftMessage(
            key=key,
            parent=None if parent is None else self._message_keys[parent],
            role="user" if is_users else "assistant",
            text=text if is_users else "",
            created_at=time_of(self._raw_messages[key].get("create_time"), self._losses),
        )

    def _add_step(self, key: str, writer: StepBuilder, message: DraftMessage) -> None:
        message_read, node = self._read[key], object_of(self._nodes[key].get("message"))
        match message_read.kind:
            case ChatGptKind.TEXT:
                writer.add_text(StepType.TEXT, message_read.text)
            case ChatGptKind.THINKING:
                writer.add_text(StepType.THINKING, message_read.text)
            case ChatGptKind.CALL:
                writer.add_call(writer.new_call_id(), message_read.name, message_read.arguments)
            case ChatGptKind.RESULT:
                call_id, name = writer.open_call() or (writer.new_call_id(), message_read.name)
                result = result_text(message_read.text, is_error=message_read.is_error)
                writer.add_result(call_id, name, result, success=not message_read.is_error)
            case ChatGptKind.INSTRUCTIONS | ChatGptKind.NOTHING:
                return
        if str(node.get("status")) in UNFINISHED:
            message.status = "partial"
