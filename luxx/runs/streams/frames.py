"""Frames: the bytes of a run's stream. Logged events carry an `id`; deltas, snapshots and `run` do not.

Spliced around msgspec-encoded text, because one of these is made for every token.
"""

import time

import msgspec

from luxx.infra.clock import timestamp
from luxx.wire.run import Run
from luxx.wire.step import Step, StepStatus, StepType, step_id

MAX_FRAGMENTS = 32
"""Fragments of a step that are joined: each by itself takes ten times what its text does."""

COMMENT = b": keep-alive\n\n"

_encode = msgspec.json.Encoder().encode


def logged_frame(seq: int, event_type: str, data: bytes) -> bytes:
    """An event of the log; `data` is its JSON."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event_type.encode(), data)


def run_frame(run: Run) -> bytes:
    """The frame that opens every stream: the run as it is now."""
    return b'event: run\ndata: {"type":"run","run_id":"%s","timestamp":"%s","run":%s}\n\n' % (
        run.id.encode(),
        timestamp().encode(),
        _encode(run),
    )


class OpenStep:
    """A step that grows. Not a value: it collects its content, for snapshots and for its closing."""

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
        """All of it so far."""
        self._joined = ["".join([*self._joined, *self._fragments])]
        self._fragments.clear()
        return self._joined[0]

    def grow(self, text: str) -> bytes:
        """Adds `text` and returns the frame that tells of it."""
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
        """What a client that attaches now begins this step with; the text of a call is its arguments."""
        key = b"arguments" if self.type == StepType.TOOL_CALL else b"content"
        text = _encode(self.content())
        return b'%s%s%s"%s":%s}}\n\n' % (self._head, timestamp().encode(), self._middle, key, text)

    def reset_frame(self) -> bytes:
        """What a client is told when what the step said is not kept: its driver was lost, it begins anew."""
        key = b"arguments" if self.type == StepType.TOOL_CALL else b"content"
        return b'%s%s%s"%s":""}}\n\n' % (self._head, timestamp().encode(), self._middle, key)

    def closed(self, status: StepStatus) -> Step:
        """The step as it is logged. A tool call closes when its arguments are whole or will never be."""
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
"""Topics of the bus: follows these runs; no longer; what they say; somebody drives this run from now on."""

NOT_COUNTED = -1


class StepOpened(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A step has begun; `text` is what it has said."""

    index: int
    kind: StepType
    call_id: str
    name: str
    text: str


class StepGrown(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """An open step has said more."""

    index: int
    text: str


class LogGrown(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """The log goes up to here now."""

    seq: int


class DriveEnded(msgspec.Struct, frozen=True, array_like=True, tag="x", gc=False):
    """This process drives the run no longer."""


RelayItem = StepOpened | StepGrown | LogGrown | DriveEnded


class RelayMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The `number`-th thing that a driver tells a follower in one `stream`.

    Number 0 begins it: `Logged` says where, and each `Opened` is a step that is open there. A follower that
    misses a number asks for a new stream. `fence` grows with each drive of the run.
    """

    run_id: str
    fence: int
    stream: int
    number: int
    items: list[RelayItem]


class FollowRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process wants to follow a run, or still does. `stream` 0: from here on, with what is open.

    `number` is the last that came of the stream, where it has been quiet; else NOT_COUNTED.
    """

    run_id: str
    stream: int = 0
    number: int = NOT_COUNTED


class DriveBegun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sender drives a run; those of `served` hear from it by themselves."""

    run_id: str
    served: list[str]


encode = msgspec.msgpack.Encoder().encode
decode_messages = msgspec.msgpack.Decoder(list[RelayMessage]).decode
decode_follow_requests = msgspec.msgpack.Decoder(list[FollowRequest]).decode
decode_ids = msgspec.msgpack.Decoder(list[str]).decode
decode_drive_begun = msgspec.msgpack.Decoder(DriveBegun).decode
