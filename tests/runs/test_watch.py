"""The live tail: whenever a watcher attaches and however slow it is, it gets the log once and in order."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import insert

from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.channel import COMMENT, Channel, Frame, OpenStep
from luxx.runs.log.events import PAGE_BYTES, RunLog
from luxx.runs.models import RunRow
from luxx.runs.streams import watch as module
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.watch import WAKE_SECONDS, RunWatch
from luxx.wire.event import Done, DoneStatus, ProcessStep
from luxx.wire.orchestration_event import RoomCompleted, RoomPaused
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.turn import CHAT_TURN, StepStatus, StepType, Usage
from luxx.wire.turn_event import Warning

PAST_THE_RING = 5000
"""So many frames that a watcher which reads none of them has to go back to the log."""


class Grow(msgspec.Struct, frozen=True):
    """The step of this type grows by so many fragments; another open step closes first."""

    type: StepType
    fragments: int


class Note(msgspec.Struct, frozen=True):
    """An event that is logged between steps."""


class Attach(msgspec.Struct, frozen=True):
    """A watcher attaches after this share of the log. `permits` is how many chunks it may read;
    `permits_left` is
    how many are pushed before it counts as slow, or None for a watcher that only reads."""

    share: float
    permits: int
    permits_left: int | None = None


class Pull(msgspec.Struct, frozen=True):
    """Every watcher may read this many more chunks, and accepts as many more pushed ones."""

    permits: int


class Wait(msgspec.Struct, frozen=True):
    """The driver yields to other tasks."""

    turns: int


ROOMS = st.sampled_from([None, 0, 1, 3, 1_000_000])
OPERATIONS = st.one_of(
    st.builds(Grow, st.sampled_from([StepType.TEXT, StepType.THINKING]), st.integers(1, 4)),
    st.just(Note()),
    st.builds(Attach, st.floats(0, 1), st.sampled_from([0, 1, 1_000_000]), ROOMS),
    st.builds(Pull, st.integers(1, 3)),
    st.builds(Wait, st.integers(0, 5)),
)
BURST = st.builds(Grow, st.just(StepType.TEXT), st.just(PAST_THE_RING))


class Watcher:
    """One client: reads chunks as permitted and checks them."""

    def __init__(self, watch: RunWatch, after: int, permits: int, permits_left: int | None = None) -> None:
        self.after = after
        self.permits_left = permits_left or 0
        self.pushed = 0
        self.ids: list[int] = []
        self.texts: dict[int, str] = {}
        self.closed: dict[int, str] = {}
        self.types: list[str] = []
        self.permits = asyncio.Semaphore(permits)
        self._watch = watch
        if permits_left is not None:
            watch.write_to(self)

    @property
    def is_writable(self) -> bool:
        return self.permits_left > 0

    def push(self, data: bytes) -> None:
        assert data
        assert self.is_writable
        self.permits_left -= 1
        self.pushed += 1
        self._take_all(data)

    async def read(self) -> None:
        with self._watch.attached():
            while True:
                await self.permits.acquire()
                chunk = await self._watch.next()
                if not chunk:
                    return
                self._take_all(chunk)

    def _take_all(self, chunk: bytes) -> None:
        for block in chunk.decode().split("\n\n")[:-1]:
            self._take(block)

    def _take(self, block: str) -> None:
        if block.startswith(":"):
            return
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        event: dict[str, Any] = json.loads(fields["data"])
        assert event["type"] == fields["event"]
        self.types.append(event["type"])
        if "id" in fields:
            self.ids.append(int(fields["id"]))
        if event["type"] == "process_step":
            self._take_step(event["step"], is_logged="id" in fields)

    def _take_step(self, step: dict[str, Any], *, is_logged: bool) -> None:
        index, known = step["index"], self.texts.get(step["index"], "")
        assert index not in self.closed, "a closed step speaks again"
        if is_logged:
            assert step["content"].startswith(known), "more was shown than was said"
            self.closed[index] = step["content"]
        elif "delta" in step:
            self.texts[index] = known + step["delta"]
        else:
            assert step["content"].startswith(known), "a snapshot that forgets what was shown"
            self.texts[index] = step["content"]


class Driver:
    """Drives one run like the loop: publishes deltas on the channel and appends closed steps to the log."""

    def __init__(self, store: Store, hub: Hub, run: Run, channel: Channel) -> None:
        self.run = run
        self.said: dict[int, str] = {}
        self.watchers: list[Watcher] = []
        self.reading: list[asyncio.Task[None]] = []
        self.log = RunLog(store, channel, CancelSignal(), run_id=run.id, fence=1, seq=0)
        self._store = store
        self._hub = hub
        self._channel = channel
        self._step: OpenStep | None = None
        self._next = 0

    async def do(self, operation: Grow | Note | Attach | Pull | Wait) -> None:
        match operation:
            case Grow():
                await self._grow(operation.type, operation.fragments)
            case Note():
                await self._close()
                await self.log.append([Warning(message="w")])
            case Attach():
                self.attach(int(operation.share * self.log.seq), operation.permits, operation.permits_left)
            case Pull():
                for watcher in self.watchers:
                    watcher.permits_left += operation.permits
                    for _ in range(operation.permits):
                        watcher.permits.release()
            case Wait():
                for _ in range(operation.turns):
                    await asyncio.sleep(0)

    def attach(self, after: int, permits: int = 1_000_000, permits_left: int | None = None) -> Watcher:
        watcher = Watcher(
            RunWatch(self._hub, self._store, self.run, after=after), after, permits, permits_left
        )
        self.watchers.append(watcher)
        self.reading.append(asyncio.create_task(watcher.read()))
        return watcher

    async def end(self) -> None:
        await self._close()
        done_event = Done(message_id="m", token_count=0, usage=Usage(), status=DoneStatus.COMPLETED)
        await self.log.append([done_event])

    async def _grow(self, type_: StepType, fragments: int) -> None:
        if self._step is None or self._step.type != type_:
            await self._close()
            self._step = OpenStep(self.run.id, self._next, type_)
            self._channel.steps_of(CHAT_TURN)[self._next] = self._step
            self._next += 1
        step = self._step
        frames: list[Frame] = []
        for number in range(fragments):
            text = f"{number % 10}ä"
            self.said[step.index] = self.said.get(step.index, "") + text
            frames.append(Frame(step.grow(text), 0, step, text))
        self._channel.publish(*frames)

    async def _close(self) -> None:
        if self._step is not None:
            step, self._step = self._step.closed(StepStatus.DONE), None
            await self.log.append([ProcessStep(step=step)])


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(resolve_url("sqlite:///./t.db", Path(folder)))
        make_ready(engine)
        store = Store(engine)
        store.write_now(add_user)
        yield store
        store.close()


def new_run(store: Store) -> Run:
    run = Run(
        id=new_id(), kind=RunKind.CHAT, subject_id=new_id(), status=RunStatus.RUNNING, created_at=utc_now()
    )

    def keep(session: Any) -> None:
        session.execute(
            insert(RunRow).values(
                id=run.id, user_id=1, tenant_id=1, kind="chat", subject_id=run.subject_id, status="running",
                usage="{}", last_seq=0, request="{}", fence=1, is_cancelled=False, created_at=run.created_at,
            )
        )  # fmt: skip

    store.write_now(keep)
    return run


def run_operations(store: Store, operations: list[Any]) -> Driver:
    """Applies the operations to a run, lets every watcher read to the end, and returns the driver."""

    async def work() -> Driver:
        hub = Hub()
        run = new_run(store)
        async with asyncio.timeout(60):
            with hub.driven(run.id, 0) as channel:
                driver = Driver(store, hub, run, channel)
                for operation in operations:
                    await driver.do(operation)
                await driver.end()
            ended = msgspec.structs.replace(run, status=RunStatus.COMPLETED, last_seq=driver.log.seq)
            driver.run = ended
            driver.attach(0)
            driver.attach(driver.log.seq)
            for watcher in driver.watchers:
                for _ in range(1000):
                    watcher.permits.release()
            await asyncio.gather(*driver.reading)
        return driver

    return asyncio.run(work())


def check(driver: Driver) -> None:
    for watcher in driver.watchers:
        assert watcher.types[0] == "run"
        assert watcher.types.count("run") == 1
        assert watcher.ids == list(range(watcher.after + 1, driver.log.seq + 1))
        assert watcher.types[-1] == ("done" if watcher.ids else "run")
        for index, content in watcher.closed.items():
            assert content == driver.said[index]


QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@QUICK
@given(operations=st.lists(OPERATIONS, max_size=15))
def test_every_watcher_gets_every_logged_event_once_in_order(store: Store, operations: list[Any]) -> None:
    check(run_operations(store, operations))


@FEW
@given(
    before=st.lists(OPERATIONS, max_size=6),
    burst=BURST,
    after=st.lists(OPERATIONS, max_size=6),
    permits_left=ROOMS,
)
def test_a_watcher_past_the_ring_reads_the_log_and_misses_nothing(
    store: Store, before: list[Any], burst: Grow, after: list[Any], permits_left: int | None
) -> None:
    slow = [Attach(0.0, 1, permits_left), Wait(3)]
    check(run_operations(store, [*slow, *before, burst, *after, burst, Note()]))


def test_a_watcher_that_accepts_every_push_gets_every_frame_pushed(store: Store) -> None:
    growing: list[Any] = [Grow(StepType.TEXT, 1)] * 40
    driver = run_operations(store, [Attach(0.0, 1_000_000, 1_000_000), Wait(20), *growing, Note(), *growing])
    check(driver)
    assert driver.watchers[0].pushed >= len(growing)


@QUICK
@given(operations=st.lists(OPERATIONS, max_size=12), permits_left=ROOMS)
def test_a_watcher_from_the_start_sees_every_step_grow_to_its_whole_text(
    store: Store, operations: list[Any], permits_left: int | None
) -> None:
    # Each operation yields to the watcher, so nothing runs ahead of it.
    watched: list[Any] = [Attach(0.0, 1_000_000, permits_left), Wait(3)]
    for operation in operations:
        watched += [operation, Wait(3)]
    driver = run_operations(store, watched)
    check(driver)
    first = driver.watchers[0]
    assert first.texts == first.closed == driver.said


async def test_a_watcher_waits_for_an_end_that_is_stored_and_not_yet_published(store: Store) -> None:
    hub, begun = Hub(), new_run(store)
    ended = msgspec.structs.replace(begun, status=RunStatus.COMPLETED, last_seq=1)
    received = b""
    async with asyncio.timeout(10):
        with hub.driven(begun.id, 0) as channel:
            log = RunLog(store, channel, CancelSignal(), run_id=begun.id, fence=1, seq=0)
            watch = RunWatch(hub, store, ended)
            with watch.attached():
                received += await watch.next()
                reading = asyncio.create_task(watch.next())
                await asyncio.sleep(0)
                done_event = Done(message_id="m", token_count=0, usage=Usage(), status=DoneStatus.COMPLETED)
                await log.append([done_event])
                received += await reading
    assert b"event: done" in received


@pytest.mark.parametrize("status", [RunStatus.PAUSED, RunStatus.QUEUED])
async def test_a_watcher_ends_at_a_pause_unless_the_run_was_resumed(store: Store, status: RunStatus) -> None:
    hub, run = Hub(), new_run(store)
    async with asyncio.timeout(10):
        with hub.driven(run.id, 0) as channel:
            log = RunLog(store, channel, CancelSignal(), run_id=run.id, fence=1, seq=0)
            await log.append([RoomPaused(round=1)], changes={"status": status.value})
        watch = RunWatch(hub, store, run)
        with watch.attached():
            assert b"event: run" in await watch.next()
            assert b"event: room_paused" in await watch.next()
            reading = asyncio.create_task(watch.next())
            if status == RunStatus.PAUSED:
                assert await reading == b""
                return
            with hub.driven(run.id, 1) as channel:
                log = RunLog(store, channel, CancelSignal(), run_id=run.id, fence=1, seq=1)
                await log.append([RoomCompleted(stop_reason="finished", rounds=1)])
                assert b"event: room_completed" in await reading


async def test_a_stopped_watcher_ends_and_the_run_continues(store: Store) -> None:
    hub = Hub()
    run = new_run(store)
    async with asyncio.timeout(20):
        with hub.driven(run.id, 0) as channel:
            driver = Driver(store, hub, run, channel)
            stopped = RunWatch(hub, store, run)
            with stopped.attached():
                assert b"event: run" in await stopped.next()
                await driver.do(Grow(StepType.TEXT, 2))
                stopped.stop()
                assert await stopped.next() == b""
            other = driver.attach(0)
            await driver.end()
            await driver.reading[0]
            assert other.types[-1] == "done"


class AcceptingClient:
    """A client that accepts every push; it records steps as `(key, text)`."""

    def __init__(self) -> None:
        self.text_pieces: list[tuple[str, str]] = []

    @property
    def is_writable(self) -> bool:
        return True

    def push(self, data: bytes) -> None:
        self.read(data)

    def read(self, data: bytes) -> None:
        events = [json.loads(block.partition("data: ")[2]) for block in data.decode().split("\n\n")[:-1]]
        steps = [event["step"] for event in events if event["type"] == "process_step"]
        self.text_pieces += [
            (key, step[key]) for step in steps for key in ("delta", "content") if key in step
        ]


async def test_a_delta_of_a_new_producer_is_not_pushed_before_its_snapshot(
    store: Store,
) -> None:
    hub, run, client = Hub(), new_run(store), AcceptingClient()
    watch = RunWatch(hub, store, run)
    watch.write_to(client)
    first, second = (OpenStep(run.id, 0, StepType.TEXT) for _ in range(2))
    async with asyncio.timeout(10):
        with hub.driven(run.id, 0) as channel, watch.attached():
            channel.steps_of(CHAT_TURN)[0] = first

            async def read() -> None:
                while data := await watch.next():
                    client.read(data)

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.05)
            channel.publish(Frame(first.grow("lost"), 0, first, "lost"))
            second.grow("Let ")
            channel.begin(0, [second])
            channel.publish(Frame(second.grow("me "), 0, second, "me "))
            await asyncio.sleep(0.05)
            channel.publish(Frame(second.grow("see"), 0, second, "see"))
            await asyncio.sleep(0.05)
            watch.stop()
            await reading
    result = client.text_pieces
    assert result == [
        ("content", ""),
        ("delta", "lost"),
        ("content", ""),
        ("content", "Let me "),
        ("delta", "see"),
    ]


@pytest.mark.parametrize("types", [[StepType.TEXT], [StepType.TEXT, StepType.THINKING]])
async def test_a_slow_accumulating_client_does_not_get_the_whole_text_with_every_delta(
    store: Store, types: list[StepType]
) -> None:
    hub, run = Hub(), new_run(store)
    watch = RunWatch(hub, store, run, accumulated=True)
    watch.attach_before_start()
    async with asyncio.timeout(10):
        with hub.driven(run.id, 0) as channel, watch.attached():
            assert b"event: run" in await watch.next()
            steps = [OpenStep(run.id, index, type_) for index, type_ in enumerate(types)]
            channel.steps_of(CHAT_TURN).update(enumerate(steps))
            for _ in range(1000):
                for step in steps:
                    channel.publish(Frame(step.grow("x" * 40), 0, step, "x" * 40))
            piece = await watch.next()
    assert len(piece) < 200_000, "twice what was said, and a little"
    text_pieces = [
        json.loads(block.partition("data: ")[2])["step"] for block in piece.decode().split("\n\n")[:-1]
    ]
    assert [(step["delta"], step["accumulated"]) for step in text_pieces] == [
        ("x" * 40_000, "x" * 40_000)
    ] * len(types)


def log_of_another_process(store: Store, run: Run, seq: int = 0) -> RunLog:
    """Writes to the log of a run without the hub of this process."""
    return RunLog(store, Channel(run.id), CancelSignal(), run_id=run.id, fence=1, seq=seq)


async def read_up_to(watcher: Watcher, seq: int) -> None:
    while seq not in watcher.ids:  # noqa: ASYNC110 - bounded by the test's own limit
        await asyncio.sleep(0)


async def test_a_waiting_run_shows_events_of_this_process_after_those_of_another(store: Store) -> None:
    hub, run = Hub(), new_run(store)
    log = log_of_another_process(store, run)
    watcher = Watcher(RunWatch(hub, store, run), 0, 1_000_000)
    async with asyncio.timeout(10):
        await log.append([Warning(message="asked")])
        reading = asyncio.create_task(watcher.read())
        await read_up_to(watcher, 1)
        await log.append([Warning(message="answered elsewhere")])
        await log.append([Warning(message="answered here")])
        hub.announce_log(run.id, 3)
        await read_up_to(watcher, 3)
        hub.close()
        await reading
    assert watcher.ids == [1, 2, 3]


async def test_events_logged_while_the_driver_leaves_are_shown_after_it_left(store: Store) -> None:
    hub, run = Hub(), new_run(store)
    log = log_of_another_process(store, run)
    async with asyncio.timeout(10):
        await log.append([Warning(message="asked")])
        watcher = Watcher(RunWatch(hub, store, run), 0, 1_000_000)
        with hub.driven(run.id, 1):
            hub.watch(run.id)
            await log.append([Warning(message="answered")])
            hub.announce_log(run.id, 2)
            reading = asyncio.create_task(watcher.read())
            await read_up_to(watcher, 1)
        await read_up_to(watcher, 2)
        hub.close()
        await reading
    assert watcher.ids == [1, 2]


async def test_a_watch_that_is_stopped_while_it_reads_the_log_stays_stopped(store: Store) -> None:
    hub, run = Hub(), new_run(store)
    async with asyncio.timeout(10):
        await log_of_another_process(store, run).append([Warning(message="w")])
        watch = RunWatch(hub, store, run)
        with watch.attached():
            assert b"event: run" in await watch.next()
            reading = asyncio.create_task(watch.next())
            await asyncio.sleep(0)
            watch.stop()
            await reading
            assert await watch.next() == b""


async def test_a_log_of_large_events_is_sent_whole_in_small_pieces(store: Store) -> None:
    hub, run = Hub(), new_run(store)
    async with asyncio.timeout(20):
        log = log_of_another_process(store, run)
        sizes = [1, 3 * PAGE_BYTES, *[PAGE_BYTES // 10] * 35, 1, 1, 2 * PAGE_BYTES]
        await log.append([Warning(message="x" * size) for size in sizes])
        await log.append([Done(message_id="m", token_count=0, usage=Usage(), status=DoneStatus.COMPLETED)])
        ended = msgspec.structs.replace(run, status=RunStatus.COMPLETED, last_seq=log.seq)
        watch = RunWatch(hub, store, ended)
        with watch.attached():
            pieces: list[bytes] = []
            while piece := await watch.next():
                pieces.append(piece)
    ids = [int(line[4:]) for piece in pieces for line in piece.splitlines() if line.startswith(b"id: ")]
    assert ids == list(range(1, log.seq + 1))
    assert all(len(piece) < 4 * PAGE_BYTES for piece in pieces)
    assert 7 <= len(pieces) <= 12


async def test_a_quiet_stream_sends_a_comment_every_15_seconds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1002.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    hub, run = Hub(), new_run(store)
    watch = RunWatch(hub, store, run)
    watch.attach_before_start()
    async with asyncio.timeout(10):
        with watch.attached():
            await watch.next()
            said, reading = now, asyncio.create_task(watch.next())
            for heartbeat in range(1, 12):
                now = 1000.0 + heartbeat * WAKE_SECONDS
                await asyncio.sleep(0)
                hub.wake_all()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert now - said <= 15 or reading.done()
                if reading.done():
                    assert reading.result() == COMMENT
                    assert now - said <= 15
                    said, reading = now, asyncio.create_task(watch.next())
            watch.stop()
            assert await reading == b""


def test_the_hub_forgets_a_run_that_is_neither_driven_nor_watched(store: Store) -> None:
    hub = Hub()
    with hub.driven("r", 0) as driven:
        for _ in range(2):
            watched = hub.watch("r")
            assert watched is driven
            hub.unwatch(watched)
    later = hub.watch("r")
    assert later is not driven
    assert hub.watch("r") is later
    hub.unwatch(later)
    assert hub.is_watched("r")
    hub.unwatch(later)
    assert hub.watch("r") is not later
