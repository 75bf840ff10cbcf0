"""Full-text search over a user's own conversations, rooms and tasks.

`search_index.py` keeps the index, `infra/store/ranked_search.py` ranks. The cost of a search does not grow
with other users' data, nor past its bounds with the user's own: of very common words only the newest texts
count, and hits are counted up to `MAX_HITS`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import own_conversation
from luxx.domain.conversations.models import ConversationRow, MessageRow, SearchTextRow
from luxx.domain.conversations.search_index import SearchedSubject, SubjectReaders, searched_text
from luxx.errors import NotFound
from luxx.infra.store.engine import Store
from luxx.infra.store.ranked_search import Hit, WordIndex, rank
from luxx.infra.store.search_marks import QueryMatcher
from luxx.infra.store.search_words import SearchKind, composed, fold, owner_word, query_of, subject_word
from luxx.infra.store.tables import table_of

TEXTS = WordIndex(table="search_texts", full_text="search_index")
MAX_HITS = 1000
"""Maximum hits; a query with more hits is too general."""

FIT_OF_NEWEST = 0.5
"""Sorted by time are only hits that match at least so well as the best one: a text with one common word of a
question is no answer to it."""

SNIPPET_LENGTH = 200
SNIPPET_LEAD = 60
"""Characters of a snippet, and of its part before the first mark."""

MAX_SEARCHED_LENGTH = 40_000
"""Characters of a text in which matches are marked."""

ROWS_AT_ONCE = 10
"""Texts in memory at once: each may have some megabytes."""

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

_NOT_HIDDEN = """AND NOT EXISTS (
    SELECT 1 FROM search_texts AS hit LEFT JOIN messages ON messages.id = hit.message_id
    JOIN conversations ON conversations.id = coalesce(hit.conversation_id, messages.conversation_id)
    WHERE hit.id = {id} AND conversations.import_id IS NOT NULL
)"""
"""Checking each candidate for visibility costs more than finding it: used only if the user has hidden
conversations."""

_hit_rows = (
    select(
        _texts.c.id,
        _texts.c.message_id,
        _messages.c.role,
        _messages.c.content,
        _texts.c.task_id,
        func.coalesce(_texts.c.room_id, _messages.c.room_id).label("room_id"),
        _messages.c.created_at.label("sent_at"),
        _conversations.c.id.label("conversation_id"),
        _conversations.c.title,
        _conversations.c.created_at.label("conversation_created_at"),
    )
    .join_from(_texts, _messages, _messages.c.id == _texts.c.message_id, isouter=True)
    .join(
        _conversations,
        _conversations.c.id == func.coalesce(_texts.c.conversation_id, _messages.c.conversation_id),
        isouter=True,
    )
    .where(_texts.c.id.in_(bindparam("ids", expanding=True)), _texts.c.user_id == bindparam("user_id"))
)


class SearchSort(StrEnum):
    """The order of hits: the best first, or of those that match well the newest first."""

    RELEVANCE = "relevance"
    NEWEST = "newest"


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The query and its scope; None is everywhere. A room with its messages belongs to its owner."""

    query: str
    kind: SearchKind | None = None
    conversation_id: str | None = None
    room_id: str | None = None
    sort: SearchSort = SearchSort.RELEVANCE


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A match in a snippet, from `start` to before `end`, in Unicode characters."""

    start: int
    end: int


class Snippet(msgspec.Struct, frozen=True, kw_only=True):
    """A plain part of the matching text, and the positions of the matches in it."""

    text: str
    marks: list[Mark]


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """One title, room, task or message that matches. `rank` counts from 1 over all pages.

    Only a message has `message_id` and `role`. A hit belongs to a conversation, a room or a task; the fields
    of the others are null.
    """

    rank: int
    kind: SearchKind
    conversation_id: str | None
    conversation_title: str | None
    room_id: str | None
    room_title: str | None
    task_id: str | None
    task_name: str | None
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
    readers: SubjectReaders

    async def find(self, caller: Caller, search: Search, *, page: int, page_size: int) -> SearchResults:
        """A page of the caller's hits. Raises NotFound for a conversation or room of somebody else."""
        return await self.store.read(
            lambda session: find(session, caller, search, self.readers, page=page, page_size=page_size)
        )


def find(
    session: Session, caller: Caller, search: Search, readers: SubjectReaders, *, page: int, page_size: int
) -> SearchResults:
    """A page of the caller's hits, in the session's transaction. Raises NotFound."""
    connection = session.connection()
    if search.conversation_id is not None:
        own_conversation(session, caller, search.conversation_id)
    if search.room_id is not None:
        room = readers[SearchKind.ROOM](connection, [search.room_id]).get(search.room_id)
        if room is None or room.user_id != caller.user_id:
            raise NotFound("you own no room with this id", kind="room_not_found")
    hit_ids, has_more = _ranked_ids(connection, caller, search)
    start = (page - 1) * page_size
    page_ids = hit_ids[start : start + page_size]
    matcher = QueryMatcher(query_of(search.query))
    hits: list[SearchHit] = []
    for first in range(0, len(page_ids), ROWS_AT_ONCE):
        rows = _rows(connection, caller, page_ids[first : first + ROWS_AT_ONCE])
        rooms = _subjects(connection, readers, SearchKind.ROOM, [row.room_id for row in rows])
        tasks = _subjects(connection, readers, SearchKind.TASK, [row.task_id for row in rows])
        for row in rows:
            place = start + len(hits) + 1
            hits.append(_hit(row, place, matcher, room=rooms.get(row.room_id), task=tasks.get(row.task_id)))
    return SearchResults(hits=hits, total=len(hit_ids), has_more=has_more)


def _ranked_ids(connection: Connection, caller: Caller, search: Search) -> tuple[list[int], bool]:
    """The ids of all hits in their order, and whether there are more."""
    # A single conversation was read before and is not hidden.
    has_hidden = search.conversation_id is None and (
        connection.execute(_hidden, {"user_id": caller.user_id}).first() is not None
    )
    ranking = rank(
        connection,
        TEXTS,
        query_of(search.query),
        scopes=[owner_word(kind, caller.user_id) for kind in _kinds(search)],
        within=[subject_word(id_) for id_ in (search.conversation_id, search.room_id) if id_],
        condition=_NOT_HIDDEN if has_hidden else "",
        limit=MAX_HITS,
    )
    hits = ranking.hits if search.sort == SearchSort.RELEVANCE else _newest(ranking.hits)
    return [hit.id for hit in hits], ranking.has_more


def _newest(hits: list[Hit]) -> list[Hit]:
    best = max((hit.coverage for hit in hits), default=0.0)
    fitting = [hit for hit in hits if hit.coverage >= best * FIT_OF_NEWEST]
    return sorted(fitting, key=lambda hit: hit.id, reverse=True)


def _kinds(search: Search) -> Iterable[SearchKind]:
    """The kinds that can have hits."""
    if search.kind is not None:
        return (search.kind,)
    if search.conversation_id is not None:
        return (SearchKind.CONVERSATION, SearchKind.MESSAGE)
    return SearchKind if search.room_id is None else (SearchKind.ROOM, SearchKind.MESSAGE)


def _rows(connection: Connection, caller: Caller, ids: list[int]) -> list[Row[*tuple[Any, ...]]]:
    by_id = {row.id: row for row in connection.execute(_hit_rows, {"ids": ids, "user_id": caller.user_id})}
    return [by_id[id_] for id_ in ids if id_ in by_id]


def _subjects(
    connection: Connection, readers: SubjectReaders, kind: SearchKind, ids: Iterable[str | None]
) -> Mapping[str, SearchedSubject]:
    existing = list({id_ for id_ in ids if id_ is not None})
    return readers[kind](connection, existing) if existing else {}


def _hit(
    row: Row[*tuple[Any, ...]],
    place: int,
    matcher: QueryMatcher,
    *,
    room: SearchedSubject | None,
    task: SearchedSubject | None,
) -> SearchHit:
    subject = task or room
    if row.message_id is not None:
        kind, searched, created_at = SearchKind.MESSAGE, searched_text(row.content), row.sent_at
    elif subject is None:
        kind, searched, created_at = SearchKind.CONVERSATION, row.title, row.conversation_created_at
    else:
        kind = SearchKind.ROOM if task is None else SearchKind.TASK
        searched, created_at = subject.text, subject.created_at
    return SearchHit(
        rank=place,
        kind=kind,
        conversation_id=row.conversation_id,
        conversation_title=row.title,
        room_id=row.room_id,
        room_title=None if room is None else room.title,
        task_id=row.task_id,
        task_name=None if task is None else task.title,
        message_id=row.message_id,
        role=row.role,
        snippet=snippet(searched, matcher),
        created_at=created_at,
    )


def snippet(whole: str, matcher: QueryMatcher) -> Snippet:
    """The part of a text around its best match, with the positions of all matches in it."""
    whole = composed(whole[:MAX_SEARCHED_LENGTH])
    folded = fold(whole)
    first = matcher.first(folded, SNIPPET_LENGTH - SNIPPET_LEAD)
    if first is None:
        return Snippet(text=whole[:SNIPPET_LENGTH], marks=[])
    start = max(0, min(first - SNIPPET_LEAD, len(whole) - SNIPPET_LENGTH))
    end = start + SNIPPET_LENGTH
    marks = [
        Mark(start=begins - start, end=min(ends, end) - start)
        for begins, ends in matcher.between(folded, first, end)
    ]
    return Snippet(text=whole[start:end], marks=marks)
