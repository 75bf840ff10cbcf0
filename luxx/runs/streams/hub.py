"""The live tail: what a run says between two rows of its log, for whoever watches in this process.

A channel is a ring of frames with one producer: the driver, or a mirror of one in another process. Watchers
hold an index into it, so there is no queue to overflow and a slow watcher costs the run nothing; one that
falls off the ring is sent back to the log. Everything here runs on the event loop's thread.
"""

import asyncio
import sys
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol

import msgspec

from luxx.runs.streams.frames import OpenStep

RING_FRAMES = 2048
"""Frames kept for watchers that lag, and up to twice as many between cuts: about a megabyte of deltas."""

RING_BYTES = 2 * 1024 * 1024
"""Bytes of frames that are kept for watchers that lag, as long as deltas alone come up to twice as many."""

MIN_RING_FRAMES = 8
"""Frames that are kept though all have read them, at most: 4 kB of deltas. To cut at each would take time."""

NO_POSITION = sys.maxsize
"""The place of a reader that will find its place anew: it needs nothing that is in the ring."""

MAX_RESETS = 1000
"""Frames that took a step back which are kept for watchers that fell off the ring."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """`seq` is 0 for what is not logged; `step` and `text` are set on deltas.

    `empties`: the step begins anew. `is_break`: no frame, but a place where a watcher has to go to the log:
    what follows does not continue what was before.
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
    """Somebody who reads a ring on from a place."""

    @property
    def position(self) -> int:
        """The index of the first frame that it has not read; NOWHERE where it needs none."""
        ...


class FrameListener(RingReader, Protocol):
    """Somebody who is told of every frame as it comes: one in another process who follows a channel
    (`telling.py`), or a watch whose client takes all at once."""

    def wake(self) -> None:
        """There are new frames. Must not raise: it runs inside of whoever publishes."""
        ...


class Channel:
    """The live tail of one run. `logged` is the seq of the newest logged frame, 0 before the first.

    `driver` is set while the run is driven in this process. `is_fed`: whoever drives it, its frames come
    here; else there is only the log, which goes up to `known` at least. `is_gone`: the run was deleted.
    `taken_back` counts the frames that took back what a lost producer had said.
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
        """Whether it is driven in this process."""
        return self.driver is not None

    @property
    def end(self) -> int:
        """The index that the next frame will have."""
        return self._base + len(self._frames)

    def begin(self, logged: int, steps: Iterable[OpenStep] = ()) -> None:
        """A producer begins, at this place of the log and with these steps open."""
        left = self._reset_open_steps()
        # The dictionary stays the same one: a driver's reader holds it.
        self.open_steps.clear()
        self.open_steps.update({step.index: step for step in steps})
        self.logged, self.has_producer = logged, True
        if logged or self.open_steps or left:
            # Whoever watched so far may lack what is between: back to the log, then on from here.
            self.publish(*left, GAP)

    def end_feed(self) -> None:
        """The producer ends. What it left open is nowhere but here: it is said anew, or never."""
        left = self._reset_open_steps()
        self.open_steps.clear()
        self.has_producer = False
        self.publish(*left)
        self.wake()

    def resets_since(self, count: int) -> bytes | None:
        """The frames that took steps back after the first `count`; None where they are no longer kept."""
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
        """Adds frames and wakes whoever waits."""
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
        """Adds frames of logged events, which may be large: how large all are is looked at."""
        self.publish(*frames)
        self._trim_to_bytes()

    def _trim(self) -> None:
        """Lets go of what all readers have read, and of what those that lag too far have not."""
        frames = self._frames
        start = end = self._base + len(frames)
        for readers in (self.readers, self.subscriptions):
            for reader in readers:
                if (position := reader.position) < start:
                    start = position
        # One that has fallen off the ring already keeps nothing.
        start = max(start, end - RING_FRAMES, self._base)
        del frames[: start - self._base]
        self._base = start
        self._full = MIN_RING_FRAMES
        if end - start > MIN_RING_FRAMES:
            self._trim_to_bytes()
            self._full = max(MIN_RING_FRAMES, min(2 * len(frames), 2 * RING_FRAMES))

    def _trim_to_bytes(self) -> None:
        """Lets go of the oldest frames past RING_BYTES, but for one."""
        sizes = [len(frame.data) for frame in self._frames]
        size, first = sum(sizes), 0
        while size > RING_BYTES and first < len(sizes) - 1:
            size -= sizes[first]
            first += 1
        del self._frames[:first]
        self._base += first

    def trim_idle(self) -> None:
        """Nobody feeds it, maybe for hours: what all have read is let go of."""
        if self._frames:
            self._trim()

    def frames_since(self, index: int) -> list[Frame] | None:
        """The frames from `index` on; None where the ring no longer holds it."""
        if index < self._base:
            return None
        return self._frames[index - self._base :]

    def wake(self) -> None:
        """Lets every waiter look again."""
        waiting = [*self._waiting, *self._listener_futures]
        self._waiting, self._listener_futures = [], []
        _resolve(waiting)

    def next_change(self) -> asyncio.Future[None]:
        """Done when the next frame is there, or when woken for another reason."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def listen(self, listener: FrameListener) -> asyncio.Future[None]:
        """Stirs it for each frame until `hush`; done when woken for another reason than a frame."""
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
    """Who carries runs from and to other processes (`relay.py`)."""

    def driven(self, channel: Channel, fence: int) -> None:
        """This process drives the run from now on, and before any frame."""
        ...

    def stopped_driving(self, channel: Channel) -> None:
        """This process drives the run no longer."""
        ...

    def watched(self, channel: Channel, *, is_started: bool) -> None:
        """The first watcher of a run that is not driven here; not `is_begun`: it may be, in a moment."""
        ...

    def unwatched(self, channel: Channel) -> None:
        """Nobody watches it any more."""
        ...


class Hub:
    """The channels of the runs that are driven or watched in this process."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self._relay: Relay | None = None
        self.closed = asyncio.Event()

    def connect_relay(self, relay: Relay) -> None:
        """Tells the relay of what is driven and watched from now on."""
        self._relay = relay

    def watch(self, run_id: str, *, is_started: bool = True) -> Channel:
        """The run's channel, kept until `unwatch`. Not `is_begun`: it is about to be driven here."""
        channel = self._channels.get(run_id)
        if channel is None:
            channel = self._channels[run_id] = Channel(run_id)
        channel.watchers += 1
        if channel.watchers == 1 and not channel.is_driven and self._relay is not None:
            self._relay.watched(channel, is_started=is_started)
        return channel

    def unwatch(self, channel: Channel) -> None:
        """One who watched does so no longer."""
        channel.watchers -= 1
        if channel.watchers == 0 and not channel.is_driven and self._relay is not None:
            self._relay.unwatched(channel)
        self._remove_if_unused(channel)

    @contextmanager
    def driven(self, run_id: str, logged: int, fence: int = 1) -> Generator[Channel]:
        """The run's channel for its driver, which took it with `fence` and read its log up to `logged`."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        driver_token = channel.driver = object()
        if self._relay is not None:
            self._relay.driven(channel, fence)
        channel.begin(logged)
        try:
            yield channel
        finally:
            # Another drive of the same run may have begun here meanwhile.
            if channel.driver is driver_token:
                channel.driver = None
                channel.end_feed()
                if self._relay is not None:
                    self._relay.stopped_driving(channel)
                self._remove_if_unused(channel)

    def announce_log(self, run_id: str, seq: int) -> None:
        """To those who watch a run here: its log goes up to `seq`, by somebody who does not drive it.

        No frame, for what other processes logged before it may have been told to nobody here.
        """
        channel = self._channels.get(run_id)
        if channel is not None and seq > channel.known_seq:
            channel.known_seq = seq
            channel.wake()

    @property
    def watchers(self) -> int:
        """How many clients follow runs here."""
        return sum(channel.watchers for channel in self._channels.values())

    def is_watched(self, run_id: str) -> bool:
        """Whether somebody follows the run here."""
        channel = self._channels.get(run_id)
        return channel is not None and channel.watchers > 0

    def close(self) -> None:
        """Ends every watch: the server stops, and clients attach again where they were."""
        self.closed.set()
        self.wake_all()

    def wake_all(self) -> None:
        """Wakes every watcher; called every few seconds so that idle lines are kept open."""
        for channel in list(self._channels.values()):
            channel.wake()

    def _remove_if_unused(self, channel: Channel) -> None:
        if not channel.is_driven and channel.watchers == 0:
            self._channels.pop(channel.run_id, None)
