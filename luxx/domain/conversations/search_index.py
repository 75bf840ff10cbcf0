"""Updates the search index: every function that stores a message or a title calls this module.

It runs in the same transaction, so that index and messages agree. The database deletes a message's index row
with the message. `infra/store/search_words.py` makes the words, `search.py` searches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, bindparam, select, text

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.infra.store.search_words import SearchKind, indexed, searched_text

_upsert_message = text(
    "INSERT INTO search_texts (user_id, message_id, words) VALUES (:user_id, :message_id, :words) "
    "ON CONFLICT (message_id) DO UPDATE SET words = excluded.words"
)
_upsert_title = text(
    "INSERT INTO search_texts (user_id, conversation_id, words) VALUES (:user_id, :conversation_id, :words) "
    "ON CONFLICT (conversation_id) DO UPDATE SET words = excluded.words"
)
_insert_restored = text(
    "INSERT INTO search_texts (id, user_id, conversation_id, message_id, words) "
    "VALUES (:id, :user_id, :conversation_id, :message_id, :words)"
)
_ids: BindParameter[list[str]] = bindparam("ids", expanding=True)
_message_contents = select(MessageRow.id, MessageRow.conversation_id, MessageRow.content).where(
    MessageRow.id.in_(_ids)
)
_conversation_titles = select(ConversationRow.id, ConversationRow.title).where(ConversationRow.id.in_(_ids))


def index_message(connection: Connection, message: Mapping[str, Any]) -> None:
    """Indexes a message of a conversation; `message` is its row as stored. Call it again after a change."""
    connection.execute(_upsert_message, _row(connection.dialect.name, message))


def index_messages(connection: Connection, messages: Sequence[Mapping[str, Any]]) -> None:
    """`index_message` for many, in the order in which they were sent."""
    if messages:
        connection.execute(_upsert_message, [_row(connection.dialect.name, each) for each in messages])


def index_title(connection: Connection, *, user_id: int, conversation_id: str, title: str) -> None:
    """Indexes a conversation's title. Call it again after a change."""
    kind = SearchKind.CONVERSATION
    words = indexed(connection.dialect.name, kind, user_id, conversation_id, title)
    connection.execute(
        _upsert_title, {"user_id": user_id, "conversation_id": conversation_id, "words": words}
    )


def reindex_rows(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts restored index rows, which have ids and subjects, and computes their words again.

    A message that cannot be decoded gets no words of its own; a row without its subject is left out.
    """
    dialect = connection.dialect.name
    messages = [row["message_id"] for row in rows if row["message_id"] is not None]
    titles = [row["conversation_id"] for row in rows if row["conversation_id"] is not None]
    messages_by_id = {row.id: row for row in connection.execute(_message_contents, {"ids": messages})}
    titles_by_id = {row.id: row for row in connection.execute(_conversation_titles, {"ids": titles})}
    index_rows: list[dict[str, Any]] = []
    for row in rows:
        if row["message_id"] in messages_by_id:
            message_row = messages_by_id[row["message_id"]]
            words = _message_words(dialect, row["user_id"], message_row.conversation_id, message_row.content)
        elif row["conversation_id"] in titles_by_id:
            kind, title = SearchKind.CONVERSATION, titles_by_id[row["conversation_id"]].title
            words = indexed(dialect, kind, row["user_id"], row["conversation_id"], title)
        else:
            continue
        index_rows.append({**row, "words": words})
    if index_rows:
        connection.execute(_insert_restored, index_rows)


def _message_words(dialect: str, user_id: int, conversation_id: str, content: str) -> str:
    try:
        text = searched_text(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        text = ""
    return indexed(dialect, SearchKind.MESSAGE, user_id, conversation_id, text)


def _row(dialect: str, message: Mapping[str, Any]) -> dict[str, Any]:
    user_id, conversation_id = message["user_id"], message["conversation_id"]
    text = searched_text(message["content"])
    words = indexed(dialect, SearchKind.MESSAGE, user_id, conversation_id, text)
    return {"user_id": user_id, "message_id": message["id"], "words": words}
