"""The process that reads an uploaded file: the file on stdin, rows to a descriptor, the outcome on stdout.

A separate process, because of the GIL: parsing a hundred megabytes of JSON would delay every stream of the
server for seconds. It also has limits of memory and time and neither secrets nor a database, so a hostile
file can at worst end it. A draft may have missing predecessors, cycles and times out of order; its rows are
always a forest in which no message is older than its parent.
"""

import heapq
import os
import resource
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import IO, Any

import msgspec

from luxx.domain.transfer import chatgpt, claude
from luxx.domain.transfer.document import (
    FORMAT,
    ImportedRows,
    ImportOutcome,
    ImportRefused,
    ImportReport,
    Loss,
    ReadyConversation,
    ReadyImage,
    ReadyMessage,
    ReadyRow,
    Skipped,
    draft_of_document,
)
from luxx.domain.transfer.draft import (
    CONVERSATION_SETTINGS,
    MESSAGE_DETAILS,
    ConversationDraft,
    DraftMessage,
    JsonObject,
    Losses,
    UnusableConversation,
    cut_to_limits,
    object_of,
    title_of,
)
from luxx.domain.transfer.reading import ImportElement, Unreadable, read_file
from luxx.infra.clock import id_at
from luxx.infra.store.tables import first_given
from luxx.wire.message import AssistantContent, UserContent

MEMORY = 2 * 1024**3
"""Bytes of address space: twice what the largest accepted conversation takes."""

CPU_SECONDS = 60
MAX_CONVERSATIONS = 200_000
MAX_MESSAGES = 1_000_000
MAX_CONVERSATION_MESSAGES = 100_000
MAX_REPORTED = 200
"""Entries in each list of the report."""

UNTITLED = "New conversation"
UNKNOWN = ImportRefused(
    kind="import_format_unknown",
    reason="this is not an export of Luxx, ChatGPT or Claude; send conversations.json or its ZIP file",
)

_encode = msgspec.json.Encoder().encode


class ImportReader:
    """Reads one file; `rows` gets a line for each row."""

    def __init__(self, rows: IO[bytes]) -> None:
        self._rows = rows
        self._size = 0
        self._recognized = 0
        self._conversations: list[str] = []
        self._count = 0
        self._messages = 0
        self._lost: list[Loss] = []
        self._lost_total = 0
        self._skipped: list[Skipped] = []
        self._skipped_total = 0

    def read(self, file: IO[bytes], limit: int) -> ImportOutcome:
        """Reads the whole file, or returns why it cannot be imported."""
        try:
            for element in read_file(file, limit):
                self._read_element(element)
        except Unreadable as error:
            return ImportRefused(
                kind="import_too_large" if error.is_too_large else "import_unreadable",
                reason=f"the file cannot be imported: {error}",
                is_too_large=error.is_too_large,
            )
        if self._skipped_total and not self._recognized:
            return UNKNOWN
        self._rows.flush()
        return ImportedRows(report=self._report(), size=self._size)

    def _report(self) -> ImportReport:
        return ImportReport(
            conversations=self._count,
            messages=self._messages,
            conversation_ids=self._conversations,
            lost=self._lost,
            lost_total=self._lost_total,
            skipped=self._skipped,
            skipped_total=self._skipped_total,
        )

    def _read_element(self, element: ImportElement) -> None:
        losses = Losses()
        losses.add("NUL characters", element.nuls)
        try:
            if element.problem:
                self._recognized += 1  # It was not built; its format may well be known.
                raise UnusableConversation(element.problem)
            self._store(self._draft(element.value, losses))
        except UnusableConversation as error:
            self._skip(element.title or _title(element.value), str(error))

    def _draft(self, value: Any, losses: Losses) -> ConversationDraft:
        read_draft = reader_of(value)
        if read_draft is None:
            raise UnusableConversation("its format is unknown")
        self._recognized += 1
        draft = read_draft(value, losses)
        if not draft.messages and read_draft is not draft_of_document:
            raise UnusableConversation("it has no messages")
        if len(draft.messages) > MAX_CONVERSATION_MESSAGES:
            raise UnusableConversation(f"it has more than {MAX_CONVERSATION_MESSAGES:,} messages")
        cut_to_limits(draft)
        return draft

    def _store(self, draft: ConversationDraft) -> None:
        conversation, rows = rows_of_draft(draft, UNTITLED)
        self._count += 1
        self._messages += len(draft.messages)
        if self._count > MAX_CONVERSATIONS or self._messages > MAX_MESSAGES:
            raise Unreadable("it has too many conversations or messages for one import", is_too_large=True)
        if self._count <= MAX_REPORTED:
            self._conversations.append(conversation.id)
        self._write(conversation)
        for row in rows:
            self._write(row)
        for what, count in draft.losses.counts.items():
            self._lost_total += count
            if len(self._lost) < MAX_REPORTED:
                self._lost.append(Loss(conversation=conversation.title, what=what, count=count))

    def _write(self, row: ReadyRow) -> None:
        self._size += self._rows.write(_encode(row)) + self._rows.write(b"\n")

    def _skip(self, title: str, reason: str) -> None:
        self._skipped_total += 1
        if self._skipped_total > MAX_CONVERSATIONS:
            raise Unreadable("it has too many entries that are not conversations", is_too_large=True)
        if len(self._skipped) < MAX_REPORTED:
            self._skipped.append(Skipped(title=title, reason=reason))


def reader_of(value: Any) -> Callable[[JsonObject, Losses], ConversationDraft] | None:
    """The function that makes a draft of a conversation of this format; None for an unknown one."""
    shape = object_of(value)
    if shape.get("format") == FORMAT:
        return draft_of_document
    if "mapping" in shape:
        return chatgpt.draft_of
    return claude.draft_of if "chat_messages" in shape else None


def _title(value: Any) -> str:
    shape = object_of(value)
    own_title = object_of(shape.get("conversation")).get("title")
    return title_of(own_title or shape.get("title") or shape.get("name"))


# The rows of a draft


IDS_PER_MILLISECOND = 4096
"""Ids that differ in order within one millisecond."""


def rows_of_draft(
    draft: ConversationDraft, untitled: str
) -> tuple[ReadyConversation, list[ReadyMessage | ReadyImage]]:
    """The rows of a draft, parents first, images after their message. Raises UnusableConversation."""
    messages_by_key = {message.key: message for message in draft.messages}
    if len(messages_by_key) < len(draft.messages):
        raise UnusableConversation("two of its messages have the same id")
    parents = _repaired_parents(draft, messages_by_key)
    first = min((m.created_at for m in draft.messages if m.created_at is not None), default=None)
    started_at = draft.created_at or first or draft.updated_at or datetime.now(UTC)
    order = _in_order(draft, parents, started_at)
    ids = dict(zip([key for key, _ in order], _ids([moment for _, moment in order]), strict=True))
    ended_at = max([started_at, *(moment for _, moment in order)])
    conversation = ReadyConversation(
        id=id_at(_milliseconds(started_at), 0),
        title=draft.title or untitled,
        tags=_encode(draft.tags).decode(),
        selected_leaf_id=_leaf(draft, ids),
        created_at=started_at,
        updated_at=draft.updated_at or ended_at,
        **first_given(draft, names=CONVERSATION_SETTINGS),
    )
    rows: list[ReadyMessage | ReadyImage] = []
    for key, moment in order:
        message, parent = messages_by_key[key], parents[key]
        parent_id = None if parent is None else ids[parent]
        rows.append(_row(message, ids[key], conversation.id, parent_id, moment))
        for blob_id, image in message.images.items():
            rows.append(
                ReadyImage(id=blob_id, message_id=ids[key], media_type=image.media_type, data=image.data)
            )
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
        usage=_encode(message.usage).decode() if message.usage is not None else None,
        created_at=moment,
        **first_given(message, names=MESSAGE_DETAILS),
    )


# The process


def main() -> None:
    """`python -m luxx.domain.transfer.child LIMIT DESCRIPTOR`."""
    limit, descriptor = int(sys.argv[1]), int(sys.argv[2])
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(descriptor, "wb", closefd=False) as rows:
        try:
            outcome = ImportReader(rows).read(sys.stdin.buffer, limit)
        except MemoryError:
            outcome = ImportRefused(
                kind="import_too_large", reason="the file takes too much memory to read", is_too_large=True
            )
    sys.stdout.buffer.write(_encode(outcome))


if __name__ == "__main__":
    main()
