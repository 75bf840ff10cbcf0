"""Full-text search over the titles and messages of a user's own conversations, and its index.

Every function that stores a message or a title also updates the index, in the same transaction; the database
deletes a message's index row with the message. The cost of a search does not grow with other users' data, nor
past `MAX_HITS` with the user's own: hits come newest first, titles before messages, and are counted up to
that many. `infra/store/search_words.py` makes the words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, Row, TextClause, bindparam, func, select, text
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import own_conversation
from luxx.domain.conversations.models import ConversationRow, MessageRow, SearchTextRow
from luxx.infra.store.engine import Store
from luxx.infra.store.search_words import (
    SearchKind,
    Term,
    TermMatcher,
    composed,
    conversation_word,
    fold,
    indexed,
    owner_word,
    searched_text,
    terms_of,
)
from luxx.infra.store.tables import table_of

# The index

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
_id_list: BindParameter[list[str]] = bindparam("ids", expanding=True)
_message_contents = select(MessageRow.id, MessageRow.conversation_id, MessageRow.content).where(
    MessageRow.id.in_(_id_list)
)
_conversation_titles = select(ConversationRow.id, ConversationRow.title).where(
    ConversationRow.id.in_(_id_list)
)


INDEXED_FIELDS = ("id", "user_id", "conversation_id", "content")
"""The columns of a message that `index_message` needs."""


def index_message(connection: Connection, message: Mapping[str, Any]) -> None:
    """Indexes a message of a conversation; `message` is its row as stored. Call it again after a change."""
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


# The search

MAX_HITS = 1000
"""Maximum hits in titles, and in messages; a query with more hits is too general."""

SNIPPET_LENGTH = 200
SNIPPET_LEAD = 60
"""Characters of a snippet, and of its part before the first mark."""

MAX_SEARCHED_LENGTH = 40_000
"""Characters of a message in which matches are marked."""

ROWS_AT_ONCE = 10
"""Messages in memory at once: each may have some megabytes."""

_texts = table_of(SearchTextRow)
_messages = table_of(MessageRow)
_conversations = table_of(ConversationRow)
_hidden = (
    select(_conversations.c.id)
    # Greater than the empty text, not "is not null": SQLite uses the index only for a range.
    .where(_conversations.c.user_id == bindparam("user_id"), _conversations.c.import_id > "")
    .limit(1)
)
"""Whether one of the user's conversations is hidden: an import, fork or deletion is in progress."""

_not_hidden = """AND NOT EXISTS (
    SELECT 1 FROM search_texts AS hit LEFT JOIN messages ON messages.id = hit.message_id
    JOIN conversations ON conversations.id = coalesce(hit.conversation_id, messages.conversation_id)
    WHERE hit.id = {} AND conversations.import_id IS NOT NULL
)"""


def _find_statements(also: str) -> dict[str, TextClause]:
    """The statement of each database, with a condition on a hit, whose id replaces the braces."""
    lite, postgres = also.format("search_index.rowid"), also.format("search_texts.id")
    return {
        "sqlite": text(
            "SELECT rowid FROM search_index WHERE search_index MATCH :expression "
            f"{lite} ORDER BY rowid DESC LIMIT :max_hits"
        ),
        "postgresql": text(
            "SELECT id FROM search_texts WHERE words @@ CAST(:expression AS tsquery) "
            f"{postgres} ORDER BY id DESC LIMIT :max_hits"
        ),
    }


_find_any = _find_statements("")
_find_visible = _find_statements(_not_hidden)
"""Checking each hit for visibility costs more than finding it: used only if the user has hidden
conversations.
"""

_hit_rows = (
    select(
        _texts.c.id,
        _texts.c.message_id,
        _messages.c.role,
        _messages.c.content,
        _messages.c.created_at.label("sent_at"),
        _conversations.c.id.label("conversation_id"),
        _conversations.c.title,
        _conversations.c.created_at.label("conversation_created_at"),
    )
    .join_from(_texts, _messages, _messages.c.id == _texts.c.message_id, isouter=True)
    .join(
        _conversations,
        _conversations.c.id == func.coalesce(_texts.c.conversation_id, _messages.c.conversation_id),
    )
    .where(_texts.c.id.in_(bindparam("ids", expanding=True)), _texts.c.user_id == bindparam("user_id"))
)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The query and its scope; None is everywhere."""

    query: str
    kind: SearchKind | None = None
    conversation_id: str | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A match in a snippet, from `start` to before `end`, in Unicode characters."""

    start: int
    end: int


class Snippet(msgspec.Struct, frozen=True, kw_only=True):
    """A plain part of the matching text, and the positions of the matches in it."""

    text: str
    marks: list[Mark]


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """One title or message that matches all terms. `rank` counts from 1 over all pages.

    A hit in a title has no message.
    """

    rank: int
    kind: SearchKind
    conversation_id: str
    conversation_title: str
    message_id: str | None
    role: str | None
    snippet: Snippet
    created_at: datetime


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits, their number, and whether there are more than were counted."""

    hits: list[SearchHit]
    total: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class SearchService:
    """One per process."""

    store: Store

    async def find(self, caller: Caller, search: Search, *, page: int, page_size: int) -> SearchResults:
        """A page of the caller's hits. Raises NotFound for a conversation that is not the caller's."""
        return await self.store.read(
            lambda session: find(session, caller, search, page=page, page_size=page_size)
        )


def find(session: Session, caller: Caller, search: Search, *, page: int, page_size: int) -> SearchResults:
    """A page of the caller's hits, in the session's transaction. Raises NotFound."""
    if search.conversation_id is not None:
        own_conversation(session, caller, search.conversation_id)
    terms = terms_of(search.query)
    if not terms:
        return SearchResults(hits=[], total=0, has_more=False)
    connection = session.connection()
    # A single conversation was read above and is not hidden.
    has_hidden = search.conversation_id is None and (
        connection.execute(_hidden, {"user_id": caller.user_id}).first() is not None
    )
    statement = (_find_visible if has_hidden else _find_any)[connection.dialect.name]
    hit_ids: list[int] = []
    has_more = False
    for kind in SearchKind if search.kind is None else (search.kind,):
        scope = [owner_word(kind, caller.user_id)]
        if search.conversation_id is not None:
            scope.append(conversation_word(search.conversation_id))
        expression = _expression(
            connection.dialect.name, [*(Term(words=(word,), pieces=()) for word in scope), *terms]
        )
        ids = connection.scalars(statement, {"expression": expression, "max_hits": MAX_HITS + 1}).all()
        has_more |= len(ids) > MAX_HITS
        hit_ids += ids[:MAX_HITS]
    start = (page - 1) * page_size
    page_ids = hit_ids[start : start + page_size]
    matcher = TermMatcher(terms)
    hits: list[SearchHit] = []
    for first in range(0, len(page_ids), ROWS_AT_ONCE):
        for row in _rows(connection, caller, page_ids[first : first + ROWS_AT_ONCE]):
            hits.append(_hit(row, start + len(hits) + 1, matcher))
    return SearchResults(hits=hits, total=len(hit_ids), has_more=has_more)


def _expression(dialect: str, terms: list[Term]) -> str:
    """The terms in the database's query syntax; words contain no quotes, so nothing can break out of them."""
    if dialect == "postgresql":
        quote, follows, ends, conjunction = "'{}'", " <-> ", ":*", " & "
    else:
        quote, follows, ends, conjunction = '"{}"', " + ", " *", " AND "
    return conjunction.join(
        f"({follows.join(map(quote.format, term.words))}{ends if term.is_prefix else ''})" for term in terms
    )


def _rows(connection: Connection, caller: Caller, ids: list[int]) -> list[Row[*tuple[Any, ...]]]:
    by_id = {row.id: row for row in connection.execute(_hit_rows, {"ids": ids, "user_id": caller.user_id})}
    return [by_id[id_] for id_ in ids if id_ in by_id]


def _hit(row: Row[*tuple[Any, ...]], rank: int, matcher: TermMatcher) -> SearchHit:
    is_title = row.message_id is None
    return SearchHit(
        rank=rank,
        kind=SearchKind.CONVERSATION if is_title else SearchKind.MESSAGE,
        conversation_id=row.conversation_id,
        conversation_title=row.title,
        message_id=row.message_id,
        role=row.role,
        snippet=snippet(row.title if is_title else searched_text(row.content), matcher),
        created_at=row.conversation_created_at if is_title else row.sent_at,
    )


def snippet(whole: str, matcher: TermMatcher) -> Snippet:
    """The part of a text around the first match, with the positions of all matches in it."""
    whole = composed(whole[:MAX_SEARCHED_LENGTH])
    folded = fold(whole)
    first = matcher.first(folded)
    if first is None:
        return Snippet(text=whole[:SNIPPET_LENGTH], marks=[])
    start = max(0, min(first - SNIPPET_LEAD, len(whole) - SNIPPET_LENGTH))
    end = start + SNIPPET_LENGTH
    marks = [
        Mark(start=begins - start, end=min(ends, end) - start)
        for begins, ends in matcher.between(folded, first, end)
    ]
    return Snippet(text=whole[start:end], marks=marks)
