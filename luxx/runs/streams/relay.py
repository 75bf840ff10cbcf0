"""The relay: whoever watches a run sees it live, whichever process drives it.

Joins the two sides (`telling.py`, `mirror.py`) to the bus and the hub, and looks at the rows of runs that
are watched here and driven elsewhere, or by nobody: what the bus loses is found there.
"""

import asyncio

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.infra.bus.core import Bus
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.runs.streams.frames import (
    DRIVEN,
    FRAMES,
    UNWATCH,
    WATCH,
    FollowRequest,
    decode_drive_begun,
    decode_messages,
    encode,
)
from luxx.runs.streams.hub import Channel, Hub
from luxx.runs.streams.publisher import RunPublisher
from luxx.runs.streams.remote import RemoteSubscriber, RunRowState
from luxx.wire.run import RunStatus

POLL_SECONDS = 1.0
"""How often a run is looked at that somebody else drives and nobody tells of."""

POLLS_PER_FULL_POLL = 5
"""All others are looked at once in so many times, and those that are followed are asked for again."""

IDS_AT_ONCE = 500

logger = structlog.get_logger()
_runs = table_of(RunRow)
_rows = select(_runs.c.id, _runs.c.status, _runs.c.owner, _runs.c.last_seq).where(
    _runs.c.id.in_(bindparam("ids", expanding=True))
)


class RunRelay:
    """One per process; where it is alone it only looks at rows."""

    def __init__(self, hub: Hub, bus: Bus, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._bus = bus
        self._store = store
        self._poll_seconds = poll_seconds
        self._poll_count = 0
        self._subscribers: dict[str, RemoteSubscriber] = {}
        self._publisher = RunPublisher(bus)
        self._busy = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None
        hub.connect_relay(self)
        bus.on(WATCH, self._on_follow_requests)
        bus.on(UNWATCH, self._publisher.on_unfollow)
        bus.on(FRAMES, self._on_messages)
        bus.on(DRIVEN, self._on_drive_begun)
        bus.on_reconnect(self._on_bus_up)

    @property
    def followed_runs(self) -> int:
        """How many runs are followed here that another process drives."""
        return sum(1 for subscriber in self._subscribers.values() if subscriber.driver)

    async def open(self) -> None:
        """Begins to look at rows, where there is something to look at."""
        self._poll_task = asyncio.create_task(self._keep_polling(), name="relay")

    async def close(self) -> None:
        """Follows nothing any more."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.gather(self._poll_task, return_exceptions=True)
        for subscriber in self._subscribers.values():
            subscriber.stop()
        self._subscribers.clear()

    def driven(self, channel: Channel, fence: int) -> None:
        """This process drives the run from now on, and before any frame."""
        self._unsubscribe(channel)
        if not self._bus.is_alone:
            self._publisher.driven(channel, fence)
            self._note_busy()

    def stopped_driving(self, channel: Channel) -> None:
        """This process drives the run no longer; it may end, go on elsewhere, or wait."""
        self._publisher.stopped_driving(channel)
        if channel.watchers:
            self.watched(channel, is_started=False)

    def watched(self, channel: Channel, *, is_started: bool) -> None:
        """The first watcher of a run that is not driven here; not `is_begun`: it may be, in a moment."""
        subscriber = self._subscribers[channel.run_id] = RemoteSubscriber(
            channel, self._store, self._request_follow
        )
        self._note_busy()
        if is_started:
            self._request_follow(subscriber, None)

    def unwatched(self, channel: Channel) -> None:
        """Nobody watches it any more."""
        self._unsubscribe(channel)

    def _unsubscribe(self, channel: Channel) -> None:
        subscriber = self._subscribers.pop(channel.run_id, None)
        if subscriber is None:
            return
        if subscriber.driver and not subscriber.is_over:
            self._bus.publish(UNWATCH, encode([channel.run_id]), to=subscriber.driver)
        subscriber.stop()

    def _request_follow(self, subscriber: RemoteSubscriber, to: str | None) -> None:
        if not self._bus.is_alone:
            self._bus.publish(WATCH, encode([FollowRequest(subscriber.run_id)]), to=to)

    def _on_follow_requests(self, sender: str, payload: bytes) -> None:
        self._publisher.on_follow_requests(sender, payload)
        self._note_busy()

    def _on_messages(self, sender: str, payload: bytes) -> None:
        unwanted: list[str] = []
        for message in decode_messages(payload):
            subscriber = self._subscribers.get(message.run_id)
            if subscriber is None:
                unwanted.append(message.run_id)
            elif not subscriber.is_over:
                subscriber.receive(sender, message)
        if unwanted:
            self._bus.publish(UNWATCH, encode(unwanted), to=sender)

    def _on_drive_begun(self, sender: str, payload: bytes) -> None:
        drive_begun = decode_drive_begun(payload)
        subscriber = self._subscribers.get(drive_begun.run_id)
        if subscriber is not None and not subscriber.is_over and self._bus.process not in drive_begun.served:
            subscriber.resubscribe(sender)

    def _on_bus_up(self) -> None:
        self._publisher.on_bus_up()
        for subscriber in self._subscribers.values():
            if not subscriber.is_over:
                subscriber.resubscribe(None)

    def _note_busy(self) -> None:
        if self._subscribers or self._publisher.is_busy:
            self._busy.set()

    async def _keep_polling(self) -> None:
        while True:
            await self._busy.wait()
            await asyncio.sleep(self._poll_seconds)
            self._poll_count += 1
            is_full = self._poll_count % POLLS_PER_FULL_POLL == 0
            try:
                try:
                    await self._poll(is_full=is_full)
                finally:
                    if is_full:
                        self._publisher.drop_silent()
                        self._renew_follows()
            except SQLAlchemyError as error:
                logger.warning("runs_not_looked_at", error=type(error).__name__)
            except Exception:
                # Whatever it was, the next look may succeed; without looks a lost message is lost for good.
                logger.exception("look_failed")
            if not (self._subscribers or self._publisher.is_busy):
                self._busy.clear()

    def _is_urgent(self, subscriber: RemoteSubscriber) -> bool:
        """Whether it should be told what happens now, and is not; or its run may have ended just before."""
        if subscriber.status is None:
            return True
        if self._bus.is_alone:
            return False
        return not self._bus.is_up or (subscriber.status == RunStatus.RUNNING and not subscriber.driver)

    async def _poll(self, *, is_full: bool) -> None:
        polled = [
            subscriber
            for subscriber in self._subscribers.values()
            if not subscriber.is_over and (is_full or self._is_urgent(subscriber))
        ]
        for start in range(0, len(polled), IDS_AT_ONCE):
            batch = polled[start : start + IDS_AT_ONCE]
            row_states = await self._read([subscriber.run_id for subscriber in batch])
            for subscriber in batch:
                # It may have been stopped, or its run driven here, while the rows were read.
                if not subscriber.is_over:
                    row = row_states.get(subscriber.run_id)
                    subscriber.compare_with_row(
                        row, self._bus.process, is_up=self._bus.is_up, is_asking=is_full
                    )

    async def _read(self, ids: list[str]) -> dict[str, RunRowState]:
        def work(session: Session) -> dict[str, RunRowState]:
            rows = session.connection().execute(_rows, {"ids": ids})
            return {
                id_: RunRowState(RunStatus(status), owner, last_seq) for id_, status, owner, last_seq in rows
            }

        return await self._store.read(work)

    def _renew_follows(self) -> None:
        """Tells drivers that their runs are still followed here."""
        followed: dict[str, list[FollowRequest]] = {}
        for subscriber in self._subscribers.values():
            if subscriber.driver and not subscriber.is_over:
                followed.setdefault(subscriber.driver, []).append(subscriber.follow_request())
        for driver, follow_requests in followed.items():
            self._bus.publish(WATCH, encode(follow_requests), to=driver)
