"""Slots for reader processes: a user's own readers wait for each other, and other users do not."""

import asyncio
import sys

import msgspec
import pytest

from luxx.errors import Unavailable
from luxx.infra.documents.reader import PageProcess, ReaderBounds, ReaderSlots, read_in_process

WAIT_SECONDS = 20.0


class PageRequest(msgspec.Struct):
    url: str


async def use_slot(slots: ReaderSlots, user_id: int, entered: asyncio.Event, release: asyncio.Event) -> None:
    async with slots.hold(user_id):
        entered.set()
        await release.wait()


async def test_many_waiting_readers_of_one_user_leave_a_slot_for_another_user() -> None:
    slots = ReaderSlots(total=2, per_user=1, max_wait=WAIT_SECONDS)
    release, first_user_entered, second_user_entered = asyncio.Event(), asyncio.Event(), asyncio.Event()
    first_users_tasks = [
        asyncio.create_task(use_slot(slots, 1, first_user_entered, release)) for _ in range(10)
    ]
    await first_user_entered.wait()
    second_users_task = asyncio.create_task(use_slot(slots, 2, second_user_entered, release))
    async with asyncio.timeout(WAIT_SECONDS):
        # The second user gets the other slot at once, although nine tasks of the first user wait.
        await second_user_entered.wait()
        release.set()
        await asyncio.gather(*first_users_tasks, second_users_task)


async def test_the_timeout_is_for_the_wait_and_not_for_the_work() -> None:
    slots = ReaderSlots(total=1, per_user=1, max_wait=0.05)
    async with slots.hold(1):
        with pytest.raises(TimeoutError):
            async with slots.hold(2):
                raise AssertionError
        await asyncio.sleep(0.1)  # Work that is longer than max_wait.
    async with slots.hold(2):
        pass


async def test_the_request_is_not_in_the_command_line_of_the_process() -> None:
    output = await PageProcess().run(
        "web.echo_arguments", b"the page", PageRequest(url="secret"), limit=100_000
    )
    assert isinstance(output, bytes)
    report = msgspec.json.decode(output, type=dict[str, str])
    assert "web.echo_arguments" in report["arguments"]
    assert "secret" not in report["arguments"]
    assert report["input"] == '{"url":"secret"}\nthe page'


async def test_a_process_that_cannot_be_started_is_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="cannot start a process"):
        await read_in_process("x", [], b"", ReaderBounds(memory=1, seconds=1), limit=1)
