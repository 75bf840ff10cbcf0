"""A run's live stream in one process: the frames that clients get, and the channel that keeps the newest.

Frames of logged events have an `id`; deltas, snapshots and `run` have none. Delta frames are byte templates
around the encoded text, because one is made for every token. A channel is a ring of frames with one producer:
the driver, or the remote subscriber of a driver in another process. Watchers hold an index into the ring, so
no queue can overflow. A watcher that falls off the ring continues from the log.
"""

import asyncio
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from luxx.infra.clock import timestamp
from luxx.wire.event import CLOSING_EVENT_TYPES
from luxx.wire.turn import CHAT_TURN, Step, StepStatus, StepType, TurnRef, step_id

MAX_FRAGMENTS = 32
"""Fragments of a step before they are joined; a separate fragment uses ten times the memory of its text."""

COMMENT = b": keep-alive\n\n"
_encode = msgspec.json.Encoder().encode


def logged_frame(seq: int, event_type: str, data: bytes) -> bytes:
    """An event of the log; `data` is its JSON."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event_type.encode(), data)


class OpenStep:
    """A growing step. Mutable: it collects its content for snapshots and for the closed step. In a room the
    deltas of a text are `message_chunk` events; `preceding` is the text of the message before this step,
    which their snapshots repeat."""

    __slots__ = (
        "_delta", "_end", "_fragments", "_head", "_joined", "_middle", "call_id", "index", "is_chunk",
        "level", "name", "preceding", "started", "turn", "type",
    )  # fmt: skip

    def __init__(
        self,
        run_id: str,
        index: int,
        type: StepType,
        *,
        turn: TurnRef = CHAT_TURN,
        call_id: str = "",
        name: str = "",
        text: str = "",
        preceding: str = "",
        level: str = "",
    ) -> None:
        self.index = index
        self.level = level
        self.type = type
        self.turn = turn
        self.call_id = call_id
        self.name = name
        self.preceding = preceding
        self.is_chunk = bool(turn.msg_id) and type == StepType.TEXT
        self._joined = [text]
        self._fragments: list[str] = []
        self.started = time.monotonic()
        event = b"message_chunk" if self.is_chunk else b"process_step"
        self._head = b'event: %s\ndata: {"type":"%s","run_id":"%s","timestamp":"' % (
            event,
            event,
            run_id.encode(),
        )
        if self.is_chunk:
            self._middle, self._end = b'","msg_id":%s,' % _encode(turn.msg_id), b"}\n\n"
        else:
            self._middle, self._end = self._step_head(), b"}}\n\n"
        self._delta = self._middle + (b'"content":' if self.is_chunk else b'"delta":')

    def _step_head(self) -> bytes:
        turn, call = b"", b""
        if self.turn.msg_id:
            turn = b',"msg_id":%s' % _encode(self.turn.msg_id)
        elif self.turn.step_id:
            turn = b',"step_id":%s' % _encode(self.turn.step_id)
        if self.type == StepType.TOOL_CALL:
            call = b',"name":%s,"id_ref":%s' % (_encode(self.name), _encode(self.call_id))
        if self.level:
            call = b',"level":%s' % _encode(self.level)
        status = b"pending" if self.type == StepType.TOOL_CALL else b"running"
        return b'"%s,"step":{"id":"step-%d","index":%d,"type":"%s"%s,"status":"%s",' % (
            turn,
            self.index,
            self.index,
            self.type.encode(),
            call,
            status,
        )

    @property
    def place(self) -> tuple[str, int]:
        """What identifies the step within its run: the key of its turn, and its index there."""
        return self.turn.key, self.index

    def content(self) -> str:
        """The text so far."""
        self._joined = ["".join([*self._joined, *self._fragments])]
        self._fragments.clear()
        return self._joined[0]

    def end(self, size: int) -> str:
        """The last `size` characters of the text so far, without joining all of it."""
        parts, at = ["".join(self._fragments)], len(self._joined)
        while at and sum(map(len, parts)) < size:
            parts.append(self._joined[at := at - 1][-size:])
        return "".join(reversed(parts))[-size:]

    def grow(self, text: str) -> bytes:
        """Adds `text` and returns its delta frame."""
        fragments = self._fragments
        fragments.append(text)
        if len(fragments) > MAX_FRAGMENTS:
            self._joined.append("".join(fragments))
            fragments.clear()
        return b"%s%s%s%s%s" % (self._head, timestamp().encode(), self._delta, _encode(text), self._end)

    def accumulated(self, text: str, so_far: str) -> bytes:
        """The delta frame with the text so far, for clients of the old protocol."""
        return b'%s%s%s%s,"accumulated":%s%s' % (
            self._head,
            timestamp().encode(),
            self._delta,
            _encode(text),
            _encode(self.preceding + so_far),
            self._end,
        )

    def snapshot(self) -> bytes:
        """The frame with the text so far, for a client that attaches now; a call has arguments as text."""
        return self.whole(self.content())

    def reset_frame(self) -> bytes:
        """The frame that empties the step: its driver was lost, so its text is discarded."""
        return self.whole("")

    def whole(self, content: str) -> bytes:
        """The frame that replaces the step's text by `content`."""
        if self.is_chunk:
            text = _encode(self.preceding + content)
            whole = b'"content":%s,"accumulated":%s,"is_snapshot":true' % (text, text)
        else:
            key = b"arguments" if self.type == StepType.TOOL_CALL else b"content"
            whole = b'"%s":%s' % (key, _encode(content))
        return b"%s%s%s%s%s" % (self._head, timestamp().encode(), self._middle, whole, self._end)

    def closed(self, status: StepStatus) -> Step:
        """The step as it is logged, with the final status."""
        step = Step(id=step_id(self.index), index=self.index, type=self.type, status=status)
        if self.type == StepType.TOOL_CALL:
            return replace(step, name=self.name, id_ref=self.call_id, arguments=self.content())
        duration = int((time.monotonic() - self.started) * 1000)
        step = replace(step, content=self.content(), duration_ms=duration)
        return replace(step, level=self.level) if self.level else step


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

    `is_opening`: the delta is the first of its step. `is_reset`: the text of the step is discarded. `is_gap`:
    not a frame but a marker; what follows does not continue what was before, so a watcher must read the log.
    """

    data: bytes
    seq: int = 0
    step: OpenStep | None = None
    text: str = ""
    is_opening: bool = False
    is_last: bool = False
    is_reset: bool = False
    is_gap: bool = False


GAP = Frame(b"", is_gap=True)


def event_frame(seq: int, event_type: str, data: bytes) -> Frame:
    """The frame of a logged event."""
    return Frame(logged_frame(seq, event_type, data), seq, is_last=event_type in CLOSING_EVENT_TYPES)


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


@dataclass(slots=True, eq=False, repr=False)
class Channel:
    """The live stream of one run. `logged` is the seq of the newest logged frame, 0 before the first.

    `driver` is set while this process drives the run. `has_producer`: frames arrive from a driver, here or
    remote; else there is only the log, which ends at `known_seq` or later. `is_deleted`: the run was deleted.
    `reset_count` counts the reset frames, which discard the text of a lost producer. `open_steps` are by the
    key of their turn and their index.
    """

    run_id: str
    logged: int = 0
    known_seq: int = 0
    reset_count: int = 0
    driver: object | None = None
    has_producer: bool = False
    is_deleted: bool = False
    open_steps: dict[str, dict[int, OpenStep]] = field(default_factory=dict[str, dict[int, OpenStep]])
    watchers: int = 0
    subscriptions: Collection[FrameListener] = ()
    readers: set[RingReader] = field(default_factory=set[RingReader])
    _frames: list[Frame] = field(default_factory=list[Frame])
    _base: int = 0
    _full: int = MIN_RING_FRAMES
    _reset_frames: list[bytes] = field(default_factory=list[bytes])
    _waiting: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])
    _listeners: tuple[FrameListener, ...] = ()
    _listener_futures: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])

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
        self.open_steps.clear()
        for step in steps:
            self.steps_of(step.turn)[step.index] = step
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

    def steps_of(self, turn: TurnRef) -> dict[int, OpenStep]:
        """The open steps of a turn, by index; the caller may change it."""
        return self.open_steps.setdefault(turn.key, {})

    def all_open_steps(self) -> list[OpenStep]:
        """The open steps of all turns, those of a turn in the order of their indexes."""
        return [steps[index] for steps in self.open_steps.values() for index in sorted(steps)]

    def close_step(self, place: tuple[str, int]) -> None:
        """The step is in the log now."""
        turn, index = place
        if (steps := self.open_steps.get(turn)) is not None:
            steps.pop(index, None)

    def end_turn(self, turn: TurnRef) -> None:
        """The turn will have no more steps."""
        self.open_steps.pop(turn.key, None)

    def resets_since(self, count: int) -> bytes | None:
        """The bytes of the reset frames after the first `count`; None if they are no longer kept."""
        missed = self.reset_count - count
        if missed > len(self._reset_frames):
            return None
        return b"".join(self._reset_frames[len(self._reset_frames) - missed :])

    def _reset_open_steps(self) -> list[Frame]:
        frames = [Frame(step.reset_frame(), 0, step, is_reset=True) for step in self.all_open_steps()]
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
        self._listeners = tuple(other for other in self._listeners if other is not listener)
        if future in self._listener_futures:
            self._listener_futures.remove(future)


def _resolve(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
