"""kill -9 at random moments while facts are extracted from a chat of 300 messages: each fact is stored once,
and no model call whose answer was stored is made again."""

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from scenarios.client import WAIT_SECONDS, Json
from sqlalchemy import text as sql

from chaos.cluster import Cluster, ClusterProcess
from chaos.invariants import check_database, rows
from chaos.round_robin_client import RoundRobinClient, until
from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text, When

MESSAGES = 300
BATCH = 12
BATCHES = MESSAGES // BATCH
PACE_SECONDS = 0.02
CALLS_SECONDS = 5.0
"""The longest wait for model calls that do not come, because the run has just ended."""

KILLS_OF_SEVERAL = 20
SOON_SECONDS = 10.0
"""The promise: the work goes on within this time after a start."""

IN_A_ROW = 0.25
"""How often the next kill comes before the work has gone on."""

OF_DRIVERS = 0.7
"""How many kills are of the process that drives the run."""

DRIVERS = sql("SELECT pid FROM processes JOIN runs ON runs.owner = processes.id WHERE runs.kind = 'memory'")
BEGUN_AT = datetime(2026, 1, 1, tzinfo=UTC)


def fact(note: int) -> str:
    return f"Ann visited town {note}."


def notes(chapter: int, batch: int) -> range:
    """The numbers of the notes of a person in a batch: every second message has one."""
    first = (chapter * BATCHES + batch) * BATCH // 2
    return range(first, first + BATCH // 2)


def chat(chapter: int) -> Json:
    """The file of a conversation, in which each note is answered."""
    messages: list[Json] = []
    for note in (note for batch in range(BATCHES) for note in notes(chapter, batch)):
        for role, text in (("user", f"Note {note}: I was there."), ("assistant", "Noted.")):
            number = len(messages)
            parent_id = f"m{number - 1}" if number else None
            at = (BEGUN_AT + timedelta(minutes=number)).isoformat()
            step = {"id": "step-0", "index": 0, "type": "text", "content": text, "status": "done"}
            said = {"text": text} if role == "user" else {"steps": [step]}
            messages.append(
                {"id": f"m{number}", "parent_id": parent_id, "role": role, "created_at": at, **said}
            )
    at = BEGUN_AT.isoformat()
    conversation = {"id": "c", "title": "Travels", "created_at": at, "updated_at": at}
    version = {"format": "luxx.conversation", "version": 1, "exported_at": at}
    return {**version, "conversation": conversation, "messages": messages}


def script(chapter: int) -> Script:
    """An answer for each batch, which takes some time."""
    rules: list[Rule] = []
    for batch in range(BATCHES):
        found = [
            {
                "text": fact(note), "category": "history", "message": number * 2 + 1,
                "subject": "Ann", "predicate": "visited", "object": f"Town {note}",
            }
            for number, note in enumerate(notes(chapter, batch))
        ]  # fmt: skip
        answer = json.dumps({"entities": [{"name": "Ann", "type": "person"}], "facts": found})
        first = notes(chapter, batch)[0]
        rules.append(
            Rule(
                name=str(batch),
                when=When(user=f"Note {first}:"),
                reply=[Text(text=answer, pieces=5), Counts(prompt=10, completion=10)],
                delay=PACE_SECONDS,
            )
        )
    return Script(rules=rules)


class KilledExtraction:
    """An extraction in progress. `synced` has the number of model calls of each batch when its facts were
    seen stored."""

    def __init__(self, ann: RoundRobinClient, model: ScriptedProvider, run_id: str, before: int) -> None:
        self.synced: dict[int, int] = {}
        self._ann, self._model, self._run_id, self._before = ann, model, run_id, before

    def calls(self) -> Counter[int]:
        return Counter(int(request.rule) for request in self._model.requests)

    async def is_over(self) -> bool:
        """Whether the run has ended; checks that no batch whose facts are stored was read again."""
        answer = await self._ann.ask_until_answered("GET", "/memories/episodes", status="synced", page_size=1)
        calls = self.calls()
        for batch in range(answer.json()["data"]["total"] - self._before):
            self.synced.setdefault(batch, calls[batch])
        again = [batch for batch, count in self.synced.items() if calls[batch] != count]
        assert not again, f"batches were read again: {again}"
        answer = await self._ann.ask_until_answered("GET", f"/runs/{self._run_id}")
        return answer.json()["data"]["status"] != "running"

    async def goes_on(self, since: int) -> None:
        """Returns when the model was asked again, or nothing is left to do."""

        async def has_gone_on() -> bool:
            return len(self._model.requests) > since or await self.is_over()

        async with asyncio.timeout(SOON_SECONDS):
            await until(has_gone_on)

    async def until_over(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS + SOON_SECONDS):
            await until(self.is_over)


async def begin(ann: RoundRobinClient, url: str, chapter: int) -> str:
    """Imports the chat and starts the run, which is returned."""
    provider_id = await ann.connect(url)
    chosen = await ann.ask("PUT", "/settings", {"default_provider_id": provider_id})
    assert chosen.is_success, chosen.text
    imported = await ann.post("/conversations/import", chat(chapter))
    body = {"conversation_id": imported["conversation_ids"][0]}
    run = (await ann.post("/memories/extract", body))["run"]
    return run["id"]


async def check_stored(ann: RoundRobinClient, run_id: str, chapter: int) -> None:
    run = await ann.run(run_id)
    assert run["status"] == "completed", run["error"]
    exported = (await ann.ask("GET", "/memories/export")).json()["facts"]
    expected = [fact(note) for part in range((chapter + 1) * BATCHES) for note in notes(0, part)]
    assert sorted(each["text"] for each in exported) == sorted(expected)
    assert {len(each["sources"]) for each in exported} == {1}
    assert (await ann.get("/graph/entities", page_size=1))["total"] == len(expected) + 1
    found = await ann.get("/memories/episodes", status="synced", page_size=100)
    assert [each["facts"] for each in found["items"]] == [BATCH // 2] * found["total"]
    assert found["total"] == (chapter + 1) * BATCHES
    answer = await ann.ask("GET", f"/runs/{run_id}/events", headers={"accept": "application/json"}, limit=500)
    events = answer.json()["data"]["events"]
    kinds = Counter(event["type"] for event in events)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (kinds["cost_update"], kinds["episode_start"], kinds["episode_synced"]) == (BATCHES,) * 3


async def choose(cluster: Cluster, chance: random.Random) -> ClusterProcess:
    """A process to kill, more often than not the one that drives the run."""
    found = await asyncio.to_thread(rows, cluster, DRIVERS)
    pids = {row[0] for row in found[str(DRIVERS)]}
    drivers = [member for member in cluster.healthy() if member.pid in pids]
    return chance.choice(drivers if drivers and chance.random() < OF_DRIVERS else cluster.healthy())


async def kill_while_facts_are_extracted(cluster: Cluster, kills: int) -> None:
    """Chats are read one after another, until there were this many kills; the last one to its end."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    left, chapter = kills, 0
    while left:
        async with RoundRobinClient(cluster.url) as ann, ScriptedProvider(script(chapter)) as model:
            run_id = await begin(ann, model.url, chapter)
            extraction = KilledExtraction(ann, model, run_id, chapter * BATCHES)
            while left and not await extraction.is_over():
                with suppress(TimeoutError):
                    await model.arrived(
                        len(model.requests) + chance.randint(0, BATCHES // kills + 1), CALLS_SECONDS
                    )
                # This is no wait for an event: the kill may come at any point of an episode.
                await asyncio.sleep(chance.uniform(0, 8 * PACE_SECONDS))
                await extraction.is_over()
                await cluster.kill(member := await choose(cluster, chance))
                left -= 1
                since = len(model.requests)
                await cluster.start(member)
                if not left or chance.random() > IN_A_ROW:
                    await extraction.goes_on(since)
            await extraction.until_over()
            await check_stored(ann, run_id, chapter)
            await asyncio.to_thread(check_database, cluster)
            cut = len(model.requests) - BATCHES
            assert cut <= cluster.kills
            print(f"chapter {chapter}: {len(model.requests)} calls, {cut} of them for calls that a kill cut")
        chapter += 1


@pytest.mark.parametrize(
    "kills", [pytest.param(4, id="few"), pytest.param(40, id="many", marks=pytest.mark.long)]
)
async def test_each_fact_of_a_chat_of_300_messages_is_stored_once_over_kills(
    alone: Cluster, kills: int
) -> None:
    await kill_while_facts_are_extracted(alone, kills)


@pytest.mark.long
async def test_each_fact_is_stored_once_over_kills_of_servers_and_workers(two_and_two: Cluster) -> None:
    await kill_while_facts_are_extracted(two_and_two, KILLS_OF_SEVERAL)
