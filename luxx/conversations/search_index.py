"""Keeping the search index: whoever stores a message or names a conversation says so here.

In the same transaction, so that the index holds what is stored. Deleting needs no word: the database
deletes a message's words with it. How words are made is `store/search_words.py`'s, finding `search.py`'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from luxx.store.search_words import SearchKind, indexed, searched_text

_keep_message = text(
    "INSERT INTO search_texts (user_id, message_id, words) VALUES (:user_id, :message_id, :words) "
    "ON CONFLICT (message_id) DO UPDATE SET words = excluded.words"
)
_keep_title = text(
    "INSERT INTO search_texts (user_id, conversation_id, words) VALUES (:user_id, :conversation_id, :words) "
    "ON CONFLICT (conversation_id) DO UPDATE SET words = excluded.words"
)


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


def _row(dialect: str, message: Mapping[str, Any]) -> dict[str, Any]:
    user_id, conversation_id = message["user_id"], message["conversation_id"]
    said = searched_text(message["content"])
    words = indexed(dialect, SearchKind.MESSAGE, user_id, conversation_id, said)
    return {"user_id": user_id, "message_id": message["id"], "words": words}
