"""Places for processes that read: a user's own wait for each other, and nobody for all of them."""

import asyncio
import sys

import msgspec
import pytest

from luxx.errors import Unavailable
from luxx.infra.documents.reader import Bounds, PageProcess, Places, read_in_process

WAIT_SECONDS = 20.0


class Question(msgspec.Struct):
    url: str


async def stays(places: Places, user_id: int, entered: asyncio.Event, go_on: asyncio.Event) -> None:
    async with places.of(user_id):
        entered.set()
        await go_on.wait()


def test_one_user_takes_a_share_of_the_places_however_many_wait() -> None:
    async def work() -> None:
        places = Places(in_all=2, per_user=1, patience=WAIT_SECONDS)
        go_on, theirs, others = asyncio.Event(), asyncio.Event(), asyncio.Event()
        first = [asyncio.create_task(stays(places, 1, theirs, go_on)) for _ in range(10)]
        await theirs.wait()
        second = asyncio.create_task(stays(places, 2, others, go_on))
        async with asyncio.timeout(WAIT_SECONDS):
            await others.wait()
            go_on.set()
            await asyncio.gather(*first, second)

    asyncio.run(work())


def test_patience_is_for_the_wait_and_not_for_the_work() -> None:
    async def work() -> None:
        places = Places(in_all=1, per_user=1, patience=0.05)
        async with places.of(1):
            with pytest.raises(TimeoutError):
                async with places.of(2):
                    raise AssertionError
            await asyncio.sleep(0.1)
        async with places.of(2):
            pass

    asyncio.run(work())


def test_what_is_asked_stands_in_no_argument_of_a_process() -> None:
    told = asyncio.run(
        PageProcess().run("web.tells_arguments", b"the page", Question(url="secret"), limit=100_000)
    )
    assert isinstance(told, bytes)
    answer = msgspec.json.decode(told, type=dict[str, str])
    assert "web.tells_arguments" in answer["arguments"]
    assert "secret" not in answer["arguments"]
    assert answer["given"] == '{"url":"secret"}\nthe page'


def test_a_process_that_cannot_be_started_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="cannot start a process"):
        asyncio.run(read_in_process("x", [], b"", Bounds(memory=1, seconds=1), limit=1))
