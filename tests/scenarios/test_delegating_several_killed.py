"""kill -9 at many moments of a call with several tasks: no subagent works twice, and all answers come."""

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import Json
from scenarios.restarting_client import RestartingClient
from scenarios.test_delegation import ASK, CHILD, new_delegating_chat, parent, results, subagents

TASKS = 12
PACE_SECONDS = 0.05
KILLS = 50
CALLS_SECONDS = 10.0
"""The longest wait for a model call that does not come, because the run has just ended."""


def script(strategy: str) -> Script:
    tasks = [{"task": f"Do part {number}."} for number in range(TASKS)]
    call = Call(name="delegate", arguments={"tasks": tasks, "strategy": strategy, **ASK}, id="call-all")
    parts = [
        Rule(
            name=f"part {number}",
            when=When(system=CHILD, user=rf"\ADo part {number}\."),
            reply=[Text(text=f"Part {number} is done."), Counts(prompt=7, completion=3)],
            delay=PACE_SECONDS,
        )
        for number in range(TASKS)
    ]
    return Script(rules=[*parent(call), *parts])


async def logged_events(ann: RestartingClient, run_id: str) -> list[Json]:
    headers = {"accept": "application/json"}
    answer = await ann.ask("GET", f"/runs/{run_id}/events", headers=headers, limit=500)
    return answer.json()["data"]["events"]


async def ended_parts(ann: RestartingClient, run_id: str, model: ScriptedProvider) -> dict[str, int]:
    """How often the model was called for each subagent whose end is stored."""
    ended = [one["id"] for one in await subagents(ann, run_id) if one["status"] == "completed"]
    events = await logged_events(ann, run_id)
    indices = {event["subagent_run_id"]: event["index"] for event in events if "subagent_run_id" in event}
    called = Counter(request.rule for request in model.requests)
    return {name: called[name] for one in ended if one in indices for name in [f"part {indices[one]}"]}


async def kill_until_ended(ann: RestartingClient, strategy: str, kills: int, chance: random.Random) -> int:
    """One run that is killed until it has ended, or this often. Returns the number of kills."""
    count, finished = 0, dict[str, int]()
    async with ScriptedProvider(script(strategy)) as model:
        conversation = await new_delegating_chat(ann, model)
        run_id: str = (await ann.start_run(conversation, tools=["delegate"]))["id"]
        while count < kills and (await ann.run(run_id))["status"] == "running":
            with suppress(TimeoutError):
                await model.arrived(len(model.requests) + chance.randint(0, 3), CALLS_SECONDS)
            # This is no wait for an event: the kill may come at any point of a subagent's work.
            await asyncio.sleep(chance.uniform(0, 0.1))
            await ann.kill_and_start()
            count += 1
            called = await ended_parts(ann, run_id, model)
            again = {name for name, calls in finished.items() if called.get(name, calls) != calls}
            assert not again, f"finished subagents worked again: {again}"
            finished |= called
        await ann.follow_to_end(run_id)
        await check_ended(ann, conversation, run_id, strategy)
    return count


async def check_ended(ann: RestartingClient, conversation: str, run_id: str, strategy: str) -> None:
    own = await subagents(ann, run_id)
    assert [run["status"] for run in own] == ["completed"] * TASKS
    (result,) = (await results(ann, conversation)).values()
    listed: list[Json] = result["data"]["results"]
    assert [each["answer"] for each in listed] == [f"Part {number} is done." for number in range(TASKS)]
    assert {each["run_id"] for each in listed} == {run["id"] for run in own}
    events = await logged_events(ann, run_id)
    of_tasks = [(one["index"], one["status"]) for one in events if one["type"] == "subagent_assigned"]
    assert sorted(of_tasks) == sorted(
        (at, status) for at in range(TASKS) for status in ("running", "completed")
    )
    if strategy == "sequential":
        assert [index for index, _ in of_tasks] == [at for at in range(TASKS) for _ in range(2)]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.async_timeout(880)
@pytest.mark.parametrize("strategy", ["parallel", "sequential"])
async def test_killed_at_fifty_moments_no_subagent_of_a_call_works_twice(
    own_server: ServerProcess, strategy: str
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance, left = random.Random(seed), KILLS
    async with RestartingClient(own_server) as ann:
        while left:
            left -= await kill_until_ended(ann, strategy, left, chance)
