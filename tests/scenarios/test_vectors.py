"""Facts are also found by meaning: with a model that passes its test, whatever happens to it later."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psutil
from api.server_process import ServerProcess, model_settings
from engine.in_process_cluster import until

from luxx.features.memory.vectors.self_test import bilingual_set
from luxx.infra.config.schema import EMBEDDED_EMBEDDINGS
from luxx.providers.local.child import SERVER_SCRIPT
from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, Vectors
from scenarios.client import AsyncApiClient, Json

FACT, OTHER = "Anna is allergic to walnuts.", "The heating was repaired in May."
QUESTION = "Which cake harms my wife?"
MEANINGS = {
    QUESTION: FACT,
    **{each.text: bilingual_set().memories[each.expected].text for each in bilingual_set().questions},
}
GOOD = Vectors(meanings=MEANINGS)


def model_with(vectors: Vectors) -> ScriptedProvider:
    rules = [Rule(name="chat", reply=[Text(text="Walnut cake.")])]
    return ScriptedProvider(Script(rules=rules, embeddings=vectors))


def embedding(model: str) -> dict[str, str]:
    return {"LUXX_MEMORY__EMBEDDING": json.dumps({"provider_id": 1, "model": model})}


@asynccontextmanager
async def searching(
    folder: Path, model: ScriptedProvider, name: str = "first"
) -> AsyncIterator[AsyncApiClient]:
    settings = model_settings(model.url) | embedding(name)
    with ServerProcess(folder, **settings) as server:
        async with AsyncApiClient(server.url) as admin:
            yield admin


async def status(admin: AsyncApiClient, state: str, done: int = 0) -> Json:
    """The status once it is this one, with so many vectors."""

    async def is_so() -> Json | None:
        found = await admin.get("/memories/embedding")
        return found if found["state"] == state and found["done"] >= done else None

    return await until(is_so)


async def found_by(admin: AsyncApiClient, query: str, search_type: str) -> tuple[list[str], str | None]:
    body = {"arguments": {"query": query, "search_type": search_type}}
    result = await admin.post("/tools/memory_search/execute", body)
    assert result["success"], result
    return [fact["text"] for fact in result["data"]["facts"]], result["data"].get("note")


async def ask(admin: AsyncApiClient) -> list[Json]:
    """What a model is given for the question."""
    conversation = (await admin.post("/conversations", {"title": "Cakes"}))["id"]
    await admin.post("/messages", {"conversation_id": conversation, "content": QUESTION})
    message = (await admin.messages(conversation))[-1]
    return (await admin.get(f"/messages/{message['id']}/recalled"))["items"]


async def test_a_fact_is_found_by_meaning_and_its_vector_follows_its_text(tmp_path: Path) -> None:
    async with model_with(GOOD) as model, searching(tmp_path, model) as admin:
        tested = await status(admin, "ready")
        assert tested["hit_at_5"]["vectors"] == 1.0 > tested["hit_at_5"]["words"]
        for text in (FACT, OTHER):
            fact = await admin.post("/memories", {"text": text})
        await status(admin, "ready", done=2)
        item = (await ask(admin))[0]
        assert (item["text"], item["arms"]) == (FACT, ["vector"])
        assert "similar in meaning" in item["reason"]
        assert await found_by(admin, QUESTION, "semantic") == ([FACT, OTHER], None)
        assert (await found_by(admin, QUESTION, "keyword"))[0] == []
        # A changed text has a new vector, a deleted one none.
        await admin.ask("PUT", f"/memories/{fact['id']}", {"text": "Ben plays chess."})
        await status(admin, "ready", done=3)
        assert (await found_by(admin, "chess", "semantic"))[0][0] == "Ben plays chess."
        await admin.ask("DELETE", "/memories", scope="user")
        with closing(sqlite3.connect(tmp_path / "data" / "luxx.db")) as database:
            assert database.execute("SELECT count(*) FROM embeddings").fetchone() == (0,)
        # The run that indexes a document follows its vectors.
        base = (await admin.post("/knowledge", {"name": "Cakes"}))["id"]
        added = await admin.post(f"/knowledge/{base}/documents", {"name": "a.md", "text": FACT})
        await admin.follow_all(added["run"]["id"])
        path = f"/runs/{added['run']['id']}/events"
        answer = await admin.ask("GET", path, headers={"accept": "application/json"})
        events = answer.json()["data"]["events"]
        assert [each["type"] for each in events] == ["document_parsed", "embedded", "index_complete"]
        assert (events[1]["done"], events[1]["total"]) == (1, 1)
        # What it took is a line of its own.
        lines = (await admin.get("/usage", group_by="model"))["items"]
        assert next(line for line in lines if line["key"] == "first")["prompt_tokens"] > 500


async def test_without_a_vector_the_order_is_that_of_words_and_the_reason_is_shown(tmp_path: Path) -> None:
    async with model_with(Vectors(random=True)) as model:
        async with searching(tmp_path, model) as admin:
            shown = await status(admin, "below_words")
            assert shown["hit_at_5"]["vectors"] < shown["hit_at_5"]["words"]
            assert "less than words" in shown["reason"]
            await admin.post("/memories", {"text": FACT})
            assert await ask(admin) == []
            note = "searched by words: nothing here can be searched by meaning"
            assert await found_by(admin, "walnuts", "semantic") == ([FACT], note)
        model.embeddings = GOOD
        async with searching(tmp_path, model, "second") as admin:
            await status(admin, "ready", done=1)
            assert (await found_by(admin, QUESTION, "hybrid"))[0] == [FACT]
            model.embeddings = Vectors(status=401)
            texts, refused = await found_by(admin, "walnuts", "hybrid")
            assert texts == [FACT]
            assert refused is not None
            assert refused.startswith("searched by words only: ")


async def test_the_embedded_model_finds_a_fact_in_another_language_also_after_its_process_is_killed(
    tmp_path: Path,
) -> None:
    settings = {"LUXX_MEMORY__EMBEDDING": json.dumps({"model": EMBEDDED_EMBEDDINGS})}
    question, fact = "谁对坚果过敏?", "Anna is allergic to walnuts."
    with ServerProcess(tmp_path, **settings) as server:
        async with AsyncApiClient(server.url) as admin:
            tested = await status(admin, "ready")
            assert tested["hit_at_5"]["vectors"] >= 0.85 > tested["hit_at_5"]["words"]
            for text in (OTHER, fact):
                await admin.post("/memories", {"text": text})
            await status(admin, "ready", done=2)
            assert (await found_by(admin, question, "hybrid"))[0][0] == fact
            [child] = embedders(server)
            assert child.memory_info().rss < 110_000_000
            child.kill()
            await admin.post("/memories", {"text": "Ben plays chess."})
            await status(admin, "ready", done=3)
            [another] = embedders(server)
            assert another != child
    assert await asyncio.to_thread(another.wait, 10) is None or not another.is_running()


def embedders(server: ServerProcess) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children()
    return [child for child in children if str(SERVER_SCRIPT) in child.cmdline()]
