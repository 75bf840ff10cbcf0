"""The index of the search (`search.py`): the words of messages, titles of conversations, rooms and tasks.

Every function that stores one of these texts also updates the index, in the same transaction; the database
deletes an index row with what it belongs to. Temporary chats are not indexed.
`infra/store/search_words.py` makes the words.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, bindparam, select, text

from luxx.domain.conversations.models import SEARCHED_IDS, ConversationRow, MessageRow
from luxx.infra.store.search_words import (
    SearchKind,
    date_words,
    index_value,
    owner_word,
    subject_word,
)
from luxx.wire.todos import REMINDER
from luxx.wire.tool import SKILL_STEPS
from luxx.wire.turn import StepStatus, StepType

_UPSERT = (
    "INSERT INTO search_texts (user_id, {0}, words) VALUES (:user_id, :{0}, :words) "
    "ON CONFLICT ({0}) {1} DO UPDATE SET words = excluded.words"
)
_UPSERT_KEPT = (
    "INSERT INTO search_texts (user_id, {0}, words) SELECT :user_id, :{0}, :words WHERE NOT EXISTS "
    "(SELECT 1 FROM conversations WHERE id = :{1} AND temporary_minutes IS NOT NULL) "
    "ON CONFLICT ({0}) DO UPDATE SET words = excluded.words"
)
_upsert_message = text(_UPSERT_KEPT.format("message_id", "of_conversation"))
_upsert_title = text(_UPSERT_KEPT.format("conversation_id", "of_conversation"))
COLUMN_OF = {SearchKind.ROOM: "room_id", SearchKind.TASK: "task_id"}
"""The columns of the subjects that features own."""

_upsert_subject = {
    kind: text(_UPSERT.format(column, f"WHERE {column} IS NOT NULL")) for kind, column in COLUMN_OF.items()
}
_insert_restored = text(
    "INSERT INTO search_texts (id, user_id, conversation_id, message_id, room_id, task_id, words) "
    "VALUES (:id, :user_id, :conversation_id, :message_id, :room_id, :task_id, :words)"
)
_NO_SUBJECT = dict.fromkeys(SEARCHED_IDS)
_id_list: BindParameter[list[str]] = bindparam("ids", expanding=True)
_message_contents = select(
    MessageRow.id,
    MessageRow.conversation_id,
    MessageRow.room_id,
    MessageRow.content,
    MessageRow.created_at,
).where(MessageRow.id.in_(_id_list))
_conversation_titles = select(ConversationRow.id, ConversationRow.title).where(
    ConversationRow.id.in_(_id_list)
)

INDEXED_FIELDS = ("id", "user_id", "conversation_id", "content", "created_at")
"""The columns of a conversation's message that `index_message` needs; one of a room has a `room_id`."""

INDEXED_AT_ONCE = 50
"""Messages in memory at once; each may carry files."""

_next_messages = (
    select(*(getattr(MessageRow, name) for name in INDEXED_FIELDS))
    .where(MessageRow.conversation_id == bindparam("conversation"), MessageRow.id > bindparam("after"))
    .order_by(MessageRow.id)
    .limit(INDEXED_AT_ONCE)
)


class _SearchedFile(msgspec.Struct):
    name: str = ""


class _Step(msgspec.Struct):
    type: str
    name: str = ""
    content: str = ""
    status: str = StepStatus.DONE
    superseded: bool = False


class _StoredMessage(msgspec.Struct):
    """The searched fields of a stored message of either role; the decoder skips all others."""

    text: str = ""
    attachments: list[_SearchedFile] = []
    steps: list[_Step] = []


_stored = msgspec.json.Decoder(_StoredMessage)


def searched_text(content: str) -> str:
    """The searched text of a message's stored JSON: its text and the names of its files.

    For an answer: its text steps, without those that a crash interrupted, because another completion repeats
    them, or that a check refused; and what people wrote while it was made, but not what Luxx did.
    """
    stored = _stored.decode(content)
    written = [
        step.content
        for step in stored.steps
        if (step.type == StepType.USER and step.name not in (REMINDER, *SKILL_STEPS))
        or (step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED and not step.superseded)
    ]
    return "\n".join([stored.text, *written, *(file.name for file in stored.attachments)]).strip("\n")


def readable_text(content: str) -> str:
    """`searched_text`; empty for a message that cannot be decoded."""
    try:
        return searched_text(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


class SearchedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A room or task. `text` is all that is searched of it, its title included."""

    id: str
    user_id: int
    title: str
    text: str
    created_at: datetime


ReadSubjects = Callable[[Connection, Sequence[str]], Mapping[str, SearchedSubject]]
"""The rooms, or the tasks, with these ids, by id; those that do not exist are left out."""

SubjectReaders = Mapping[SearchKind, ReadSubjects]
"""How rooms and tasks are read."""


def index_message(connection: Connection, message: Mapping[str, Any]) -> None:
    """Indexes a message of a conversation or room; `message` is its row as stored. Call it again after a
    change."""
    connection.execute(_upsert_message, _row(connection.dialect.name, message))


def index_messages(connection: Connection, messages: Sequence[Mapping[str, Any]]) -> None:
    """`index_message` for many, in the order in which they were sent."""
    if messages:
        connection.execute(_upsert_message, [_row(connection.dialect.name, message) for message in messages])


def index_title(connection: Connection, *, user_id: int, conversation_id: str, title: str) -> None:
    """Indexes a conversation's title. Call it again after a change."""
    kind = SearchKind.CONVERSATION
    words = indexed(connection.dialect.name, kind, user_id, conversation_id, title)
    connection.execute(
        _upsert_title,
        {
            "user_id": user_id,
            "conversation_id": conversation_id,
            "of_conversation": conversation_id,
            "words": words,
        },
    )


def index_conversation(connection: Connection, *, user_id: int, conversation_id: str, title: str) -> None:
    """Indexes a conversation that was not indexed, with its messages."""
    index_title(connection, user_id=user_id, conversation_id=conversation_id, title=title)
    after = ""
    while True:
        page = connection.execute(_next_messages, {"conversation": conversation_id, "after": after})
        rows = [dict(row) for row in page.mappings()]
        if not rows:
            return
        index_messages(connection, rows)
        after = rows[-1]["id"]


def index_subject(connection: Connection, kind: SearchKind, read: ReadSubjects, subject_id: str) -> None:
    """Indexes a room or task as `read` finds it now; nothing if it was deleted. Call it again after a
    change."""
    for subject in read(connection, [subject_id]).values():
        words = indexed(connection.dialect.name, kind, subject.user_id, subject.id, subject.text)
        values = {"user_id": subject.user_id, COLUMN_OF[kind]: subject.id, "words": words}
        connection.execute(_upsert_subject[kind], values)


def reindex_rows(connection: Connection, rows: Sequence[Mapping[str, Any]], readers: SubjectReaders) -> None:
    """Inserts restored index rows, which have ids and subjects, and computes their words again.

    A message that cannot be decoded gets no words of its own; a row without its subject is left out.
    """
    dialect = connection.dialect.name

    def ids_in(column: str) -> list[str]:
        return [row[column] for row in rows if row.get(column) is not None]

    messages = connection.execute(_message_contents, {"ids": ids_in("message_id")})
    titles = connection.execute(_conversation_titles, {"ids": ids_in("conversation_id")})
    found: dict[str, dict[str, tuple[SearchKind, str, str, datetime | None]]] = {
        "message_id": {
            row.id: (
                SearchKind.MESSAGE,
                row.conversation_id or row.room_id,
                readable_text(row.content),
                row.created_at,
            )
            for row in messages
        },
        "conversation_id": {row.id: (SearchKind.CONVERSATION, row.id, row.title, None) for row in titles},
    }
    for kind, read in readers.items():
        subjects = read(connection, ids_in(COLUMN_OF[kind]))
        found[COLUMN_OF[kind]] = {id_: (kind, id_, subject.text, None) for id_, subject in subjects.items()}
    index_rows: list[dict[str, Any]] = []
    for row in rows:
        for column, by_id in found.items():
            if row.get(column) in by_id:
                kind, subject_id, searched, sent_at = by_id[row[column]]
                words = indexed(dialect, kind, row["user_id"], subject_id, searched, sent_at=sent_at)
                index_rows.append({**_NO_SUBJECT, **row, "words": words})
    if index_rows:
        connection.execute(_insert_restored, index_rows)


def indexed(
    dialect: str,
    kind: SearchKind,
    user_id: int,
    subject_id: str,
    text: str,
    *,
    sent_at: datetime | None = None,
) -> str:
    """The index column's value for a text: the words for its owner and subject, its own, and those of the
    date on which a message was sent."""
    scopes = [owner_word(kind, user_id), subject_word(subject_id)]
    return index_value(dialect, scopes, text, context="" if sent_at is None else date_words(sent_at.date()))


def _row(dialect: str, message: Mapping[str, Any]) -> dict[str, Any]:
    user_id, subject_id = message["user_id"], message.get("conversation_id") or message["room_id"]
    text = searched_text(message["content"])
    words = indexed(dialect, SearchKind.MESSAGE, user_id, subject_id, text, sent_at=message["created_at"])
    return {
        "user_id": user_id,
        "message_id": message["id"],
        "of_conversation": message.get("conversation_id"),
        "words": words,
    }
