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

RING = 2048
"""Frames kept for watchers that lag, and up to twice as many between cuts: about a megabyte of deltas."""

RING_BYTES = 2 * 1024 * 1024
"""Bytes of frames that are kept for watchers that lag, as long as deltas alone come up to twice as many."""

KEPT = 8
"""Frames that are kept though all have read them, at most: 4 kB of deltas. To cut at each would take time."""

NOWHERE = sys.maxsize
"""The place of a reader that will find its place anew: it needs nothing that is in the ring."""

TAKEN_BACK = 1000
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
    empties: bool = False
    is_break: bool = False


BREAK = Frame(b"", is_break=True)


class Reader(Protocol):
    """Somebody who reads a ring on from a place."""

    @property
    def place(self) -> int:
        """The index of the first frame that it has not read; NOWHERE where it needs none."""
        ...


class Tail(Reader, Protocol):
    """Somebody who is told of every frame as it comes: one in another process who follows a channel
    (`telling.py`), or a watch whose client takes all at once."""

    def stir(self) -> None:
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
        "_listening",
        "_live",
        "_taken_back",
        "_waiting",
        "driver",
        "is_fed",
        "is_gone",
        "known",
        "logged",
        "open_steps",
        "readers",
        "run_id",
        "tails",
        "taken_back",
        "watchers",
    )

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.logged = 0
        self.known = 0
        self.taken_back = 0
        self.driver: object | None = None
        self.is_fed = False
        self.is_gone = False
        self.open_steps: dict[int, OpenStep] = {}
        self.watchers = 0
        self.tails: Collection[Tail] = ()
        self.readers: set[Reader] = set()
        self._frames: list[Frame] = []
        self._base = 0
        self._full = KEPT
        self._taken_back: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._live: tuple[Tail, ...] = ()
        self._listening: list[asyncio.Future[None]] = []

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
        left = self._take_back()
        # The dictionary stays the same one: a driver's reader holds it.
        self.open_steps.clear()
        self.open_steps.update({step.index: step for step in steps})
        self.logged, self.is_fed = logged, True
        if logged or self.open_steps or left:
            # Whoever watched so far may lack what is between: back to the log, then on from here.
            self.publish(*left, BREAK)

    def cease(self) -> None:
        """The producer ends. What it left open is nowhere but here: it is said anew, or never."""
        left = self._take_back()
        self.open_steps.clear()
        self.is_fed = False
        self.publish(*left)
        self.wake()

    def taken_back_since(self, count: int) -> bytes | None:
        """The frames that took steps back after the first `count`; None where they are no longer kept."""
        missed = self.taken_back - count
        if missed > len(self._taken_back):
            return None
        return b"".join(self._taken_back[len(self._taken_back) - missed :])

    def _take_back(self) -> list[Frame]:
        frames = [Frame(step.emptied(), 0, step, empties=True) for step in self.open_steps.values()]
        self.taken_back += len(frames)
        self._taken_back = [*self._taken_back, *(frame.data for frame in frames)][-TAKEN_BACK:]
        return frames

    def publish(self, *frames: Frame) -> None:
        """Adds frames and wakes whoever waits."""
        self._frames += frames
        if len(self._frames) > self._full:
            self._cut()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            _settle(waiting)
        for live in self._live:
            live.stir()
        for tail in self.tails:
            tail.stir()

    def publish_events(self, *frames: Frame) -> None:
        """Adds frames of logged events, which may be large: how large all are is looked at."""
        self.publish(*frames)
        self._bound()

    def _cut(self) -> None:
        """Lets go of what all readers have read, and of what those that lag too far have not."""
        frames = self._frames
        start = end = self._base + len(frames)
        for readers in (self.readers, self.tails):
            for reader in readers:
                if (place := reader.place) < start:
                    start = place
        # One that has fallen off the ring already keeps nothing.
        start = max(start, end - RING, self._base)
        del frames[: start - self._base]
        self._base = start
        self._full = KEPT
        if end - start > KEPT:
            self._bound()
            self._full = max(KEPT, min(2 * len(frames), 2 * RING))

    def _bound(self) -> None:
        """Lets go of the oldest frames past RING_BYTES, but for one."""
        sizes = [len(frame.data) for frame in self._frames]
        size, first = sum(sizes), 0
        while size > RING_BYTES and first < len(sizes) - 1:
            size -= sizes[first]
            first += 1
        del self._frames[:first]
        self._base += first

    def rest(self) -> None:
        """Nobody feeds it, maybe for hours: what all have read is let go of."""
        if self._frames:
            self._cut()

    def since(self, index: int) -> list[Frame] | None:
        """The frames from `index` on; None where the ring no longer holds it."""
        if index < self._base:
            return None
        return self._frames[index - self._base :]

    def wake(self) -> None:
        """Lets every waiter look again."""
        waiting = [*self._waiting, *self._listening]
        self._waiting, self._listening = [], []
        _settle(waiting)

    def news(self) -> asyncio.Future[None]:
        """Done when the next frame is there, or when woken for another reason."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def listen(self, live: Tail) -> asyncio.Future[None]:
        """Stirs it for each frame until `hush`; done when woken for another reason than a frame."""
        self._live = (*self._live, live)
        future = asyncio.get_running_loop().create_future()
        self._listening.append(future)
        return future

    def hush(self, live: Tail, future: asyncio.Future[None]) -> None:
        """Ends `listen`."""
        self._live = tuple(each for each in self._live if each is not live)
        if future in self._listening:
            self._listening.remove(future)


def _settle(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


class Relay(Protocol):
    """Who carries runs from and to other processes (`relay.py`)."""

    def driven(self, channel: Channel, fence: int) -> None:
        """This process drives the run from now on, and before any frame."""
        ...

    def left(self, channel: Channel) -> None:
        """This process drives the run no longer."""
        ...

    def watched(self, channel: Channel, *, is_begun: bool) -> None:
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

    def join(self, relay: Relay) -> None:
        """Tells the relay of what is driven and watched from now on."""
        self._relay = relay

    def watch(self, run_id: str, *, is_begun: bool = True) -> Channel:
        """The run's channel, kept until `unwatch`. Not `is_begun`: it is about to be driven here."""
        channel = self._channels.get(run_id)
        if channel is None:
            channel = self._channels[run_id] = Channel(run_id)
        channel.watchers += 1
        if channel.watchers == 1 and not channel.is_driven and self._relay is not None:
            self._relay.watched(channel, is_begun=is_begun)
        return channel

    def unwatch(self, channel: Channel) -> None:
        """One who watched does so no longer."""
        channel.watchers -= 1
        if channel.watchers == 0 and not channel.is_driven and self._relay is not None:
            self._relay.unwatched(channel)
        self._forget(channel)

    @contextmanager
    def driven(self, run_id: str, logged: int, fence: int = 1) -> Generator[Channel]:
        """The run's channel for its driver, which took it with `fence` and read its log up to `logged`."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        mine = channel.driver = object()
        if self._relay is not None:
            self._relay.driven(channel, fence)
        channel.begin(logged)
        try:
            yield channel
        finally:
            # Another drive of the same run may have begun here meanwhile.
            if channel.driver is mine:
                channel.driver = None
                channel.cease()
                if self._relay is not None:
                    self._relay.left(channel)
                self._forget(channel)

    def tell(self, run_id: str, seq: int) -> None:
        """To those who watch a run here: its log goes up to `seq`, by somebody who does not drive it.

        No frame, for what other processes logged before it may have been told to nobody here.
        """
        channel = self._channels.get(run_id)
        if channel is not None and seq > channel.known:
            channel.known = seq
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

    def _forget(self, channel: Channel) -> None:
        if not channel.is_driven and channel.watchers == 0:
            self._channels.pop(channel.run_id, None)
