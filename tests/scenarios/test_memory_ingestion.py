"""Facts are extracted from conversations, once, with their sources, whatever the model or the server does."""

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import WAIT_SECONDS, AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient

READER = "You read a part of a conversation"
USAGE = Counts(prompt=10, completion=5)
BERGEN: Json = {
    "text": "Ann lives in Bergen.", "category": "knowledge", "message": 1, "quote": "I live in Bergen",
    "subject": "Ann", "predicate": "lives in", "object": "Bergen",
}  # fmt: skip
OSLO: Json = {**BERGEN, "text": "Ann lives in Oslo.", "quote": "I moved to Oslo", "object": "Oslo"}
ANN: Json = {"name": "Ann", "type": "person"}


def extracts(call: int, *facts: Json, entities: list[Json] | None = None, before: Any = None) -> Rule:
    """The model finds these facts in its call of this number for an extraction."""
    text = json.dumps({"entities": [ANN] if entities is None else entities, "facts": facts})
    reply = [*([] if before is None else [before]), Text(text=text), USAGE]
    return Rule(name=f"extraction {call}", when=When(system=READER, call=call), reply=reply)


def says(call: int, *reply: Any) -> Rule:
    return Rule(name=f"extraction {call}", when=When(system=READER, call=call), reply=[*reply, USAGE])


CHATS = Rule(name="chat", reply=[Text(text="Noted."), USAGE])


async def chat_with(ann: AsyncApiClient, url: str, *texts: str) -> str:
    """A conversation with these messages; its provider is the default from now on."""
    provider_id = await ann.connect(url)
    await ann.ask("PUT", "/settings", {"default_provider_id": provider_id})
    conversation = (await ann.post("/conversations", {"title": "Moving"}))["id"]
    for text in texts:
        await say(ann, conversation, text)
    return conversation


async def say(ann: AsyncApiClient, conversation: str, text: str) -> None:
    async with ann.send_and_follow(conversation, text, tools=False) as stream:
        await stream.to_the_end()


async def extract(ann: AsyncApiClient, conversation: str) -> list[Json]:
    """The events of the run that extracts facts from a conversation."""
    run = (await ann.post("/memories/extract", {"conversation_id": conversation}))["run"]
    return await events_of(ann, run["id"])


async def events_of(ann: AsyncApiClient, run_id: str) -> list[Json]:
    """The log of a run once it has ended."""
    await ann.follow_all(run_id)
    response = await ann.ask("GET", f"/runs/{run_id}/events", headers={"accept": "application/json"})
    return response.json()["data"]["events"]


def of_type(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["type"] == kind]


async def known(ann: AsyncApiClient, **query: Any) -> list[str]:
    return [fact["text"] for fact in (await ann.get("/memories", **query))["items"]]


async def episodes(ann: AsyncApiClient) -> list[tuple[str, int]]:
    return [(each["status"], each["facts"]) for each in (await ann.get("/memories/episodes"))["items"]]


async def test_facts_have_sources_and_what_is_no_longer_so_keeps_its_history(
    own_server: ServerProcess,
) -> None:
    again = {**BERGEN, "replaces": 1, "quote": "back in Bergen", "valid_at": "2022-01-01"}
    as_child = {**BERGEN, "quote": "As a child", "valid_at": "1990-01-01", "invalid_at": "1995-01-01"}
    rules = [
        extracts(1, {**BERGEN, "valid_at": "2020-01-01"}), extracts(2, {**OSLO, "replaces": 1}),
        extracts(3, again), extracts(4, as_child, as_child),
        extracts(5, entities=[{"name": "Annie", "type": "person", "same_as": 2}]), CHATS,
    ]  # fmt: skip
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        conversation = await chat_with(ann, model.url, "I live in Bergen")
        first = await extract(ann, conversation)
        assert [each["type"] for each in first if each["type"] not in ("cost_update", "process_step")] == [
            "episode_start", "episode_synced", "communities_updated", "memory_complete",
        ]  # fmt: skip
        assert [each["purpose"] for each in of_type(first, "cost_update")] == ["extraction"]
        asked = await ann.ask("POST", "/memories/extract", {"conversation_id": conversation})
        assert asked.json()["data"] == {"run": None}

        await say(ann, conversation, "I moved to Oslo")
        second = await extract(ann, conversation)
        (retired,) = [each["facts"] for each in of_type(second, "facts_retired")]
        shown = model.requests[-1].body.decode()
        assert "Ann lives in Bergen." in shown
        assert "Noted." in shown
        assert "1. Ann (person)" in shown

        facts = {fact["text"]: fact for fact in (await ann.get("/memories"))["items"]}
        assert facts["Ann lives in Bergen."]["id"] == retired[0]
        assert facts["Ann lives in Bergen."]["invalid_at"] is not None
        oslo = facts["Ann lives in Oslo."]
        message = next(each for each in await ann.messages(conversation) if each["text"] == "I moved to Oslo")
        (source,) = oslo["sources"]
        assert (source["kind"], source["id"], source["quote"]) == (
            "message",
            message["id"],
            "I moved to Oslo",
        )
        assert (oslo["origin"], oslo["trusted"], oslo["subject"]) == ("model", True, "Ann")
        assert await episodes(ann) == [("synced", 1), ("synced", 1)]
        now_true = await known(ann, as_of="2100-01-01T00:00:00Z")
        assert now_true == ["Ann lives in Oslo."]

        for query, spoken in (
            ({"query": "who lived in Bergen"}, "I live in Bergen"),
            ({"limit": 1}, "I moved to Oslo"),
        ):
            found = await ann.post("/tools/episode_retrieval/execute", {"arguments": query})
            assert found["data"]["episodes"][0]["messages"][0]["text"] == spoken
        found = await ann.post("/tools/episode_retrieval/execute", {"arguments": {"query": "zebra"}})
        assert found["data"]["episodes"] == []

        # What is so once more is known once more; the fact that is over stays over.
        await say(ann, conversation, "I am back in Bergen")
        await extract(ann, conversation)
        assert await known(ann, as_of="2100-01-01T00:00:00Z") == ["Ann lives in Bergen."]
        assert sorted(await known(ann)) == ["Ann lives in Bergen."] * 2 + ["Ann lives in Oslo."]
        # Another time in the same words is a fact of its own.
        await say(ann, conversation, "As a child I lived in Bergen")
        await extract(ann, conversation)
        assert "Ann lives in Bergen." in await known(ann, as_of="1992-01-01T00:00:00Z")
        assert len(await known(ann)) == 4
        await ann.ask("DELETE", f"/messages/{message['id']}")
        assert await known(ann) == ["Ann lives in Bergen."]

        # Two known entities are merged where the model says so, until that is undone.
        body = {"text": "Annie sings.", "entities": [{"name": "Annie", "type": "person"}]}
        annie = (await ann.post("/memories", body))["entities"][0]["id"]
        (main,) = (await ann.get("/graph/entities", q="ann", type="person"))["items"][:1]
        await say(ann, conversation, "Annie is Ann")
        (merged,) = of_type(await extract(ann, conversation), "entities_merged")
        assert "1. Annie (person)\\n2. Ann (person)" in model.requests[-1].body.decode()
        assert (merged["entity_id"], merged["into"]) == (annie, main["id"])
        shown = await ann.get(f"/graph/entities/{annie}")
        assert shown["merged_into"] == main["id"]
        change = (await ann.get("/memories/changes", entity_id=annie))["items"][0]
        assert (change["kind"], change["run_id"]) == ("merge", merged["run_id"])
        await ann.post(f"/memories/changes/{change['id']}/undo")
        assert (await ann.get(f"/graph/entities/{annie}"))["merged_into"] is None
        assert (await ann.get(f"/graph/entities/{main['id']}"))["aliases"] == []


async def test_a_wrong_answer_is_corrected_and_a_useless_one_fails_with_its_reason(
    own_server: ServerProcess,
) -> None:
    useless = [says(call, Text(text="I remember nothing.")) for call in (3, 4, 5)]
    rules = [
        extracts(1, {**BERGEN, "message": 9}), extracts(2, BERGEN), *useless,
        extracts(10, OSLO), extracts(11, BERGEN), Rule(when=When(system=READER), status=429, times=4), CHATS,
    ]  # fmt: skip
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        conversation = await chat_with(ann, model.url, "I live in Bergen")
        await extract(ann, conversation)
        assert await known(ann) == ["Ann lives in Bergen."]
        assert "it must be from 1 to 2" in model.requests[-1].body.decode()

        await say(ann, conversation, "I moved to Oslo")
        (synced,) = of_type(await extract(ann, conversation), "episode_synced")
        assert synced["status"] == "failed"
        assert "no JSON object" in synced["reason"]
        failed = (await ann.get("/memories/episodes", status="failed"))["items"]
        assert [each["reason"] for each in failed] == [synced["reason"]]

        path = f"/memories/episodes/{failed[0]['id']}/retry"
        await events_of(ann, (await ann.post(path))["run"]["id"])
        (again,) = (await ann.get("/memories/episodes", status="failed"))["items"]
        assert "limits the rate of requests" in again["reason"]
        await events_of(ann, (await ann.post(path))["run"]["id"])
        assert sorted(await known(ann)) == ["Ann lives in Bergen.", "Ann lives in Oslo."]
        refused = await ann.ask("POST", path)
        assert refused.status_code == 409
        assert refused.json()["detail"]["kind"] == "episode_not_failed"

        # Without a model it is skipped, until there is one.
        await say(ann, conversation, "I live in Bergen again")
        for provider in (await ann.get("/providers"))["items"]:
            assert (await ann.ask("DELETE", f"/providers/{provider['id']}")).is_success
        (synced,) = of_type(await extract(ann, conversation), "episode_synced")
        assert (synced["status"], "no model can be asked" in synced["reason"]) == ("skipped", True)
        (skipped,) = (await ann.get("/memories/episodes", status="skipped"))["items"]
        assert skipped["reason"] == synced["reason"]
        await ann.connect(model.url)
        await events_of(ann, (await ann.post(f"/memories/episodes/{skipped['id']}/retry"))["run"]["id"])
        assert {status for status, _ in await episodes(ann)} == {"synced"}
        for method, wrong, body in (
            ("POST", "/memories/extract", {"conversation_id": "nothing"}),
            ("POST", "/memories/episodes/nothing/retry", None),
        ):
            assert (await ann.ask(method, wrong, body)).status_code == 404


async def test_what_a_deleted_fact_was_about_leaves_the_graph(own_server: ServerProcess) -> None:
    both = [ANN, {"name": "Dr. Quixada", "type": "person"}, {"name": "Oslo", "type": "place"}]
    times = {"valid_at": "1990-01-01", "invalid_at": "1995-01-01"}
    as_child = {**BERGEN, **times, "quote": "As a child", "replaces": 1}
    rules = [
        extracts(1, BERGEN, OSLO, entities=both), extracts(2, OSLO), extracts(3, as_child), CHATS,
    ]  # fmt: skip

    async def names() -> set[str]:
        return {entity["name"] for entity in (await ann.get("/graph/entities"))["items"]}

    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        conversation = await chat_with(ann, model.url, "I live in Bergen, I moved to Oslo")
        await extract(ann, conversation)
        assert await names() == {"Ann", "Bergen", "Oslo", "Dr. Quixada"}
        (oslo,) = [one["id"] for one in (await ann.get("/memories"))["items"] if "Oslo" in one["text"]]
        await ann.ask("DELETE", f"/memories/{oslo}")
        assert await names() == {"Ann", "Bergen", "Dr. Quixada"}
        await ann.ask("DELETE", "/memories", scope="user")
        assert await names() == set()
        # What is said later is extracted as before.
        await say(ann, conversation, "I moved to Oslo")
        await extract(ann, conversation)
        assert await names() == {"Ann", "Oslo"}
        # Something of long ago does not end what is so now, also if the model says so.
        await say(ann, conversation, "As a child I lived in Bergen")
        await extract(ann, conversation)
        ends = {one["object"]: one["invalid_at"] for one in (await ann.get("/memories"))["items"]}
        assert ends == {"Oslo": None, "Bergen": "1995-01-01T00:00:00Z"}


async def test_of_recalled_facts_prompts_and_results_of_tools_nothing_is_extracted(
    own_server: ServerProcess,
) -> None:
    recalled, prompt, result = "Ann's zebra is called Quagga.", "You answer as Quoll.", "Numbat"
    tool = Call(name="process_data", arguments={"data": [result], "operation": "minify"}, id="call-1")
    rules = [
        extracts(1),
        Rule(name="calls", when=When(has_tool_result=False), reply=[Text(text="I look."), tool, USAGE]),
        CHATS,
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        await ann.post("/memories", {"text": recalled})
        conversation = await chat_with(ann, model.url)
        await ann.ask("PUT", f"/conversations/{conversation}", {"system_prompt": prompt})
        async with ann.send_and_follow(conversation, "Who is my zebra?", tools=["process_data"]) as stream:
            await stream.to_the_end()
        given = model.requests[-1].body.decode()
        assert all(words in given for words in ("Quagga", "Quoll", result))
        await extract(ann, conversation)
        [*_, asked] = [each.json["messages"] for each in model.requests if READER in each.body.decode()]
        # Known facts stand before the messages, for comparison.
        known_facts, _, messages = str(asked[-1]["content"]).partition("Message 1, ")
        assert "Quagga" in known_facts
        assert all(words in messages for words in ("Who is my zebra?", "I look.", "Noted."))
        for words in ("Quagga", "Quoll", result):
            assert words not in messages
        assert "Quoll" not in str(asked)
        assert await known(ann) == [recalled]


async def test_a_cancelled_extraction_stays_cancelled(own_server: ServerProcess) -> None:
    rules = [extracts(1, BERGEN, before=Gate(name="reading")), CHATS]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        conversation = await chat_with(ann, model.url, "I live in Bergen")
        run = (await ann.post("/memories/extract", {"conversation_id": conversation}))["run"]
        await model.reached("reading")
        (running,) = (await ann.get("/memories/episodes", status="running"))["items"]
        assert running["run_id"] == run["id"]
        await ann.cancel(run["id"])
        model.release("reading")
        assert (await events_of(ann, run["id"]))[-1]["type"] == "memory_complete"
        (skipped,) = (await ann.get("/memories/episodes"))["items"]
        assert (skipped["status"], skipped["reason"]) == ("skipped", "a person cancelled the extraction")
        assert await known(ann) == []


async def test_killed_while_a_model_reads_it_is_asked_again_and_nothing_is_stored_twice(
    own_server: ServerProcess,
) -> None:
    rules = [extracts(1, BERGEN, before=Gate(name="reading")), extracts(2, BERGEN), extracts(3, OSLO), CHATS]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        conversation = await chat_with(
            ann, model.url, *(f"Message {number}: I live in Bergen" for number in range(7))
        )
        run = (await ann.post("/memories/extract", {"conversation_id": conversation}))["run"]
        await model.reached("reading")
        await ann.kill()
        model.release("reading")
        await ann.start()
        events = await events_of(ann, run["id"])
        assert [each["facts"] for each in of_type(events, "episode_synced")] == [1, 1]
        assert sorted(await known(ann)) == ["Ann lives in Bergen.", "Ann lives in Oslo."]
        assert await episodes(ann) == [("synced", 1), ("synced", 1)]
        assert len([each for each in model.requests if READER in each.body.decode()]) == 3


async def test_extraction_runs_by_itself_only_where_it_is_on(own_server: ServerProcess) -> None:
    rules = [extracts(1, BERGEN), CHATS]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        await chat_with(ann, model.url, *(f"Before {number}" for number in range(6)))
        await ann.ask("PUT", "/settings", {"extraction": "on"})
        off = (await ann.post("/conversations", {"memory": "off"}))["id"]
        on = (await ann.post("/conversations", {}))["id"]
        for conversation in (off, on):
            for number in range(6):
                await say(ann, conversation, f"I live in Bergen {number}")
        async with asyncio.timeout(WAIT_SECONDS):
            while await episodes(ann) != [("synced", 1)]:  # noqa: ASYNC110 - asks a server
                await asyncio.sleep(0.2)
        (episode,) = (await ann.get("/memories/episodes"))["items"]
        assert (episode["source_id"], episode["messages"]) == (on, 12)
        await events_of(ann, episode["run_id"])
        (run,) = (await ann.get("/runs", kind="memory"))["items"]
        assert (run["status"], run["id"]) == ("completed", episode["run_id"])


async def test_what_is_asked_for_beside_a_run_follows_it_also_where_extraction_is_off(
    own_server: ServerProcess,
) -> None:
    rules = [extracts(1, BERGEN, before=Gate(name="reading")), extracts(2, OSLO), CHATS]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        first = await chat_with(ann, model.url, "I live in Bergen")
        second = (await ann.post("/conversations", {}))["id"]
        await say(ann, second, "I moved to Oslo")
        run = (await ann.post("/memories/extract", {"conversation_id": first}))["run"]
        await model.reached("reading")
        assert (await ann.post("/memories/extract", {"conversation_id": second})) == {"run": None}
        model.release("reading")
        await events_of(ann, run["id"])
        async with asyncio.timeout(WAIT_SECONDS):
            while await episodes(ann) != [("synced", 1), ("synced", 1)]:  # noqa: ASYNC110 - asks a server
                await asyncio.sleep(0.2)
        assert sorted(await known(ann)) == ["Ann lives in Bergen.", "Ann lives in Oslo."]


async def test_a_run_that_cannot_be_driven_ends_its_episodes(own_server: ServerProcess) -> None:
    """Otherwise each check would start such a run again."""
    rules = [extracts(1, BERGEN, before=Gate(name="reading")), extracts(2, BERGEN), CHATS]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        conversation = await chat_with(ann, model.url, "I live in Bergen")
        run = (await ann.post("/memories/extract", {"conversation_id": conversation}))["run"]
        await model.reached("reading")
        await ann.kill()
        model.release("reading")
        with closing(sqlite3.connect(own_server.data_dir / "luxx.db")) as connection, connection:
            connection.execute("UPDATE runs SET losses = 100 WHERE id = ?", (run["id"],))
        await ann.start()
        await ann.until_status(run["id"], "failed")
        (failed,) = (await ann.get("/memories/episodes"))["items"]
        assert (failed["status"], failed["run_id"]) == ("failed", run["id"])
        assert failed["reason"]
        again = (await ann.post(f"/memories/episodes/{failed['id']}/retry"))["run"]
        await events_of(ann, again["id"])
        assert await known(ann) == ["Ann lives in Bergen."]
