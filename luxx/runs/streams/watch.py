"""Watching a run: the log after a given event, a snapshot of each open step, then the live frames.

A watch gives every logged event exactly once, whether the run is driven here, elsewhere, or has ended. It
yields bytes of text/event-stream, which `api/http/event_streams.py` sends.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from typing import Protocol, Self

import msgspec
from sqlalchemy import bindparam, select

from luxx.infra.clock import timestamp
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.log.channel import COMMENT, NO_POSITION, Channel, Frame, OpenStep, logged_frame
from luxx.runs.log.events import StoredEvent, read_page
from luxx.runs.models import RunRow
from luxx.runs.streams.hub import Hub
from luxx.wire.event import ENDING_EVENT_TYPES, PAUSE_EVENT_TYPES
from luxx.wire.run import ENDED, Run, RunStatus

WAKE_SECONDS = 5.0
"""How often `Hub.wake_all` is called."""

QUIET_SECONDS = 10.0
"""After this long without a frame the next wake sends a comment line: at the latest after 15 s."""


_encode = msgspec.json.Encoder().encode
_runs = table_of(RunRow)
_status = select(_runs.c.status).where(_runs.c.id == bindparam("run_id"))


def run_frame(run: Run) -> bytes:
    """The first frame of every stream: the current state of the run."""
    return b'event: run\ndata: {"type":"run","run_id":"%s","timestamp":"%s","run":%s}\n\n' % (
        run.id.encode(),
        timestamp().encode(),
        _encode(run),
    )


class Pipe(Protocol):
    """A connection that accepts bytes without waiting."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads fast enough, so that few bytes are buffered."""
        ...

    def push(self, data: bytes) -> None:
        """Sends `data`; call it only while `is_writable`. Does not raise."""
        ...


class FrameEncoder(Protocol):
    """Writes a watch's stream in another format; what a method returns may be empty."""

    def run_state(self, run: Run) -> bytes:
        """The run, as it was when the watch began."""
        ...

    def logged(self, events: list[StoredEvent]) -> bytes:
        """Events of the log that were not live."""
        ...

    def snapshots(self, texts: list[tuple[OpenStep, str]]) -> bytes:
        """The text so far of the open steps, before their further deltas."""
        ...

    def frames(self, frames: list[Frame]) -> bytes:
        """Live frames."""
        ...


# Thousands may be open.
@dataclass(slots=True, eq=False, repr=False)
class RunWatch:
    """One client's cursor over one run. Use: `with watch.attached(): while data := await watch.next(): …`.

    It reads the log first, then the ring; if it falls off the ring it reads the log again.
    """

    hub: Hub
    store: Store
    run: Run
    after: InitVar[int] = field(default=0, kw_only=True)
    accumulated: InitVar[bool] = field(default=False, kw_only=True)
    encoder: FrameEncoder | None = field(default=None, kw_only=True)
    _channel: Channel = field(init=False)
    _sent: int = field(init=False)
    _texts: dict[tuple[str, int], str] | None = field(init=False)
    _is_attached: bool = field(default=False, init=False)
    _has_begun: bool = field(default=False, init=False)
    _is_first: bool = field(default=False, init=False)
    _is_live: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)
    _is_at_pause: bool = field(default=False, init=False)
    _index: int = field(default=0, init=False)
    _reset_count: int = field(default=0, init=False)
    _checked_seq: int = field(default=0, init=False)
    _until: int | None = field(default=None, init=False)
    _snapshots: bytes = field(default=b"", init=False)
    _open_texts: list[tuple[OpenStep, str]] = field(default_factory=list[tuple[OpenStep, str]], init=False)
    _has_position: bool = field(default=False, init=False)
    _last_sent: float = field(default=0.0, init=False)
    _pipe: Pipe | None = field(default=None, init=False)
    _wakeup: asyncio.Future[None] | None = field(default=None, init=False)

    def __post_init__(self, after: int, accumulated: bool) -> None:
        self._channel = Channel(self.run.id)
        self._sent = after
        self._texts = {} if accumulated else None

    def write_to(self, pipe: Pipe) -> None:
        """Writes frames into `pipe` as they arrive while it is writable, instead of through `next`.

        Waking the task that calls `next` for each frame would double the cost of a frame.
        """
        self._pipe = pipe

    def attach_before_start(self) -> None:
        """Attaches to a run that has not started: all frames arrive live, so the log is not read."""
        # Any process may claim a queued run; it must know before that this process watches.
        self._attach(is_started=self.run.status == RunStatus.QUEUED)
        self._has_position = self._is_first = True
        self._index = self._channel.end

    def attached(self) -> Self:
        """Keeps the run's channel while the watch is entered."""
        if not self._is_attached:
            self._attach(is_started=self.run.status not in ENDED)
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_failure: object) -> None:
        self._channel.readers.discard(self)
        self.hub.unwatch(self._channel)

    def _attach(self, *, is_started: bool) -> None:
        self._is_attached = True
        self._channel = self.hub.watch(self.run.id, is_started=is_started)
        self._channel.readers.add(self)

    @property
    def position(self) -> int:
        """See `RingReader`."""
        return self._index if self._has_position or self._is_live else NO_POSITION

    @property
    def is_cut(self) -> bool:
        """Whether the watch ended because the server stops; the client should reconnect."""
        return self.hub.closed.is_set() and not self._is_over

    def stop(self) -> None:
        """Ends the watch at once; called when the client disconnects or is signed out."""
        self._is_over = True
        self._channel.wake()

    async def next(self) -> bytes:
        """The next bytes to send; empty once the run has ended or the watch or the hub is closed."""
        channel, closed = self._channel, self.hub.closed
        while not (self._is_over or closed.is_set()):
            if not self._is_live:
                data = await self._before_live()
                if data:
                    self._last_sent = time.monotonic()
                    return data
                continue
            frames = channel.frames_since(self._index)
            if frames:
                self._index += len(frames)
                if data := self._join(frames):
                    self._last_sent = time.monotonic()
                    return data
                continue
            if frames is None:
                # Fell off the ring. Reset frames may have discarded text that the client has.
                self._is_live = self._has_position = False
                data = channel.resets_since(self._reset_count)
                if data is None:
                    break
                if data:
                    return data
                continue
            if channel.is_deleted:
                break
            if not channel.has_producer and self._is_behind_log(channel):
                continue
            await self._wait_for_change()
            if channel.end == self._index and time.monotonic() - self._last_sent >= QUIET_SECONDS:
                self._last_sent = time.monotonic()
                return COMMENT
        return b""

    async def _wait_for_change(self) -> None:
        channel, pipe = self._channel, self._pipe
        if pipe is None or not pipe.is_writable:
            await channel.next_change()
            return
        self._wakeup = channel.listen(self)
        try:
            await self._wakeup
        finally:
            channel.stop_listening(self, self._wakeup)
            self._wakeup = None

    def wake(self) -> None:
        """See `FrameListener`: writes new frames to the client while it is live and the pipe is writable."""
        # While it reads the log it accepts no frames.
        pipe = self._pipe if self._is_live and not self._is_over else None
        if pipe is not None and pipe.is_writable and (frames := self._channel.frames_since(self._index)):
            self._index += len(frames)
            if data := self._join(frames):
                self._last_sent = time.monotonic()
                pipe.push(data)
            if self._is_live and not self._is_over:
                return
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _is_behind_log(self, channel: Channel) -> bool:
        """Without a producer: whether the log has more events; then the watch reads the log."""
        channel.trim_idle()
        if channel.known_seq <= max(self._sent, self._checked_seq):
            return False
        self._is_live = self._has_position = False
        return True

    async def _before_live(self) -> bytes:
        if not self._has_begun:
            self._has_begun = True
            self._is_live = self._is_first
            return run_frame(self.run) if self.encoder is None else self.encoder.run_state(self.run)
        return await self._catch_up()

    async def _catch_up(self) -> bytes:
        """The next bytes before the live frames; empty once there are none."""
        if not self._has_position:
            await self._take_position()
        page = await self._read_page()
        if page:
            self._sent = page[-1].seq
            # A pause closes the stream only where the log ends with it: later events follow a resume.
            self._is_at_pause = page[-1].type in PAUSE_EVENT_TYPES
            self._is_over = self._is_over or any(event.type in ENDING_EVENT_TYPES for event in page)
            if self.encoder is not None:
                return self.encoder.logged(page)
            return b"".join(logged_frame(event.seq, event.type, event.data) for event in page)
        is_paused = self._is_at_pause and await self._is_paused()
        has_begun = self._channel.has_producer or self._channel.reset_count > self._reset_count
        if self._until is None and has_begun:
            # A producer began while the log was read: take a new position with its open steps.
            self._has_position = False
            return b""
        # A run that had ended when the watch was made ends with its last event; the live frames of a run
        # that ended just now may still arrive.
        has_ended = self.run.status in ENDED and self._sent >= self.run.last_seq
        is_paused = is_paused and not self._channel.has_producer
        self._is_over = self._is_over or has_ended or is_paused
        self._is_live = True
        if self.encoder is not None:
            return self.encoder.snapshots(self._open_texts)
        snapshots, self._snapshots = self._snapshots, b""
        return snapshots

    async def _is_paused(self) -> bool:
        """Whether the run is still paused: a resumed one may wait for a slot, or its drive may not have
        begun."""
        status = await self.store.read_rows(
            lambda connection: connection.scalar(_status, {"run_id": self.run.id})
        )
        return status == RunStatus.PAUSED.value

    async def _take_position(self) -> None:
        """Takes a position in the ring, with the end of the log and the snapshots of the open steps there."""
        channel = self._channel
        while (
            channel.has_producer
            and channel.logged < self._sent
            and not (self._is_over or self.hub.closed.is_set())
        ):
            await channel.next_change()
        self._has_position = True
        self._index, self._until, self._snapshots, self._open_texts = channel.end, None, b"", []
        self._reset_count, self._checked_seq = channel.reset_count, channel.known_seq
        if channel.has_producer:
            self._checked_seq = channel.logged
            steps = channel.all_open_steps()
            self._until = channel.logged
            if self.encoder is None:
                self._snapshots = b"".join(step.snapshot() for step in steps)
            else:
                self._open_texts = [(step, step.content()) for step in steps]
            if self._texts is not None:
                self._texts = {step.place: step.content() for step in steps}

    async def _read_page(self) -> list[StoredEvent]:
        run_id, after, until = self.run.id, self._sent, self._until
        if until is not None and after >= until:
            return []
        return await self.store.read(lambda session: read_page(session, run_id, after, until))

    def _join(self, frames: list[Frame]) -> bytes:
        first = frames[0]
        if len(frames) == 1 and first.text and not first.is_opening and self._texts is None:
            return first.data if self.encoder is None else self.encoder.frames(frames)
        end = next((at for at, frame in enumerate(frames) if frame.is_gap), None)
        if end is not None:
            # The frames after the gap continue events that are not in the ring.
            self._is_live = self._has_position = False
            frames = frames[:end]
        self._reset_count += sum(frame.is_reset for frame in frames)
        sent_positions = [at for at, frame in enumerate(frames) if 0 < frame.seq <= self._sent]
        unseen = frames[sent_positions[-1] + 1 :] if sent_positions else frames
        for frame in unseen:
            if frame.seq:
                self._sent = frame.seq
                self._is_over = self._is_over or frame.is_last
        texts = self._texts
        if self.encoder is not None:
            return self.encoder.frames(unseen)
        if texts is None:
            return b"".join([self._data(frame) if frame.is_opening else frame.data for frame in unseen])
        data = b"".join(self._accumulated(unseen, texts))
        for place in texts.keys() - {step.place for step in self._channel.all_open_steps()}:
            del texts[place]
        return data

    def _data(self, frame: Frame) -> bytes:
        if frame.step is None or not frame.is_opening:
            return frame.data
        return self._opening(frame.step, frame.text, frame.data)

    def _opening(self, step: OpenStep, text: str, delta: bytes) -> bytes:
        """What begins a step: its first `delta`, or what replaces the text that the client may have of it.

        A client that joined may have text from another process, which had newer frames or died.
        """
        if self._is_first:
            return delta
        # An empty snapshot withdraws a step, so it does not begin one.
        return step.whole(text) if text else step.reset_frame() + delta

    def _accumulated(self, frames: list[Frame], texts: dict[tuple[str, int], str]) -> Iterator[bytes]:
        """The frames with the text so far in each delta, merged to one delta per step between two others.

        Each delta holds all the text: without the merge the bytes for a slow client would grow quadratically.
        """
        grown: dict[OpenStep, list[Frame]] = {}
        for frame in frames:
            if frame.step is not None and not frame.is_reset:
                grown.setdefault(frame.step, []).append(frame)
                continue
            yield from self._so_far(grown, texts)
            grown.clear()
            if frame.step is not None:
                texts.pop(frame.step.place, None)
            yield frame.data
        yield from self._so_far(grown, texts)

    def _so_far(
        self, grown: dict[OpenStep, list[Frame]], texts: dict[tuple[str, int], str]
    ) -> Iterator[bytes]:
        for step, frames in grown.items():
            text = "".join(frame.text for frame in frames)
            so_far = texts[step.place] = texts.get(step.place, "") + text
            delta = step.accumulated(text, so_far)
            yield self._opening(step, text, delta) if frames[0].is_opening else delta
