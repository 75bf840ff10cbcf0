"""Keeping the search index: whoever stores a message or names a conversation says so here.

In the same transaction, so that the index holds what is stored. Deleting needs no word: the database
deletes a message's words with it. How words are made is `store/search_words.py`'s, finding `search.py`'s.
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
    """Makes a message of a conversation findable; `message` is its row as stored. Again after a change."""
    connection.execute(_upsert_message, _row(connection.dialect.name, message))


def index_messages(connection: Connection, messages: Sequence[Mapping[str, Any]]) -> None:
    """`index_message` for many, in the order in which they were said."""
    if messages:
        connection.execute(_upsert_message, [_row(connection.dialect.name, each) for each in messages])


def index_title(connection: Connection, *, user_id: int, conversation_id: str, title: str) -> None:
    """Makes a conversation findable by its title. Again after a change."""
    kind = SearchKind.CONVERSATION
    words = indexed(connection.dialect.name, kind, user_id, conversation_id, title)
    connection.execute(
        _upsert_title, {"user_id": user_id, "conversation_id": conversation_id, "words": words}
    )


def reindex_rows(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the index that have their ids and their subjects, and no words: those are made again.

    Of what cannot be read nothing is found; a row without its subject is left out.
    """
    dialect = connection.dialect.name
    messages = [row["message_id"] for row in rows if row["message_id"] is not None]
    titles = [row["conversation_id"] for row in rows if row["conversation_id"] is not None]
    said = {row.id: row for row in connection.execute(_message_contents, {"ids": messages})}
    titles_by_id = {row.id: row for row in connection.execute(_conversation_titles, {"ids": titles})}
    index_rows: list[dict[str, Any]] = []
    for row in rows:
        if row["message_id"] in said:
            message_row = said[row["message_id"]]
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
        said = searched_text(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        said = ""
    return indexed(dialect, SearchKind.MESSAGE, user_id, conversation_id, said)


def _row(dialect: str, message: Mapping[str, Any]) -> dict[str, Any]:
    user_id, conversation_id = message["user_id"], message["conversation_id"]
    said = searched_text(message["content"])
    words = indexed(dialect, SearchKind.MESSAGE, user_id, conversation_id, said)
    return {"user_id": user_id, "message_id": message["id"], "words": words}
