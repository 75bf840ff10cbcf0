"""What processes tell each other of a run as it goes on: values and their bytes.

What is in the log is not carried, only its number: who follows reads it there. So what is said stays short,
and what a client sees of a logged event is what is stored.
"""

import msgspec

from luxx.wire.step import StepType

WATCH, UNWATCH, FRAMES, DRIVEN = "watch", "unwatch", "frames", "driven"
"""Topics of the bus: follows these runs; no longer; what they say; somebody drives this run from now on."""

NOT_COUNTED = -1


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A step has begun; `text` is what it has said."""

    index: int
    kind: StepType
    call_id: str
    name: str
    text: str


class Grown(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """An open step has said more."""

    index: int
    text: str


class Logged(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """The log goes up to here now."""

    seq: int


class Over(msgspec.Struct, frozen=True, array_like=True, tag="x", gc=False):
    """This process drives the run no longer."""


Item = Opened | Grown | Logged | Over


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The `number`-th thing that a driver tells a follower in one `stream`.

    Number 0 begins it: `Logged` says where, and each `Opened` is a step that is open there. A follower that
    misses a number asks for a new stream. `fence` grows with each drive of the run.
    """

    run_id: str
    fence: int
    stream: int
    number: int
    items: list[Item]


class Asked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process wants to follow a run, or still does. `stream` 0: from here on, with what is open.

    `number` is the last that came of the stream, where it has been quiet; else NOT_COUNTED.
    """

    run_id: str
    stream: int = 0
    number: int = NOT_COUNTED


class Begun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sender drives a run; those of `served` hear from it by themselves."""

    run_id: str
    served: list[str]


encode = msgspec.msgpack.Encoder().encode
decode_told = msgspec.msgpack.Decoder(list[Told]).decode
decode_asked = msgspec.msgpack.Decoder(list[Asked]).decode
decode_ids = msgspec.msgpack.Decoder(list[str]).decode
decode_begun = msgspec.msgpack.Decoder(Begun).decode
