"""Watching a run: the log after a given place, one snapshot of each open step, then the live tail.

Nothing missing and nothing twice, whether the run is driven here, elsewhere, or over. Yields bytes of
text/event-stream; `api/sse.py` sends them.
"""

import time
from collections.abc import AsyncGenerator

from luxx.runs.events import StoredEvent, read_page
from luxx.runs.frames import COMMENT, logged_frame, run_frame
from luxx.runs.hub import Channel, Frame, Hub
from luxx.store.engine import Store
from luxx.wire.event import ENDING
from luxx.wire.run import Run

QUIET_SECONDS = 15.0
"""A comment line is sent after this long without a frame."""


class Watch:
    """One client's cursor over one run. `stop` ends it from outside (the client left, or was signed out)."""

    def __init__(
        self, hub: Hub, store: Store, run: Run, *, after: int = 0, accumulated: bool = False
    ) -> None:
        self._hub = hub
        self._store = store
        self._run = run
        self._sent = after
        self._texts: dict[int, str] | None = {} if accumulated else None
        self._is_stopped = False
        self._saw_end = False
        self._channel: Channel | None = None

    def stop(self) -> None:
        """Ends `frames` at once."""
        self._is_stopped = True
        if self._channel is not None:
            self._channel.wake()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The stream, from its `run` frame to the event that ends the run."""
        with self._hub.watched(self._run.id) as channel:
            self._channel = channel
            yield run_frame(self._run)
            is_over = False
            while not is_over and not self._is_stopped:
                index, snapshots = 0, b""
                is_settled = False
                while not is_settled and not is_over:
                    index, until, snapshots = await self._place(channel)
                    async for page in self._replay(until):
                        yield b"".join(logged_frame(e.seq, e.type, e.data) for e in page)
                        is_over = any(e.type in ENDING for e in page)
                    is_settled = until is not None or not channel.is_driven
                if is_over:
                    return
                if snapshots:
                    yield snapshots
                async for data in self._live(channel, index):
                    yield data
                is_over = self._saw_end

    async def _place(self, channel: Channel) -> tuple[int, int | None, bytes]:
        """Where the live tail is taken up: its index, the log's place there, and what is open there."""
        if not channel.is_driven:
            return channel.end, None, b""
        while channel.is_driven and channel.logged < self._sent and not self._is_stopped:
            await channel.wait(channel.end)
        steps = [channel.open_steps[index] for index in sorted(channel.open_steps)]
        if self._texts is not None:
            self._texts = {step.index: step.content() for step in steps}
        return channel.end, channel.logged, b"".join(step.snapshot() for step in steps)

    async def _replay(self, until: int | None) -> AsyncGenerator[list[StoredEvent], None]:
        while until is None or self._sent < until:
            after = self._sent
            page = await self._store.read(lambda s, after=after: read_page(s, self._run.id, after, until))
            if not page:
                return
            self._sent = page[-1].seq
            yield page

    async def _live(self, channel: Channel, index: int) -> AsyncGenerator[bytes, None]:
        """Live frames from `index` on; returns at the end, when stopped, or when the ring moved past."""
        last_sent = time.monotonic()
        while not self._is_stopped:
            frames = channel.since(index)
            if frames is None:
                return
            if frames:
                index += len(frames)
                yield self._join(frames)
                last_sent = time.monotonic()
                if self._saw_end:
                    return
            else:
                await channel.wait(index)
                if channel.end == index and time.monotonic() - last_sent >= QUIET_SECONDS:
                    yield COMMENT
                    last_sent = time.monotonic()

    def _join(self, frames: list[Frame]) -> bytes:
        known = [at for at, frame in enumerate(frames) if 0 < frame.seq <= self._sent]
        out: list[bytes] = []
        for frame in frames[known[-1] + 1 :] if known else frames:
            if frame.seq:
                self._sent = frame.seq
                self._saw_end = self._saw_end or frame.is_last
            out.append(frame.data if self._texts is None else self._accumulate(frame, self._texts))
        return b"".join(out)

    @staticmethod
    def _accumulate(frame: Frame, texts: dict[int, str]) -> bytes:
        step = frame.step
        if step is None:
            return frame.data
        so_far = texts.get(step.index, "") + frame.text
        texts[step.index] = so_far
        return step.accumulated(frame.text, so_far)
