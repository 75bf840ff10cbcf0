"""The hub: the channels of the runs that are driven or watched in this process, and their relay.

The relay carries a live stream from the process that drives the run to those that watch it: it connects
`publisher.py` and `remote.py` to the bus. It also polls the rows of watched runs that are not driven here, so
that a message lost by the bus does no harm. All code here runs on the event loop's thread.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.infra.bus.core import Bus, Topic
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.log.channel import Channel
from luxx.runs.models import RunRow
from luxx.runs.streams.publisher import (
    FollowRequest,
    RunPublisher,
    decode_drive_begun,
    decode_messages,
    encode,
)
from luxx.runs.streams.remote import RemoteSubscriber, RunRowState
from luxx.wire.run import RunStatus

POLL_SECONDS = 1.0
"""Poll interval for runs that another process drives and that send no messages."""

POLLS_PER_FULL_POLL = 5
"""Every fifth poll reads all runs and renews the follow requests."""

IDS_AT_ONCE = 500
logger = structlog.get_logger()
_runs = table_of(RunRow)
_rows = select(_runs.c.id, _runs.c.status, _runs.c.owner, _runs.c.last_seq).where(
    _runs.c.id.in_(bindparam("ids", expanding=True))
)


class Hub:
    """The channels of the runs that are driven or watched in this process."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self._relay: RunRelay | None = None
        self.closed = asyncio.Event()

    def connect_relay(self, relay: "RunRelay") -> None:
        """Notifies the relay of driven and watched runs from now on."""
        self._relay = relay

    def watch(self, run_id: str, *, is_started: bool = True) -> Channel:
        """The run's channel, kept until `unwatch`. Not `is_started`: the run is about to start here."""
        channel = self._channels.get(run_id)
        if channel is None:
            channel = self._channels[run_id] = Channel(run_id)
        channel.watchers += 1
        if channel.watchers == 1 and not channel.is_driven and self._relay is not None:
            self._relay.watched(channel, is_started=is_started)
        return channel

    def unwatch(self, channel: Channel) -> None:
        """Ends one `watch`."""
        channel.watchers -= 1
        if channel.watchers == 0 and not channel.is_driven and self._relay is not None:
            self._relay.unwatched(channel)
        self._remove_if_unused(channel)

    @contextmanager
    def driven(self, run_id: str, logged: int, fence: int = 1) -> Generator[Channel]:
        """The run's channel for its driver, which claimed it with `fence` and read its log up to `logged`."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        driver_token = channel.driver = object()
        if self._relay is not None:
            self._relay.driven(channel, fence)
        channel.begin(logged)
        try:
            yield channel
        finally:
            # Another drive of the same run may have begun in this process.
            if channel.driver is driver_token:
                channel.driver = None
                channel.end_feed()
                if self._relay is not None:
                    self._relay.stopped_driving(channel)
                self._remove_if_unused(channel)

    def announce_log(self, run_id: str, seq: int) -> None:
        """Notifies the watchers of a run that its log goes up to `seq`; for writers that do not drive the
        run.

        It publishes no frame, because this process may lack earlier events of other processes.
        """
        channel = self._channels.get(run_id)
        if channel is not None and seq > channel.known_seq:
            channel.known_seq = seq
            channel.wake()

    @property
    def watchers(self) -> int:
        """How many clients watch runs in this process."""
        return sum(channel.watchers for channel in self._channels.values())

    def is_watched(self, run_id: str) -> bool:
        """Whether a client watches the run in this process."""
        channel = self._channels.get(run_id)
        return channel is not None and channel.watchers > 0

    def close(self) -> None:
        """Ends every watch, because the server stops; clients reconnect with their last event id."""
        self.closed.set()
        self.wake_all()

    def wake_all(self) -> None:
        """Wakes every watcher; called every few seconds for the keep-alive comments."""
        for channel in list(self._channels.values()):
            channel.wake()

    def _remove_if_unused(self, channel: Channel) -> None:
        if not channel.is_driven and channel.watchers == 0:
            self._channels.pop(channel.run_id, None)


class RunRelay:
    """One per process. If it is the only process, it only polls rows."""

    def __init__(self, hub: Hub, bus: Bus, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._bus = bus
        self._store = store
        self._poll_seconds = poll_seconds
        self._poll_count = 0
        self._subscribers: dict[str, RemoteSubscriber] = {}
        self._starting: dict[str, Channel] = {}
        """Watched runs that are about to start here, of the only process: they subscribe at the next poll."""
        self._publisher = RunPublisher(bus)
        self._busy = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None
        hub.connect_relay(self)
        bus.subscribe(Topic.FOLLOW, self._on_follow_requests)
        bus.subscribe(Topic.UNFOLLOW, self._publisher.on_unfollow)
        bus.subscribe(Topic.FRAMES, self._on_messages)
        bus.subscribe(Topic.DRIVE_BEGUN, self._on_drive_begun)
        bus.on_reconnect(self._on_bus_up)

    @property
    def followed_runs(self) -> int:
        """How many runs of other processes this process follows."""
        return sum(1 for subscriber in self._subscribers.values() if subscriber.driver)

    async def open(self) -> None:
        """Starts to poll rows."""
        self._poll_task = asyncio.create_task(self._keep_polling(), name="relay")

    async def close(self) -> None:
        """Ends the polling and all subscriptions."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.gather(self._poll_task, return_exceptions=True)
        for subscriber in self._subscribers.values():
            subscriber.stop()
        self._subscribers.clear()

    def driven(self, channel: Channel, fence: int) -> None:
        """This process begins to drive the run; called before the first frame."""
        self.unwatched(channel)
        if not self._bus.is_alone:
            self._publisher.driven(channel, fence)
            self._note_busy()

    def stopped_driving(self, channel: Channel) -> None:
        """This process no longer drives the run: it ended, waits, or continues elsewhere."""
        if not self._bus.is_alone:
            self._publisher.stopped_driving(channel)
        if channel.watchers:
            self.watched(channel, is_started=False)

    def watched(self, channel: Channel, *, is_started: bool) -> None:
        """A run that is not driven here has its first watcher. Not `is_started`: it may start here soon."""
        if self._bus.is_alone and not is_started:
            self._starting[channel.run_id] = channel
        else:
            subscriber = self._subscribe(channel)
            if is_started:
                self._request_follow(subscriber, None)
        self._note_busy()

    def unwatched(self, channel: Channel) -> None:
        """The run no longer has a watcher, or is driven here now."""
        self._starting.pop(channel.run_id, None)
        subscriber = self._subscribers.pop(channel.run_id, None)
        if subscriber is None:
            return
        if subscriber.driver and not subscriber.is_over:
            self._bus.publish(Topic.UNFOLLOW, encode([channel.run_id]), to=subscriber.driver)
        subscriber.stop()

    def _subscribe(self, channel: Channel) -> RemoteSubscriber:
        subscriber = RemoteSubscriber(channel, self._store, self._request_follow)
        self._subscribers[channel.run_id] = subscriber
        return subscriber

    def _request_follow(self, subscriber: RemoteSubscriber, to: str | None) -> None:
        if not self._bus.is_alone:
            self._bus.publish(Topic.FOLLOW, encode([FollowRequest(subscriber.run_id)]), to=to)

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
            self._bus.publish(Topic.UNFOLLOW, encode(unwanted), to=sender)

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

    @property
    def _is_busy(self) -> bool:
        return bool(self._subscribers or self._starting) or self._publisher.is_busy

    def _note_busy(self) -> None:
        if self._is_busy:
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
                logger.warning("relay_poll_failed", error=type(error).__name__)
            except Exception:
                # Continue after any error: without polls a lost message would stay lost.
                logger.exception("relay_poll_failed")
            if not self._is_busy:
                self._busy.clear()

    def _is_urgent(self, subscriber: RemoteSubscriber) -> bool:
        """Whether the run is running but sends no messages, or was not polled yet."""
        if subscriber.status is None:
            return True
        if self._bus.is_alone:
            return False
        return not self._bus.is_up or (subscriber.status == RunStatus.RUNNING and not subscriber.driver)

    async def _poll(self, *, is_full: bool) -> None:
        starting, self._starting = self._starting, {}
        for channel in starting.values():
            self._subscribe(channel)
        polled = [
            subscriber
            for subscriber in self._subscribers.values()
            if not subscriber.is_over and (is_full or self._is_urgent(subscriber))
        ]
        for start in range(0, len(polled), IDS_AT_ONCE):
            batch = polled[start : start + IDS_AT_ONCE]
            row_states = await self._read([subscriber.run_id for subscriber in batch])
            for subscriber in batch:
                # The subscriber may have stopped while the rows were read.
                if not subscriber.is_over:
                    row = row_states.get(subscriber.run_id)
                    subscriber.compare_with_row(
                        row, self._bus.process, is_up=self._bus.is_up, is_asking=is_full
                    )

    async def _read(self, ids: list[str]) -> dict[str, RunRowState]:
        def read_rows(session: Session) -> dict[str, RunRowState]:
            rows = session.connection().execute(_rows, {"ids": ids})
            return {
                id_: RunRowState(RunStatus(status), owner, last_seq) for id_, status, owner, last_seq in rows
            }

        return await self._store.read(read_rows)

    def _renew_follows(self) -> None:
        """Repeats the follow requests to the drivers."""
        followed: dict[str, list[FollowRequest]] = {}
        for subscriber in self._subscribers.values():
            if subscriber.driver and not subscriber.is_over:
                followed.setdefault(subscriber.driver, []).append(subscriber.follow_request())
        for driver, follow_requests in followed.items():
            self._bus.publish(Topic.FOLLOW, encode(follow_requests), to=driver)
