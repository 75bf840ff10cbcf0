"""Notices: notify the listeners of a user, in every process, of changed statuses of runs.

Call `notify` after the change is on disk. It sends a hint without the new status: the rows have it, and a
sweep finds the changes whose hint was lost. `api/http/websockets.py` has the listeners.
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

from luxx.domain.conversations.access import own_conversations
from luxx.domain.conversations.models import ConversationRow
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.clock import id_at
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.wire.run import ENDED, RunStatus
from luxx.wire.socket import NotificationData, SessionState, SessionStatus

IDS_PER_QUERY = 100
ERROR_CHARACTERS = 500
UNENDED = [status.value for status in RunStatus if status not in ENDED]
"""Not `is_unended`: a database can look these up in an index."""

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
    .where(_sessions.c.id.in_(bindparam("ids", expanding=True)), own_conversations)
)  # fmt: skip
_changes = select(
    _runs.c.id, _runs.c.user_id, _runs.c.subject_id, _runs.c.parent_run_id, _runs.c.status, _runs.c.error,
    _sessions.c.title,
).select_from(_runs.join(_sessions, _runs.c.subject_id == _sessions.c.id))  # fmt: skip
_changes_by_id = _changes.where(_runs.c.id.in_(bindparam("ids", expanding=True)))
_changes_unended = _changes.where(_runs.c.status.in_(UNENDED))
_changes_after = _changes.where(
    _runs.c.user_id.in_(bindparam("users", expanding=True)), _runs.c.id > bindparam("after")
)


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """The current status of a run, with its session and user."""

    run_id: str
    user_id: int
    session_id: str
    title: str
    status: RunStatus
    is_subagent: bool = False
    error: str | None = None

    @property
    def is_reported(self) -> bool:
        """Whether listeners are notified; of a subagent only that it waits for a person."""
        return not self.is_subagent or self.status == RunStatus.WAITING


def read_states(connection: Connection, user_id: int, session_ids: Sequence[str]) -> dict[str, SessionState]:
    """The states of those sessions that belong to the user, each with its newest run, by session id."""
    rows = connection.execute(_states, {"ids": list(session_ids), "user_id": user_id})
    return {row.session_id: _state(row) for row in rows}


def read_changes(connection: Connection, run_ids: Sequence[str]) -> list[RunChange]:
    """The current state of those runs that exist."""
    changes: list[RunChange] = []
    for first in range(0, len(run_ids), IDS_PER_QUERY):
        rows = connection.execute(_changes_by_id, {"ids": list(run_ids[first : first + IDS_PER_QUERY])})
        changes += [_run_change(row) for row in rows]
    return changes


def read_changes_of(connection: Connection, user_ids: Sequence[int], after: str) -> list[RunChange]:
    """The users' runs that have not ended, and those with an id above `after`."""
    # Unended runs are read for all users: they are few, but the list of users may be long.
    unended = [_run_change(row) for row in connection.execute(_changes_unended)]
    wanted_ids = set(user_ids)
    changes = {change.run_id: change for change in unended if change.user_id in wanted_ids}
    for first in range(0, len(user_ids), IDS_PER_QUERY):
        users = list(user_ids[first : first + IDS_PER_QUERY])
        rows = connection.execute(_changes_after, {"users": users, "after": after})
        changes |= {row.id: _run_change(row) for row in rows}
    return list(changes.values())


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


def _run_change(row: Row[*tuple[Any, ...]]) -> RunChange:
    return RunChange(
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


SWEEP_SECONDS = 3.0
"""Interval of the sweep, which finds changes whose hint was lost with the bus or a process."""

RECENT_SECONDS = 20.0
"""A sweep also reads ended runs that are younger than this: several sweeps, plus clock differences."""

MAX_PENDING = 10_000
"""Limit of pending hints; the sweep finds the changes of further ones."""

NOTIFICATION_TEXTS = {
    RunStatus.COMPLETED: "The answer is ready.",
    RunStatus.FAILED: "The answer failed: {error}",
    RunStatus.WAITING: "A question waits for you.",
    RunStatus.PAUSED: "The run is paused and can be resumed.",
}
"""Statuses that cause a notification; a user who cancels a run needs none."""

logger = structlog.get_logger()

Notify = Callable[[str, int | None], None]


class SessionListener(Protocol):
    """A listener for one user. Its methods run on the event loop's thread and must not block."""

    def is_subscribed(self, session_id: str) -> bool:
        """Whether it gets `mark_changed` for this session; else `add_notification`."""
        ...

    def mark_changed(self, session_id: str) -> None:
        """The state of a subscribed session may have changed."""
        ...

    def add_notification(self, notification: NotificationData) -> None:
        """A notification of a session without a subscription."""
        ...

    def refresh_all(self) -> None:
        """Changes may be lost: the listener must read every session again."""
        ...


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """The message between processes. `is_watched`: the run has a watcher in the sending process."""

    run_id: str
    user_id: int | None
    is_watched: bool


class Notices:
    """One per process. `is_watched` returns whether a run has a watcher in this process."""

    def __init__(self, store: Store, bus: Bus, *, is_watched: Callable[[str], bool]) -> None:
        self._store = store
        self._bus = bus
        self._is_watched = is_watched
        self._listeners: dict[int, set[SessionListener]] = {}
        self._new_users: set[int] = set()
        self._pending: dict[str, bool] = {}
        self._last_statuses: dict[str, RunStatus] = {}
        self._initial_statuses: dict[str, RunStatus] = {}
        """Statuses of runs when their user's first listener came: not notified, only later changes are."""
        self._has_changes = asyncio.Event()
        self._next_sweep = 0.0
        bus.subscribe(Topic.NOTICE, self._on_message)
        bus.on_reconnect(self._catch_up)

    def notify(self, run_id: str, user_id: int | None = None) -> None:
        """Announces a new run or a changed status, which is already on disk.

        Without `user_id` every process that has listeners reads the run's row.
        """
        if self._bus.is_alone and not self._listeners:
            return
        hint = Hint(run_id=run_id, user_id=user_id, is_watched=self._is_watched(run_id))
        if not self._bus.is_alone:
            self._bus.publish(Topic.NOTICE, msgspec.json.encode(hint))
        self._accept(hint)

    def listen(self, user_id: int, listener: SessionListener) -> Callable[[], None]:
        """Notifies `listener` of the user's runs from now on; the returned function ends that."""
        if user_id not in self._listeners:
            self._new_users.add(user_id)
            self._has_changes.set()
        self._listeners.setdefault(user_id, set()).add(listener)

        def unsubscribe() -> None:
            listeners = self._listeners.get(user_id, set())
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(user_id, None)
                self._new_users.discard(user_id)

        return unsubscribe

    async def states(self, user_id: int, session_ids: list[str]) -> dict[str, SessionState]:
        """The current states of those sessions that belong to the user."""
        return await self._store.read_rows(lambda connection: read_states(connection, user_id, session_ids))

    async def keep_notifying(self) -> None:
        """Notifies the listeners of hints, and sweeps, until cancelled."""
        while True:
            # Not `wait_for`: on Python 3.11 it can lose a cancellation that arrives with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._has_changes.wait()
            self._has_changes.clear()
            try:
                await self._notify_pending()
                await self._record_initial_statuses()
                if self._listeners and time.monotonic() >= self._next_sweep:
                    self._next_sweep = time.monotonic() + SWEEP_SECONDS
                    await self._sweep()
            except SQLAlchemyError as error:
                # The next sweep finds the lost changes.
                logger.warning("notices_failed", error=str(error))
            except Exception:
                logger.exception("notices_failed")

    def _on_message(self, process: str, payload: bytes) -> None:
        try:
            self._accept(msgspec.json.decode(payload, type=Hint))
        except msgspec.DecodeError as error:
            # The sender may be another version of Luxx.
            logger.warning("notice_not_decoded", process=process, error=str(error))

    def _accept(self, hint: Hint) -> None:
        is_wanted = bool(self._listeners) if hint.user_id is None else hint.user_id in self._listeners
        if not is_wanted or len(self._pending) >= MAX_PENDING:
            return
        self._pending[hint.run_id] = self._pending.get(hint.run_id, False) or hint.is_watched
        self._has_changes.set()

    def _catch_up(self) -> None:
        """Sweeps and refreshes all listeners, because hints are lost while the bus is disconnected."""
        self._next_sweep = 0.0
        self._has_changes.set()
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.refresh_all()

    async def _notify_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        ids = list(pending)
        for change in await self._store.read_rows(lambda connection: read_changes(connection, ids)):
            self._notify_listeners(change, is_watched=pending[change.run_id])

    async def _record_initial_statuses(self) -> None:
        """Records the statuses that new listeners must not be notified of."""
        users = list(self._new_users)
        for change in await self._read_of(users):
            self._initial_statuses.setdefault(change.run_id, change.status)
        self._new_users.difference_update(users)

    async def _sweep(self) -> None:
        changes = await self._read_of(list(self._listeners))
        known_statuses = self._initial_statuses | self._last_statuses
        current_ids = {change.run_id for change in changes}
        # A run that was unended and is no longer among the current ones has ended.
        ended_ids = [
            run_id
            for run_id, status in known_statuses.items()
            if status not in ENDED and run_id not in current_ids
        ]
        changes += await self._store.read_rows(lambda connection: read_changes(connection, ended_ids))
        for change in changes:
            if known_statuses.get(change.run_id) != change.status:
                self._notify_listeners(change)
        for statuses in (self._initial_statuses, self._last_statuses):
            for run_id in statuses.keys() - current_ids:
                del statuses[run_id]

    async def _read_of(self, users: list[int]) -> list[RunChange]:
        if not users:
            return []
        after = id_at(int((time.time() - RECENT_SECONDS) * 1000), 0)
        return await self._store.read_rows(lambda connection: read_changes_of(connection, users, after))

    def _notify_listeners(self, change: RunChange, *, is_watched: bool = False) -> None:
        listeners = self._listeners.get(change.user_id)
        if listeners is None:
            return
        is_new = self._last_statuses.get(change.run_id) != change.status
        self._last_statuses[change.run_id] = change.status
        if not change.is_reported:
            return
        is_notable = is_new and change.status in NOTIFICATION_TEXTS
        if is_notable:
            is_watched = is_watched or self._is_watched(change.run_id)
        for listener in tuple(listeners):
            if listener.is_subscribed(change.session_id):
                listener.mark_changed(change.session_id)
            elif is_notable and not is_watched:
                listener.add_notification(notification(change))


def notification(change: RunChange) -> NotificationData:
    """The notification of a run that ended or waits."""
    return NotificationData(
        title=change.title,
        message=NOTIFICATION_TEXTS[change.status].format(error=change.error or "the reason is not known"),
        session_id=change.session_id,
        run_id=change.run_id,
        status=SessionStatus(change.status),
    )
