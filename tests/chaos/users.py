"""Users who send messages, watch, reconnect and cancel while processes die, and record what was
acknowledged.
"""

import asyncio
import random
from enum import StrEnum
from typing import Any

import msgspec
from scenarios.screen import Screen
from scenarios.scripts import FIRST_THOUGHT, PREFACE, SECOND_THOUGHT, calls

from chaos.cluster import Cluster
from chaos.round_robin_client import RoundRobinClient
from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text, Thinking, When

MESSAGES_AT_MOST = 400
PACE_SECONDS = 0.008
ANSWER = " ".join(f"answer{n}" for n in range(40))
CANCEL_WITHIN_SECONDS = 1.0
"""About as long as a run without faults takes, so that a cancel may come at any point of it."""


class Ending(StrEnum):
    """What happens to a message, chosen by its number."""

    ANSWER = "answer"
    REPEATABLE = "repeatable"
    CANCEL = "cancel"


def ending_of(number: int) -> Ending:
    match number % 6:
        case 2:
            return Ending.REPEATABLE
        case 4:
            return Ending.CANCEL
        case _:
            return Ending.ANSWER


def tool_of(number: int) -> str:
    return "visit_again" if ending_of(number) == Ending.REPEATABLE else "visit_once"


class SentMessage(msgspec.Struct, kw_only=True):
    """One acknowledged message, and what its watchers saw.

    `deaths` counts the faults during its run. `cancelled` is the status in the answer to the cancel: `ended`
    if the run had ended already, empty if nobody cancelled.
    """

    number: int
    conversation: str
    run_id: str
    screens: list[Screen]
    deaths: int
    cancelled: str = ""

    @property
    def screen(self) -> Screen:
        return self.screens[0]


def script(port: int, count: int = MESSAGES_AT_MOST) -> Script:
    """Two calls for each message, with its own markers, so that its requests and visits can be identified."""
    rules: list[Rule] = []
    for number in range(count):
        asked = rf"^message {number}$"
        first: list[Any] = [
            Thinking(text=FIRST_THOUGHT),
            Text(text=PREFACE, pieces=0),
            *calls(tool_of(number), port, f"{number}-a", f"{number}-b"),
            Counts(prompt=10, completion=20),
        ]
        second: list[Any] = [Thinking(text=SECOND_THOUGHT), Text(text=f"{ANSWER} {number}"), Counts(prompt=1)]
        for has_result, reply in ((False, first), (True, second)):
            when = When(user=asked, has_tool_result=has_result)
            rules.append(Rule(name=f"{number}", when=when, reply=reply, delay=PACE_SECONDS))
    return Script(rules=rules)


class Users:
    """Users who send messages until `end` is called, each in a conversation of their own."""

    def __init__(
        self, ann: RoundRobinClient, cluster: Cluster, model: ScriptedProvider, chance: random.Random
    ) -> None:
        self.sent_messages: list[SentMessage] = []
        self.conversations: list[str] = []
        self._ann = ann
        self._cluster = cluster
        self._model = model
        self._chance = chance
        self._numbers = iter(range(MESSAGES_AT_MOST))
        self._is_over = False

    def end(self) -> None:
        """No new messages are sent; the sent ones are followed to their ends."""
        self._is_over = True

    async def open_conversations(self, people: int) -> None:
        """Creates a conversation for each user, before the faults begin."""
        for _ in range(people):
            self.conversations.append(await self._ann.conversation(self._model.url))

    async def send_until_end(self) -> None:
        """All users send messages, until `end`."""
        async with asyncio.TaskGroup() as tasks:
            for conversation in self.conversations:
                tasks.create_task(self._send_messages(conversation))

    async def _send_messages(self, conversation: str) -> None:
        while not self._is_over:
            number = next(self._numbers, None)
            assert number is not None, "the script is too short for so fast a server"
            self.sent_messages.append(await self._exchange(conversation, number))

    async def _exchange(self, conversation: str, number: int) -> SentMessage:
        before = self._cluster.deaths
        run_id = await self._ann.send_until_accepted(
            conversation, f"message {number}", tools=[tool_of(number)]
        )
        async with asyncio.TaskGroup() as tasks:
            # No timeout during the faults: only the time after the last fault is bounded.
            steady = tasks.create_task(self._ann.follow_to_end(run_id, timeout=None))
            # Each stream begins with the state of the run; a client that left right after that would make no
            # progress.
            frames = self._chance.randint(3, 40)
            restless = tasks.create_task(self._ann.follow_to_end(run_id, frames=frames, timeout=None))
            cancelling = tasks.create_task(self._cancel_if_planned(number, run_id))
        return SentMessage(
            number=number,
            conversation=conversation,
            run_id=run_id,
            screens=[steady.result(), restless.result()],
            deaths=self._cluster.deaths - before,
            cancelled=cancelling.result(),
        )

    async def _cancel_if_planned(self, number: int, run_id: str) -> str:
        if ending_of(number) != Ending.CANCEL:
            return ""
        # This is no wait for an event: the cancel may come at any point of the run.
        await asyncio.sleep(self._chance.uniform(0, CANCEL_WITHIN_SECONDS))
        answer = await self._ann.ask_until_answered("POST", f"/runs/{run_id}/cancel")
        assert answer.status_code in (200, 409), answer.text
        # 409: the run had ended, perhaps by an earlier attempt of this cancel whose answer was lost.
        return answer.json()["data"]["status"] if answer.status_code == 200 else "ended"
