"""Cancel from any process: the upstream's socket is closed at once, whoever drives the run."""

import asyncio
import time
from typing import Any

import pytest
from journeys.desk import Desk
from journeys.person import Person
from journeys.scripts import FIRST_THOUGHT, PREFACE, PROSE, says, two_iterations, words

from chaos.cluster import TAKEN_UP_SECONDS, Cluster
from chaos.conftest import Play
from chaos.scenes import half_and_whole, stopped_well
from luxx.providers.scripted import (
    Faults,
    Gate,
    Received,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
)

PROMPTLY_SECONDS = 0.5
AT_FIRST = {
    "text": says(*words(PROSE, "here")),
    "thinking": says(Thinking(text=FIRST_THOUGHT), Gate(name="here"), Text(text="never said")),
}


async def cancel_promptly(elsewhere: Person, run_id: str, upstream: Received) -> dict[str, Any]:
    """Cancels; the answer comes in time and the upstream sees its socket closed in time."""
    begun = time.monotonic()
    answer = await elsewhere.cancel(run_id)
    took = time.monotonic() - begun
    assert answer.status_code == 200, answer.text
    await upstream.wait_closed(5)
    assert upstream.closed_at is not None
    print(f"answered after {took * 1000:.0f} ms, closed after {(upstream.closed_at - begun) * 1000:.0f} ms")
    assert upstream.closed_at - begun < PROMPTLY_SECONDS, "the upstream's socket stayed open"
    assert took < PROMPTLY_SECONDS + 0.05
    return answer.json()["data"]


@pytest.mark.parametrize("place", AT_FIRST)
def test_cancel_from_another_process_closes_the_upstream_at_once(
    several: Cluster, play: Play, place: str
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(AT_FIRST[place]) as model, several.people() as people:
            first, second, third = people[:3]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("here")
            watching = asyncio.create_task(third.see(run["id"]))
            await cancel_promptly(second, run["id"], model.requests[0])
            screens = [await watching, await first.see(run["id"])]
            said = await stopped_well(second, conversation, *screens)
            assert PROSE.startswith(said)
            assert len(model.requests) == 1

    play(several, scene())


def test_cancel_from_another_process_before_the_first_byte_closes_the_upstream_at_once(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        silent = Script(rules=[Rule(faults=Faults(never_start=True))])
        async with ScriptedProvider(silent) as model, several.people() as people:
            first, second = people[:2]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.arrived(1)
            await cancel_promptly(second, run["id"], model.requests[0])
            assert await stopped_well(second, conversation, await second.see(run["id"])) == ""

    play(several, scene())


def test_cancel_from_another_process_stops_the_tools(several: Cluster, play: Play) -> None:
    async def scene() -> None:
        async with (
            Desk() as desk,
            ScriptedProvider(Script(rules=two_iterations(desk.port).rules[:1])) as model,
            several.people() as people,
        ):
            first, second = people[:2]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation, tools=["visit_once"])
            await desk.visited(2)
            begun = time.monotonic()
            assert (await second.cancel(run["id"])).status_code == 200
            for visit in desk.visits:
                await visit.stopped(PROMPTLY_SECONDS)
            print(f"tools stopped after {(time.monotonic() - begun) * 1000:.0f} ms")
            assert await stopped_well(second, conversation, await second.see(run["id"])) == PREFACE
            assert len(model.requests) == 1

    play(several, scene())


def test_a_run_whose_driver_is_frozen_is_cancelled_once_the_lease_is_over(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(says(*words(PROSE, "here"))) as model, several.people() as people:
            first, second, third = people[:3]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("here")
            several.webs[0].freeze()
            begun = time.monotonic()
            assert (await second.cancel(run["id"])).status_code == 200
            assert time.monotonic() - begun < PROMPTLY_SECONDS * 2
            screen = await third.see(run["id"])
            print(f"ended after {time.monotonic() - begun:.2f} s")
            assert time.monotonic() - begun < TAKEN_UP_SECONDS
            several.webs[0].thaw()
            await model.requests[0].wait_closed(5)
            await stopped_well(first, conversation, screen)
            assert len(model.requests) == 1

    play(several, scene())


def test_a_cancel_that_was_answered_elsewhere_holds_when_the_driver_is_killed_at_once(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(Script(rules=half_and_whole().rules[:1])) as model:
            async with several.people() as people:
                first, second = people[:2]
                conversation = await first.conversation(model.url)
                run = await first.begin(conversation)
                await model.reached("middle")
                cancelling = asyncio.create_task(second.cancel(run["id"]))
                killing = asyncio.create_task(several.kill(several.webs[0]))
                assert (await cancelling).status_code == 200
                await killing
                await stopped_well(second, conversation, await second.see(run["id"]))
            assert len(model.requests) == 1

    play(several, scene())
