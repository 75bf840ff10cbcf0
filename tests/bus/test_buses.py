"""The promises of a bus, tested on real servers: order, length, joined messages, reconnection."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus.conftest import BusBackend
from luxx.infra.bus.network import NetworkBus


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """On the event loop that servers use."""
    return "asyncio", {"use_uvloop": True}


class Listener:
    """Collects the messages of a topic; `received(n)` waits for that many."""

    def __init__(self, bus: NetworkBus, topic: str) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._news = asyncio.Event()
        bus.subscribe(topic, self._take)

    def _take(self, sender: str, payload: bytes) -> None:
        self.messages.append((sender, payload))
        self._news.set()

    async def received(self, count: int) -> list[tuple[str, bytes]]:
        while len(self.messages) < count:
            self._news.clear()
            await self._news.wait()
        return self.messages


@asynccontextmanager
async def open_buses(*buses: NetworkBus) -> AsyncIterator[None]:
    await asyncio.gather(*(bus.open() for bus in buses))
    assert all(bus.is_up for bus in buses)
    try:
        yield
    finally:
        await asyncio.gather(*(bus.close() for bus in buses))
        assert not any(bus.is_up for bus in buses)


async def cut_and_reconnect(*buses: NetworkBus, cut: Any) -> None:
    """Cuts the connections of the buses. Returns when all are back."""
    back = [asyncio.Event() for _ in buses]
    for bus, event in zip(buses, back, strict=True):
        bus.on_reconnect(event.set)
    await asyncio.to_thread(cut)
    await asyncio.gather(*(event.wait() for event in back))


async def test_messages_to_one_process_arrive_in_order_and_nowhere_else(backend: BusBackend) -> None:
    first_bus, second_bus, third_bus = (backend.bus(name) for name in ("one", "two", "three"))
    listeners = {bus.process: Listener(bus, "t") for bus in (first_bus, second_bus, third_bus)}
    async with open_buses(first_bus, second_bus, third_bus):
        for number in range(500):
            first_bus.publish("t", b"%d" % number, to="two")
        first_bus.publish("t", b"to all")
        third_bus.publish("t", b"to one", to="one")
        assert await listeners["three"].received(1) == [("one", b"to all")]
        assert await listeners["one"].received(1) == [("three", b"to one")]
        received = await listeners["two"].received(501)
    assert sorted(received) == sorted([*[("one", b"%d" % n) for n in range(500)], ("one", b"to all")])
    assert [int(said) for _, said in received if said != b"to all"] == list(range(500))
    assert len(listeners["one"].messages) == len(listeners["three"].messages) == 1


async def test_messages_of_any_length_and_any_bytes_arrive_whole(backend: BusBackend) -> None:
    first_bus, second_bus = backend.bus("one"), backend.bus("two")
    listener = Listener(second_bus, "t")
    said = [random.Random(size).randbytes(size) for size in (0, 1, 5_000, 8_000, 100_000, 3_000_000)]
    async with open_buses(first_bus, second_bus):
        for payload in said:
            first_bus.publish("t", payload, to="two")
        assert [payload for _, payload in await listener.received(len(said))] == said


async def test_topics_are_separate(backend: BusBackend) -> None:
    first_bus, second_bus = backend.bus("one"), backend.bus("two")
    a, b = Listener(second_bus, "a"), Listener(second_bus, "b")
    async with open_buses(first_bus, second_bus):
        first_bus.publish("b", b"1")
        first_bus.publish("c", b"2")
        first_bus.publish("a", b"3")
        await a.received(1)
    assert a.messages == [("one", b"3")]
    assert b.messages == [("one", b"1")]


async def test_a_deferred_payload_combines_all_events_so_far(backend: BusBackend) -> None:
    first_bus, second_bus = backend.bus("one"), backend.bus("two")
    listener = Listener(second_bus, "t")
    waiting: list[bytes] = []
    made: list[int] = []

    def make() -> bytes:
        made.append(len(waiting))
        joined = b",".join(waiting)
        waiting.clear()
        return joined

    async with open_buses(first_bus, second_bus):
        for number in range(200):
            if not waiting:
                first_bus.publish_later("t", make, to="two")
            waiting.append(b"%d" % number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        while sum(payload.count(b",") + 1 for _, payload in listener.messages) < 200:
            await listener.received(len(listener.messages) + 1)
    assert b",".join(payload for _, payload in listener.messages) == b",".join(b"%d" % n for n in range(200))
    assert len(made) < 50


async def test_a_bus_reconnects_after_a_cut_and_reports_it(backend: BusBackend) -> None:
    first_bus, second_bus = backend.bus("one"), backend.bus("two")
    listener = Listener(second_bus, "t")
    async with open_buses(first_bus, second_bus):
        for round_ in range(2):
            await cut_and_reconnect(first_bus, second_bus, cut=backend.cut_all)
            assert first_bus.is_up
            first_bus.publish("t", b"%d" % round_, to="two")
            await listener.received(round_ + 1)
    assert listener.messages == [("one", b"0"), ("one", b"1")]


async def test_a_failing_handler_does_not_affect_others(backend: BusBackend) -> None:
    first_bus, second_bus = backend.bus("one"), backend.bus("two")

    def fail(sender: str, payload: bytes) -> None:
        raise ValueError(payload)

    second_bus.subscribe("t", fail)
    listener = Listener(second_bus, "t")
    async with open_buses(first_bus, second_bus):
        first_bus.publish("t", b"1")
        assert await listener.received(1) == [("one", b"1")]


async def test_a_closing_bus_sends_what_was_published_before(backend: BusBackend) -> None:
    first_bus, second_bus = backend.bus("one"), backend.bus("two")
    listener = Listener(second_bus, "t")
    async with open_buses(second_bus):
        async with open_buses(first_bus):
            for number in range(1000):
                first_bus.publish("t", b"%d" % number, to="two")
        assert len(await listener.received(1000)) == 1000
