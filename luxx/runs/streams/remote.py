"""The subscriber's side of the relay: feeds the channel of a run that another process drives.

A remote subscriber publishes the driver's messages and the log, which it reads once for all local watchers.
When it misses a message, it asks for a new stream, and the watchers read the log.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import assert_never

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.infra.store.engine import Store
from luxx.runs.log.channel import Channel, Frame, OpenStep, event_frame
from luxx.runs.log.events import StoredEvent, read_page
from luxx.runs.streams.publisher import (
    NOT_COUNTED,
    DriveEnded,
    FollowRequest,
    LogGrown,
    RelayItem,
    RelayMessage,
    StepGrown,
    StepOpened,
)
from luxx.wire.event import CLOSING_EVENT_TYPES
from luxx.wire.run import ENDED, RunStatus

MAX_QUEUED_ITEMS = 20_000
"""Limit of items that wait while the log is read; beyond it the subscriber asks for a new stream."""

STEP_EVENT = "process_step"

logger = structlog.get_logger()


class _StepIndex(msgspec.Struct, frozen=True):
    index: int


class _StepOf(msgspec.Struct, frozen=True):
    """The part of a `process_step` that identifies the step."""

    step: _StepIndex
    msg_id: str = ""
    step_id: str = ""


_step_of = msgspec.json.Decoder(_StepOf).decode


class RunRowState(msgspec.Struct, frozen=True):
    """The columns of a run's row that a remote subscriber needs."""

    status: RunStatus
    owner: str | None
    last_seq: int


class RemoteSubscriber:
    """Follows one run while it has local watchers. `request_follow` asks a process, or all (None)."""

    def __init__(
        self, channel: Channel, store: Store, request_follow: Callable[["RemoteSubscriber", str | None], None]
    ) -> None:
        self.channel = channel
        self.run_id = channel.run_id
        self.driver = ""
        """The process whose stream arrives; empty while there is none."""
        self.is_over = False
        self.status: RunStatus | None = None
        """The status of the run at the last poll; None before the first."""
        self._store = store
        self._request_follow = request_follow
        self._fence = 0
        self._stream = 0
        self._number = 0
        self._has_received = False
        self._queue: deque[RelayItem] = deque()
        self._reading: asyncio.Task[None] | None = None

    def follow_request(self) -> FollowRequest:
        """The request that renews the subscription; send it every few seconds."""
        has_received, self._has_received = self._has_received, False
        return FollowRequest(self.run_id, self._stream, NOT_COUNTED if has_received else self._number)

    def receive(self, sender: str, message: RelayMessage) -> None:
        """Handles a message of a driver."""
        if message.number == 0:
            if message.fence >= self._fence:
                self._begin(sender, message)
        elif sender == self.driver and message.stream == self._stream:
            if message.number != self._number + 1:
                self.resubscribe(sender)
                return
            self._number = message.number
            self._has_received = True
            self._queue.extend(message.items)
            self._process_queue()

    def resubscribe(self, driver: str | None) -> None:
        """Asks for a new stream after a lost message or a new driver; ignores messages until it begins."""
        self._unfollow()
        self._request_follow(self, driver)

    def end_feed(self) -> None:
        """Ends the feed of the channel; watchers have only the log until a new stream begins."""
        self._unfollow()
        if self.channel.has_producer:
            self.channel.end_feed()

    def stop(self) -> None:
        """Stops for good: the run has no local watchers, or is driven here now."""
        self._unfollow()
        self.is_over = True

    def compare_with_row(
        self, row_state: RunRowState | None, own_process: str, *, is_up: bool, is_asking: bool
    ) -> None:
        """Compares with the run's row (None: deleted); asks its driver to follow, or all if `is_asking`."""
        channel = self.channel
        if row_state is None:
            channel.is_deleted = self.is_over = True
            self.end_feed()
            channel.wake()
            return
        self.status = row_state.status
        driver = (
            row_state.owner
            if row_state.status == RunStatus.RUNNING and row_state.owner != own_process
            else None
        )
        if self.driver and is_up:
            is_behind = (
                row_state.last_seq > channel.logged and not self._has_received and self._reading is None
            )
            if driver is not None and (driver != self.driver or is_behind):
                self.resubscribe(driver)
            elif is_behind:
                self.end_feed()
        if not self.driver or not is_up:
            self._follow_log(row_state, driver if is_up else None, is_asking=is_up and is_asking)

    def _follow_log(self, row_state: RunRowState, driver: str | None, *, is_asking: bool) -> None:
        self.end_feed()
        if row_state.last_seq > self.channel.known_seq:
            self.channel.known_seq = row_state.last_seq
            self.channel.wake()
        if row_state.status in ENDED:
            self.is_over = True
        elif driver is not None or is_asking:
            self._request_follow(self, driver)

    def _unfollow(self) -> None:
        self.driver, self._stream = "", 0
        self._queue.clear()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _begin(self, sender: str, message: RelayMessage) -> None:
        self._unfollow()
        self.driver, self._fence = sender, message.fence
        self._stream, self._number = message.stream, 0
        self._has_received = True
        logged, *items = message.items
        opened = [self._open_step(item, item.text) for item in items if isinstance(item, StepOpened)]
        self.channel.begin(logged.seq if isinstance(logged, LogGrown) else 0, opened)
        if isinstance(message.items[-1], DriveEnded):
            self.end_feed()

    def _open_step(self, item: StepOpened, text: str = "") -> OpenStep:
        return OpenStep(
            self.run_id,
            item.index,
            item.kind,
            turn=item.turn,
            call_id=item.call_id,
            name=item.name,
            text=text,
            preceding=item.preceding,
        )

    def _process_queue(self) -> None:
        """Publishes the queued items up to the next one that needs the log."""
        frames: list[Frame] = []
        while self._queue and self._reading is None:
            item = self._queue.popleft()
            match item:
                case StepGrown() | StepOpened():
                    frame = self._apply_text(item)
                    if frame is None:
                        self.resubscribe(self.driver)
                        return
                    frames.append(frame)
                case LogGrown(seq=seq):
                    if seq > self.channel.logged:
                        self._reading = asyncio.create_task(self._read_log(seq, self._stream))
                case DriveEnded():
                    self.channel.publish(*frames)
                    self.end_feed()
                    return
                case _:
                    assert_never(item)
        if frames:
            self.channel.publish(*frames)
        if len(self._queue) > MAX_QUEUED_ITEMS:
            self.resubscribe(self.driver)

    def _apply_text(self, item: StepGrown | StepOpened) -> Frame | None:
        if isinstance(item, StepOpened):
            step = self._open_step(item)
            self.channel.steps_of(item.turn)[item.index] = step
            return Frame(step.grow(item.text), 0, step, item.text, is_opening=True)
        if (step := self.channel.open_steps.get(item.turn, {}).get(item.index)) is None:
            return None
        return Frame(step.grow(item.text), 0, step, item.text)

    async def _read_log(self, seq: int, stream: int) -> None:
        """Publishes the log up to `seq`, then continues with the queued items."""
        try:
            while self.channel.logged < seq:
                after = self.channel.logged
                page = await self._store.read(
                    lambda session, after=after: read_page(session, self.run_id, after, seq)
                )
                if not page:
                    break  # The run was deleted; the next poll notices.
                self._publish(page)
        except SQLAlchemyError as error:
            logger.warning("remote_run_log_read_failed", run_id=self.run_id, error=type(error).__name__)
        except Exception:
            # No task awaits this one: an uncaught error would leave `_reading` set and stop the feed.
            logger.exception("remote_run_log_read_failed", run_id=self.run_id)
        if self._stream != stream:
            return
        self._reading = None
        if self.channel.logged < seq:
            self.end_feed()
        elif not self.is_over:
            self._process_queue()

    def _publish(self, page: list[StoredEvent]) -> None:
        channel = self.channel
        for event in page:
            if event.type == STEP_EVENT:
                closed = _step_of(event.data)
                channel.close_step((closed.msg_id or closed.step_id, closed.step.index))
        channel.logged = page[-1].seq
        self.is_over = self.is_over or page[-1].type in CLOSING_EVENT_TYPES
        channel.publish_events(*(event_frame(event.seq, event.type, event.data) for event in page))
