"""Clients of other processes than the driver see a run without losses or repetitions, whatever the bus does.

Each "process" is a hub with its own relay; they share a database and a bus that may lose messages.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bus.in_memory_bus import InMemoryNetwork
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import delete, insert, update

from luxx.infra.bus.core import Bus
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.channel import Channel, Frame, OpenStep
from luxx.runs.log.events import RunLog, read_log
from luxx.runs.models import RunRow
from luxx.runs.streams import publisher
from luxx.runs.streams.hub import POLLS_PER_FULL_POLL, Hub, RunRelay
from luxx.runs.streams.watch import RunWatch
from luxx.wire.event import Done, DoneStatus, ProcessStep
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.turn import CHAT_TURN, StepStatus, StepType, Usage
from luxx.wire.turn_event import Warning

SECONDS = 60.0
POLL_SECONDS = 0.02
"""Short, so that losses are noticed soon; a heartbeat is five polls."""

QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(resolve_url("sqlite:///./t.db", Path(folder)))
        make_ready(engine)
        store = Store(engine)
        store.write_now(add_user)
        yield store
        store.close()


class Client:
    """Follows one watch to its end and stores what a client shows: steps by index, and the ids of events."""

    def __init__(self, watch: RunWatch, *, accumulated: bool = False) -> None:
        self.ids: list[int] = []
        self.shown: dict[int, str] = {}
        self.closed: dict[int, str] = {}
        self.deltas = 0
        self.snapshots = 0
        self.types: list[str] = []
        self.reading = asyncio.create_task(self._read(watch))
        self._accumulated = accumulated
        self._looks = 0
        self._received = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._received.clear()
            await self._received.wait()

    async def _read(self, watch: RunWatch) -> None:
        with watch.attached():
            while chunk := await watch.next():
                self._take(chunk)

    @property
    def is_writable(self) -> bool:
        """Every seventh time the client is slow."""
        self._looks += 1
        return self._looks % 7 > 0

    def push(self, data: bytes) -> None:
        self._take(data)

    def _take(self, chunk: bytes) -> None:
        for block in chunk.decode().split("\n\n")[:-1]:
            if not block.startswith(":"):
                self._show(dict(line.split(": ", 1) for line in block.split("\n")))
        self._received.set()

    def _show(self, fields: dict[str, str]) -> None:
        event: dict[str, Any] = json.loads(fields["data"])
        self.types.append(event["type"])
        if "id" in fields:
            self.ids.append(int(fields["id"]))
        if event["type"] == "process_step":
            self._show_step(event["step"], is_logged="id" in fields)

    def _show_step(self, step: dict[str, Any], *, is_logged: bool) -> None:
        index = step["index"]
        if is_logged:
            if index in self.shown:
                assert step["content"].startswith(self.shown.pop(index)), "more was shown than logged"
            assert index not in self.closed
            self.closed[index] = step["content"]
            return
        assert index not in self.closed, "a frame of a closed step"
        if "delta" in step:
            self.deltas += 1
            self.shown[index] = self.shown.get(index, "") + step["delta"]
            if self._accumulated:
                assert step["accumulated"] == self.shown[index]
        else:
            self.snapshots += 1
            self.shown[index] = step["content"]


class Process:
    """One process: it can watch runs, drive them, and die."""

    def __init__(
        self, network: InMemoryNetwork, store: Store, name: str, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self.name = name
        self.network = network
        self.bus = network.bus(name)
        self.hub = Hub()
        self.relay = RunRelay(self.hub, self.bus, store, poll_seconds=poll_seconds)
        self.clients: list[Client] = []
        self._store = store

    def watch(self, run: Run, after: int = 0, *, accumulated: bool = False) -> Client:
        watch = RunWatch(self.hub, self._store, run, after=after, accumulated=accumulated)
        client = Client(watch, accumulated=accumulated)
        if len(self.clients) % 2 == 0:
            watch.write_to(client)
        self.clients.append(client)
        return client

    async def drive(self, run: Run, fence: int) -> "Drive":
        """Takes the run with this fence, as a lease does, and continues at the end of its log."""

        def take(session: Any) -> int:
            mine = update(RunRow).where(RunRow.id == run.id).values(owner=self.name, fence=fence)
            session.execute(mine.values(status="running"))
            return len(read_log(session.connection(), run.id))

        logged = await self._store.write(take)
        return Drive(self, self._store, run, logged, fence)

    async def die(self) -> None:
        """Ends without notifying its clients or the other processes."""
        self.network.leave(self.name)
        for client in self.clients:
            client.reading.cancel()
        await self.relay.close()


class Drive:
    """One drive of a run: publishes deltas on the channel and appends closed steps to the log."""

    def __init__(self, process: Process, store: Store, run: Run, logged: int, fence: int) -> None:
        self._hold = ExitStack()
        self.channel: Channel = self._hold.enter_context(process.hub.driven(run.id, logged, fence))
        self.log = RunLog(store, self.channel, CancelSignal(), run_id=run.id, fence=fence, seq=logged)
        self._run = run
        self._step: OpenStep | None = None
        self._name = process.name

    def say(self, text: str, type_: StepType = StepType.TEXT) -> None:
        if self._step is None:
            # Steps are numbered by the log, so that another drive continues with the same number.
            index = self.log.seq
            self._step = OpenStep(self._run.id, index, type_)
            self.channel.steps_of(CHAT_TURN)[index] = self._step
        self.channel.publish(Frame(self._step.grow(text), 0, self._step, text))

    async def close_step(self) -> None:
        if self._step is not None:
            step, self._step = self._step, None
            await self.log.append([ProcessStep(step=step.closed(StepStatus.DONE))])

    async def note(self) -> None:
        await self.close_step()
        await self.log.append([Warning(message="w")])

    async def end(self) -> None:
        await self.close_step()
        done_event = Done(message_id="m", token_count=0, usage=Usage(), status=DoneStatus.COMPLETED)
        await self.log.append([done_event], changes={"status": "completed", "owner": None})
        self.leave()

    def leave(self) -> None:
        """Stops driving the run and notifies the other processes."""
        self._hold.close()


def new_run(store: Store) -> Run:
    run = Run(
        id=new_id(), kind=RunKind.CHAT, subject_id=new_id(), status=RunStatus.RUNNING, created_at=utc_now()
    )

    def keep(session: Any) -> None:
        session.execute(
            insert(RunRow).values(
                id=run.id, user_id=1, tenant_id=1, kind="chat", subject_id=run.subject_id, status="running",
                usage="{}", last_seq=0, request="{}", fence=0, is_cancelled=False, created_at=run.created_at,
            )
        )  # fmt: skip

    store.write_now(keep)
    return run


@asynccontextmanager
async def processes(
    store: Store, network: InMemoryNetwork, names: str = "ab", *, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[tuple[Process, ...]]:
    made = [Process(network, store, name, poll_seconds) for name in names]
    try:
        async with asyncio.timeout(SECONDS):
            for process in made:
                await process.relay.open()
            yield tuple(made)
    finally:
        for process in made:
            process.hub.close()
            for client in process.clients:
                client.reading.cancel()
            await asyncio.gather(*(client.reading for client in process.clients), return_exceptions=True)
            await process.relay.close()


async def read_to_the_end(store: Store, run: Run, *clients: Client) -> None:
    """Waits until the streams of the clients have ended, and checks that they show what is stored."""
    await asyncio.gather(*(client.reading for client in clients))
    log = await store.read(lambda session: read_log(session.connection(), run.id))
    steps = {
        event.event.step.index: event.event.step.content
        for event in log
        if isinstance(event.event, ProcessStep)
    }
    for client in clients:
        assert client.types[0] == "run"
        assert client.types.count("run") == 1
        assert client.types[-1] == "done"
        assert client.ids == list(range(log[-1].seq - len(client.ids) + 1, log[-1].seq + 1))
        assert client.closed.items() <= steps.items()
        assert all(text == "" for text in client.shown.values())


async def test_a_client_elsewhere_sees_every_delta_and_every_event(store: Store) -> None:
    run = new_run(store)
    async with processes(store, InMemoryNetwork()) as (a, b):
        drive = await a.drive(run, 1)
        client = b.watch(run)
        old = b.watch(run, accumulated=True)
        drive.say("0")
        for one in (client, old):
            await one.until(lambda one=one: one.shown == {0: "0"})
        for number in range(1, 20):
            drive.say(str(number % 10))
            await client.until(lambda number=number: len(client.shown[0]) == number + 1)
        await drive.note()
        drive.say("more")
        await client.until(lambda: client.shown == {2: "more"})
        await drive.end()
        await read_to_the_end(store, run, client, old)
        assert client.ids == [1, 2, 3, 4]
        # The first text of each step replaces what a client that joined may have of it.
        assert (client.deltas, client.snapshots) == (19, 2)


async def test_a_run_without_remote_subscribers_publishes_nothing_on_the_bus(store: Store) -> None:
    run, network = new_run(store), InMemoryNetwork()
    async with processes(store, network) as (a, _):
        drive = await a.drive(run, 1)
        here = a.watch(run)
        for _ in range(100):
            drive.say("x")
            await asyncio.sleep(0)
        await drive.end()
        await read_to_the_end(store, run, here)
    assert network.published == []


async def test_after_the_last_unsubscribe_nothing_is_published(store: Store) -> None:
    run, network = new_run(store), InMemoryNetwork()
    async with processes(store, network) as (a, b):
        drive = await a.drive(run, 1)
        client = b.watch(run)
        drive.say("x")
        await client.until(lambda: client.shown == {0: "x"})
        client.reading.cancel()
        await asyncio.gather(client.reading, return_exceptions=True)
        for _ in range(100):
            await asyncio.sleep(0)
        assert network.published[-1][1] == "unwatch"
        before = len(network.published)
        for _ in range(50):
            drive.say("x")
            await asyncio.sleep(0)
        assert len(network.published) == before
        await drive.end()


async def test_a_client_that_attaches_during_a_step_gets_the_whole_step(store: Store) -> None:
    run = new_run(store)
    async with processes(store, InMemoryNetwork(), "abc") as (a, b, c):
        drive = await a.drive(run, 1)
        await drive.note()
        drive.say("begun ")
        first = b.watch(run)
        await first.until(lambda: first.shown == {1: "begun "})
        drive.say("and ")
        second, third = b.watch(run, after=1), c.watch(run)
        await second.until(lambda: second.shown == {1: "begun and "})
        await third.until(lambda: third.shown == {1: "begun and "})
        drive.say("ended")
        await drive.end()
        await read_to_the_end(store, run, first, second, third)
        assert (first.ids, second.ids, third.ids) == ([1, 2, 3], [2, 3], [1, 2, 3])


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_process_that_takes_the_run_over_publishes_the_open_step_again(
    store: Store, is_told: bool
) -> None:
    """The first driver dies during a step. One client is elsewhere, one at the new driver."""

    run = new_run(store)
    network = InMemoryNetwork(loses=lambda topic, _: not is_told and topic == "driven")
    async with processes(store, network, "abc") as (a, b, c):
        drive = await a.drive(run, 1)
        await drive.note()
        at_b, at_c = b.watch(run), c.watch(run, accumulated=True)
        drive.say("never stored")
        for client in (at_b, at_c):
            await client.until(lambda client=client: client.shown == {1: "never stored"})
        await a.die()
        again = await b.drive(run, 2)
        again.say("stored", StepType.THINKING)
        for client in (at_b, at_c):
            await client.until(lambda client=client: client.shown == {1: "stored"})
        await again.end()
        await read_to_the_end(store, run, at_b, at_c)


async def test_a_run_is_followed_before_a_process_drives_it(store: Store) -> None:
    run = new_run(store)
    async with processes(store, InMemoryNetwork()) as (a, b):
        client = b.watch(run)
        await client.until(lambda: client.types == ["run"])
        drive = await a.drive(run, 1)
        drive.say("now")
        await client.until(lambda: client.shown == {0: "now"})
        assert b.relay.followed_runs == 1
        await drive.end()
        await read_to_the_end(store, run, client)


async def test_a_run_that_was_queued_here_is_seen_at_once_when_another_takes_it(store: Store) -> None:
    run = msgspec.structs.replace(new_run(store), status=RunStatus.QUEUED)
    async with processes(store, InMemoryNetwork(), poll_seconds=2 * SECONDS) as (a, b):
        watch = RunWatch(b.hub, store, run)
        watch.attach_before_start()
        client = Client(watch)
        b.clients.append(client)
        await client.until(lambda: client.types == ["run"])
        drive = await a.drive(run, 1)
        drive.say("now")
        await client.until(lambda: client.shown == {0: "now"})
        await drive.end()
        await read_to_the_end(store, run, client)


class FailingStore:
    """A store whose next read for a remote subscriber raises an unexpected error."""

    def __init__(self, store: Store) -> None:
        self.broke = False
        self._store = store

    async def read(self, work: Any) -> Any:
        if not self.broke and "RemoteSubscriber" in work.__qualname__:
            self.broke = True
            raise RuntimeError("an unexpected error")
        return await self._store.read(work)


async def test_a_client_continues_after_a_failed_read_of_the_log(store: Store) -> None:
    run = new_run(store)
    async with processes(store, InMemoryNetwork()) as (a, b):
        breaking = FailingStore(store)
        b.relay._store = breaking  # type: ignore[assignment]
        drive = await a.drive(run, 1)
        client = b.watch(run)
        drive.say("one")
        await client.until(lambda: client.shown == {0: "one"})
        await drive.note()
        drive.say("two")
        await client.until(lambda: client.shown == {2: "two"})
        assert breaking.broke
        await drive.end()
        await read_to_the_end(store, run, client)


async def test_a_subscriber_without_heartbeats_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SUBSCRIPTION_SECONDS", 2.0)

    async with processes(store, InMemoryNetwork()) as (a, b):
        clients = [b.watch(new_run(store)) for _ in range(2)]
        wanted = a.relay._publisher._wanted
        while len(wanted) < 2:  # noqa: ASYNC110 - the publisher has no event for it
            await asyncio.sleep(POLL_SECONDS)
        clients[0].reading.cancel()
        while len(wanted) == 2:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        assert a.relay._publisher.is_busy, "the other subscription is still active"
        b.network.leave("b")
        while wanted:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        assert not a.relay._publisher.is_busy


async def test_clients_follow_the_log_while_the_bus_is_away_and_then_the_deltas_again(store: Store) -> None:
    run = new_run(store)
    async with processes(store, InMemoryNetwork()) as (a, b):
        drive = await a.drive(run, 1)
        client = b.watch(run)
        drive.say("heard ")
        await client.until(lambda: client.shown == {0: "heard "})
        for bus in (b.bus, a.bus):
            bus.cut()
            drive.say("and ")
            await drive.note()
            await client.until(lambda: bool(client.ids) and client.ids[-1] == drive.log.seq)
            bus.reconnect()
            drive.say("after")
            at = drive.log.seq
            await client.until(lambda at=at: client.shown.get(at) == "after")
        await drive.end()
        await read_to_the_end(store, run, client)


async def test_a_run_that_is_deleted_ends_its_streams(store: Store) -> None:
    run = new_run(store)
    async with processes(store, InMemoryNetwork()) as (a, b):
        client = b.watch(run)
        await client.until(lambda: client.types == ["run"])
        await store.write(lambda session: session.execute(delete(RunRow).where(RunRow.id == run.id)))
        await client.reading
        assert client.types == ["run"]
        assert a.relay.followed_runs == 0


async def test_a_run_that_was_just_released_is_checked_before_the_next_heartbeat(store: Store) -> None:
    """The run may have failed, and a process without others gets no hint of it."""

    run, hub = new_run(store), Hub()
    relay = RunRelay(hub, Bus("one"), store, poll_seconds=POLL_SECONDS)
    await relay.open()
    try:
        with hub.driven(run.id, 0):
            client = Client(RunWatch(hub, store, run))
            await client.until(lambda: client.types == ["run"])
            await store.write(lambda session: session.execute(delete(RunRow).where(RunRow.id == run.id)))
        await client.reading
        assert 0 < relay._poll_count < POLLS_PER_FULL_POLL
    finally:
        await relay.close()


# --- at random --------------------------------------------------------------------------------------

WORDS = [
    "say",
    "say",
    "say",
    "say",
    "burst",
    "close",
    "note",
    "watch",
    "turn",
    "wait",
    "die",
    "hand_over",
    "cut",
]
OPERATIONS = st.lists(st.sampled_from(WORDS), max_size=25)


class Scenario:
    """One run and six processes; each operation is a method."""

    def __init__(self, store: Store, run: Run, processes: tuple[Process, ...], chance: random.Random) -> None:
        self.clients: list[Client] = []
        self._store = store
        self._run = run
        self._alive = list(processes)
        self._driver = processes[0]
        self._chance = chance
        self._fence = 0
        self._cut: Process | None = None

    async def begin(self) -> None:
        self._fence += 1
        self._drive = await self._driver.drive(self._run, self._fence)

    async def end(self) -> None:
        self._reconnect()
        await self._drive.end()

    async def say(self) -> None:
        self._drive.say("word ")

    async def burst(self) -> None:
        for _ in range(self._chance.choice([10, 5000])):
            self._drive.say("x")

    async def close(self) -> None:
        await self._drive.close_step()

    async def note(self) -> None:
        await self._drive.note()

    async def watch(self) -> None:
        after, is_old = self._chance.randint(0, self._drive.log.seq), self._chance.random() < 0.5
        self.clients.append(self._chance.choice(self._alive).watch(self._run, after, accumulated=is_old))

    async def turn(self) -> None:
        for _ in range(self._chance.randint(1, 5)):
            await asyncio.sleep(0)

    async def wait(self) -> None:
        await asyncio.sleep(self._chance.choice([0.001, POLL_SECONDS, 6 * POLL_SECONDS]))

    async def cut(self) -> None:
        self._reconnect()
        self._cut = self._chance.choice(self._alive)
        self._cut.bus.cut()

    async def die(self) -> None:
        if len(self._alive) > 2:
            self._alive.remove(self._driver)
            self.clients = [client for client in self.clients if client not in self._driver.clients]
            await self._driver.die()
            await self.hand_over()

    async def hand_over(self) -> None:
        self._drive.leave()
        self._driver = self._chance.choice(self._alive)
        await self.begin()

    def _reconnect(self) -> None:
        if self._cut is not None and self._cut in self._alive:
            self._cut.bus.reconnect()
        self._cut = None


async def run_operations(store: Store, operations: list[str], seed: int, loss: float) -> None:
    chance = random.Random(seed)
    network = InMemoryNetwork(loses=lambda topic, _: chance.random() < loss)
    run = new_run(store)
    async with processes(store, network, "abcdef") as all_:
        scenario = Scenario(store, run, all_, chance)
        await scenario.begin()
        for operation in operations:
            await getattr(scenario, operation)()
        await scenario.end()
        await read_to_the_end(store, run, *scenario.clients)


@QUICK
@given(operations=OPERATIONS, seed=st.integers(0, 2**32))
def test_after_random_operations_every_client_sees_what_is_stored(
    store: Store, operations: list[str], seed: int
) -> None:
    asyncio.run(run_operations(store, operations, seed, 0.0))


@QUICK
@given(operations=OPERATIONS, seed=st.integers(0, 2**32), loss=st.sampled_from([0.05, 0.3, 0.9]))
def test_after_random_operations_and_lost_messages_every_client_sees_what_is_stored(
    store: Store, operations: list[str], seed: int, loss: float
) -> None:
    asyncio.run(run_operations(store, operations, seed, loss))
