"""kill -9 around messages that wait: none is lost, none is sent or seen twice, and their order stays."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from store.databases import new_database

from luxx.providers.scripted import Gate, Pause, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient
from scenarios.restarting_client import SOON_SECONDS, RestartingClient
from scenarios.scripts import always_replies, calls
from scenarios.test_steering_and_queue import (
    ask_to_write,
    queue_of,
    said,
    until_idle,
    users_in,
    waiting,
    write,
)
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

pytestmark = pytest.mark.heavy

SECRET = "a secret that all servers of one database share, long enough"


async def test_a_steer_survives_a_kill_before_and_after_it_is_logged(own_server: ServerProcess) -> None:
    async with ToolController() as controller, RestartingClient(own_server) as ann:
        script = Script(
            rules=[
                Rule(when=When(call=1), reply=calls("visit_once", controller.port, "a", "b", "c", "d")),
                Rule(when=When(call=2), reply=[Text(text="So "), Gate(name="seen")]),
                Rule(reply=[Text(text="Seen.")]),
            ]
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, "Visit them", tools=["visit_once"])
            await controller.wait_for_visit(4)
            await write(ann, conversation, "Only the first", "steer")
            await ann.kill_and_start()
            # The calls are over, and the next request has it.
            await model.reached("seen", SOON_SECONDS)
            assert await waiting(ann, conversation) == []
            await ann.kill_and_start()
            await ann.follow_to_end(run["id"])
            messages = await until_idle(ann, conversation, 2)
            assert said(messages[1]) == ["Only the first"]
            for received in model.requests[1:]:
                assert users_in(received.json) == ["Visit them", "Only the first"]


async def test_a_queue_of_three_keeps_its_order_over_kills(own_server: ServerProcess) -> None:
    texts = ["one", "two", "three"]
    rules = [Rule(when=When(user=f"^{text}$"), reply=[Gate(name=text), Text(text=text)]) for text in texts]
    script = Script(rules=[Rule(when=When(user="Begin"), reply=[Gate(name="Begin"), Text(text="x")]), *rules])
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        await ann.start_run(conversation, "Begin")
        await model.reached("Begin")
        for text in texts:
            await write(ann, conversation, text, "queue")
        for number, text in enumerate(["Begin", *texts]):
            await model.reached(text, SOON_SECONDS)
            await ann.kill_and_start()
            assert await waiting(ann, conversation) == texts[number:]
            model.release(text)
        messages = await until_idle(ann, conversation, 8)
        assert [each["text"] for each in messages if each["role"] == "user"] == ["Begin", *texts]
        assert [each["parent_id"] for each in messages[1:]] == [each["id"] for each in messages[:-1]]


async def test_of_hundreds_of_steers_none_is_lost_or_doubled(own_server: ServerProcess) -> None:
    seeded = random.Random(27)
    script = always_replies(Text(text="one "), Pause(seconds=0.02), Text(text="two"))

    async def write_twenty(ann: AsyncApiClient, url_id: int, number: int) -> None:
        conversation = (await ann.post("/conversations", {"provider_id": url_id}))["id"]
        sent = ["begin", *(f"steer {number} {one}" for one in range(20))]
        await ann.start_run(conversation, sent[0])
        for text in sent[1:]:
            await asyncio.sleep(seeded.uniform(0, 0.1))
            response = await ask_to_write(ann, conversation, text, "steer", path="/messages/stream")
            assert response.status_code in (200, 202), response.text
            if seeded.random() < 0.1:
                run_id = (await ann.get(f"/conversations/{conversation}"))["run_id"]
                if run_id is not None:
                    await ann.cancel(run_id)
                    await ann.post(f"/conversations/{conversation}/queue/resume")
        async with asyncio.timeout(60):
            while (await queue_of(ann, conversation))["items"]:
                await ann.post(f"/conversations/{conversation}/queue/resume")
                await asyncio.sleep(0.1)
        messages = await until_idle(ann, conversation, 2)
        written = [each["text"] for each in messages if each["role"] == "user"]
        written += [text for each in messages for text in said(each)]
        assert sorted(written) == sorted(sent)

    async with ScriptedProvider(script) as model, AsyncApiClient(own_server.url) as ann:
        provider_id = await ann.connect(model.url)
        for first in range(0, 20, 10):
            await asyncio.gather(*(write_twenty(ann, provider_id, first + one) for one in range(10)))


@pytest.fixture
def two_servers(postgresql: str, tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    settings = {
        "LUXX_DATABASE__URL": new_database(postgresql, tmp_path.name),
        "LUXX_APP__SECRET_KEY": SECRET,
        "LUXX_PROVIDERS__ALLOW_PRIVATE": "",
        **CONTROLLED_TOOLS,
    }
    with (
        ServerProcess(tmp_path, data_dir=tmp_path / "one", **settings) as one,
        ServerProcess(tmp_path, data_dir=tmp_path / "two", **settings) as two,
    ):
        yield one, two


async def test_of_two_servers_only_one_sends_a_queued_message(
    two_servers: tuple[ServerProcess, ServerProcess],
) -> None:
    one, two = two_servers
    script = Script(
        rules=[
            Rule(when=When(user="Begin"), reply=[Text(text="First. "), Gate(name="end")]),
            Rule(reply=[Text(text="Next.")]),
        ]
    )
    async with (
        ScriptedProvider(script) as model,
        AsyncApiClient(one.url) as here,
        AsyncApiClient(two.url) as there,
    ):
        provider_id = await here.connect(model.url)
        conversations = [
            (await here.post("/conversations", {"provider_id": provider_id}))["id"] for _ in range(5)
        ]
        texts = ["one", "two", "three", "four"]
        for conversation in conversations:
            await here.start_run(conversation, "Begin")
        await model.arrived(5)
        for conversation in conversations:
            # Given at the server that does not make the answer: a steer, and what waits.
            await write(there, conversation, "By the way", "steer")
            for text in texts:
                await write(there, conversation, text, "queue")
        model.release("end")
        for conversation in conversations:
            messages = await until_idle(there, conversation, 10)
            assert said(messages[1]) == ["By the way"]
            assert [each["text"] for each in messages if each["role"] == "user"] == ["Begin", *texts]
            assert [each["parent_id"] for each in messages[1:]] == [each["id"] for each in messages[:-1]]
