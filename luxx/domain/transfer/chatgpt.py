"""Reads ChatGPT's export, a `mapping` of nodes that each name their parent, into a draft.

There an answer has many nodes (thoughts, a call, its result, text); here it is one message with many steps. A
chain of such nodes becomes one message unless it branches. `chatgpt_messages.py` reads each node's message.
"""

from typing import Any

from luxx.domain.transfer.chatgpt_messages import NOTHING, ChatGptKind, read_message
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
from luxx.wire.turn import StepType

WITHOUT_PREDECESSOR = "positions of messages whose predecessor is missing"
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
        self._losses = losses
        self._parents = self._read_parents()
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

    def _read_parents(self) -> dict[str, str | None]:
        """The parent of each node: as it says itself, else the node that names it as a child.

        A node may be a beginning (its parent is null); one that nothing connects is counted as lost.
        """
        of_children = {
            child: key
            for key, node in self._nodes.items()
            for child in list_of(node.get("children"))
            if isinstance(child, str)
        }
        parents: dict[str, str | None] = {}
        lost = 0
        for key, node in self._nodes.items():
            parent = node.get("parent")
            parents[key] = parent if isinstance(parent, str) else of_children.get(key)
            lost += parents[key] is None and "parent" not in node and bool(self._raw_messages[key])
        # The first of them is the beginning of the conversation.
        self._losses.add(WITHOUT_PREDECESSOR, lost - 1 if lost > 1 else 0)
        return parents

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
                self._losses.add(WITHOUT_PREDECESSOR)
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
