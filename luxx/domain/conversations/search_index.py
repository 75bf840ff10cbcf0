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

_keep_message = text(
    "INSERT INTO search_texts (user_id, message_id, words) VALUES (:user_id, :message_id, :words) "
    "ON CONFLICT (message_id) DO UPDATE SET words = excluded.words"
)
_keep_title = text(
    "INSERT INTO search_texts (user_id, conversation_id, words) VALUES (:user_id, :conversation_id, :words) "
    "ON CONFLICT (conversation_id) DO UPDATE SET words = excluded.words"
)
_put_back = text(
    "INSERT INTO search_texts (id, user_id, conversation_id, message_id, words) "
    "VALUES (:id, :user_id, :conversation_id, :message_id, :words)"
)
_ids: BindParameter[list[str]] = bindparam("ids", expanding=True)
_said = select(MessageRow.id, MessageRow.conversation_id, MessageRow.content).where(MessageRow.id.in_(_ids))
_titled = select(ConversationRow.id, ConversationRow.title).where(ConversationRow.id.in_(_ids))


def index_message(connection: Connection, message: Mapping[str, Any]) -> None:
    """Makes a message of a conversation findable; `message` is its row as stored. Again after a change."""
    connection.execute(_keep_message, _row(connection.dialect.name, message))


def index_messages(connection: Connection, messages: Sequence[Mapping[str, Any]]) -> None:
    """`index_message` for many, in the order in which they were said."""
    if messages:
        connection.execute(_keep_message, [_row(connection.dialect.name, each) for each in messages])


def index_title(connection: Connection, *, user_id: int, conversation_id: str, title: str) -> None:
    """Makes a conversation findable by its title. Again after a change."""
    kind = SearchKind.CONVERSATION
    words = indexed(connection.dialect.name, kind, user_id, conversation_id, title)
    connection.execute(_keep_title, {"user_id": user_id, "conversation_id": conversation_id, "words": words})


def put_back(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the index that have their ids and their subjects, and no words: those are made again.

    Of what cannot be read nothing is found; a row without its subject is left out.
    """
    dialect = connection.dialect.name
    messages = [row["message_id"] for row in rows if row["message_id"] is not None]
    titles = [row["conversation_id"] for row in rows if row["conversation_id"] is not None]
    said = {row.id: row for row in connection.execute(_said, {"ids": messages})}
    titled = {row.id: row for row in connection.execute(_titled, {"ids": titles})}
    made: list[dict[str, Any]] = []
    for row in rows:
        if row["message_id"] in said:
            found = said[row["message_id"]]
            words = _words_said(dialect, row["user_id"], found.conversation_id, found.content)
        elif row["conversation_id"] in titled:
            kind, title = SearchKind.CONVERSATION, titled[row["conversation_id"]].title
            words = indexed(dialect, kind, row["user_id"], row["conversation_id"], title)
        else:
            continue
        made.append({**row, "words": words})
    if made:
        connection.execute(_put_back, made)


def _words_said(dialect: str, user_id: int, conversation_id: str, content: str) -> str:
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
