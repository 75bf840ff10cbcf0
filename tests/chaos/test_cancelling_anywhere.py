"""Cancelling from any process closes the upstream's socket at once, whichever process drives the run."""

import asyncio
import time
from typing import Any

import pytest
from scenarios.client import AsyncApiClient
from scenarios.scripts import FIRST_THOUGHT, PREFACE, PROSE, always_replies, two_iterations, words
from scenarios.tool_controller import ToolController

from chaos.cluster import TAKEOVER_SECONDS, Cluster
from chaos.endings import check_cancelled, half_and_whole
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
    "text": always_replies(*words(PROSE, "here")),
    "thinking": always_replies(Thinking(text=FIRST_THOUGHT), Gate(name="here"), Text(text="never said")),
}


async def cancel_promptly(elsewhere: AsyncApiClient, run_id: str, upstream: Received) -> dict[str, Any]:
    """Cancels; checks that the answer and the close of the upstream's socket come in time."""
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
async def test_cancel_from_another_process_closes_the_upstream_at_once(several: Cluster, place: str) -> None:
    async with ScriptedProvider(AT_FIRST[place]) as model, several.clients() as clients:
        first, second, third = clients[:3]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("here")
        watching = asyncio.create_task(third.wait_for_end(run["id"]))
        await cancel_promptly(second, run["id"], model.requests[0])
        screens = [await watching, await first.wait_for_end(run["id"])]
        said = await check_cancelled(second, conversation, *screens)
        assert PROSE.startswith(said)
        assert len(model.requests) == 1


async def test_cancel_from_another_process_before_the_first_byte_closes_the_upstream_at_once(
    several: Cluster,
) -> None:
    silent = Script(rules=[Rule(faults=Faults(never_start=True))])
    async with ScriptedProvider(silent) as model, several.clients() as clients:
        first, second = clients[:2]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.arrived(1)
        await cancel_promptly(second, run["id"], model.requests[0])
        assert await check_cancelled(second, conversation, await second.wait_for_end(run["id"])) == ""


async def test_cancel_from_another_process_stops_the_tools(several: Cluster) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(Script(rules=two_iterations(controller.port).rules[:1])) as model,
        several.clients() as clients,
    ):
        first, second = clients[:2]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation, tools=["visit_once"])
        await controller.wait_for_visit(2)
        begun = time.monotonic()
        assert (await second.cancel(run["id"])).status_code == 200
        for visit in controller.visits:
            await visit.stopped(PROMPTLY_SECONDS)
        print(f"tools stopped after {(time.monotonic() - begun) * 1000:.0f} ms")
        assert await check_cancelled(second, conversation, await second.wait_for_end(run["id"])) == PREFACE
        assert len(model.requests) == 1


async def test_a_run_whose_driver_is_frozen_is_cancelled_once_the_lease_is_over(several: Cluster) -> None:
    async with ScriptedProvider(always_replies(*words(PROSE, "here"))) as model, several.clients() as clients:
        first, second, third = clients[:3]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("here")
        several.webs[0].freeze()
        begun = time.monotonic()
        assert (await second.cancel(run["id"])).status_code == 200
        assert time.monotonic() - begun < PROMPTLY_SECONDS * 2
        screen = await third.wait_for_end(run["id"])
        print(f"ended after {time.monotonic() - begun:.2f} s")
        assert time.monotonic() - begun < TAKEOVER_SECONDS
        several.webs[0].thaw()
        await model.requests[0].wait_closed(5)
        await check_cancelled(first, conversation, screen)
        assert len(model.requests) == 1


async def test_cancel_answers_promptly_while_the_server_of_the_run_restarts(several: Cluster) -> None:
    """No process may claim the run before the lease of the killed one is over."""
    took: list[float] = []
    script = Script(rules=[Rule(name="waits", reply=[Text(text="So far "), Gate(name="never")])])
    async with ScriptedProvider(script) as model, several.clients() as clients:
        second = clients[1]
        for number in range(3):
            async with AsyncApiClient(several.webs[0].url, second.token) as first:
                conversation = await second.conversation(model.url)
                run = await first.start_run(conversation)
            await model.arrived(number + 1)
            await several.kill(several.webs[0])
            restarting = asyncio.create_task(several.start(several.webs[0]))
            begun = time.monotonic()
            assert (await second.cancel(run["id"])).status_code == 200
            took.append(time.monotonic() - begun)
            await restarting
            await check_cancelled(second, conversation, await second.wait_for_end(run["id"]))
        print(f"answered after {[round(seconds * 1000) for seconds in took]} ms")
        # The machine may be busy at one of them.
        assert min(took) < PROMPTLY_SECONDS - 0.05


async def test_a_cancel_acknowledged_by_another_process_survives_a_kill_of_the_driver(
    several: Cluster,
) -> None:
    async with ScriptedProvider(Script(rules=half_and_whole().rules[:1])) as model:
        async with several.clients() as clients:
            first, second = clients[:2]
            conversation = await first.conversation(model.url)
            run = await first.start_run(conversation)
            await model.reached("middle")
            cancelling = asyncio.create_task(second.cancel(run["id"]))
            killing = asyncio.create_task(several.kill(several.webs[0]))
            assert (await cancelling).status_code == 200
            await killing
            await check_cancelled(second, conversation, await second.wait_for_end(run["id"]))
        assert len(model.requests) == 1
