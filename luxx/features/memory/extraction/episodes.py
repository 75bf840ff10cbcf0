"""Episodes: which messages are looked through together, and what a model is shown of one.

A message is in one episode at most. `ingestion.py` makes them and starts the runs.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import readable_text
from luxx.errors import NotFound
from luxx.features.memory.extraction.answers import IDLE_SECONDS, Said, batches, is_full
from luxx.features.memory.lexical import index_episodes
from luxx.features.memory.models import EpisodeMessageRow, EpisodeRow, FactRow, FactSourceRow
from luxx.features.memory.scopes import Scopes
from luxx.infra.clock import new_id
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.memory import EpisodeStatus
from luxx.wire.run import RunStatus

MESSAGES_AT_ONCE = 60
"""Messages of a conversation that are read at once: each may have some megabytes."""

SOURCE_CONVERSATION, SOURCE_ROOM = "conversation", "room"
EpisodeSource = Literal["conversation", "room"]
"""What the messages of an episode are from."""


_messages, _episodes = table_of(MessageRow), table_of(EpisodeRow)
_conversations = table_of(ConversationRow)
_parts = table_of(EpisodeMessageRow)
_events = table_of(RunEventRow)

_said_columns = (
    _messages.c.id,
    _messages.c.role,
    _messages.c.content,
    _messages.c.created_at,
    _messages.c.run_id,
    _messages.c.sender_name,
)
_is_compared = exists().where(
    _conversations.c.id == _messages.c.conversation_id, _conversations.c.comparing_id == _messages.c.parent_id
)
"""An answer that nobody has kept yet; one that is not kept is never looked through."""

_new_messages = {
    SOURCE_CONVERSATION: select(*_said_columns).where(
        _messages.c.conversation_id == bindparam("subject"), ~_is_compared
    ),
    SOURCE_ROOM: select(*_said_columns).where(_messages.c.room_id == bindparam("subject")),
}
_is_new = and_(~exists().where(_parts.c.message_id == _messages.c.id), _messages.c.is_unremembered.is_(None))
_of_episode = (
    select(*_said_columns)
    .join(_parts, _parts.c.message_id == _messages.c.id)
    .where(_parts.c.episode_id == bindparam("episode"))
    .order_by(_messages.c.id)
)
_tainted = (
    select(_events.c.run_id)
    .where(_events.c.run_id.in_(bindparam("runs", expanding=True)), _events.c.type == "tainted")
    .distinct()
)


class CollectedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation or room whose messages are collected. `user_id` pays, `username` is who writes in a
    conversation."""

    source: str
    id: str
    title: str
    user_id: int
    username: str
    updated_at: datetime


def collect_episodes(
    connection: Connection, scope_id: int, subject: CollectedSubject, *, since: datetime | None, now: datetime
) -> int:
    """Makes episodes of messages since then that are in none, and returns how many. Those that were written
    where memory was off or asked stay out.

    The last messages wait for more until nobody has written for IDLE_SECONDS; without `since` all messages
    count, and nothing waits. The caller has locked the scope.
    """
    made = 0
    query = _new_messages[subject.source].where(_is_new).order_by(_messages.c.id)
    if since is not None:
        query = query.where(_messages.c.created_at >= since)
    is_idle = since is None or subject.updated_at <= now - timedelta(seconds=IDLE_SECONDS)
    while True:
        rows = connection.execute(query.limit(MESSAGES_AT_ONCE), {"subject": subject.id}).all()
        said = [_said(row, subject.username, frozenset()) for row in rows]
        whole = list(batches(said))
        if whole and not is_full(whole[-1]) and (len(rows) == MESSAGES_AT_ONCE or not is_idle):
            del whole[-1]
        for batch in whole:
            _insert(connection, scope_id, subject, batch, now)
        made += len(whole)
        if not whole or len(rows) < MESSAGES_AT_ONCE:
            return made


def _insert(
    connection: Connection, scope_id: int, subject: CollectedSubject, batch: Sequence[Said], now: datetime
) -> None:
    values = {
        "uid": new_id(), "scope_id": scope_id, "created_at": now, "name": subject.title[:300],
        "source": subject.source, "user_id": subject.user_id, "happened_at": batch[-1].sent_at,
        "status": EpisodeStatus.PENDING.value, "trusted": True,
        "conversation_id": subject.id if subject.source == SOURCE_CONVERSATION else None,
        "room_id": subject.id if subject.source == SOURCE_ROOM else None,
    }  # fmt: skip
    key = connection.execute(insert(_episodes), values).inserted_primary_key
    assert key is not None
    episode_id = int(key[0])
    connection.execute(
        insert(_parts), [{"episode_id": episode_id, "message_id": said.message_id} for said in batch]
    )
    index_episodes(connection, [episode_id])


def read_said(connection: Connection, episode_id: int, username: str) -> list[Said]:
    """The messages of an episode that have words, in order."""
    rows = connection.execute(_of_episode, {"episode": episode_id}).all()
    runs = sorted({row.run_id for row in rows if row.run_id is not None})
    tainted = frozenset(connection.scalars(_tainted, {"runs": runs})) if runs else frozenset[str]()
    said = [_said(row, username, tainted) for row in rows]
    return [each for each in said if each.text.strip()]


def _said(row: Row[*tuple[Any, ...]], username: str, tainted: Collection[str]) -> Said:
    is_person = row.role == "user"
    author = row.sender_name or (username if is_person else "the assistant")
    return Said(
        message_id=row.id,
        author=author,
        text=readable_text(row.content),
        sent_at=row.created_at,
        trusted=is_person or row.run_id not in tainted,
    )


def end_episodes(
    uids: Collection[str], status: EpisodeStatus, reason: str | None, connection: Connection
) -> None:
    """Sets the status of these episodes, and why they were skipped or failed."""
    if uids:
        values = {"status": status.value, "reason": reason}
        connection.execute(update(_episodes).where(_episodes.c.uid.in_(list(uids))).values(**values))


def fail_episodes(connection: Connection, run_id: str, reason: str) -> None:
    """Ends those episodes of a run that it has not ended."""
    connection.execute(
        update(_episodes)
        .where(_episodes.c.run_id == run_id, _episodes.c.status == EpisodeStatus.PENDING.value)
        .values(status=EpisodeStatus.FAILED.value, reason=reason)
    )


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode as the API shows it. `source` is `conversation` or `room`, `source_id` its id; `reason` is
    why it was skipped or failed; `facts` counts those that have a message of it as a source."""

    id: str
    name: str
    scope: str
    source: str
    source_id: str | None
    happened_at: datetime
    status: EpisodeStatus
    reason: str | None
    run_id: str | None
    messages: int
    facts: int
    created_at: datetime


_runs, _sources, _facts = table_of(RunRow), table_of(FactSourceRow), table_of(FactRow)
_is_running = (
    select(_runs.c.id)
    .where(_runs.c.id == _episodes.c.run_id, _runs.c.status == RunStatus.RUNNING.value)
    .exists()
)
_message_count = (
    select(func.count()).select_from(_parts).where(_parts.c.episode_id == _episodes.c.id).scalar_subquery()
)
_fact_count = (
    select(func.count(_sources.c.fact_id.distinct()))
    .join(_parts, _parts.c.message_id == _sources.c.message_id)
    .join(_facts, _facts.c.id == _sources.c.fact_id)
    .where(_parts.c.episode_id == _episodes.c.id, _facts.c.expired_at.is_(None))
    .scalar_subquery()
)
_status = case(
    (
        and_(_episodes.c.status == EpisodeStatus.PENDING.value, _is_running),
        literal(EpisodeStatus.RUNNING.value),
    ),
    else_=_episodes.c.status,
)
"""An episode is running while the run that has it is: no row says so, so none stays that way."""


def list_episodes(
    connection: Connection,
    scopes: Scopes,
    *,
    status: EpisodeStatus | None,
    source: EpisodeSource | None,
    page: int,
    page_size: int,
) -> tuple[list[Episode], int]:
    """A page of the episodes of these scopes, newest first, and their number."""
    conditions: list[ColumnElement[bool]] = [_episodes.c.scope_id.in_(scopes.ids)]
    if status is not None:
        conditions.append(_status == status.value)
    if source is not None:
        conditions.append(_episodes.c.source == source)
    total = connection.scalar(select(func.count()).select_from(_episodes).where(*conditions)) or 0
    query = (
        select(
            *_episodes.c,
            _status.label("shown_status"),
            _message_count.label("messages"),
            _fact_count.label("facts"),
        )
        .where(*conditions)
        .order_by(_episodes.c.happened_at.desc(), _episodes.c.id.desc())
        .limit(page_size)
        .offset((page - 1) * page_size)
    )
    return [_view(row, scopes) for row in connection.execute(query)], total


def find_episode(connection: Connection, scopes: Scopes, uid: str) -> Row[Any]:
    """The row of an episode in one of these scopes, locked. Raises NotFound."""
    query = select(*_episodes.c).where(_episodes.c.uid == uid, _episodes.c.scope_id.in_(scopes.ids))
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        raise NotFound("no episode with this id", kind="episode_not_found")
    return row


def _view(row: Row[Any], scopes: Scopes) -> Episode:
    return Episode(
        id=row.uid,
        name=row.name,
        scope=str(scopes.by_id[row.scope_id].name),
        source=row.source,
        source_id=row.conversation_id or row.room_id,
        happened_at=row.happened_at,
        status=EpisodeStatus(row.shown_status),
        reason=row.reason,
        run_id=row.run_id,
        messages=row.messages,
        facts=row.facts,
        created_at=row.created_at,
    )
