"""kill -9 at random moments while a task of 50 steps runs: it completes, and makes no finished step again."""

import asyncio
import random
from collections import Counter
from contextlib import suppress

from scenarios.client import Json

from chaos.cluster import TAKEOVER_SECONDS, Cluster
from chaos.invariants import check_database
from chaos.round_robin_client import RoundRobinClient
from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text, When

STEPS = 50
KILLS = 20
PACE_SECONDS = 0.03
CALLS_SECONDS = 10.0
"""The longest wait for model calls that do not come, because the task has just ended."""

REST_SECONDS = 120.0
"""How long the rest of a task may take on a machine that is busy with other work as well."""


def output(step_id: str) -> str:
    return f"The result of {step_id} in some more words than one"


def script() -> Script:
    """An answer for each step, which takes some time."""
    rules = [
        Rule(
            name=f"s{number}",
            when=When(user=rf"Your step \[s{number}\]"),
            reply=[Text(text=output(f"s{number}"), pieces=0), Counts(prompt=10, completion=10)],
            delay=PACE_SECONDS,
        )
        for number in range(STEPS)
    ]
    result = When(system="Write its final result")
    return Script(rules=[*rules, Rule(name="result", when=result, reply=[Text(text="All done."), Counts()])])


def random_steps(chance: random.Random) -> list[Json]:
    steps: list[Json] = []
    for number in range(STEPS):
        before = [f"s{one}" for one in range(max(0, number - 12), number)]
        needs = chance.sample(before, min(len(before), chance.randint(0, 2)))
        steps.append({"id": f"s{number}", "name": f"Step {number}", "depends_on": needs})
    return steps


class KilledTask:
    """A task in progress. `finished` has the number of model calls of each step when it was seen finished."""

    def __init__(self, ann: RoundRobinClient, model: ScriptedProvider, task_id: str) -> None:
        self.task_id = task_id
        self.finished: dict[str, int] = {}
        self._ann = ann
        self._model = model

    def calls(self) -> Counter[str]:
        return Counter(request.rule for request in self._model.requests)

    async def show(self) -> Json:
        """The task as it is now; checks that no finished step was made again."""
        answer = await self._ann.ask_until_answered("GET", f"/tasks/{self.task_id}")
        task: Json = answer.json()["data"]
        calls = self.calls()
        for step in task["steps"]:
            if step["status"] == "completed":
                self.finished.setdefault(step["id"], calls[step["id"]])
        again = {one: calls[one] for one, count in self.finished.items() if calls[one] != count}
        assert not again, f"finished steps were made again: {again}"
        return task

    async def until_ended(self) -> Json:
        async with asyncio.timeout(REST_SECONDS + TAKEOVER_SECONDS):
            while True:
                shown = await self.show()
                if shown["status"] != "running":
                    return shown
                await asyncio.sleep(0.2)

    async def log(self, run_id: str) -> list[Json]:
        events: list[Json] = []
        more = True
        while more:
            path = f"/runs/{run_id}/events"
            headers = {"accept": "application/json"}
            answer = await self._ann.ask_until_answered(
                "GET", path, headers=headers, from_sequence=len(events) + 1, limit=500
            )
            page = answer.json()["data"]
            events, more = [*events, *page["events"]], page["has_more"]
        return events


async def new_task(ann: RoundRobinClient, url: str, chance: random.Random) -> str:
    provider_id = await ann.connect(url)
    body = {"name": "Many", "goal": "All of it", "provider_id": provider_id, "steps": random_steps(chance)}
    answer = await ann.ask_until_answered("POST", "/tasks", body)
    task_id: str = answer.json()["data"]["id"]
    headers = {"accept": "application/json"}
    assert (await ann.ask_until_answered("POST", f"/tasks/{task_id}/execute", headers=headers)).is_success
    return task_id


async def check_ended(task: KilledTask, shown: Json) -> None:
    assert (shown["status"], shown["result"]) == ("completed", "All done.")
    assert [step["output"] for step in shown["steps"]] == [output(step["id"]) for step in shown["steps"]]
    assert [step["attempts"] for step in shown["steps"]] == [1] * STEPS
    events = await task.log(shown["run_id"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    starts = Counter(event["step_id"] for event in events if event["type"] == "step_start")
    ends = Counter(event["step_id"] for event in events if event["type"] == "step_complete")
    assert starts == ends
    assert set(starts.values()) == {1}
    done: set[str] = set()
    needs: dict[str, list[str]] = {step["id"]: step["depends_on"] for step in shown["steps"]}
    for event in events:
        if event["type"] == "step_start":
            assert done.issuperset(needs.get(event["step_id"], ())), f"{event['step_id']} began too early"
        if event["type"] == "step_complete":
            done.add(event["step_id"])


async def wait_before_kill(model: ScriptedProvider, chance: random.Random) -> None:
    """Waits for some model calls, so that something is in progress even on a slow machine."""
    with suppress(TimeoutError):
        await model.arrived(len(model.requests) + chance.randint(1, 7), CALLS_SECONDS)
    # This is no wait for an event: the kill may come at any point of a step.
    await asyncio.sleep(chance.uniform(0, 0.3))


async def kill_while_tasks_run(cluster: Cluster, kills: int) -> None:
    """Tasks run one after another, until there were this many kills; the last one runs to its end."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    while kills:
        model = ScriptedProvider(script())
        await model.start()
        try:
            async with RoundRobinClient(cluster.url) as ann:
                task = KilledTask(ann, model, await new_task(ann, model.url, chance))
                while kills and (await task.show())["status"] == "running":
                    await wait_before_kill(model, chance)
                    await task.show()
                    await cluster.kill(member := chance.choice(cluster.healthy()))
                    kills -= 1
                    await cluster.start(member)
                await check_ended(task, await task.until_ended())
                await asyncio.to_thread(check_database, cluster)
                cut = sum(max(0, count - 1) for count in task.calls().values())
                print(f"{len(model.requests)} calls, {cut} of them for calls that a kill cut")
        finally:
            await model.stop()


async def test_a_task_of_fifty_steps_survives_kills_on_one_process(alone: Cluster) -> None:
    await kill_while_tasks_run(alone, KILLS)


async def test_a_task_of_fifty_steps_survives_kills_of_servers_and_workers(two_and_two: Cluster) -> None:
    await kill_while_tasks_run(two_and_two, KILLS)
