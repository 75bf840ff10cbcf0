"""The cancel signal: it ends waits at once, never an append, and leaves no pending cancellation in
the task.
"""

import asyncio
import gc
import warnings
from contextlib import suppress

import pytest

from luxx.runs.cancel import CancelSignal, RunCancelled, run_in_own_task

pytestmark = pytest.mark.async_timeout(20)


async def forever() -> None:
    await asyncio.Event().wait()


async def run_pending_callbacks() -> None:
    """Lets the event loop run a few times, so that a leftover cancellation would be raised."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_firing_ends_the_wait_in_progress_however_often_it_is_fired(times: int) -> None:
    signal = CancelSignal()
    loop = asyncio.get_running_loop()

    def fire() -> None:
        for _ in range(times):
            signal.fire()

    loop.call_soon(fire)
    with pytest.raises(RunCancelled):
        await signal.wait(forever())
    await run_pending_callbacks()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_fired_signal_refuses_the_next_wait_and_closes_its_coroutine() -> None:
    signal = CancelSignal()
    signal.fire()
    signal.fire()
    given = forever()
    with pytest.raises(RunCancelled):
        await signal.wait(given)
    with pytest.raises(RuntimeError):
        await given
    await run_pending_callbacks()


async def test_work_for_its_own_task_is_not_begun_after_the_signal_fired() -> None:
    signal = CancelSignal()
    signal.fire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RunCancelled):
            await signal.wait(run_in_own_task(forever))
        gc.collect()
    assert caught == []


async def test_work_in_its_own_task_ends_with_the_signal() -> None:
    signal = CancelSignal()
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("work")

    asyncio.get_running_loop().call_later(0, signal.fire)
    with pytest.raises(RunCancelled):
        await signal.wait(run_in_own_task(work))
    await run_pending_callbacks()
    assert ended == ["work"]


async def test_an_append_inside_a_wait_is_finished_before_the_wait_ends() -> None:
    signal = CancelSignal()
    begun, may_end = asyncio.Event(), asyncio.Event()
    executions: list[str] = []

    async def append() -> None:
        begun.set()
        await may_end.wait()
        executions.append("appended")

    async def completion() -> None:
        await signal.shield(append())
        executions.append("went on")
        await forever()

    waiting = asyncio.create_task(signal.wait(completion()))
    await begun.wait()
    signal.fire()
    await run_pending_callbacks()
    assert not waiting.done()
    may_end.set()
    with pytest.raises(RunCancelled):
        await waiting
    assert executions[0] == "appended"


async def test_a_signal_fired_during_the_last_append_of_a_wait_cancels_nothing_later() -> None:
    """The code after the wait appends too; a late cancellation would interrupt that append."""

    signal = CancelSignal()
    appended: list[int] = []

    async def append(number: int) -> int:
        if number == 1:
            signal.fire()
        await asyncio.sleep(0)
        appended.append(number)
        return number

    async def completion() -> int:
        return await signal.shield(append(1))

    with suppress(RunCancelled):
        assert await signal.wait(completion()) == 1
    await signal.shield(append(2))
    await run_pending_callbacks()
    assert appended == [1, 2]
    with pytest.raises(RunCancelled):
        await signal.wait(forever())


async def test_an_append_outside_a_wait_is_not_cancelled() -> None:
    signal = CancelSignal()

    async def append() -> str:
        signal.fire()
        await run_pending_callbacks()
        return "appended"

    assert await signal.shield(append()) == "appended"
    await run_pending_callbacks()


async def test_a_cancellation_from_elsewhere_passes_unchanged() -> None:
    signal = CancelSignal()
    waiting = asyncio.create_task(signal.wait(forever()))
    await run_pending_callbacks()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_wait_that_ends_by_itself_gives_its_result_or_its_error() -> None:
    signal = CancelSignal()

    async def fails() -> None:
        raise ValueError("as it is")

    assert await signal.wait(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(ValueError, match="as it is"):
        await signal.wait(fails())
    signal.fire()
    await run_pending_callbacks()


async def test_a_signal_fired_during_a_failing_append_cancels_nothing_later() -> None:
    signal = CancelSignal()

    async def append() -> None:
        signal.fire()
        await asyncio.sleep(0)

    async def completion() -> None:
        await signal.shield(append())
        raise ValueError("what the provider sent")

    with pytest.raises(RunCancelled):
        await signal.wait(completion())
    # A leftover cancellation would interrupt the next append.
    await asyncio.sleep(0)
    await run_pending_callbacks()
