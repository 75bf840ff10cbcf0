"""Notices: notify the listeners of a user, in every process, of changed statuses of runs: of the user's own
runs, and of those of rooms that the user is a member of; and of new messages and members of these rooms.

Call `notify` or `notify_subject` after the change is on disk. They send a hint without the new state: the
rows have it. A sweep finds the runs whose hint was lost; listeners (`api/http/websockets.py`) read the states
of rooms again from time to time. A run that ends has a `run_ended` row until its notification was sent: if
its process dies before, another one or the next to start sends it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.infra.bus.core import Bus, Topic
from luxx.infra.clock import id_at, utc_now
from luxx.infra.store.engine import Store
from luxx.runs.log.retention import delete_notified_endings
from luxx.runs.streams.notifications import notification, subject_notification
from luxx.runs.streams.sessions import (
    NOTABLE,
    RunChange,
    SessionSubject,
    SubjectHint,
    SubjectTable,
    read_changes,
    read_changes_of,
    read_memberships,
    read_states,
    read_subjects,
    read_unnotified,
)
from luxx.wire.run import ENDED, RunStatus
from luxx.wire.socket import NotificationData, SessionState

SWEEP_SECONDS = 3.0
"""Interval of the sweep, which finds changes whose hint was lost with the bus or a process."""

RECENT_SECONDS = 20.0
"""A sweep also reads ended runs that are younger than this: several sweeps, plus clock differences."""

MAX_PENDING = 10_000
"""Limit of pending hints; the sweep finds the changes of further ones."""

logger = structlog.get_logger()

Notify = Callable[[str, int | None], None]
NotifySubject = Callable[[SubjectHint], None]


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
    """One per process. `is_watched` returns whether a run has a watcher in this process; `tables` are those
    of rooms, tasks and artifacts."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        *,
        is_watched: Callable[[str], bool],
        tables: Sequence[SubjectTable] = (),
    ) -> None:
        self._store = store
        self._tables = tables
        self._bus = bus
        self._is_watched = is_watched
        self._listeners: dict[int, set[SessionListener]] = {}
        self._new_users: set[int] = set()
        self._new_listeners: list[tuple[int, SessionListener]] = []
        self._pending: dict[str, bool] = {}
        self._pending_subjects: list[SubjectHint] = []
        # By run: its status, and what it waits for.
        self._last_statuses: dict[str, tuple[RunStatus, int]] = {}
        self._initial_statuses: dict[str, tuple[RunStatus, int]] = {}
        """Statuses of runs when their user's first listener came: not notified, only later changes are."""
        self._has_changes = asyncio.Event()
        self._next_sweep = 0.0
        self._notified: set[str] = set()
        """Ended runs whose row is not needed any more."""
        self._next_deletion = 0.0
        self._own_until = 0.0
        """Until then this process may have rows of runs that it ended and notified of."""
        self._last_left: datetime | None = None
        bus.subscribe(Topic.NOTICE, self._on_message)
        bus.subscribe(Topic.SUBJECT, self._on_subject)
        bus.on_reconnect(self._catch_up)

    def notify(self, run_id: str, user_id: int | None = None) -> None:
        """Announces a new run or a changed status, which is already on disk.

        Without `user_id` every process that has listeners reads the run's row.
        """
        self._own_until = time.monotonic() + 3 * SWEEP_SECONDS
        if self._bus.is_alone and not self._listeners:
            return
        hint = Hint(run_id=run_id, user_id=user_id, is_watched=self._is_watched(run_id))
        if not self._bus.is_alone:
            self._bus.publish(Topic.NOTICE, msgspec.json.encode(hint))
        self._accept(hint)

    def notify_subject(self, hint: SubjectHint) -> None:
        """Announces a new message or other members of a room, which are already on disk."""
        if not self._bus.is_alone:
            self._bus.publish(Topic.SUBJECT, msgspec.json.encode(hint))
        self._accept_subject(hint)

    def end_access(self, user_id: int, session_id: str) -> None:
        """Announces that the user may no longer see a session: subscriptions to it end."""
        self.notify_subject(SubjectHint(session_id=session_id, user_id=user_id))

    def listen(self, user_id: int, listener: SessionListener) -> Callable[[], None]:
        """Notifies `listener` of the runs that the user may see from now on, and of the rooms that the user
        became a member of and has not read yet; the returned function ends that."""
        if user_id not in self._listeners:
            self._new_users.add(user_id)
        self._new_listeners.append((user_id, listener))
        self._has_changes.set()
        self._listeners.setdefault(user_id, set()).add(listener)

        def unsubscribe() -> None:
            listeners = self._listeners.get(user_id, set())
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(user_id, None)
                self._new_users.discard(user_id)
                self._last_left = utc_now()

        return unsubscribe

    async def states(self, user_id: int, session_ids: list[str]) -> dict[str, SessionState]:
        """The current states of those sessions that the user may see."""
        return await self._store.read_rows(
            lambda connection: read_states(connection, user_id, session_ids, self._tables)
        )

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
                await self._notify_subjects()
                await self._record_initial_statuses()
                await self._announce_memberships()
                await self._delete_notified()
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

    def _on_subject(self, process: str, payload: bytes) -> None:
        try:
            self._accept_subject(msgspec.json.decode(payload, type=SubjectHint))
        except msgspec.DecodeError as error:
            logger.warning("notice_not_decoded", process=process, error=str(error))

    def _accept_subject(self, hint: SubjectHint) -> None:
        if self._listeners and len(self._pending_subjects) < MAX_PENDING:
            self._pending_subjects.append(hint)
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
        changes = await self._store.read_rows(lambda connection: read_changes(connection, ids, self._tables))
        for change in changes:
            self._notify_listeners(change, is_watched=pending[change.run_id])
            if change.status in ENDED:
                self._notified.add(change.run_id)

    async def _delete_notified(self) -> None:
        """Deletes the rows of endings whose notifications were sent, once in SWEEP_SECONDS."""
        now = time.monotonic()
        if now < self._next_deletion or (not self._notified and now > self._own_until):
            return
        self._next_deletion = now + SWEEP_SECONDS
        # What this process ended so long ago was announced.
        await self._delete_endings(utc_now() - timedelta(seconds=SWEEP_SECONDS))

    async def _delete_endings(self, until: datetime) -> None:
        notified = frozenset(self._notified)
        await self._store.write_rows(
            lambda connection: delete_notified_endings(connection, self._bus.process, until, notified)
        )
        self._notified -= notified

    async def close(self) -> None:
        """Deletes the rows of the endings whose notifications were sent, once no hint is handled any more.
        Those since the last listener left are sent after the next start."""
        try:
            await self._delete_endings(utc_now() if self._listeners else self._last_left or utc_now())
        except SQLAlchemyError as error:
            logger.warning("notices_failed", error=str(error))

    async def _notify_subjects(self) -> None:
        if not self._pending_subjects:
            return
        hints, self._pending_subjects = self._pending_subjects, []
        ids = list({hint.session_id for hint in hints})
        subjects = await self._store.read_rows(
            lambda connection: read_subjects(connection, self._tables, ids)
        )
        for hint in hints:
            self._notify_people(hint, subjects.get(hint.session_id))

    def _notify_people(self, hint: SubjectHint, subject: SessionSubject | None) -> None:
        people = {hint.user_id}  # Who was removed learns that the room is not there any more.
        if subject is not None:
            people |= {subject.owner_id, *subject.members}
        for user_id in people & self._listeners.keys():
            for listener in tuple(self._listeners[user_id]):
                if listener.is_subscribed(hint.session_id):
                    listener.mark_changed(hint.session_id)
                elif subject is not None and subject.is_visible_to(user_id) and hint.is_notable_for(user_id):
                    listener.add_notification(subject_notification(hint, subject))

    async def _record_initial_statuses(self) -> None:
        """Records the statuses that new listeners must not be notified of."""
        users = list(self._new_users)
        for change in await self._read_of(users):
            self._initial_statuses.setdefault(change.run_id, (change.status, change.waiting_seq))
        self._new_users.difference_update(users)

    async def _announce_memberships(self) -> None:
        """Notifies new listeners of what happened while their users were away."""
        if not self._new_listeners:
            return
        new = tuple(self._new_listeners)
        users = list({user_id for user_id, _ in new})
        hints, subjects = await self._store.read_rows(
            lambda connection: read_memberships(connection, self._tables, users)
        )
        del self._new_listeners[: len(new)]
        for user_id, listener in new:
            is_open = listener in self._listeners.get(user_id, ())
            for hint in hints if is_open else ():
                subject = subjects.get(hint.session_id)
                if hint.user_id == user_id and subject is not None and subject.is_visible_to(user_id):
                    listener.add_notification(subject_notification(hint, subject))

    async def _sweep(self) -> None:
        changes = await self._read_of(list(self._listeners))
        known_statuses = self._initial_statuses | self._last_statuses
        current_ids = {change.run_id for change in changes}
        # A run that was unended and is no longer among the current ones has ended.
        ended_ids = [
            run_id
            for run_id, (status, _) in known_statuses.items()
            if status not in ENDED and run_id not in current_ids
        ]
        changes += await self._store.read_rows(
            lambda connection: read_changes(connection, ended_ids, self._tables)
        )
        for change in changes:
            if known_statuses.get(change.run_id) != (change.status, change.waiting_seq):
                self._notify_listeners(change)
        await self._notify_missed()
        for statuses in (self._initial_statuses, self._last_statuses):
            for run_id in statuses.keys() - current_ids:
                del statuses[run_id]

    async def _notify_missed(self) -> None:
        """Announces the endings of processes that are not there any more."""
        users = list(self._listeners)
        missed = await self._store.read_rows(
            lambda connection: read_unnotified(connection, self._bus.process, users)
        )
        for run_id in missed.keys() - self._notified:
            self.notify(run_id, missed[run_id])
            # The row goes after the hint was handled, also where the run has no session any more.
            self._notified.add(run_id)

    async def _read_of(self, users: list[int]) -> list[RunChange]:
        if not users:
            return []
        after = id_at(int((time.time() - RECENT_SECONDS) * 1000), 0)
        return await self._store.read_rows(
            lambda connection: read_changes_of(connection, users, after, self._tables)
        )

    def _notify_listeners(self, change: RunChange, *, is_watched: bool = False) -> None:
        audience = [one for one in (change.user_id, *change.members) if one in self._listeners]
        if not audience:
            return
        status = (change.status, change.waiting_seq)
        is_new = self._last_statuses.get(change.run_id) != status
        self._last_statuses[change.run_id] = status
        if not change.is_reported:
            return
        if is_new and change.status in NOTABLE:
            is_watched = is_watched or self._is_watched(change.run_id)
        for user_id in audience:
            # Several people follow a room: that one of them does says nothing of the others. A question waits
            # for its person on every device.
            is_elsewhere = not is_watched or bool(change.members) or change.status == RunStatus.WAITING
            is_due = is_new and change.is_notable_for(user_id) and is_elsewhere
            for listener in tuple(self._listeners[user_id]):
                if listener.is_subscribed(change.session_id):
                    listener.mark_changed(change.session_id)
                elif is_due:
                    listener.add_notification(notification(change))
