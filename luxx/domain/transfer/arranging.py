"""Turns a draft into rows: repairs the tree, gives every message a time and an id, cuts to limits.

A file may contain anything: missing predecessors, cycles, times out of order. The result is always a forest
in which no message is older than its parent. No database access.
"""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from luxx.domain.transfer.document import ReadyConversation, ReadyImage, ReadyMessage
from luxx.domain.transfer.draft import ConversationDraft, DraftMessage, Losses, Unusable
from luxx.infra.clock import id_at
from luxx.wire.message import (
    MAX_ATTACHED_TEXT,
    MAX_ATTACHMENTS,
    MAX_EXTENSION,
    MAX_FILE_NAME,
    MAX_MESSAGE_TEXT,
    AssistantContent,
    Attachment,
    UserContent,
)
from luxx.wire.step import Step

IDS_PER_MILLISECOND = 4096
"""Ids that differ in order within one millisecond."""

_encode = msgspec.json.Encoder().encode


def rows_of_draft(
    draft: ConversationDraft, untitled: str
) -> tuple[ReadyConversation, list[ReadyMessage | ReadyImage]]:
    """The rows of a draft, parents first, images after their message. Raises Unusable."""
    messages_by_key = {message.key: message for message in draft.messages}
    if len(messages_by_key) < len(draft.messages):
        raise Unusable("two of its messages have the same id")
    parents = _repaired_parents(draft, messages_by_key)
    first = min((m.created_at for m in draft.messages if m.created_at is not None), default=None)
    started_at = draft.created_at or first or draft.updated_at or datetime.now(UTC)
    order = _in_order(draft, parents, started_at)
    ids = dict(zip([key for key, _ in order], _ids([moment for _, moment in order]), strict=True))
    ended_at = max([started_at, *(moment for _, moment in order)])
    conversation = ReadyConversation(
        id=id_at(_milliseconds(started_at), 0),
        title=draft.title or untitled,
        model=draft.model,
        system_prompt=draft.system_prompt,
        temperature=draft.temperature,
        max_tokens=draft.max_tokens,
        thinking_enabled=draft.thinking_enabled,
        pinned=draft.pinned,
        archived=draft.archived,
        tags=_encode(draft.tags).decode(),
        selected_leaf_id=_leaf(draft, ids),
        created_at=started_at,
        updated_at=draft.updated_at or ended_at,
    )
    rows: list[ReadyMessage | ReadyImage] = []
    for key, moment in order:
        rows.append(_row(messages_by_key[key], ids[key], conversation.id, _id_of(parents[key], ids), moment))
        rows.extend(_images(messages_by_key[key], ids[key]))
    return conversation, rows


def _repaired_parents(
    draft: ConversationDraft, messages_by_key: dict[str, DraftMessage]
) -> dict[str, str | None]:
    """The parent of every message, if it exists; a cycle is cut where it is first met again."""
    parents = {key: message.parent for key, message in messages_by_key.items()}
    for key, parent in parents.items():
        if parent is not None and parent not in messages_by_key:
            parents[key] = None
            draft.losses.add("positions of messages whose predecessor is missing")
    is_rooted: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}
        key: str | None = start
        while key is not None and key not in is_rooted:
            if key in path:
                parents[key] = None
                draft.losses.add("positions of messages in a cycle")
                break
            path[key] = None
            key = parents[key]
        is_rooted.update(path)
    return parents


def _in_order(
    draft: ConversationDraft, parents: dict[str, str | None], started_at: datetime
) -> list[tuple[str, datetime]]:
    """The messages with their times: parents first, then by time, then in the file's order."""
    file_order = {message.key: counter for counter, message in enumerate(draft.messages)}
    children: dict[str | None, list[DraftMessage]] = {}
    for message in draft.messages:
        children.setdefault(parents[message.key], []).append(message)
    queue: list[tuple[datetime, int, str]] = []
    order: list[tuple[str, datetime]] = []
    parent, moment = None, started_at
    while True:
        for message in children.get(parent, ()):
            # Only roots may be older than the known start of the conversation.
            message_time = message.created_at or moment
            heapq.heappush(
                queue,
                (
                    message_time if parent is None else max(message_time, moment),
                    file_order[message.key],
                    message.key,
                ),
            )
        if not queue:
            return order
        moment, _, parent = heapq.heappop(queue)
        order.append((parent, moment))


def _ids(moments: list[datetime]) -> Iterator[str]:
    last, counter = -1, 0
    for moment in moments:
        milliseconds = _milliseconds(moment)
        counter = counter + 1 if milliseconds <= last else 0
        last = max(milliseconds, last) if counter < IDS_PER_MILLISECOND else last + 1
        counter %= IDS_PER_MILLISECOND
        yield id_at(last, counter)


def _milliseconds(moment: datetime) -> int:
    return max(0, int(moment.timestamp() * 1000))


def _leaf(draft: ConversationDraft, ids: dict[str, str]) -> str | None:
    """The end of the selected path. If the file names none that exists, the newest message, so that the
    conversation continues with its messages."""
    if draft.leaf is not None and draft.leaf in ids:
        return ids[draft.leaf]
    if draft.leaf is not None:
        draft.losses.add("selected messages that are missing")
    return max(ids.values(), default=None)


def _id_of(key: str | None, ids: dict[str, str]) -> str | None:
    return None if key is None else ids[key]


def _row(
    message: DraftMessage, id_: str, conversation_id: str, parent_id: str | None, moment: datetime
) -> ReadyMessage:
    if message.role == "user":
        content = _encode(UserContent(text=message.text, attachments=message.attachments))
    else:
        content = _encode(AssistantContent(steps=message.steps))
    return ReadyMessage(
        id=id_,
        conversation_id=conversation_id,
        parent_id=parent_id,
        role=message.role,
        content=content.decode(),
        replay=_encode(message.replay).decode() if message.replay else None,
        token_count=message.token_count,
        usage=_encode(message.usage).decode() if message.usage is not None else None,
        status=message.status,
        sender_name=message.sender_name,
        sender_color=message.sender_color,
        round_number=message.round_number,
        created_at=moment,
    )


def _images(message: DraftMessage, message_id: str) -> Iterator[ReadyImage]:
    for blob_id, image in message.images.items():
        yield ReadyImage(id=blob_id, message_id=message_id, media_type=image.media_type, data=image.data)


MAX_STEPS = 100_000
"""Maximum steps of one answer: what a run of ten completions can store."""

MOST_CONTENT = 64 * 1024 * 1024
"""Maximum stored bytes of one answer, which is read, sent and backed up as a whole."""

WITHOUT_TEXT = "(no text)"
"""Text of a user message without text: the API does not accept it, and models refuse it."""

UNNAMED = "file"

_encode_json = msgspec.json.Encoder().encode


def keep_within_bounds(draft: ConversationDraft) -> None:
    """Cuts the draft's messages to the limits of the API."""
    for message in draft.messages:
        if message.role == "user":
            _cut_user_message(message, draft.losses)
            continue
        if len(message.steps) > MAX_STEPS:
            draft.losses.add(f"steps past {MAX_STEPS:,} of an answer", len(message.steps) - MAX_STEPS)
            message.steps = message.steps[:MAX_STEPS]
        count = _steps_within(message.steps, MOST_CONTENT)
        draft.losses.add(f"steps past {MOST_CONTENT // 2**20} MiB of an answer", len(message.steps) - count)
        message.steps = message.steps[:count]


def _steps_within(steps: list[Step], bytes_left: int) -> int:
    """How many of the first steps fit into the bytes."""
    for index, step in enumerate(steps):
        bytes_left -= len(_encode_json(step)) + 1
        if bytes_left < 0:
            return index
    return len(steps)


def _cut_user_message(message: DraftMessage, losses: Losses) -> None:
    message.text = _cut(message.text, MAX_MESSAGE_TEXT, "text of a user's message", losses)
    if not message.text.strip():
        losses.add("messages without visible text")
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


def _cut(text: str, max_length: int, what: str, losses: Losses) -> str:
    if len(text) > max_length:
        losses.add(f"{what} past {max_length:,} characters")
    return text[:max_length]
