"""The hub: one channel per run, with the frames of its live stream, for the watchers in this process.

A channel is a ring of frames with one producer: the driver, or the remote subscriber of a driver in another
process. Watchers hold an index into the ring, so no queue can overflow and a slow watcher does not slow the
run. A watcher that falls off the ring continues from the log. All code here runs on the event loop's thread.
"""

import asyncio
import sys
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol

import msgspec

from luxx.runs.streams.frames import OpenStep

RING_FRAMES = 2048
"""Frames kept for slow watchers, up to twice as many between two trims: about a megabyte of deltas."""

RING_BYTES = 2 * 1024 * 1024
"""Bytes of frames kept for slow watchers; deltas alone may reach twice as many between two trims."""

MIN_RING_FRAMES = 8
"""Frames kept even if all readers have read them (4 kB of deltas): a trim at each frame would cost time."""

NO_POSITION = sys.maxsize
"""The position of a reader that will take a new position: it needs no frame of the ring."""

MAX_RESETS = 1000
"""How many reset frames are kept for watchers that fell off the ring."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame of the stream. `seq` is 0 if it is not logged; `step` and `text` are set on deltas.

    `is_reset`: the text of the step is discarded. `is_gap`: not a frame but a marker; what follows does not
    continue what was before, so a watcher must read the log.
    """

    data: bytes
    seq: int = 0
    step: OpenStep | None = None
    text: str = ""
    is_last: bool = False
    is_reset: bool = False
    is_gap: bool = False


GAP = Frame(b"", is_gap=True)


class RingReader(Protocol):
    """A reader with a position in a ring."""

    @property
    def position(self) -> int:
        """The index of the first unread frame; NO_POSITION if it needs none."""
        ...


class FrameListener(RingReader, Protocol):
    """A reader that is notified of every new frame: the subscription of another process (`publisher.py`), or
    a watch that writes to its client at once."""

    def wake(self) -> None:
        """Called for new frames. Must not raise: it runs inside `publish`."""
        ...


class Channel:
    """The live stream of one run. `logged` is the seq of the newest logged frame, 0 before the first.

    `driver` is set while this process drives the run. `has_producer`: frames arrive from a driver, here or
    remote; else there is only the log, which ends at `known_seq` or later. `is_deleted`: the run was deleted.
    `reset_count` counts the reset frames, which discard the text of a lost producer.
    """

    __slots__ = (
        "_base",
        "_frames",
        "_full",
        "_listener_futures",
        "_listeners",
        "_reset_frames",
        "_waiting",
        "driver",
        "has_producer",
        "is_deleted",
        "known_seq",
        "logged",
        "open_steps",
        "readers",
        "reset_count",
        "run_id",
        "subscriptions",
        "watchers",
    )

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.logged = 0
        self.known_seq = 0
        self.reset_count = 0
        self.driver: object | None = None
        self.has_producer = False
        self.is_deleted = False
        self.open_steps: dict[int, OpenStep] = {}
        self.watchers = 0
        self.subscriptions: Collection[FrameListener] = ()
        self.readers: set[RingReader] = set()
        self._frames: list[Frame] = []
        self._base = 0
        self._full = MIN_RING_FRAMES
        self._reset_frames: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._listeners: tuple[FrameListener, ...] = ()
        self._listener_futures: list[asyncio.Future[None]] = []

    @property
    def is_driven(self) -> bool:
        """Whether this process drives the run."""
        return self.driver is not None

    @property
    def end(self) -> int:
        """The index that the next frame will have."""
        return self._base + len(self._frames)

    def begin(self, logged: int, steps: Iterable[OpenStep] = ()) -> None:
        """A producer begins: the log ends at `logged`, and `steps` are open."""
        resets = self._reset_open_steps()
        # Keep the same dict object: the driver's CompletionReader holds it.
        self.open_steps.clear()
        self.open_steps.update({step.index: step for step in steps})
        self.logged, self.has_producer = logged, True
        if logged or self.open_steps or resets:
            # Earlier watchers may miss events: they read the log and then continue from here.
            self.publish(*resets, GAP)

    def end_feed(self) -> None:
        """The producer ends. The text of its open steps is not in the log, so watchers must discard it."""
        resets = self._reset_open_steps()
        self.open_steps.clear()
        self.has_producer = False
        self.publish(*resets)
        self.wake()

    def resets_since(self, count: int) -> bytes | None:
        """The bytes of the reset frames after the first `count`; None if they are no longer kept."""
        missed = self.reset_count - count
        if missed > len(self._reset_frames):
            return None
        return b"".join(self._reset_frames[len(self._reset_frames) - missed :])

    def _reset_open_steps(self) -> list[Frame]:
        frames = [Frame(step.reset_frame(), 0, step, is_reset=True) for step in self.open_steps.values()]
        self.reset_count += len(frames)
        self._reset_frames = [*self._reset_frames, *(frame.data for frame in frames)][-MAX_RESETS:]
        return frames

    def publish(self, *frames: Frame) -> None:
        """Adds frames, wakes the waiters and notifies the listeners."""
        self._frames += frames
        if len(self._frames) > self._full:
            self._trim()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            _resolve(waiting)
        for listener in self._listeners:
            listener.wake()
        for subscription in self.subscriptions:
            subscription.wake()

    def publish_events(self, *frames: Frame) -> None:
        """Adds frames of logged events. They may be large, so the ring is also trimmed to RING_BYTES."""
        self.publish(*frames)
        self._trim_to_bytes()

    def _trim(self) -> None:
        """Drops the frames that all readers have read, and the unread ones of too slow readers."""
        frames = self._frames
        start = end = self._base + len(frames)
        for readers in (self.readers, self.subscriptions):
            for reader in readers:
                if (position := reader.position) < start:
                    start = position
        # A reader that fell off the ring keeps no frames.
        start = max(start, end - RING_FRAMES, self._base)
        del frames[: start - self._base]
        self._base = start
        self._full = MIN_RING_FRAMES
        if end - start > MIN_RING_FRAMES:
            self._trim_to_bytes()
            self._full = max(MIN_RING_FRAMES, min(2 * len(frames), 2 * RING_FRAMES))

    def _trim_to_bytes(self) -> None:
        """Drops the oldest frames beyond RING_BYTES, but keeps at least one."""
        sizes = [len(frame.data) for frame in self._frames]
        size, first = sum(sizes), 0
        while size > RING_BYTES and first < len(sizes) - 1:
            size -= sizes[first]
            first += 1
        del self._frames[:first]
        self._base += first

    def trim_idle(self) -> None:
        """Drops the frames that all have read; for a channel without a producer."""
        if self._frames:
            self._trim()

    def frames_since(self, index: int) -> list[Frame] | None:
        """The frames from `index` on; None if the ring no longer has that index."""
        if index < self._base:
            return None
        return self._frames[index - self._base :]

    def wake(self) -> None:
        """Wakes every waiter and every listener."""
        waiting = [*self._waiting, *self._listener_futures]
        self._waiting, self._listener_futures = [], []
        _resolve(waiting)

    def next_change(self) -> asyncio.Future[None]:
        """A future that is done at the next frame or at `wake`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def listen(self, listener: FrameListener) -> asyncio.Future[None]:
        """Calls `listener.wake` for each frame until `stop_listening`; the future is done at `wake`."""
        self._listeners = (*self._listeners, listener)
        future = asyncio.get_running_loop().create_future()
        self._listener_futures.append(future)
        return future

    def stop_listening(self, listener: FrameListener, future: asyncio.Future[None]) -> None:
        """Ends `listen`."""
        self._listeners = tuple(each for each in self._listeners if each is not listener)
        if future in self._listener_futures:
            self._listener_futures.remove(future)


def _resolve(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


class Relay(Protocol):
    """Carries the streams of runs between processes (`relay.py`)."""

    def driven(self, channel: Channel, fence: int) -> None:
        """This process begins to drive the run; called before the first frame."""
        ...

    def stopped_driving(self, channel: Channel) -> None:
        """This process no longer drives the run."""
        ...

    def watched(self, channel: Channel, *, is_started: bool) -> None:
        """A run that is not driven here has its first watcher. Not `is_started`: it may start here soon."""
        ...

    def unwatched(self, channel: Channel) -> None:
        """The run no longer has a watcher."""
        ...


class Hub:
    """The channels of the runs that are driven or watched in this process."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self._relay: Relay | None = None
        self.closed = asyncio.Event()

    def connect_relay(self, relay: Relay) -> None:
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
