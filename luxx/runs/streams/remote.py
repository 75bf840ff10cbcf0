"""The follower's side of the relay: a run that another process drives, as if it was driven here.

A mirror feeds the run's channel with what the driver tells and with the log, which it reads once for all
who watch here. Whenever it misses something it asks for a new beginning, and watchers go to the log.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import assert_never

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.infra.store.engine import Store
from luxx.runs.log.events import StoredEvent, read_page
from luxx.runs.streams.frames import (
    NOT_COUNTED,
    Asked,
    Grown,
    Item,
    Logged,
    Opened,
    OpenStep,
    Over,
    Told,
    logged_frame,
)
from luxx.runs.streams.hub import Channel, Frame
from luxx.wire.event import ENDING
from luxx.wire.run import ENDED, RunStatus

MOST_WAITING = 20_000
"""Items that wait while the log is read; more are not kept, and it begins anew."""

STEP_EVENT = "process_step"

logger = structlog.get_logger()


class _StepIndex(msgspec.Struct, frozen=True):
    index: int


class _StepOf(msgspec.Struct, frozen=True):
    """As much of a `process_step` as says which step it closes."""

    step: _StepIndex


_step_of = msgspec.json.Decoder(_StepOf).decode


class Seen(msgspec.Struct, frozen=True):
    """A run's row, as far as a mirror looks at it."""

    status: RunStatus
    owner: str | None
    last_seq: int


class Mirror:
    """Of one run, while somebody watches it here. `ask` sends to a process, or to all (None)."""

    def __init__(self, channel: Channel, store: Store, ask: Callable[["Mirror", str | None], None]) -> None:
        self.channel = channel
        self.run_id = channel.run_id
        self.driver = ""
        """Who tells us; empty while nobody does."""
        self.is_over = False
        self.status: RunStatus | None = None
        """As the run's row said when it was last looked at; None before."""
        self._store = store
        self._ask = ask
        self._fence = 0
        self._stream = 0
        self._number = 0
        self._has_moved = False
        self._waiting: deque[Item] = deque()
        self._reading: asyncio.Task[None] | None = None

    def following(self) -> Asked:
        """What tells its driver that it still follows; say it every few seconds."""
        has_moved, self._has_moved = self._has_moved, False
        return Asked(self.run_id, self._stream, NOT_COUNTED if has_moved else self._number)

    def take(self, sender: str, told: Told) -> None:
        """Something that a driver told."""
        if told.number == 0:
            if told.fence >= self._fence:
                self._begin(sender, told)
        elif sender == self.driver and told.stream == self._stream:
            if told.number != self._number + 1:
                self.begin_anew(sender)
                return
            self._number = told.number
            self._has_moved = True
            self._waiting.extend(told.items)
            self._work_off()

    def begin_anew(self, driver: str | None) -> None:
        """Something was missed, or another drives now: asks, and takes nothing until that is answered."""
        self._follow_nobody()
        self._ask(self, driver)

    def cease(self) -> None:
        """Nobody tells anything for now: there is only the log."""
        self._follow_nobody()
        if self.channel.is_fed:
            self.channel.cease()

    def stop(self) -> None:
        """It is watched here no longer, or is driven here now."""
        self._follow_nobody()
        self.is_over = True

    def look(self, seen: Seen | None, here: str, *, is_up: bool, is_asking: bool) -> None:
        """Compares with the run's row; None: it was deleted. Asks its driver, or all if `is_asking`."""
        channel = self.channel
        if seen is None:
            channel.is_gone = self.is_over = True
            self.cease()
            channel.wake()
            return
        self.status = seen.status
        driver = seen.owner if seen.status == RunStatus.RUNNING and seen.owner != here else None
        if self.driver and is_up:
            is_behind = seen.last_seq > channel.logged and not self._has_moved and self._reading is None
            if driver is not None and (driver != self.driver or is_behind):
                self.begin_anew(driver)
            elif is_behind:
                self.cease()
        if not self.driver or not is_up:
            self._look_at_the_log(seen, driver if is_up else None, is_asking=is_up and is_asking)

    def _look_at_the_log(self, seen: Seen, driver: str | None, *, is_asking: bool) -> None:
        self.cease()
        if seen.last_seq > self.channel.known:
            self.channel.known = seen.last_seq
            self.channel.wake()
        if seen.status in ENDED:
            self.is_over = True
        elif driver is not None or is_asking:
            self._ask(self, driver)

    def _follow_nobody(self) -> None:
        self.driver, self._stream = "", 0
        self._waiting.clear()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _begin(self, sender: str, told: Told) -> None:
        self._follow_nobody()
        self.driver, self._fence = sender, told.fence
        self._stream, self._number = told.stream, 0
        self._has_moved = True
        logged, *items = told.items
        opened = [self._opened(item) for item in items if isinstance(item, Opened)]
        self.channel.begin(logged.seq if isinstance(logged, Logged) else 0, opened)
        if isinstance(told.items[-1], Over):
            self.cease()

    def _opened(self, item: Opened) -> OpenStep:
        return OpenStep(
            self.run_id, item.index, item.kind, call_id=item.call_id, name=item.name, text=item.text
        )

    def _work_off(self) -> None:
        """Takes what waits, up to the next place where the log has to be read."""
        frames: list[Frame] = []
        while self._waiting and self._reading is None:
            item = self._waiting.popleft()
            match item:
                case Grown() | Opened():
                    frame = self._speak(item)
                    if frame is None:
                        self.begin_anew(self.driver)
                        return
                    frames.append(frame)
                case Logged(seq=seq):
                    if seq > self.channel.logged:
                        self._reading = asyncio.create_task(self._read_log(seq, self._stream))
                case Over():
                    self.channel.publish(*frames)
                    self.cease()
                    return
                case _:
                    assert_never(item)
        if frames:
            self.channel.publish(*frames)
        if len(self._waiting) > MOST_WAITING:
            self.begin_anew(self.driver)

    def _speak(self, item: Grown | Opened) -> Frame | None:
        if isinstance(item, Opened):
            step = OpenStep(self.run_id, item.index, item.kind, call_id=item.call_id, name=item.name)
            self.channel.open_steps[item.index] = step
        elif (step := self.channel.open_steps.get(item.index)) is None:
            return None
        return Frame(step.grow(item.text), 0, step, item.text)

    async def _read_log(self, seq: int, stream: int) -> None:
        """Publishes the log up to `seq`, then goes on with what came meanwhile."""
        try:
            while self.channel.logged < seq:
                page = await self._read_page(self.channel.logged, seq)
                if not page:
                    break  # Deleted meanwhile: the next look says so.
                self._publish(page)
        except SQLAlchemyError as error:
            logger.warning("log_not_mirrored", run_id=self.run_id, error=type(error).__name__)
        except Exception:
            # Nobody awaits this: it would count as still reading, and nothing would come here any more.
            logger.exception("log_not_mirrored", run_id=self.run_id)
        if self._stream != stream:
            return
        self._reading = None
        if self.channel.logged < seq:
            self.cease()
        elif not self.is_over:
            self._work_off()

    async def _read_page(self, after: int, until: int) -> list[StoredEvent]:
        return await self._store.read(lambda session: read_page(session, self.run_id, after, until))

    def _publish(self, page: list[StoredEvent]) -> None:
        channel = self.channel
        for event in page:
            if event.type == STEP_EVENT:
                channel.open_steps.pop(_step_of(event.data).step.index, None)
        channel.logged = page[-1].seq
        self.is_over = self.is_over or page[-1].type in ENDING
        channel.publish_events(
            *(
                Frame(
                    logged_frame(event.seq, event.type, event.data), event.seq, is_last=event.type in ENDING
                )
                for event in page
            )
        )
