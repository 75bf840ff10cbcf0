"""Rooms and tasks watched by clients that lose their connection again and again, at one server or two: the
same text everywhere, nothing lost, nothing twice.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from store.databases import new_database

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import AsyncApiClient
from scenarios.questions import answer, open_questions
from scenarios.rooms import USUAL, RoomScreen, new_room, said, says
from scenarios.screen import Frame, Screen
from scenarios.test_tasks import new_task, step

ENDS = ("room_completed", "task_complete")
SEATS = ("Anna", "Ben", "Cleo")
WORDS = 50
"""Words of each text. A client is disconnected after at most MOST_FRAMES frames, so often within a text."""

MOST_FRAMES = 25
PACE_SECONDS = 0.01


class TurnsScreen(RoomScreen):
    """What a client shows of a run with several turns: messages, and the steps of each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[str, Screen] = {}

    def attach(self) -> None:
        super().attach()
        for turn in self.turns.values():
            turn.attach()

    def show(self, frame: Frame) -> None:
        super().show(frame)
        if frame.event == "process_step":
            key = frame.data.get("msg_id") or frame.data["step_id"]
            self.turns.setdefault(key, Screen())._show_step(frame)

    @property
    def is_over(self) -> bool:
        return bool(self.frames) and self.frames[-1].event in ENDS


def prose(name: str, number: int) -> str:
    return " ".join(f"{name}{number}-{word}" for word in range(WORDS))


def slowly(text: str) -> list[Any]:
    return [Text(text=f"{word} ") for word in text.split()]


def talk() -> Script:
    """Three seats and two rounds; Anna thinks and calls a tool first."""
    call = Call(name="python_eval", arguments='{"expression": "6 * 7"}')
    thought = [Thinking(text=f"thought{number} ") for number in range(20)]
    rules = [Rule(name="tool", when=When(system="You are Anna in", call=1), reply=[*thought, call, USUAL],
                  delay=PACE_SECONDS)]  # fmt: skip
    for name in SEATS:
        first = 2 if name == "Anna" else 1
        for number in (first, first + 1):
            when = When(system=f"You are {name} in", call=number)
            reply = [*slowly(prose(name, number)), USUAL]
            rules.append(Rule(name=f"{name} {number}", when=when, reply=reply, delay=PACE_SECONDS))
    return Script(rules=rules)


def work() -> Script:
    """Five steps, each with a text of its own, and the result."""
    rules = [
        Rule(
            name=name,
            when=When(user=rf"Your step \[{name}\]"),
            reply=[*slowly(prose(name, 1)), USUAL],
            delay=PACE_SECONDS,
        )
        for name in "abcde"
    ]
    result = When(system="Write its final result")
    rules.append(Rule(name="result", when=result, reply=[*slowly(prose("r", 1)), USUAL], delay=PACE_SECONDS))
    return Script(rules=rules)


STEPS = [step("a"), step("b"), step("c", "a"), step("d", "a", "b"), step("e", "c", "d")]


async def watch(people: list[AsyncApiClient], run_id: str, chance: random.Random) -> tuple[TurnsScreen, int]:
    """Follows the run at a server by chance, and leaves after some frames, until it is over."""
    screen, connections = TurnsScreen(), 0
    while not screen.is_over:
        connections += 1
        left = chance.randint(1, MOST_FRAMES)
        async with chance.choice(people).follow(run_id, screen, in_query=chance.random() < 0.5) as stream:
            async for _ in stream:
                left -= 1
                if left == 0:
                    break
    return screen, connections


async def check_all_watchers_agree(
    people: list[AsyncApiClient], run_id: str, watchers: int, refreshes: int
) -> list[TurnsScreen]:
    """Watches the run to its end, with this many refreshes in all; checks what the watchers saw."""
    watches = [watch(people, run_id, random.Random(seed)) for seed in range(watchers)]
    seen = await asyncio.gather(*watches)
    assert sum(connections - 1 for _, connections in seen) >= refreshes
    answer = await people[0].ask(
        "GET", f"/runs/{run_id}/events", headers={"accept": "application/json"}, limit=1000
    )
    log = [{**event, "seq": None} for event in answer.json()["data"]["events"]]
    screens = [screen for screen, _ in seen]
    for screen in screens:
        logged = [frame for frame in screen.frames if frame.id is not None]
        assert [frame.id for frame in logged] == list(range(1, len(log) + 1))
        assert [{**frame.data, "seq": None} for frame in logged] == log
    return screens


async def check_a_room(people: list[AsyncApiClient], watchers: int, refreshes: int, policy: str) -> None:
    async with ScriptedProvider(talk()) as model:
        room = await new_room(people[0], model.url, *SEATS, max_rounds=2, policy=policy)
        start = f"/chat-rooms/{room['id']}/start"
        run = (await people[0].ask("POST", start, headers={"accept": "application/json"})).json()["data"]
        screens = await check_all_watchers_agree(people, run["id"], watchers, refreshes)
        messages = (await people[-1].get(f"/chat-rooms/{room['id']}/messages"))["items"][::-1]
        stored = {message["id"]: message["text"] for message in messages}
        expected = sorted(
            (name, prose(name, number + (name == "Anna"))) for name in SEATS for number in (1, 2)
        )
        for screen in screens:
            assert screen.whole == stored
            assert sorted(said(screen.frames)) == expected
            for message in messages:
                assert screen.turns[message["id"]].ordered() == message["steps"]


async def check_a_task(people: list[AsyncApiClient], watchers: int, refreshes: int) -> None:
    async with ScriptedProvider(work()) as model:
        task_id = await new_task(people[0], model.url, *STEPS)
        start = f"/tasks/{task_id}/execute"
        run = (await people[0].ask("POST", start, headers={"accept": "application/json"})).json()["data"]
        screens = await check_all_watchers_agree(people, run["id"], watchers, refreshes)
        task = await people[-1].get(f"/tasks/{task_id}")
        assert task["status"] == "completed"
        outputs = {one["id"]: one["output"].strip() for one in task["steps"]}
        assert outputs == {name: prose(name, 1) for name in "abcde"}
        for screen in screens:
            assert {name: screen.turns[name].text.strip() for name in outputs} == outputs
            assert task["result"].strip() in {turn.text.strip() for turn in screen.turns.values()}


@asynccontextmanager
async def at(*servers: ServerProcess) -> AsyncIterator[list[AsyncApiClient]]:
    """The same user at each server."""
    async with AsyncApiClient(servers[0].url) as first:
        people = [first, *(AsyncApiClient(server.url, first.token) for server in servers[1:])]
        for other in people[1:]:
            await other.__aenter__()
        try:
            yield people
        finally:
            for other in people[1:]:
                await other.__aexit__()


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory, postgresql: str) -> Iterator[list[ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("watched")
    environment = {
        "LUXX_DATABASE__URL": new_database(postgresql, folder.name),
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(folder / "workspaces"),
    }
    with ExitStack() as hold:
        yield [hold.enter_context(ServerProcess(folder / name, **environment)) for name in ("a", "b")]


async def test_a_room_refreshed_at_random_points_shows_the_same_text(server: ServerProcess) -> None:
    async with at(server) as people:
        await check_a_room(people, watchers=2, refreshes=20, policy="parallel")


async def test_a_task_refreshed_at_random_points_shows_the_same_text(server: ServerProcess) -> None:
    async with at(server) as people:
        await check_a_task(people, watchers=2, refreshes=20)


@pytest.mark.heavy
@pytest.mark.parametrize("policy", ["round_robin", "parallel"])
async def test_a_room_watched_from_two_servers_shows_the_same_text(
    two_servers: list[ServerProcess], policy: str
) -> None:
    async with at(*two_servers) as people:
        await check_a_room(people, watchers=4, refreshes=50, policy=policy)


@pytest.mark.heavy
async def test_a_task_watched_from_two_servers_shows_the_same_text(two_servers: list[ServerProcess]) -> None:
    async with at(*two_servers) as people:
        await check_a_task(people, watchers=4, refreshes=50)


@pytest.mark.heavy
async def test_a_room_is_stopped_resumed_and_answered_at_the_server_that_does_not_drive_it(
    two_servers: list[ServerProcess],
) -> None:
    """Whichever server drives it: each step is done at both, one after the other."""
    ask = Call(
        name="ask_clarification",
        arguments={"question_type": "scope", "question": "Which?", "options": [{"label": "this"}]},
    )
    rules = [
        Rule(
            name="cut",
            when=When(system="You are Anna in", call=1),
            reply=[Text(text="I think "), Gate(name="gate"), USUAL],
        ),
        *says("Anna", "none", "As I said")[1:],
        Rule(name="asks", when=When(system="You are Ben in", has_tool_result=False), reply=[ask, USUAL]),
        Rule(
            name="tells",
            when=When(system="You are Ben in", has_tool_result=True),
            reply=[Text(text="This"), USUAL],
        ),
    ]
    for first in (0, 1):
        async with at(*two_servers) as people, ScriptedProvider(Script(rules=rules)) as model:
            here, there = people[first], people[1 - first]
            room = await new_room(here, model.url, "Anna", "Ben", max_rounds=1)
            path = f"/chat-rooms/{room['id']}"
            run = (await here.ask("POST", f"{path}/start", headers={"accept": "application/json"})).json()
            run_id, screen = run["data"]["id"], TurnsScreen()
            async with there.follow(run_id, screen) as stream:
                await stream.until("message_chunk")
                begun = time.monotonic()
                stopped = await there.post(f"{path}/stop")
                await model.requests[0].wait_closed(10)
                assert model.requests[0].closed_at is not None
                print(f"closed after {(model.requests[0].closed_at - begun) * 1000:.0f} ms")
                assert model.requests[0].closed_at - begun < 4.0
                await stream.to_the_end()
            assert stopped["id"] == run_id
            await there.until_status(run_id, "paused")
            resumed = await there.ask("POST", f"{path}/resume", headers={"accept": "application/json"})
            assert resumed.status_code == 202, resumed.text
            async with here.follow(run_id, screen) as stream:
                await stream.until("question_asked")
                await here.until_status(run_id, "waiting")
                (question,) = await open_questions(here, run_id)
                await answer(here, question, "this")
                await stream.to_the_end()
            assert said(screen.frames) == [("Anna", "I think"), ("Anna", "As I said"), ("Ben", "This")]
            assert screen.frames[-1].event == "room_completed"
