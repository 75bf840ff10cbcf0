"""Random graphs at a real server: order, failures, retries, and a kill. The pure tests are in tests/tasks."""

import random
from collections import Counter

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL
from scenarios.screen import Frame
from scenarios.test_tasks import RESULT, does, execute, new_task, statuses, step

SLOTS = 4


def random_needs(chance: random.Random, count: int) -> dict[str, set[str]]:
    needs: dict[str, set[str]] = {}
    for number in range(count):
        before = [f"s{one}" for one in range(number)]
        needs[f"s{number}"] = set(chance.sample(before, min(number, chance.randint(0, 3))))
    return needs


def below(needs: dict[str, set[str]], causes: set[str]) -> set[str]:
    found: set[str] = set()
    while more := {one for one, needed in needs.items() if needed & (causes | found)} - found:
        found |= more
    return found


def steps_of(needs: dict[str, set[str]]) -> list[Json]:
    return [step(one, *sorted(needed)) for one, needed in needs.items()]


def check_order(frames: list[Frame], needs: dict[str, set[str]], slots: int) -> None:
    done: set[str] = set()
    running: set[str] = set()
    for frame in frames:
        step_id = frame.data.get("step_id")
        if frame.event == "step_start" and step_id in needs:
            assert needs[step_id] <= done, f"{step_id} began too early"
            running.add(step_id)
            assert len(running) <= slots
        elif frame.event == "step_complete" and step_id in needs:
            running.discard(step_id)
            done |= {step_id} if frame.data["status"] == "completed" else set()


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_random_graph_runs_in_order_and_a_retry_completes_it(
    server: ServerProcess, seed: int
) -> None:
    chance = random.Random(seed)
    needs = random_needs(chance, 30)
    failing = set(chance.sample(sorted(needs), 2))
    fails = [
        Rule(name=f"{one} fails", when=When(user=rf"Your step \[{one}\]", call=1), status=400, message="no")
        for one in sorted(failing)
    ]
    rules = [*fails, *(does(one, f"Result of {one}") for one in needs), RESULT]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, *steps_of(needs), max_concurrent_steps=SLOTS)
        frames = await execute(ann, task_id)
        check_order(frames, needs, SLOTS)
        found = await statuses(ann, task_id)
        failed = {one for one in needs if found[one] == "failed"}
        assert failed == failing - below(needs, failing)
        assert {one for one in needs if found[one] == "skipped"} == below(needs, failed)
        while failed := {one for one, status in (await statuses(ann, task_id)).items() if status == "failed"}:
            run = await ann.post(f"/tasks/{task_id}/steps/{min(failed)}/retry")
            await ann.follow_all(run["id"])
        assert set((await statuses(ann, task_id)).values()) == {"completed"}
        calls = Counter(request.rule for request in model.requests)
        assert all(calls[f"{one} Result of {one}"] == 1 for one in needs)


async def test_a_kill_repeats_no_finished_step(own_server: ServerProcess) -> None:
    needs = random_needs(random.Random(3), 12)
    rules = [
        Rule(
            name=one,
            when=When(user=rf"Your step \[{one}\]"),
            reply=[Text(text=f"The result of {one}", pieces=0), USUAL],
            delay=0.02,
        )
        for one in needs
    ]
    async with ScriptedProvider(Script(rules=[*rules, RESULT])) as model, RestartingClient(own_server) as ann:
        task_id = await new_task(ann, model.url, *steps_of(needs))
        await ann.ask("POST", f"/tasks/{task_id}/execute", headers={"accept": "application/json"})
        await model.arrived(7)
        finished = {one for one, status in (await statuses(ann, task_id)).items() if status == "completed"}
        await ann.kill_and_start()
        run_id = (await ann.get(f"/tasks/{task_id}"))["run_id"]
        await ann.follow_all(run_id)
        task = await ann.get(f"/tasks/{task_id}")
        assert (task["status"], task["result"]) == ("completed", "All done [a].")
        assert [one["attempts"] for one in task["steps"]] == [1] * len(needs)
        calls = Counter(request.rule for request in model.requests)
        assert finished
        assert all(calls[one] == 1 for one in finished)
        assert all(count <= 2 for count in calls.values())
