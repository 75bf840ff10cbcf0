"""The messages of the relay, and its driver's side: publishes the frames of runs that are driven here.

A subscription has a position in the run's ring, as a local watch has. When the bus can send, it merges the
new frames into one message. A run without remote subscribers costs nothing.
"""

import itertools
import time
from dataclasses import dataclass, field

import msgspec

from luxx.infra.bus.core import Bus, Topic
from luxx.runs.log.channel import NO_POSITION, Channel, Frame, OpenStep
from luxx.wire.turn import StepType, TurnRef

NOT_COUNTED = -1


class StepOpened(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A step has begun; `text` is its text so far, `preceding` that of the message before it."""

    turn: TurnRef
    index: int
    kind: StepType
    call_id: str
    name: str
    preceding: str
    text: str


class StepGrown(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """More text of an open step; `turn` is the key of its turn."""

    turn: str
    index: int
    text: str


class LogGrown(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """The log now ends at `seq`."""

    seq: int


class DriveEnded(msgspec.Struct, frozen=True, array_like=True, tag="x", gc=False):
    """The sender no longer drives the run."""


RelayItem = StepOpened | StepGrown | LogGrown | DriveEnded


class RelayMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Message `number` of one `stream` from a driver to a subscriber.

    Number 0 begins the stream with `LogGrown` and one `StepOpened` per open step. A subscriber that misses a
    number asks for a new stream. `fence` grows with each drive of the run.
    """

    run_id: str
    fence: int
    stream: int
    number: int
    items: list[RelayItem]


class FollowRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process wants to follow a run, or still follows it. `stream` 0: asks for a new stream.

    `number` is the last received one of the stream, if nothing has arrived lately; else NOT_COUNTED.
    """

    run_id: str
    stream: int = 0
    number: int = NOT_COUNTED


class DriveBegun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sender drives a run; the processes in `served` get a stream without asking."""

    run_id: str
    served: list[str]


encode = msgspec.msgpack.Encoder().encode
decode_messages = msgspec.msgpack.Decoder(list[RelayMessage]).decode
decode_follow_requests = msgspec.msgpack.Decoder(list[FollowRequest]).decode
decode_ids = msgspec.msgpack.Decoder(list[str]).decode
decode_drive_begun = msgspec.msgpack.Decoder(DriveBegun).decode

SUBSCRIPTION_SECONDS = 16.0
"""Lifetime of a subscription without renewal; subscribers renew every five seconds."""

DELIVERY_SECONDS = 1.0
"""A message that was sent longer ago has arrived or is lost."""

MAX_WANTED_RUNS = 5_000
"""How many runs that are not driven here are remembered with the processes that want to follow them."""

MAX_MESSAGE_CHARACTERS = 64_000
"""Approximate limit of characters per payload to one process; the rest follows in the next one."""


class SubscribedProcess:
    """Another process that follows runs of this one. `streams` numbers the streams that this one begins."""

    def __init__(self, bus: Bus, process: str, streams: "itertools.count[int]") -> None:
        self.process = process
        self.streams = streams
        self.subscriptions: dict[str, RunSubscription] = {}
        self._bus = bus
        self._woken: dict[str, RunSubscription] = {}
        self._is_scheduled = False

    def wake(self, subscription: "RunSubscription") -> None:
        """A subscription has new frames: schedules a payload."""
        self._woken[subscription.run_id] = subscription
        if not self._is_scheduled:
            self._is_scheduled = True
            self._bus.publish_later(Topic.FRAMES, self._make_payload, to=self.process)

    def drop(self, run_id: str) -> bool:
        """Removes the subscription to the run; False if there was none."""
        self._woken.pop(run_id, None)
        return self.subscriptions.pop(run_id, None) is not None

    def _make_payload(self) -> bytes:
        self._is_scheduled = False
        messages: list[RelayMessage] = []
        remaining = MAX_MESSAGE_CHARACTERS
        while self._woken and remaining > 0:
            subscription = self._woken.pop(next(iter(self._woken)))
            if (one := subscription.next_message()) is not None:
                messages.append(one)
                remaining -= subscription.size
            if subscription.is_over and self.subscriptions.get(subscription.run_id) is subscription:
                del self.subscriptions[subscription.run_id]
        if self._woken:
            self.wake(next(iter(self._woken.values())))
        return encode(messages) if messages else b""


@dataclass(slots=True, eq=False, repr=False)
class RunSubscription:
    """The subscription of one process to one run that is driven here.

    `size` is about the number of characters of the last message.
    """

    channel: Channel
    fence: int
    subscriber: SubscribedProcess
    stream: int = 0
    number: int = 0
    is_over: bool = False
    expires_at: float = 0.0
    sent_at: float = 0.0
    size: int = 0
    _index: int = 0
    _end: int | None = None
    _is_woken: bool = False
    _is_new: bool = True
    _sent_steps: dict[tuple[str, int], OpenStep] = field(default_factory=dict[tuple[str, int], OpenStep])

    @property
    def run_id(self) -> str:
        return self.channel.run_id

    @property
    def position(self) -> int:
        """See `RingReader`."""
        return NO_POSITION if self._is_new else self._index

    def restart_stream(self) -> None:
        """Makes the next message begin a new stream."""
        self._is_new = True
        self.wake()

    def wake(self) -> None:
        """See `FrameListener`."""
        if not self._is_woken:
            self._is_woken = True
            self.subscriber.wake(self)

    def end(self) -> None:
        """The run is no longer driven here: no more frames will follow."""
        self.is_over = True
        self._end = self.channel.end
        self.wake()

    def next_message(self) -> RelayMessage | None:
        """A message with the new frames; None if there are none."""
        self._is_woken = False
        frames = None if self._is_new else self.channel.frames_since(self._index)
        items = self._begin() if frames is None else self._items(frames)
        if self.is_over:
            items.append(DriveEnded())
        if not items:
            return None
        self.sent_at = time.monotonic()
        return RelayMessage(self.run_id, self.fence, self.stream, self.number, items)

    def _begin(self) -> list[RelayItem]:
        """The items of a new stream: the end of the log and the open steps."""
        channel = self.channel
        self._is_new = False
        self.stream, self.number = next(self.subscriber.streams), 0
        self._index = channel.end
        # After the end another drive of the run may use the channel.
        steps = [] if self.is_over else channel.all_open_steps()
        self._sent_steps = {step.place: step for step in steps}
        opened = [_opened(step, step.content()) for step in steps]
        self.size = sum(len(step.text) for step in opened)
        return [LogGrown(channel.logged), *opened]

    def _items(self, frames: list[Frame]) -> list[RelayItem]:
        if self._end is not None:
            frames = frames[: max(0, self._end - self._index)]
        if not frames:
            return []
        self._index += len(frames)
        self.number += 1
        items: list[RelayItem] = []
        texts: list[str] = []
        current_step: OpenStep | None = None
        for frame in frames:
            step = None if frame.is_reset else frame.step
            if step is not current_step:
                self._append_text(items, current_step, texts)
                current_step, texts = step, []
            if step is not None:
                texts.append(frame.text)
            elif frame.seq:
                if items and isinstance(items[-1], LogGrown):
                    items.pop()
                items.append(LogGrown(frame.seq))
        self._append_text(items, current_step, texts)
        # Closed steps get no more text.
        open_steps = self.channel.open_steps
        self._sent_steps = {
            place: step
            for place, step in self._sent_steps.items()
            if place[1] in open_steps.get(place[0], ())
        }
        self.size = 100 * len(items) + sum(
            len(item.text) for item in items if isinstance(item, StepOpened | StepGrown)
        )
        return items

    def _append_text(self, items: list[RelayItem], step: OpenStep | None, texts: list[str]) -> None:
        if step is None:
            return
        text = "".join(texts)
        if self._sent_steps.get(step.place) is step:
            items.append(StepGrown(step.turn.key, step.index, text))
        else:
            self._sent_steps[step.place] = step
            items.append(_opened(step, text))


def _opened(step: OpenStep, text: str) -> StepOpened:
    return StepOpened(step.turn, step.index, step.type, step.call_id, step.name, step.preceding, text)


class RunPublisher:
    """Knows which processes follow the runs of this one, and which runs they would follow if driven here."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._driven: dict[str, tuple[Channel, int]] = {}
        self._subscribers: dict[str, SubscribedProcess] = {}
        self._streams = itertools.count(1)
        self._wanted: dict[str, dict[str, float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether any process follows a run, or wants to."""
        return bool(self._subscribers or self._wanted)

    def driven(self, channel: Channel, fence: int) -> None:
        """This process begins to drive the run."""
        self._driven[channel.run_id] = (channel, fence)
        now = time.monotonic()
        wanted = self._wanted.pop(channel.run_id, {})
        served = {process for process, expires_at in wanted.items() if expires_at > now}
        # Also the processes that followed an earlier drive of the run in this process.
        served |= {
            name
            for name, subscriber in self._subscribers.items()
            if channel.run_id in subscriber.subscriptions
        }
        if fence > 1:
            # Subscribers of the former driver would otherwise notice only at a later poll.
            self._bus.publish(Topic.DRIVE_BEGUN, encode(DriveBegun(channel.run_id, sorted(served))))
        for process in served:
            self._subscribe(process, channel.run_id, now)

    def stopped_driving(self, channel: Channel) -> None:
        """This process no longer drives the run."""
        self._driven.pop(channel.run_id, None)
        channel.subscriptions = ()
        for subscriber in self._subscribers.values():
            if (subscription := subscriber.subscriptions.get(channel.run_id)) is not None:
                subscription.end()

    def on_follow_requests(self, sender: str, payload: bytes) -> None:
        """Handles follow requests: starts, renews or restarts subscriptions."""
        now = time.monotonic()
        for request in decode_follow_requests(payload):
            if request.run_id not in self._driven:
                self._wanted.setdefault(request.run_id, {})[sender] = now + SUBSCRIPTION_SECONDS
                while len(self._wanted) > MAX_WANTED_RUNS:
                    del self._wanted[next(iter(self._wanted))]
                continue
            subscriber = self._subscribers.get(sender)
            subscription = None if subscriber is None else subscriber.subscriptions.get(request.run_id)
            if subscription is None or subscription.is_over:
                self._subscribe(sender, request.run_id, now)
                continue
            subscription.expires_at = now + SUBSCRIPTION_SECONDS
            has_lost = request.number not in (NOT_COUNTED, subscription.number)
            if request.stream != subscription.stream or (
                has_lost and now - subscription.sent_at > DELIVERY_SECONDS
            ):
                subscription.restart_stream()

    def on_unfollow(self, sender: str, payload: bytes) -> None:
        """Handles the ids of runs that a process no longer follows."""
        subscriber = self._subscribers.get(sender)
        for run_id in decode_ids(payload):
            wanted = self._wanted.get(run_id, {})
            if wanted.pop(sender, None) is not None and not wanted:
                del self._wanted[run_id]
            if subscriber is not None:
                self._drop(subscriber, run_id)

    def on_bus_up(self) -> None:
        """Restarts all streams, because messages may be lost while the bus was disconnected."""
        for subscriber in self._subscribers.values():
            for subscription in subscriber.subscriptions.values():
                subscription.restart_stream()

    def drop_silent(self) -> None:
        """Drops expired subscriptions: their processes are dead."""
        now = time.monotonic()
        for subscriber in list(self._subscribers.values()):
            for subscription in list(subscriber.subscriptions.values()):
                if subscription.expires_at < now:
                    self._drop(subscriber, subscription.run_id)
            if not subscriber.subscriptions:
                del self._subscribers[subscriber.process]
        for run_id, wanted in list(self._wanted.items()):
            if max(wanted.values()) < now:
                del self._wanted[run_id]

    def _subscribe(self, process: str, run_id: str, now: float) -> None:
        channel, fence = self._driven[run_id]
        subscriber = self._subscribers.get(process)
        if subscriber is None:
            subscriber = self._subscribers[process] = SubscribedProcess(self._bus, process, self._streams)
        subscription = subscriber.subscriptions[run_id] = RunSubscription(channel, fence, subscriber)
        subscription.expires_at = now + SUBSCRIPTION_SECONDS
        channel.subscriptions = self._subscriptions_of(run_id)
        subscription.wake()

    def _drop(self, subscriber: SubscribedProcess, run_id: str) -> None:
        if subscriber.drop(run_id) and run_id in self._driven:
            self._driven[run_id][0].subscriptions = self._subscriptions_of(run_id)

    def _subscriptions_of(self, run_id: str) -> tuple[RunSubscription, ...]:
        candidates = (subscriber.subscriptions.get(run_id) for subscriber in self._subscribers.values())
        return tuple(
            subscription
            for subscription in candidates
            if subscription is not None and not subscription.is_over
        )
