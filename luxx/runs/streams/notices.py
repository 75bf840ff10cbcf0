"""Notices: that a run's status was changed, for whoever listens on a user's behalf, in every process.

Call `told` after the change is on disk. It is a hint and carries nothing: what is so stands in the rows,
and a sweep finds what no hint told. How a listener shows it is `api/sockets.py`'s affair.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog
from sqlalchemy import Connection, Row, bindparam, select
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.conversations.models import ConversationRow
from luxx.infra.bus.core import Bus
from luxx.infra.clock import id_at
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.wire.run import ENDED, RunStatus
from luxx.wire.socket import NotificationData, SessionState, SessionStatus

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


TOPIC = "notice"
SWEEP_SECONDS = 3.0
"""How late a change is told where no hint came: the bus was away, or a process died with it."""

RECENT_SECONDS = 20.0
"""A sweep sees runs this young even if they have ended: several sweeps, and clocks that differ a little."""

MOST_PENDING = 10_000
"""Hints that wait to be looked at; what is more, the sweep finds."""

SENTENCES = {
    RunStatus.COMPLETED: "The answer is ready.",
    RunStatus.FAILED: "The answer failed: {error}",
    RunStatus.WAITING: "A question waits for you.",
    RunStatus.PAUSED: "It is paused and can be resumed.",
}
"""Worth a notification. Who cancels a run knows it."""

logger = structlog.get_logger()

Told = Callable[[str, int | None], None]


class Ear(Protocol):
    """Who listens for a user. Called on the event loop's thread; nothing may wait in it."""

    def hears(self, session_id: str) -> bool:
        """Whether it wants to know all that changes in this session."""
        ...

    def changed(self, session_id: str) -> None:
        """The session may be in another state now; only called for what it hears."""
        ...

    def note(self, notification: NotificationData) -> None:
        """Something to show, of a session that it does not hear."""
        ...

    def restate(self) -> None:
        """Changes may have been missed: look at every session again."""
        ...


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """What processes tell each other. `is_watched`: somebody follows the run where the hint comes from."""

    run_id: str
    user_id: int | None
    is_watched: bool


class Notices:
    """One per process. `is_watched` says whether somebody follows a run's events here."""

    def __init__(self, store: Store, bus: Bus, *, is_watched: Callable[[str], bool]) -> None:
        self._store = store
        self._bus = bus
        self._is_watched = is_watched
        self._ears: dict[int, set[Ear]] = {}
        self._new_users: set[int] = set()
        self._pending: dict[str, bool] = {}
        self._seen: dict[str, RunStatus] = {}
        self._met: dict[str, RunStatus] = {}
        """As runs stood when somebody began to listen: no news by itself, but what is told of them is."""
        self._news = asyncio.Event()
        self._next_sweep = 0.0
        bus.on(TOPIC, self._hear)
        bus.on_up(self._catch_up)

    def told(self, run_id: str, user_id: int | None = None) -> None:
        """The run's status was changed or the run was made, and that is on disk. Costs next to nothing.

        Without the user whose run it is, every process that has listeners looks the run up.
        """
        if self._bus.is_alone and not self._ears:
            return
        hint = Hint(run_id=run_id, user_id=user_id, is_watched=self._is_watched(run_id))
        if not self._bus.is_alone:
            self._bus.tell(TOPIC, msgspec.json.encode(hint))
        self._take(hint)

    def listen(self, user_id: int, ear: Ear) -> Callable[[], None]:
        """Tells `ear` what happens to the user's runs from now on; the answer ends that."""
        if user_id not in self._ears:
            self._new_users.add(user_id)
            self._news.set()
        self._ears.setdefault(user_id, set()).add(ear)

        def leave() -> None:
            ears = self._ears.get(user_id, set())
            ears.discard(ear)
            if not ears:
                self._ears.pop(user_id, None)
                self._new_users.discard(user_id)

        return leave

    async def states(self, user_id: int, session_ids: list[str]) -> dict[str, SessionState]:
        """Those of the sessions that are the user's, as they are now."""
        return await self._store.read_rows(lambda connection: read_states(connection, user_id, session_ids))

    async def keep_telling(self) -> None:
        """Passes on what is told, and sweeps, until cancelled."""
        while True:
            # Not `wait_for`: on Python 3.11 it swallows a cancellation that comes together with the news.
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._pass_on_pending()
                await self._meet_new_users()
                if self._ears and time.monotonic() >= self._next_sweep:
                    self._next_sweep = time.monotonic() + SWEEP_SECONDS
                    await self._sweep()
            except SQLAlchemyError as error:
                # What was lost with it, the next sweep finds.
                logger.warning("notices_not_told", error=str(error))
            except Exception:
                logger.exception("notices_broke")

    # What comes in

    def _hear(self, process: str, payload: bytes) -> None:
        try:
            self._take(msgspec.json.decode(payload, type=Hint))
        except msgspec.DecodeError as error:
            # Said by another version of Luxx.
            logger.warning("notice_not_understood", process=process, error=str(error))

    def _take(self, hint: Hint) -> None:
        is_wanted = bool(self._ears) if hint.user_id is None else hint.user_id in self._ears
        if not is_wanted or len(self._pending) >= MOST_PENDING:
            return
        self._pending[hint.run_id] = self._pending.get(hint.run_id, False) or hint.is_watched
        self._news.set()

    def _catch_up(self) -> None:
        """The bus was away: what was said meanwhile is lost."""
        self._next_sweep = 0.0
        self._news.set()
        for ears in self._ears.values():
            for ear in ears:
                ear.restate()

    # What goes out

    async def _pass_on_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        ids = list(pending)
        for news in await self._store.read_rows(lambda connection: read_news(connection, ids)):
            self._pass_on(news, is_watched=pending[news.run_id])

    async def _meet_new_users(self) -> None:
        """What happened before somebody listened is no news to them."""
        users = list(self._new_users)
        for news in await self._read_of(users):
            self._met.setdefault(news.run_id, news.status)
        self._new_users.difference_update(users)

    async def _sweep(self) -> None:
        found = await self._read_of(list(self._ears))
        known = self._met | self._seen
        here = {news.run_id for news in found}
        # What was going on and is neither going on nor young any more has ended since.
        gone = [run_id for run_id, status in known.items() if status not in ENDED and run_id not in here]
        found += await self._store.read_rows(lambda connection: read_news(connection, gone))
        for news in found:
            if known.get(news.run_id) != news.status:
                self._pass_on(news)
        for statuses in (self._met, self._seen):
            for run_id in statuses.keys() - here:
                del statuses[run_id]

    async def _read_of(self, users: list[int]) -> list[RunNews]:
        if not users:
            return []
        after = id_at(int((time.time() - RECENT_SECONDS) * 1000), 0)
        return await self._store.read_rows(lambda connection: read_news_of(connection, users, after))

    def _pass_on(self, news: RunNews, *, is_watched: bool = False) -> None:
        ears = self._ears.get(news.user_id)
        if ears is None:
            return
        is_new = self._seen.get(news.run_id) != news.status
        self._seen[news.run_id] = news.status
        if not news.is_told:
            return
        is_worth_a_note = is_new and news.status in SENTENCES
        if is_worth_a_note:
            is_watched = is_watched or self._is_watched(news.run_id)
        for ear in tuple(ears):
            if ear.hears(news.session_id):
                ear.changed(news.session_id)
            elif is_worth_a_note and not is_watched:
                ear.note(notification(news))


def notification(news: RunNews) -> NotificationData:
    """What a person is shown of a run that ended or waits."""
    return NotificationData(
        title=news.title,
        message=SENTENCES[news.status].format(error=news.error or "the reason is not known"),
        session_id=news.session_id,
        run_id=news.run_id,
        status=SessionStatus(news.status),
    )
