"""The search index also has stems of words and dates of messages; all its words are computed again."""

# pyright: basic
from datetime import date

import msgspec
import sqlalchemy as sa
from alembic import op

from luxx.infra.store.search_words import SearchKind, date_words, index_value, owner_word, subject_word

revision: str = "0048"
down_revision: str | None = "0047"

ROWS_AT_ONCE = 100
REMINDER = "reminder"


class File(msgspec.Struct):
    name: str = ""


class IndexedStep(msgspec.Struct):
    type: str
    name: str = ""
    content: str = ""
    status: str = "done"
    superseded: bool = False

    def is_searched(self) -> bool:
        if self.type == "user":
            return self.name != REMINDER
        return self.type == "text" and self.status != "interrupted" and not self.superseded


class Message(msgspec.Struct):
    text: str = ""
    attachments: list[File] = []
    steps: list[IndexedStep] = []


decode = msgspec.json.Decoder(Message).decode
TRIGGER = "search_texts_updated"
CREATE_TRIGGER = (
    f"CREATE TRIGGER {TRIGGER} AFTER UPDATE ON search_texts BEGIN "
    "INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words); "
    "INSERT INTO search_index (rowid, words) VALUES (new.id, new.words); END"
)
ROWS = sa.text(
    "SELECT s.id, s.user_id, s.conversation_id, s.message_id, s.room_id, s.task_id, c.title, m.content, "
    "m.created_at, coalesce(m.conversation_id, m.room_id) AS message_of FROM search_texts AS s "
    "LEFT JOIN messages AS m ON m.id = s.message_id LEFT JOIN conversations AS c ON c.id = s.conversation_id "
    "WHERE s.id > :after ORDER BY s.id LIMIT :at_once"
)
ROOM = sa.text("SELECT title, task FROM chat_rooms WHERE id = :id")
TASK = sa.text("SELECT name, goal, result FROM tasks WHERE id = :id")
STEPS = sa.text("SELECT name FROM task_steps WHERE task_id = :id ORDER BY position")
SET_WORDS = sa.text("UPDATE search_texts SET words = :words WHERE id = :id")


def upgrade() -> None:
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:  # Building the full-text index once is faster than updating it for each row.
        connection.exec_driver_sql(f"DROP TRIGGER {TRIGGER}")
    after = 0
    while rows := connection.execute(ROWS, {"after": after, "at_once": ROWS_AT_ONCE}).all():
        connection.execute(
            SET_WORDS, [{"id": row.id, "words": words_of_row(connection, row)} for row in rows]
        )
        after = rows[-1].id
    if is_sqlite:
        connection.exec_driver_sql("INSERT INTO search_index (search_index) VALUES ('rebuild')")
        connection.exec_driver_sql(CREATE_TRIGGER)


def words_of_row(connection: sa.Connection, row: sa.Row) -> str:
    kind, subject_id, searched = subject_of(connection, row)
    context = "" if row.message_id is None else date_words(date.fromisoformat(str(row.created_at)[:10]))
    scopes = [owner_word(kind, row.user_id), subject_word(subject_id)]
    return index_value(connection.dialect.name, scopes, searched, context=context)


def subject_of(connection: sa.Connection, row: sa.Row) -> tuple[SearchKind, str, str]:
    """The kind of a row, the id of what it belongs to, and the text."""
    if row.message_id is not None:
        try:
            message = decode(row.content)
            parts = [message.text, *(step.content for step in message.steps if step.is_searched())]
            searched = "\n".join([*parts, *(file.name for file in message.attachments)])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            searched = ""
        return SearchKind.MESSAGE, row.message_of, searched
    if row.conversation_id is not None:
        return SearchKind.CONVERSATION, row.conversation_id, row.title
    if row.room_id is not None:
        room = connection.execute(ROOM, {"id": row.room_id}).one()
        return SearchKind.ROOM, row.room_id, f"{room.title}\n{room.task}"
    task = connection.execute(TASK, {"id": row.task_id}).one()
    steps = connection.scalars(STEPS, {"id": row.task_id}).all()
    return SearchKind.TASK, row.task_id, "\n".join([task.name, task.goal, *steps, task.result or ""])
