"""What the bus promises, tried on real servers: order, length, joining, coming back."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from bus.conftest import Ground
from luxx.infra.bus.network import WiredBus

SECONDS = 30.0


def run(work: Coroutine[Any, Any, None]) -> None:
    """On the event loop that servers use."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await work

    uvloop.run(bounded())


class Ear:
    """Collects what a bus hears of a topic; `heard(n)` waits for so many messages."""

    def __init__(self, bus: WiredBus, topic: str) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._news = asyncio.Event()
        bus.on(topic, self._take)

    def _take(self, sender: str, payload: bytes) -> None:
        self.messages.append((sender, payload))
        self._news.set()

    async def heard(self, count: int) -> list[tuple[str, bytes]]:
        while len(self.messages) < count:
            self._news.clear()
            await self._news.wait()
        return self.messages


@asynccontextmanager
async def opened(*buses: WiredBus) -> AsyncIterator[None]:
    await asyncio.gather(*(bus.open() for bus in buses))
    assert all(bus.is_up for bus in buses)
    try:
        yield
    finally:
        await asyncio.gather(*(bus.close() for bus in buses))
        assert not any(bus.is_up for bus in buses)


async def down_and_up(*buses: WiredBus, cut: Any) -> None:
    """Cuts the buses' connections; returns when all are back."""
    back = [asyncio.Event() for _ in buses]
    for bus, event in zip(buses, back, strict=True):
        bus.on_up(event.set)
    await asyncio.to_thread(cut)
    await asyncio.gather(*(event.wait() for event in back))


def test_what_is_told_to_one_comes_in_order_and_to_nobody_else(ground: Ground) -> None:
    async def work() -> None:
        one, two, three = (ground.bus(name) for name in ("one", "two", "three"))
        ears = {bus.process: Ear(bus, "t") for bus in (one, two, three)}
        async with opened(one, two, three):
            for number in range(500):
                one.tell("t", b"%d" % number, to="two")
            one.tell("t", b"to all")
            three.tell("t", b"to one", to="one")
            assert await ears["three"].heard(1) == [("one", b"to all")]
            assert await ears["one"].heard(1) == [("three", b"to one")]
            heard = await ears["two"].heard(501)
        assert sorted(heard) == sorted([*[("one", b"%d" % n) for n in range(500)], ("one", b"to all")])
        assert [int(said) for _, said in heard if said != b"to all"] == list(range(500))
        assert len(ears["one"].messages) == len(ears["three"].messages) == 1

    run(work())


def test_messages_of_any_length_and_any_bytes_arrive_whole(ground: Ground) -> None:
    async def work() -> None:
        one, two = ground.bus("one"), ground.bus("two")
        ear = Ear(two, "t")
        said = [random.Random(size).randbytes(size) for size in (0, 1, 5_000, 8_000, 100_000, 3_000_000)]
        async with opened(one, two):
            for payload in said:
                one.tell("t", payload, to="two")
            assert [payload for _, payload in await ear.heard(len(said))] == said

    run(work())


def test_topics_are_kept_apart(ground: Ground) -> None:
    async def work() -> None:
        one, two = ground.bus("one"), ground.bus("two")
        a, b = Ear(two, "a"), Ear(two, "b")
        async with opened(one, two):
            one.tell("b", b"1")
            one.tell("c", b"2")
            one.tell("a", b"3")
            await a.heard(1)
        assert a.messages == [("one", b"3")]
        assert b.messages == [("one", b"1")]

    run(work())


def test_what_is_made_later_joins_all_that_came_meanwhile(ground: Ground) -> None:
    async def work() -> None:
        one, two = ground.bus("one"), ground.bus("two")
        ear = Ear(two, "t")
        waiting: list[bytes] = []
        made: list[int] = []

        def make() -> bytes:
            made.append(len(waiting))
            joined = b",".join(waiting)
            waiting.clear()
            return joined

        async with opened(one, two):
            for number in range(200):
                if not waiting:
                    one.tell_later("t", make, to="two")
                waiting.append(b"%d" % number)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            while sum(payload.count(b",") + 1 for _, payload in ear.messages) < 200:
                await ear.heard(len(ear.messages) + 1)
        assert b",".join(payload for _, payload in ear.messages) == b",".join(b"%d" % n for n in range(200))
        assert len(made) < 50

    run(work())


def test_a_bus_whose_connections_were_cut_comes_back_and_says_so(ground: Ground) -> None:
    async def work() -> None:
        one, two = ground.bus("one"), ground.bus("two")
        ear = Ear(two, "t")
        async with opened(one, two):
            for round_ in range(2):
                await down_and_up(one, two, cut=ground.cut_all)
                assert one.is_up
                one.tell("t", b"%d" % round_, to="two")
                await ear.heard(round_ + 1)
        assert ear.messages == [("one", b"0"), ("one", b"1")]

    run(work())


def test_a_taker_that_fails_costs_the_others_nothing(ground: Ground) -> None:
    async def work() -> None:
        one, two = ground.bus("one"), ground.bus("two")

        def fail(sender: str, payload: bytes) -> None:
            raise ValueError(payload)

        two.on("t", fail)
        ear = Ear(two, "t")
        async with opened(one, two):
            one.tell("t", b"1")
            assert await ear.heard(1) == [("one", b"1")]

    run(work())


def test_what_a_closing_bus_was_told_is_still_sent(ground: Ground) -> None:
    async def work() -> None:
        one, two = ground.bus("one"), ground.bus("two")
        ear = Ear(two, "t")
        async with opened(two):
            async with opened(one):
                for number in range(1000):
                    one.tell("t", b"%d" % number, to="two")
            assert len(await ear.heard(1000)) == 1000

    run(work())
