"""Frames: the bytes of a run's stream, and the messages of the relay between processes.

Frames of logged events have an `id`; deltas, snapshots and `run` have none. Delta frames are byte templates
around the encoded text, because one is made for every token.
"""

import time

import msgspec

from luxx.infra.clock import timestamp
from luxx.wire.run import Run
from luxx.wire.step import Step, StepStatus, StepType, step_id

MAX_FRAGMENTS = 32
"""Fragments of a step before they are joined; a separate fragment uses ten times the memory of its text."""

COMMENT = b": keep-alive\n\n"

_encode = msgspec.json.Encoder().encode


def logged_frame(seq: int, event_type: str, data: bytes) -> bytes:
    """An event of the log; `data` is its JSON."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event_type.encode(), data)


def run_frame(run: Run) -> bytes:
    """The first frame of every stream: the current state of the run."""
    return b'event: run\ndata: {"type":"run","run_id":"%s","timestamp":"%s","run":%s}\n\n' % (
        run.id.encode(),
        timestamp().encode(),
        _encode(run),
    )


class OpenStep:
    """A growing step. Mutable: it collects its content for snapshots and for the closed step."""

    __slots__ = ("_fragments", "_head", "_joined", "_middle", "call_id", "index", "name", "started", "type")

    def __init__(
        self, run_id: str, index: int, type: StepType, *, call_id: str = "", name: str = "", text: str = ""
    ) -> None:
        self.index = index
        self.type = type
        self.call_id = call_id
        self.name = name
        self._joined = [text]
        self._fragments: list[str] = []
        self.started = time.monotonic()
        self._head = b'event: process_step\ndata: {"type":"process_step","run_id":"%s","timestamp":"' % (
            run_id.encode()
        )
        call = b""
        if type == StepType.TOOL_CALL:
            call = b',"name":%s,"id_ref":%s' % (_encode(name), _encode(call_id))
        status = b"pending" if type == StepType.TOOL_CALL else b"running"
        self._middle = b'","step":{"id":"step-%d","index":%d,"type":"%s"%s,"status":"%s",' % (
            index,
            index,
            type.encode(),
            call,
            status,
        )

    def content(self) -> str:
        """The text so far."""
        self._joined = ["".join([*self._joined, *self._fragments])]
        self._fragments.clear()
        return self._joined[0]

    def grow(self, text: str) -> bytes:
        """Adds `text` and returns its delta frame."""
        fragments = self._fragments
        fragments.append(text)
        if len(fragments) > MAX_FRAGMENTS:
            self._joined.append("".join(fragments))
            fragments.clear()
        return b'%s%s%s"delta":%s}}\n\n' % (self._head, timestamp().encode(), self._middle, _encode(text))

    def accumulated(self, text: str, so_far: str) -> bytes:
        """The delta frame with the text so far, for clients of the old protocol."""
        return b'%s%s%s"delta":%s,"accumulated":%s}}\n\n' % (
            self._head,
            timestamp().encode(),
            self._middle,
            _encode(text),
            _encode(so_far),
        )

    def snapshot(self) -> bytes:
        """The frame with the text so far, for a client that attaches now; a call has arguments as text."""
        key = b"arguments" if self.type == StepType.TOOL_CALL else b"content"
        text = _encode(self.content())
        return b'%s%s%s"%s":%s}}\n\n' % (self._head, timestamp().encode(), self._middle, key, text)

    def reset_frame(self) -> bytes:
        """The frame that empties the step: its driver was lost, so its text is discarded."""
        key = b"arguments" if self.type == StepType.TOOL_CALL else b"content"
        return b'%s%s%s"%s":""}}\n\n' % (self._head, timestamp().encode(), self._middle, key)

    def closed(self, status: StepStatus) -> Step:
        """The step as it is logged, with the final status."""
        step_id_ = step_id(self.index)
        if self.type == StepType.TOOL_CALL:
            return Step(
                id=step_id_,
                index=self.index,
                type=self.type,
                name=self.name,
                id_ref=self.call_id,
                arguments=self.content(),
                status=status,
            )
        duration = int((time.monotonic() - self.started) * 1000)
        return Step(
            id=step_id_,
            index=self.index,
            type=self.type,
            content=self.content(),
            status=status,
            duration_ms=duration,
        )


WATCH, UNWATCH, FRAMES, DRIVEN = "watch", "unwatch", "frames", "driven"
"""Bus topics: follow requests; run ids no longer followed; relay messages; a drive begins."""

NOT_COUNTED = -1


class StepOpened(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A step has begun; `text` is its text so far."""

    index: int
    kind: StepType
    call_id: str
    name: str
    text: str


class StepGrown(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """More text of an open step."""

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
