"""What the next prompt of a conversation takes of its window, and a summary that a person asks for."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from api.server_process import ServerProcess
from command_line import register

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.conftest import SMALL_WINDOWS
from scenarios.restarting_client import RestartingClient
from scenarios.screen import Screen
from scenarios.test_long_turns import SUMMARY, contents
from scenarios.test_steering_and_queue import ask_to_write, until_idle
from scenarios.test_summaries import summary_rule

QUESTIONS = ["Which trees stand in the garden?", *(f"And behind wall {number}?" for number in range(2, 7))]
LIST = "The old pear tree stands behind the wall of the garden, beside the well. " * 60
"""About 1,000 tokens: six answers and the tools take half of the window."""

COMPRESSED = ["context_compressed", "cost_update", "done"]


def script(*summaries: Rule) -> Script:
    return Script(rules=[*summaries, Rule(reply=[Text(text=LIST, pieces=1)])], window=20_000)


async def long_conversation(ann: AsyncApiClient, model: ScriptedProvider) -> str:
    """A conversation of six turns, about half of the window."""
    body = {
        "provider_id": await ann.connect(model.url),
        "model": "twenty",
        "max_tokens": 1000,
        "system_prompt": "You help a gardener.",
    }
    conversation = (await ann.post("/conversations", body))["id"]
    for question in QUESTIONS:
        await ann.post("/messages", {"conversation_id": conversation, "content": question})
    return conversation


async def context_of(ann: AsyncApiClient, conversation: str) -> tuple[Json, Mapping[str, int]]:
    """What the route says, and the tokens of the parts by their names."""
    found = await ann.get(f"/conversations/{conversation}/context")
    parts = {part["name"]: part["tokens"] for part in found["parts"]}
    assert sum(parts.values()) == found["estimated_tokens"]
    assert found["utilization_pct"] == round(100 * found["estimated_tokens"] / found["budget"], 1)
    assert (found["model"], found["window"], found["budget"]) == ("twenty", 20_000, 19_000)
    return found, parts


async def refusal_of(ann: AsyncApiClient, conversation: str, body: Json | None = None) -> tuple[int, str]:
    response = await ann.ask("POST", f"/conversations/{conversation}/compress", body)
    answer = response.json()
    return response.status_code, str(answer["detail"]["kind"] if "detail" in answer else answer["error"])


async def shown_elsewhere(ann: AsyncApiClient, conversation: str) -> tuple[Json, Json]:
    """The messages of an export, and what the search finds."""
    exported = (await ann.ask("GET", f"/conversations/{conversation}/export?format=json")).json()
    found = await ann.get("/search", q="pear tree", conversation_id=conversation)
    assert found["items"]
    return exported["messages"], found


async def test_a_conversation_is_compressed_when_a_person_wants_it(long_server: ServerProcess) -> None:
    async with ScriptedProvider(script(summary_rule())) as model, AsyncApiClient(long_server.url) as ann:
        conversation = await long_conversation(ann, model)
        stored, shown = await ann.messages(conversation), await shown_elsewhere(ann, conversation)
        before, parts = await context_of(ann, conversation)
        assert parts.keys() == {"system", "tools", "skills", "history"}
        assert before["last_compression"] is None
        async with ann.compress_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        assert screen.events() == COMPRESSED
        (event,) = screen.data_of("context_compressed")
        assert event["compression_strategy"] == "summarize"
        assert event["summary"] == SUMMARY
        assert event["tokens_before"] == before["estimated_tokens"]
        assert [one["purpose"] for one in screen.data_of("cost_update")] == ["summary"]
        assert screen.done is not None
        assert screen.done["status"] == "completed"
        assert screen.done["message_id"] == stored[-1]["id"]
        # The prompt of the turn before and its answer, with one more message: nearly all of it is cached.
        earlier, asked = (request.json for request in model.requests[-2:])
        assert asked["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert asked["tools"] == earlier["tools"]
        after, parts = await context_of(ann, conversation)
        assert after["estimated_tokens"] == event["tokens_after"]
        assert parts["summary"] < 200
        assert after["last_compression"] == event
        run = await ann.run(event["run_id"])
        assert (run["kind"], run["status"], run["message_id"]) == ("chat", "completed", None)
        used = await ann.get("/usage", group_by="conversation")
        (row,) = [one for one in used["items"] if one["key"] == conversation]
        of_answers = sum(message["usage"]["total_tokens"] for message in stored if message["usage"])
        assert row["total_tokens"] == of_answers + screen.done["usage"]["total_tokens"]
        assert await ann.messages(conversation) == stored, "nothing stored changes"
        assert await shown_elsewhere(ann, conversation) == shown
        assert await refusal_of(ann, conversation) == (409, "nothing_to_compress")
        gardener = (await ann.post("/agents", {"name": "Gardener", "role": "prunes"}))["id"]
        await ann.post("/messages", {"conversation_id": conversation, "content": "And the apple?"})
        # The list of agents is made anew, because the prompt begins otherwise in any case.
        assert "- Gardener: prunes" in model.requests[-1].json["messages"][0]["content"]
        assert (await ann.ask("DELETE", f"/agents/{gardener}")).is_success
        users = contents(model.requests[-1].json["messages"], "user")
        assert users[0] == QUESTIONS[0]
        assert users[1].endswith(SUMMARY)
        assert users[-1] == "And the apple?"
        # A branch from before the answer has no word of it; without the answer, the summary is gone too.
        fork = await ann.post(f"/conversations/{conversation}/fork", {"message_id": stored[-2]["id"]})
        assert (await context_of(ann, fork["id"]))[1].keys() == {"system", "tools", "skills", "history"}
        await ann.post("/messages", {"conversation_id": fork["id"], "content": "And the plum?"})
        asked = json.dumps(model.requests[-1].json)
        assert "And the plum?" in asked
        assert SUMMARY.splitlines()[1] not in asked
        await ann.ask("DELETE", f"/messages/{stored[-1]['id']}")
        assert (await context_of(ann, conversation))[0]["last_compression"] is None
        assert (await ann.ask("GET", f"/runs/{event['run_id']}")).status_code == 404


async def test_what_cannot_be_compressed_is_refused(long_server: ServerProcess) -> None:
    waits = Rule(name="waits", when=When(user="Wait"), reply=[Gate(name="answer"), Text(text="Yes.")])
    token = await asyncio.to_thread(lambda: register(long_server)[1])
    async with (
        ScriptedProvider(Script(rules=[waits])) as model,
        AsyncApiClient(long_server.url) as ann,
        AsyncApiClient(long_server.url, token=token) as ben,
    ):
        provider = await ann.connect(model.url)
        conversation = (await ann.post("/conversations", {"provider_id": provider, "model": "twenty"}))["id"]
        assert await refusal_of(ann, conversation) == (409, "nothing_to_compress")
        assert (await context_of(ann, conversation))[1].keys() == {"tools", "skills"}
        run = await ann.start_run(conversation, "Wait")
        await model.reached("answer")
        assert await refusal_of(ann, conversation) == (409, "run_active")
        assert (await context_of(ann, conversation))[1]["history"] > 0
        model.release("answer")
        await ann.wait_for_end(run["id"])
        assert await refusal_of(ann, conversation) == (409, "nothing_to_compress")
        assert (await refusal_of(ann, conversation, {"all": True}))[0] == 400
        # The model of a conversation that its provider does not list is no fault of the request.
        lost = (await ann.post("/conversations", {"provider_id": provider, "model": "gone"}))["id"]
        assert (await ann.get(f"/providers/{provider}/models"))["models"] == ["scripted"]
        response = await ann.ask("GET", f"/conversations/{lost}/context")
        assert (response.status_code, response.json()["detail"]["kind"]) == (409, "model_unlisted")
        for other in (conversation, "none", "01a20ad0-0000-7000-8000-000000000001"):
            assert await refusal_of(ben, other) == (404, "conversation_not_found")
            response = await ben.ask("GET", f"/conversations/{other}/context")
            assert response.status_code == 404
        assert [each.path for each in model.requests if each.method == "POST"] == ["/v1/chat/completions"]


async def test_a_summary_that_fails_or_is_cancelled_changes_nothing(long_server: ServerProcess) -> None:
    rules = [
        summary_rule(status=400, message="no summaries today", times=1),
        summary_rule(Text(text="## Goal", pieces=1), Gate(name="summary")),
    ]
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(long_server.url) as ann:
        conversation = await long_conversation(ann, model)
        before = await context_of(ann, conversation)
        async with ann.compress_and_follow(conversation) as stream:
            failed = await stream.to_the_end()
        assert failed.events() == ["error", "done"]
        assert "no summaries today" in failed.data_of("error")[0]["message"]
        assert await context_of(ann, conversation) == before
        path = f"/conversations/{conversation}/compress"
        response = await ann.ask("POST", path, headers={"accept": "application/json"})
        assert response.status_code == 202
        run_id = response.json()["data"]["id"]
        await model.reached("summary")
        queued = await ask_to_write(ann, conversation, "And the apple?", "steer")
        assert queued.status_code == 202
        assert (await ann.cancel(run_id)).json()["data"]["status"] == "cancelled"
        cancelled = await ann.wait_for_end(run_id)
        assert cancelled.done is not None
        assert cancelled.done["status"] == "stopped"
        assert cancelled.done["usage"]["total_tokens"] > 3_000, "what was sent is paid for"
        # The message that was to steer waits first in the queue, which a cancel pauses.
        await ann.post(f"/conversations/{conversation}/queue/resume")
        assert (await until_idle(ann, conversation, 14))[-2]["text"] == "And the apple?"
        assert QUESTIONS[1] in contents(model.requests[-1].json["messages"], "user")


async def test_a_compression_that_is_killed_is_done_after_the_restart(tmp_path: Path) -> None:
    summary = summary_rule(Gate(name="summary"), Text(text=SUMMARY, pieces=1))
    with ServerProcess(tmp_path, **SMALL_WINDOWS) as server:
        async with ScriptedProvider(script(summary)) as model, RestartingClient(server) as ann:
            conversation = await long_conversation(ann, model)
            path = f"/conversations/{conversation}/compress"
            response = await ann.ask("POST", path, headers={"accept": "application/json"})
            await model.reached("summary")
            await ann.kill()
            model.release("summary")
            await ann.start()
            screen = await ann.follow_to_end(response.json()["data"]["id"], Screen())
            asked = [request.json for request in model.requests if request.rule == "summary"]
            assert asked[0] == asked[1], "the request is repeated as it was"
            assert len(screen.data_of("retrying")) == len(screen.data_of("context_compressed")) == 1
            found, parts = await context_of(ann, conversation)
            assert found["last_compression"]["summary"] == SUMMARY
            assert parts["summary"] > 0
