"""The live tail: what a run says between two rows of its log, for whoever watches in this process.

A channel is a ring of frames with one producer. Watchers hold an index into it, so there is no queue
to overflow and a slow watcher costs the run nothing; one that falls off the ring is sent back to
the log. Everything here runs on the event loop's thread.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from luxx.runs.frames import OpenStep

RING = 2048
"""Frames kept for watchers that lag, and up to twice as many between cuts: about a megabyte of deltas."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """`seq` is 0 for what is not logged; `step` and `text` are set on deltas."""

    data: bytes
    seq: int = 0
    step: OpenStep | None = None
    text: str = ""
    is_last: bool = False


class Channel:
    """The live tail of one run. `logged` is the seq of the newest logged frame, 0 before the first."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.logged = 0
        self.is_driven = False
        self.open_steps: dict[int, OpenStep] = {}
        self.watchers = 0
        self._frames: list[Frame] = []
        self._base = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def end(self) -> int:
        """The index that the next frame will have."""
        return self._base + len(self._frames)

    def publish(self, *frames: Frame) -> None:
        """Adds frames and wakes whoever waits."""
        self._frames += frames
        if len(self._frames) > 2 * RING:
            cut = len(self._frames) - RING
            del self._frames[:cut]
            self._base += cut
        if self._waiting:
            self.wake()

    def since(self, index: int) -> list[Frame] | None:
        """The frames from `index` on; None where the ring no longer holds it."""
        if index < self._base:
            return None
        return self._frames[index - self._base :]

    def wake(self) -> None:
        """Lets every waiter look again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def news(self) -> asyncio.Future[None]:
        """Done when the next frame is there, or when woken for another reason."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future


class Hub:
    """The channels of the runs that are driven or watched in this process."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self.closed = asyncio.Event()

    @contextmanager
    def watched(self, run_id: str) -> Generator[Channel]:
        """The run's channel, kept while somebody watches."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        channel.watchers += 1
        try:
            yield channel
        finally:
            channel.watchers -= 1
            self._forget(channel)

    @contextmanager
    def driven(self, run_id: str, logged: int) -> Generator[Channel]:
        """The run's channel for its driver, which has read the log up to `logged`."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        channel.is_driven = True
        channel.logged = logged
        try:
            yield channel
        finally:
            channel.is_driven = False
            channel.open_steps.clear()
            channel.wake()
            self._forget(channel)

    def tell(self, run_id: str, *frames: Frame) -> None:
        """To those who watch a run here: what was logged while nobody drives it."""
        channel = self._channels.get(run_id)
        if channel is not None:
            channel.publish(*frames)

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
