"""What a client shows of a run: frames parsed from bytes and folded into steps by a pure reducer.

The reducer is strict: an id out of order, a delta for a closed step, or a closing step that differs
from the deltas before it is an AssertionError.
"""

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Frame:
    event: str
    data: Json
    id: int | None = None

    @property
    def step(self) -> Json:
        return self.data["step"]


class FrameReader:
    """Parses bytes into frames; counts comment lines, and whether a stopping server asked to reconnect."""

    def __init__(self) -> None:
        self.comments = 0
        self.retry_ms: int | None = None
        self.size = 0
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        self.size += len(data)
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        frames = [self._frame(block.decode()) for block in blocks]
        return [frame for frame in frames if frame is not None]

    def _frame(self, block: str) -> Frame | None:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            if line.startswith(":"):
                self.comments += 1
            elif line.startswith("retry: "):
                self.retry_ms = int(line.removeprefix("retry: "))
            elif line:
                name, _, value = line.partition(": ")
                assert name in ("id", "event", "data"), f"not a field of a frame: {line!r}"
                assert name not in fields, f"a field twice in one frame: {block!r}"
                fields[name] = value
        if not fields:
            return None
        data = json.loads(fields["data"])
        assert fields["event"] == data["type"]
        return Frame(event=fields["event"], data=data, id=int(fields["id"]) if "id" in fields else None)


@dataclass(kw_only=True)
class Screen:
    """What one client shows of one run, over as many connections as necessary.

    Over a new connection it keeps the text of open steps, which the server must replace or withdraw before it
    sends more of it. For a client that reads too slowly `may_fall_behind` is set: deltas may be missing if a
    snapshot or the closing step replaces them.
    """

    steps: dict[int, Json] = field(default_factory=dict)
    last_id: int = 0
    may_fall_behind: bool = False
    frames: list[Frame] = field(default_factory=list)
    done: Json | None = None
    error: Json | None = None
    _open: dict[int, Json] = field(default_factory=dict)
    _kept: set[int] = field(default_factory=set)
    _is_attached: bool = False

    @property
    def text(self) -> str:
        shown = {**self.steps, **self._open}
        said = [shown[at] for at in sorted(shown) if shown[at]["type"] == "text"]
        whole = [step for step in said if step["status"] != "interrupted" and not step.get("superseded")]
        return "".join(step["content"] for step in whole)

    @property
    def run_id(self) -> str:
        return self.frames[0].data["run_id"]

    def data_of(self, event: str) -> list[Json]:
        """The data of the events of this type."""
        return [frame.data for frame in self.frames if frame.event == event]

    def attach(self) -> None:
        """A new connection: open steps come again as snapshots."""
        self._kept = set(self._open)
        self._is_attached = False

    def show(self, frame: Frame) -> None:
        assert self.done is None, f"after the end came {frame}"
        if not self._is_attached:
            assert frame.event == "run", f"a stream begins with run, not {frame}"
            self._is_attached = True
        self.frames.append(frame)
        if frame.id is not None:
            assert frame.id == self.last_id + 1, f"after {self.last_id} came {frame}"
            self.last_id = frame.id
        if frame.event == "process_step":
            self._show_step(frame)
        elif frame.event == "retrying":
            self._open, self._kept = {}, set()
        elif frame.event == "done":
            self.done = frame.data
            self._open = {}
        elif frame.event == "error":
            self.error = frame.data

    def _show_step(self, frame: Frame) -> None:
        step, index = frame.step, frame.step["index"]
        assert step["id"] == f"step-{index}"
        if frame.id is not None:
            self._close(index, step)
        elif "delta" in step:
            assert index not in self.steps, f"a delta for a step that is closed: {frame}"
            assert index not in self._kept, f"a delta after the text of an earlier connection: {frame}"
            shown = self._open.setdefault(index, {**step, "content": ""})
            shown["content"] += step["delta"]
            if "accumulated" in step:
                assert step["accumulated"] == shown["content"]
        else:
            assert index not in self.steps, f"a snapshot of a step that is closed: {frame}"
            key = "arguments" if step["type"] == "tool_call" else "content"
            if step[key] == "":
                # Its text is dropped: the step begins anew.
                self._open.pop(index, None)
                self._kept.discard(index)
                return
            if index in self._kept:
                self._kept.discard(index)
            elif self.may_fall_behind and index in self._open:
                assert step[key].startswith(self._open[index]["content"])
            else:
                assert index not in self._open, f"a second snapshot of a step: {frame}"
            self._open[index] = {**step, "content": step[key]}

    def _close(self, index: int, step: Json) -> None:
        grown = self._open.pop(index, None)
        if index in self._kept:
            self._kept.discard(index)
        elif grown is not None:
            whole = step["arguments"] if step["type"] == "tool_call" else step["content"]
            same = whole.startswith(grown["content"]) if self.may_fall_behind else grown["content"] == whole
            assert same, f"step {index} grew to {grown['content'][-80:]!r} and closed as {whole[-80:]!r}"
            assert grown["type"] == step["type"]
        self.steps[index] = step

    def ordered(self) -> list[Json]:
        return [self.steps[at] for at in sorted(self.steps)]

    def events(self) -> list[str]:
        return [frame.event for frame in self.frames if frame.id is not None]
