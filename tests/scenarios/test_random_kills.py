"""A server is killed again and again at random moments while users send messages."""

import asyncio
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.restarting_client import RestartingClient
from scenarios.screen import Screen
from scenarios.scripts import FIRST_THOUGHT, PREFACE, SECOND_THOUGHT, calls
from scenarios.tool_controller import ToolController

PEOPLE = 3
MESSAGES_AT_MOST = 400
PACE_SECONDS = 0.008
KILL_BETWEEN_SECONDS = (0.05, 1.2)
KILLS = 20
KILLS_AT_LEAST = 4
CHAPTER_SECONDS = 55.0
ANSWER = " ".join(f"answer{n}" for n in range(40))


class SentMessage(msgspec.Struct, kw_only=True):
    """One message and its outcome. `deaths` counts the kills during its run."""

    number: int
    conversation: str
    screen: Screen
    deaths: int


def script(port: int) -> Script:
    """Two calls for each message, with its own markers, so that its requests and visits can be identified."""
    rules: list[Rule] = []
    for number in range(MESSAGES_AT_MOST):
        asked = rf"^message {number}$"
        first: list[Any] = [
            Thinking(text=FIRST_THOUGHT),
            Text(text=PREFACE, pieces=0),
            *calls("visit_once", port, f"{number}-a", f"{number}-b"),
            Counts(prompt=10, completion=20),
        ]
        second: list[Any] = [Thinking(text=SECOND_THOUGHT), Text(text=f"{ANSWER} {number}"), Counts(prompt=1)]
        for has_result, reply in ((False, first), (True, second)):
            when = When(user=asked, has_tool_result=has_result)
            rules.append(Rule(name=f"{number}", when=when, reply=reply, delay=PACE_SECONDS))
    return Script(rules=rules)


class Users:
    """Users who send messages until `end` is called, each in a conversation of their own."""

    def __init__(self, ann: RestartingClient, model: ScriptedProvider) -> None:
        self.sent_messages: list[SentMessage] = []
        self.conversations: list[str] = []
        self._ann = ann
        self._model = model
        self._numbers = iter(range(MESSAGES_AT_MOST))
        self._is_over = False

    def end(self) -> None:
        self._is_over = True

    async def open_conversations(self) -> None:
        """Creates the conversations, before the first kill."""
        for _ in range(PEOPLE):
            self.conversations.append(await self._ann.conversation(self._model.url))

    async def talk(self, conversation: str) -> None:
        while not self._is_over:
            number, before = next(self._numbers, None), self._ann.deaths
            assert number is not None, "the script is too short for so fast a server"
            run_id = await self._ann.send_until_accepted(
                conversation, f"message {number}", tools=["visit_once"]
            )
            screen = await self._ann.follow_to_end(run_id)
            deaths = self._ann.deaths - before
            self.sent_messages.append(
                SentMessage(number=number, conversation=conversation, screen=screen, deaths=deaths)
            )


async def kill_at_random(ann: RestartingClient, kills: int, chance: random.Random) -> None:
    """This many kills, or fewer if the machine is too slow for them."""
    end = time.monotonic() + CHAPTER_SECONDS
    before = ann.deaths
    while ann.deaths < before + kills and time.monotonic() < end:
        # This is no wait for an event: the kill may come at any point of a run.
        await asyncio.sleep(chance.uniform(*KILL_BETWEEN_SECONDS))
        await ann.kill_and_start()
    assert ann.deaths >= before + KILLS_AT_LEAST


def check_sent_message(talk: SentMessage, model: ScriptedProvider, controller: ToolController) -> None:
    screen = talk.screen
    assert screen.done is not None
    assert screen.done["status"] == "completed"
    finished = [s["content"] for s in screen.ordered() if s["type"] == "text" and s["status"] == "done"]
    assert "".join(finished) == f"{PREFACE}{ANSWER} {talk.number}"
    request_count = sum(request.rule == str(talk.number) for request in model.requests)
    whole = screen.events().count("cost_update")
    assert whole == 2
    assert request_count - whole <= talk.deaths, f"{request_count} calls for {whole}, {talk.deaths} kills"
    visits = [key for key in controller.keys_seen() if key.startswith(f"{talk.number}-")]
    assert len(set(visits)) == len(visits) <= 2, f"a tool was run twice: {visits}"
    results = [s for s in screen.ordered() if s["type"] == "tool_result"]
    assert sorted(s["id_ref"] for s in results) == [f"call-{talk.number}-a", f"call-{talk.number}-b"]
    for step in results:
        is_reported = f"done {step['id_ref'].removeprefix('call-')}" in step["content"]
        assert is_reported == step["success"]
        assert step["success"] or talk.deaths > 0


def database_is_whole(folder: Path) -> None:
    for file in folder.glob("*.db"):
        connection = sqlite3.connect(file)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        finally:
            connection.close()


async def send_and_kill(
    ann: RestartingClient, controller: ToolController, model: ScriptedProvider, chance: random.Random
) -> None:
    """Users send messages, the server is killed some twenty times, and at the end everything exists once."""
    before = ann.deaths
    users = Users(ann, model)
    await users.open_conversations()
    talking = [asyncio.create_task(users.talk(each)) for each in users.conversations]
    await kill_at_random(ann, KILLS, chance)
    users.end()
    await asyncio.gather(*talking)
    assert model.unscripted == []
    assert sum(talk.deaths for talk in users.sent_messages) >= (ann.deaths - before) // 2
    for talk in users.sent_messages:
        check_sent_message(talk, model, controller)
        await ann.answer_shown_by(talk.conversation, talk.screen)
    for conversation in users.conversations:
        messages = await ann.messages(conversation)
        user_texts = [message["text"] for message in messages if message["role"] == "user"]
        assert len(user_texts) == len(set(user_texts))
        assert [m["role"] for m in messages] == ["user", "assistant"] * len(user_texts)
    assert (await ann.get("/runs", status="running"))["total"] == 0


async def run_with_random_kills(server: ServerProcess, chapters: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with RestartingClient(server) as ann:
        for _ in range(chapters):
            async with ToolController(answers=True) as controller:
                model = ScriptedProvider(script(controller.port))
                await model.start()
                try:
                    await send_and_kill(ann, controller, model, chance)
                finally:
                    await model.stop()
        print(f"{ann.deaths} kills")
    await asyncio.to_thread(server.stop)
    database_is_whole(server.data_dir)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.async_timeout(880)
@pytest.mark.parametrize("chapters", [pytest.param(1, id="short"), pytest.param(10, id="whole")])
async def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(
    own_server: ServerProcess, chapters: int
) -> None:
    await run_with_random_kills(own_server, chapters)
