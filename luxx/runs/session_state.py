"""Sessions as sockets show them, read from the rows: what state one is in, and which runs moved on.

A session is a conversation. Who is told of it and when is `notices.py`'s.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, select

from luxx.conversations.models import ConversationRow
from luxx.runs.models import RunRow
from luxx.store.tables import table_of
from luxx.wire.run import RunStatus
from luxx.wire.socket import SessionState, SessionStatus

AT_ONCE = 100
"""Most ids in one statement."""

ERROR_CHARACTERS = 500
UNENDED = [
    status.value for status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED)
]

_runs = table_of(RunRow)
_newer = _runs.alias("newer")
_sessions = table_of(ConversationRow)
_newest = (
    select(_newer.c.id)
    .where(_newer.c.subject_id == _sessions.c.id, _newer.c.parent_run_id.is_(None))
    .order_by(_newer.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_states = (
    select(
        _sessions.c.id.label("session_id"), _sessions.c.title, _runs.c.id.label("run_id"), _runs.c.status,
        _runs.c.message_id, _runs.c.stop_reason, _runs.c.error, _runs.c.started_at, _runs.c.finished_at,
    )
    .select_from(_sessions.outerjoin(_runs, _runs.c.id == _newest))
    .where(
        _sessions.c.id.in_(bindparam("ids", expanding=True)),
        _sessions.c.user_id == bindparam("user"),
        _sessions.c.import_id.is_(None),
    )
)  # fmt: skip
_news = select(
    _runs.c.id, _runs.c.user_id, _runs.c.subject_id, _runs.c.parent_run_id, _runs.c.status, _runs.c.error,
    _sessions.c.title,
).select_from(_runs.join(_sessions, _runs.c.subject_id == _sessions.c.id))  # fmt: skip
_news_by_id = _news.where(_runs.c.id.in_(bindparam("ids", expanding=True)))
_news_unended = _news.where(_runs.c.status.in_(UNENDED))
_news_after = _news.where(
    _runs.c.user_id.in_(bindparam("users", expanding=True)), _runs.c.id > bindparam("after")
)


class RunNews(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands, and in which session of whom."""

    run_id: str
    user_id: int
    session_id: str
    title: str
    status: RunStatus
    is_subagent: bool = False
    error: str | None = None

    @property
    def is_told(self) -> bool:
        """Of a subagent no more than that it waits for a person: its end is not its session's."""
        return not self.is_subagent or self.status == RunStatus.WAITING


def read_states(connection: Connection, user_id: int, session_ids: Sequence[str]) -> dict[str, SessionState]:
    """Those of the sessions that are there and the user's, at most AT_ONCE, each with its newest run."""
    rows = connection.execute(_states, {"ids": list(session_ids), "user": user_id})
    return {row.session_id: _state(row) for row in rows}


def read_news(connection: Connection, run_ids: Sequence[str]) -> list[RunNews]:
    """Those of the runs that are there."""
    found: list[RunNews] = []
    for first in range(0, len(run_ids), AT_ONCE):
        rows = connection.execute(_news_by_id, {"ids": list(run_ids[first : first + AT_ONCE])})
        found += [_run_news(row) for row in rows]
    return found


def read_news_of(connection: Connection, user_ids: Sequence[int], after: str) -> list[RunNews]:
    """The users' runs that have not ended, and those that were made after an id."""
    # Of all users, for those that have not ended are few; of each user there may be very many.
    unended = [_run_news(row) for row in connection.execute(_news_unended)]
    wanted = set(user_ids)
    found = {news.run_id: news for news in unended if news.user_id in wanted}
    for first in range(0, len(user_ids), AT_ONCE):
        users = list(user_ids[first : first + AT_ONCE])
        rows = connection.execute(_news_after, {"users": users, "after": after})
        found |= {row.id: _run_news(row) for row in rows}
    return list(found.values())


def _state(row: Row[*tuple[Any, ...]]) -> SessionState:
    if row.run_id is None:
        return SessionState(status=SessionStatus.IDLE, title=row.title)
    return SessionState(
        status=SessionStatus(row.status),
        title=row.title,
        run_id=row.run_id,
        message_id=row.message_id,
        stop_reason=row.stop_reason,
        error=_cut(row.error),
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _run_news(row: Row[*tuple[Any, ...]]) -> RunNews:
    return RunNews(
        run_id=row.id,
        user_id=row.user_id,
        session_id=row.subject_id,
        title=row.title,
        status=RunStatus(row.status),
        is_subagent=row.parent_run_id is not None,
        error=_cut(row.error),
    )


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= ERROR_CHARACTERS else f"{text[:ERROR_CHARACTERS]}…"
