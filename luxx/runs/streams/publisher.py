"""The driver's side of the relay: tells other processes what the runs that are driven here say.

Who follows has a place in the run's ring, as a client here has; what has come since is joined when the bus
has room for it. A run that nobody follows elsewhere costs nothing.
"""

import itertools
import time

from luxx.infra.bus.core import Bus
from luxx.runs.streams.frames import (
    DRIVEN,
    FRAMES,
    NOT_COUNTED,
    Begun,
    Grown,
    Item,
    Logged,
    Opened,
    OpenStep,
    Over,
    Told,
    decode_asked,
    decode_ids,
    encode,
)
from luxx.runs.streams.hub import NOWHERE, Channel, Frame

FORGET_SECONDS = 16.0
"""Whoever follows says so every five seconds; after this long without a word it is gone."""

SETTLED_SECONDS = 1.0
"""What was sent so long ago has arrived or is lost."""

MOST_WANTED = 5_000
"""Runs of others that are remembered as wanted: whoever comes to drive one tells those who want it."""

MOST_AT_ONCE = 64_000
"""Characters told to one process at once, about; the rest waits for the next time."""


class Follower:
    """Another process that follows runs of this one. `streams` numbers all that this one begins."""

    def __init__(self, bus: Bus, process: str, streams: "itertools.count[int]") -> None:
        self.process = process
        self.streams = streams
        self.tails: dict[str, RunTail] = {}
        self._bus = bus
        self._stirred: dict[str, RunTail] = {}
        self._is_asked = False

    def stir(self, tail: "RunTail") -> None:
        """One of its tails has something to tell."""
        self._stirred[tail.run_id] = tail
        if not self._is_asked:
            self._is_asked = True
            self._bus.tell_later(FRAMES, self._make, to=self.process)

    def drop(self, run_id: str) -> bool:
        """It does not follow the run any more; False if it did not."""
        self._stirred.pop(run_id, None)
        return self.tails.pop(run_id, None) is not None

    def _make(self) -> bytes:
        self._is_asked = False
        told: list[Told] = []
        room = MOST_AT_ONCE
        while self._stirred and room > 0:
            tail = self._stirred.pop(next(iter(self._stirred)))
            if (one := tail.more()) is not None:
                told.append(one)
                room -= tail.size
            if tail.is_over and self.tails.get(tail.run_id) is tail:
                del self.tails[tail.run_id]
        if self._stirred:
            self.stir(next(iter(self._stirred.values())))
        return encode(told) if told else b""


class RunTail:
    """A follower's place in a run that is driven here."""

    def __init__(self, channel: Channel, fence: int, follower: Follower) -> None:
        self.run_id = channel.run_id
        self.stream = 0
        self.number = 0
        self.is_over = False
        self.until = 0.0
        self.told_at = 0.0
        self.size = 0
        """How much `more` gave, about."""
        self._fence = fence
        self._channel = channel
        self._follower = follower
        self._index = 0
        self._end: int | None = None
        self._is_stirred = False
        self._is_new = True
        self._told: dict[int, OpenStep] = {}

    @property
    def place(self) -> int:
        """See `Reader`."""
        return NOWHERE if self._is_new else self._index

    def begin_anew(self) -> None:
        """The next thing told begins a new stream."""
        self._is_new = True
        self.stir()

    def stir(self) -> None:
        """There are new frames."""
        if not self._is_stirred:
            self._is_stirred = True
            self._follower.stir(self)

    def end(self) -> None:
        """No frames will come: the run is driven here no longer."""
        self.is_over = True
        self._end = self._channel.end
        self.stir()

    def more(self) -> Told | None:
        """What has come since the last time; None where nothing has."""
        self._is_stirred = False
        frames = None if self._is_new else self._channel.since(self._index)
        items = self._begin() if frames is None else self._items(frames)
        if self.is_over:
            items.append(Over())
        if not items:
            return None
        self.told_at = time.monotonic()
        return Told(self.run_id, self._fence, self.stream, self.number, items)

    def _begin(self) -> list[Item]:
        """A new stream: the log's place now, and what is open."""
        channel = self._channel
        self._is_new = False
        self.stream, self.number = next(self._follower.streams), 0
        self._index = channel.end
        # Once it is over here, another drive of the run may be using the channel.
        steps = [] if self.is_over else [channel.open_steps[at] for at in sorted(channel.open_steps)]
        self._told = {step.index: step for step in steps}
        opened = [_opened(step, step.content()) for step in steps]
        self.size = sum(len(one.text) for one in opened)
        return [Logged(channel.logged), *opened]

    def _items(self, frames: list[Frame]) -> list[Item]:
        if self._end is not None:
            frames = frames[: max(0, self._end - self._index)]
        if not frames:
            return []
        self._index += len(frames)
        self.number += 1
        items: list[Item] = []
        texts: list[str] = []
        speaking: OpenStep | None = None
        for frame in frames:
            step = None if frame.empties else frame.step
            if step is not speaking:
                self._said(items, speaking, texts)
                speaking, texts = step, []
            if step is not None:
                texts.append(frame.text)
            elif frame.seq:
                if items and isinstance(items[-1], Logged):
                    items.pop()
                items.append(Logged(frame.seq))
        self._said(items, speaking, texts)
        # What is open no longer says no more: all that came before has been told.
        self._told = {at: step for at, step in self._told.items() if at in self._channel.open_steps}
        self.size = 100 * len(items) + sum(len(one.text) for one in items if isinstance(one, Opened | Grown))
        return items

    def _said(self, items: list[Item], step: OpenStep | None, texts: list[str]) -> None:
        if step is None:
            return
        text = "".join(texts)
        if self._told.get(step.index) is step:
            items.append(Grown(step.index, text))
        else:
            self._told[step.index] = step
            items.append(_opened(step, text))


def _opened(step: OpenStep, text: str) -> Opened:
    return Opened(step.index, step.type, step.call_id, step.name, text)


class Telling:
    """Which processes follow which runs of this one, and which they would follow if they were driven here."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._driven: dict[str, tuple[Channel, int]] = {}
        self._followers: dict[str, Follower] = {}
        self._streams = itertools.count(1)
        self._wanted: dict[str, dict[str, float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether anybody follows, or would."""
        return bool(self._followers or self._wanted)

    def driven(self, channel: Channel, fence: int) -> None:
        """The run is driven here from now on."""
        self._driven[channel.run_id] = (channel, fence)
        now = time.monotonic()
        wanted = self._wanted.pop(channel.run_id, {})
        served = {process for process, until in wanted.items() if until > now}
        # Those who followed another drive of it, here.
        served |= {name for name, follower in self._followers.items() if channel.run_id in follower.tails}
        if fence > 1:
            # Whoever followed its last driver would else find out by and by.
            self._bus.tell(DRIVEN, encode(Begun(channel.run_id, sorted(served))))
        for process in served:
            self._follow(process, channel.run_id, now)

    def left(self, channel: Channel) -> None:
        """The run is driven here no longer."""
        self._driven.pop(channel.run_id, None)
        channel.tails = ()
        for follower in self._followers.values():
            if (tail := follower.tails.get(channel.run_id)) is not None:
                tail.end()

    def take_asked(self, sender: str, payload: bytes) -> None:
        """A process wants to follow runs, or still does."""
        now = time.monotonic()
        for asked in decode_asked(payload):
            if asked.run_id not in self._driven:
                self._remember(asked.run_id, sender, now)
                continue
            follower = self._followers.get(sender)
            tail = None if follower is None else follower.tails.get(asked.run_id)
            if tail is None or tail.is_over:
                self._follow(sender, asked.run_id, now)
                continue
            tail.until = now + FORGET_SECONDS
            has_lost = asked.number not in (NOT_COUNTED, tail.number)
            if asked.stream != tail.stream or (has_lost and now - tail.told_at > SETTLED_SECONDS):
                tail.begin_anew()

    def take_left(self, sender: str, payload: bytes) -> None:
        """A process does not follow these runs any more."""
        follower = self._followers.get(sender)
        for run_id in decode_ids(payload):
            wanted = self._wanted.get(run_id, {})
            if wanted.pop(sender, None) is not None and not wanted:
                del self._wanted[run_id]
            if follower is not None:
                self._drop(follower, run_id)

    def back(self) -> None:
        """The bus was away: who knows what arrived."""
        for follower in self._followers.values():
            for tail in follower.tails.values():
                tail.begin_anew()

    def forget_silent(self) -> None:
        """Drops those who have said nothing for long: their processes are gone."""
        now = time.monotonic()
        for follower in list(self._followers.values()):
            for tail in list(follower.tails.values()):
                if tail.until < now:
                    self._drop(follower, tail.run_id)
            if not follower.tails:
                del self._followers[follower.process]
        for run_id, wanted in list(self._wanted.items()):
            if max(wanted.values()) < now:
                del self._wanted[run_id]

    def _follow(self, process: str, run_id: str, now: float) -> None:
        channel, fence = self._driven[run_id]
        follower = self._followers.get(process)
        if follower is None:
            follower = self._followers[process] = Follower(self._bus, process, self._streams)
        tail = follower.tails[run_id] = RunTail(channel, fence, follower)
        tail.until = now + FORGET_SECONDS
        channel.tails = self._tails_of(run_id)
        tail.stir()

    def _drop(self, follower: Follower, run_id: str) -> None:
        if follower.drop(run_id) and run_id in self._driven:
            self._driven[run_id][0].tails = self._tails_of(run_id)

    def _tails_of(self, run_id: str) -> tuple[RunTail, ...]:
        found = (follower.tails.get(run_id) for follower in self._followers.values())
        return tuple(tail for tail in found if tail is not None and not tail.is_over)

    def _remember(self, run_id: str, process: str, now: float) -> None:
        self._wanted.setdefault(run_id, {})[process] = now + FORGET_SECONDS
        while len(self._wanted) > MOST_WANTED:
            del self._wanted[next(iter(self._wanted))]
