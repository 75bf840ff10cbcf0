"""kill -9 at random moments while runs make and change artifacts, and while a page is written anew: each
change is one version, no version is lost, doubled or half, and each run ends as its log says."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from scenarios.screen import Screen

from chaos.cluster import TAKEOVER_SECONDS, Cluster
from chaos.invariants import check_database
from chaos.round_robin_client import RoundRobinClient
from luxx.providers.scripted import (
    Call,
    Counts,
    Finish,
    Pause,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    When,
)
from luxx.providers.scripted.script import ReplyEvent

CALLS_SECONDS = 10.0
"""The longest wait for model calls that do not come, because the run has just ended."""

END_SECONDS = 60.0
"""How long a run may take after the kills, on a machine that is busy with other work as well."""

ANSWER_SECONDS = 0.5
"""The pause in an answer that becomes a page."""

JSON = {"accept": "application/json"}


def made(chapter: int, number: int) -> str:
    return f"# Made {chapter}-{number}\n\n- new\n"


def pages_after(chapter: int, *, is_rewritten: bool) -> list[str]:
    """The pages of the deck when its first page was changed in this chapter, and perhaps its second one."""
    second = chapter if is_rewritten else chapter - 1
    return [f"# First {chapter}", f"# Second {second}", "# Third"]


def script(chapter: int, artifact_id: str) -> Script:
    """A message is answered by calls that make two artifacts and change the deck; then a page is written."""
    said = rf"Chapter {chapter}\b"
    creations: list[ReplyEvent] = [
        Call(
            name="create_artifact",
            id=f"make-{chapter}-{number}",
            arguments={"type": "ppt", "name": f"Made {chapter}-{number}", "content": made(chapter, number)},
        )
        for number in range(2)
    ]
    change = Call(
        name="edit_artifact",
        id=f"edit-{chapter}",
        arguments={
            "artifact_id": artifact_id, "page": 1, "content": f"# First {chapter}",
            "base_version": 2 * chapter - 1,
        },
    )  # fmt: skip
    calls: list[ReplyEvent] = [*creations, change, Counts(), Finish(reason="tool_calls")]
    page: list[ReplyEvent] = [Text(text="# Second"), Pause(seconds=ANSWER_SECONDS), Text(text=f" {chapter}")]
    return Script(
        rules=[
            Rule(name="calls", when=When(user=said, has_tool_result=False), reply=calls),
            Rule(name="done", when=When(user=said), reply=[Text(text="All made."), Counts()]),
            Rule(name="page", when=When(user="Instructions for page 2"), reply=[*page, Counts()]),
        ]
    )


class KilledDeck:
    """A deck that every chapter changes twice, and the processes that are killed meanwhile."""

    def __init__(self, cluster: Cluster, ann: RoundRobinClient, chance: random.Random) -> None:
        self._cluster, self._ann, self._chance = cluster, ann, chance
        self.artifact_id = ""

    async def create(self) -> None:
        content = "# First 0\n\n---\n\n# Second 0\n\n---\n\n# Third\n"
        new = {"type": "ppt", "name": "Deck", "content": content}
        self.artifact_id = (await self._ann.post("/artifacts", new))["id"]

    async def chapter(self, chapter: int, kills: tuple[int, int]) -> None:
        """A run that changes page 1 and one that writes page 2, each with so many kills."""
        ann, artifact_id = self._ann, self.artifact_id
        async with ScriptedProvider(script(chapter, artifact_id)) as model:
            conversation_id = await ann.conversation(model.url)
            chosen = await ann.get(f"/conversations/{conversation_id}")
            await ann.ask("PUT", "/settings", {"default_provider_id": chosen["provider_id"]})
            run_id = await ann.send_until_accepted(conversation_id, f"Chapter {chapter}")
            screen = await self._end_of(run_id, model, kills[0])
            await self._check_calls(chapter, run_id, screen)
            await self._check_versions(chapter, is_rewritten=False)
            body = {"page_index": 2, "instructions": f"Number {chapter}"}
            started = await ann.ask("POST", f"/artifacts/{artifact_id}/regenerate", body, headers=JSON)
            assert started.status_code == 202, started.text
            run_id = started.json()["data"]["id"]
            screen = await self._end_of(run_id, model, kills[1])
            events = screen.events()
            assert (events.count("artifact_updated"), events.count("done")) == (1, 1)
            run = await ann.run(run_id)
            assert (run["status"], run["last_seq"]) == ("completed", screen.last_id), run["error"]
            await self._check_versions(chapter, is_rewritten=True)
        assert model.unscripted == []
        await asyncio.to_thread(check_database, self._cluster)

    async def _end_of(self, run_id: str, model: ScriptedProvider, kills: int) -> Screen:
        for _ in range(kills):
            with suppress(TimeoutError):
                await model.arrived(len(model.requests) + self._chance.randint(0, 1), CALLS_SECONDS)
            # This is no wait for an event: the kill may come at any point of a call and of its rendering.
            await asyncio.sleep(self._chance.uniform(0, 1.5))
            await self._cluster.kill(member := self._chance.choice(self._cluster.healthy()))
            await self._cluster.start(member)
        return await self._ann.follow_to_end(run_id, timeout=END_SECONDS + TAKEOVER_SECONDS)

    async def _check_calls(self, chapter: int, run_id: str, screen: Screen) -> None:
        run = await self._ann.run(run_id)
        assert (run["status"], run["last_seq"]) == ("completed", screen.last_id), run["error"]
        results = [step for step in screen.ordered() if step["type"] == "tool_result"]
        ids = sorted(step["id_ref"] for step in results)
        assert ids == [f"edit-{chapter}", f"make-{chapter}-0", f"make-{chapter}-1"]
        for step in results:
            assert step["success"], step
        assert screen.events().count("artifact_updated") == len(results)
        listed = await self._ann.get("/artifacts", page_size=100)
        expected = [f"Made {number}-{part}" for number in range(1, chapter + 1) for part in range(2)]
        assert sorted(one["name"] for one in listed["items"]) == sorted(["Deck", *expected])
        stored = {one["id"]: one for one in listed["items"]}
        for step in results:
            (file,) = step["files"]
            assert stored[file["artifact_id"]]["head"] == file["version"]
            if stored[file["artifact_id"]]["name"] != "Deck":
                content = await self._ann.get(f"/artifacts/{file['artifact_id']}/content")
                assert content["content"] == made(chapter, int(step["id_ref"][-1]))

    async def _check_versions(self, chapter: int, *, is_rewritten: bool) -> None:
        """The versions are numbered without gaps, and each is what it was when it was saved."""
        path = f"/artifacts/{self.artifact_id}"
        head = 2 * chapter + is_rewritten
        listed = await self._ann.get(f"{path}/versions", page_size=100)
        assert [one["version"] for one in listed["items"]] == list(range(head, 0, -1))
        assert (await self._ann.get(path))["head"] == head
        for number in range(2, head + 1):
            content = await self._ann.get(f"{path}/content", version=number)
            texts = [page["content"] for page in content["pages"]]
            assert texts == pages_after(number // 2, is_rewritten=number % 2 == 1), number
        problems: list[Any] = [one["problems"] for one in listed["items"]]
        assert problems == [[]] * head


async def kill_while_artifacts_are_made(cluster: Cluster, kills: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with RoundRobinClient(cluster.url) as ann:
        deck = KilledDeck(cluster, ann, chance)
        await deck.create()
        left, chapter = kills, 0
        while left:
            chapter += 1
            first = min(left, chance.randint(0, 3))
            second = min(left - first, chance.randint(0, 2))
            left -= first + second
            await deck.chapter(chapter, (first, second))
        print(f"{kills} kills in {chapter} chapters")


@pytest.mark.parametrize(
    "kills", [pytest.param(6, id="few"), pytest.param(20, id="many", marks=pytest.mark.long)]
)
async def test_each_change_is_one_version_over_kills_of_one_process(alone: Cluster, kills: int) -> None:
    await kill_while_artifacts_are_made(alone, kills)


@pytest.mark.long
async def test_each_change_is_one_version_over_kills_of_servers_and_workers(two_and_two: Cluster) -> None:
    await kill_while_artifacts_are_made(two_and_two, 20)
