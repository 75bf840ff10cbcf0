"""Writing while an answer is made: a message steers the answer, or waits for its end."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.server_process import ServerProcess
from command_line import register
from files.sample_files import png

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import WAIT_SECONDS, AsyncApiClient, Json
from scenarios.scripts import always_replies, calls
from scenarios.tool_controller import ToolController

PNG = b64encode(png()).decode()
KEYS = ("a", "b", "c", "d")


def four_calls(port: int, *rest: Any) -> Script:
    """Four calls at once, whose results the test gives; then the `rest`, or an answer."""
    return Script(
        rules=[
            Rule(when=When(call=1), reply=calls("visit_once", port, *KEYS)),
            Rule(when=When(), reply=[*rest] or [Text(text="Seen.")]),
        ]
    )


async def write(ann: AsyncApiClient, conversation: str, content: str, when_busy: str, **more: Any) -> Json:
    """Writes while an answer is made; what the server says to it."""
    response = await ask_to_write(ann, conversation, content, when_busy, **more)
    assert response.status_code == 202, response.text
    return response.json()["data"]


async def ask_to_write(
    ann: AsyncApiClient, conversation: str, content: str, when_busy: str, path: str = "/messages", **more: Any
) -> httpx.Response:
    body = {"conversation_id": conversation, "content": content, "when_busy": when_busy, **more}
    return await ann.ask("POST", path, body)


async def queue_of(ann: AsyncApiClient, conversation: str) -> Json:
    return await ann.get(f"/conversations/{conversation}/queue")


async def waiting(ann: AsyncApiClient, conversation: str) -> list[str]:
    return [item["content"] for item in (await queue_of(ann, conversation))["items"]]


async def until_idle(ann: AsyncApiClient, conversation: str, messages: int) -> list[Json]:
    """The messages, oldest first, once there are so many and no answer is made."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            run_id = (await ann.get(f"/conversations/{conversation}"))["run_id"]
            found = await ann.messages(conversation)
            if run_id is None and len(found) >= messages:
                return found
            await asyncio.sleep(0.05)


async def until_paused(ann: AsyncApiClient, conversation: str) -> Json:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            queue = await queue_of(ann, conversation)
            if queue["paused"]:
                return queue
            await asyncio.sleep(0.05)


def said(message: Json) -> list[str]:
    """What people wrote while this answer was made."""
    return [step["content"] for step in message["steps"] if step["type"] == "user"]


def users_in(sent: Json) -> list[str]:
    """The texts of the user in a request of the OpenAI dialect."""
    return [message["content"] for message in sent["messages"] if message["role"] == "user"]


async def test_a_steer_during_four_calls_is_in_the_next_request_once(server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(four_calls(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "Visit them", tools=["visit_once"]) as stream:
            await controller.wait_for_visit(4)
            queued = await write(ann, conversation, "Only the first", "steer")
            assert (queued["mode"], queued["position"]) == ("steer", 1)
            assert await waiting(ann, conversation) == ["Only the first"]
            for visit in controller.visits:
                visit.answer("done")
            frame = await stream.until("process_step", type="user")
            assert frame.step["id_ref"] == queued["queue_id"]
            assert frame.step["content"] == "Only the first"
            assert stream.screen.run_id == queued["run_id"]
            screen = await stream.to_the_end()
        message = await ann.answer_shown_by(conversation, screen)
        assert said(message) == ["Only the first"]
        assert message["text"] == "Seen."
        assert await queue_of(ann, conversation) == {"items": [], "paused": False, "problem": None}
        sent = model.requests[1].json["messages"]
        assert [each["role"] for each in sent[-5:]] == ["tool"] * 4 + ["user"]
        assert users_in(model.requests[1].json) == ["Visit them", "Only the first"]
        assert len(model.requests) == 2
        # It is part of every later prompt, of the search and of the exports, and no part of the text.
        await ann.post("/messages", {"conversation_id": conversation, "content": "Go on"})
        assert users_in(model.requests[2].json) == ["Visit them", "Only the first", "Go on"]
        found = await ann.get("/search", q='"Only the first"')
        assert [hit["conversation_id"] for hit in found["items"]] == [conversation]
        exported = (await ann.ask("GET", f"/conversations/{conversation}/export", format="md")).text
        assert "> Only the first" in exported
        whole = (await ann.ask("GET", f"/conversations/{conversation}/export", format="json")).json()
        imported = await ann.post("/conversations/import", whole)
        copied = await ann.messages(imported["conversation_ids"][0])
        assert said(copied[1]) == ["Only the first"]


async def test_a_steer_after_the_last_word_continues_the_answer(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(user="Begin"), reply=[Text(text="First. "), Gate(name="end")]),
            Rule(when=When(user="More"), reply=[Text(text="Second.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "Begin") as stream:
            await model.reached("end")
            await write(ann, conversation, "More, please", "steer", path="/messages/stream")
            await write(ann, conversation, "More, and soon", "steer")
            model.release("end")
            screen = await stream.to_the_end()
        message = await ann.answer_shown_by(conversation, screen)
        assert [step["type"] for step in message["steps"]] == ["text", "user", "user", "text"]
        assert message["text"] == "First. Second."
        assert len(await ann.messages(conversation)) == 2
        roles = [(each["role"], each["content"]) for each in model.requests[1].json["messages"]]
        assert roles[-3:] == [("assistant", "First. "), ("user", "More, please"), ("user", "More, and soon")]


async def test_queued_messages_are_sent_in_their_order(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(user="Begin"), reply=[Gate(name="end"), Text(text="Begun.")]),
            Rule(reply=[Text(text="Next.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, "Begin")
        await model.reached("end")
        queued = [await write(ann, conversation, text, "queue") for text in ("one", "two", "three", "four")]
        assert [each["position"] for each in queued] == [1, 2, 3, 4]
        path = f"/conversations/{conversation}/queue"
        assert (await ann.ask("DELETE", f"{path}/{queued[1]['queue_id']}")).status_code == 200
        changed = await ann.ask("PUT", f"{path}/{queued[2]['queue_id']}", {"content": "third"})
        assert changed.json()["data"]["content"] == "third"
        assert await waiting(ann, conversation) == ["one", "third", "four"]
        model.release("end")
        await ann.wait_for_end(run["id"])
        messages = await until_idle(ann, conversation, 8)
        assert [each["text"] for each in messages if each["role"] == "user"] == [
            "Begin",
            "one",
            "third",
            "four",
        ]
        assert [each["parent_id"] for each in messages[1:]] == [each["id"] for each in messages[:-1]]
        assert await waiting(ann, conversation) == []


async def test_a_steer_at_the_limit_of_calls_costs_one_more_call(server: ServerProcess) -> None:
    """The server allows three calls with tools, and one without."""
    again = [
        Rule(
            when=When(call=number),
            reply=[Call(name="python_eval", arguments={"expression": f"{number}"}, id=f"call-{number}")],
        )
        for number in (1, 2, 3)
    ]
    script = Script(
        rules=[
            Rule(when=When(call=4), reply=[Text(text="That is all. "), Gate(name="end")]),
            Rule(when=When(call=5), reply=[Text(text="So it is. "), Gate(name="really")]),
            Rule(when=When(call=6), reply=[Text(text="Later.")]),
            *again,
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "Count", tools=["python_eval"]) as stream:
            await model.reached("end")
            await write(ann, conversation, "Is it?", "steer")
            model.release("end")
            await model.reached("really")
            # Too late: it is the first of the queue.
            await write(ann, conversation, "Really?", "steer")
            model.release("really")
            screen = await stream.to_the_end()
        assert screen.done is not None
        assert screen.done["status"] == "max_iterations_reached"
        messages = await until_idle(ann, conversation, 4)
        assert said(messages[1]) == ["Is it?"]
        assert [messages[2]["text"], messages[3]["text"]] == ["Really?", "Later."]
        assert len(model.requests) == 6
        assert users_in(model.requests[4].json) == ["Count", "Is it?"]


async def test_a_cancel_keeps_the_queue_and_a_person_lets_it_go_on(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(user="Begin"), reply=[Text(text="So far "), Gate(name="end")]),
            Rule(when=When(user="two"), status=400, message="no such thing"),
            Rule(reply=[Text(text="Next.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, "Begin")
        await model.reached("end")
        for text, mode in (("one", "queue"), ("two", "queue"), ("first", "steer")):
            await write(ann, conversation, text, mode)
        assert (await ann.cancel(run["id"])).status_code == 200
        await ann.wait_for_end(run["id"])
        queue = await queue_of(ann, conversation)
        assert [(item["content"], item["mode"]) for item in queue["items"]] == [
            ("first", "queue"), ("one", "queue"), ("two", "queue"),
        ]  # fmt: skip
        assert (queue["paused"], queue["problem"]) == (True, None)
        # A message of a person goes before what waits, and leaves it paused.
        await ann.post("/messages", {"conversation_id": conversation, "content": "Now"})
        assert await waiting(ann, conversation) == ["first", "one", "two"]
        await ann.post(f"/conversations/{conversation}/queue/resume")
        messages = await until_idle(ann, conversation, 10)
        said_by_person = [each["text"] for each in messages if each["role"] == "user"]
        assert said_by_person == ["Begin", "Now", "first", "one", "two"]
        # The last one failed, with nothing behind it: what comes next is sent.
        assert messages[-1]["status"] == "failed"
        assert await queue_of(ann, conversation) == {"items": [], "paused": False, "problem": None}


async def test_a_message_that_cannot_be_sent_stays_and_says_why(server: ServerProcess) -> None:
    script = always_replies(Gate(name="end"), Text(text="Done."))
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        other_id = await ann.connect(f"{model.url}/other")
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        run = await ann.start_run(conversation, "Begin")
        await model.reached("end")
        queued = await write(ann, conversation, "one", "queue", provider_id=other_id)
        assert (await ann.ask("DELETE", f"/providers/{other_id}")).status_code == 200
        model.release("end")
        await ann.wait_for_end(run["id"])
        queue = await until_paused(ann, conversation)
        assert [item["queue_id"] for item in queue["items"]] == [queued["queue_id"]]
        assert queue["problem"] == f"there is no provider {other_id}"
        path = f"/conversations/{conversation}/queue"
        refused = await ann.ask("POST", f"{path}/resume")
        assert refused.status_code == 404, refused.text
        assert (await queue_of(ann, conversation))["paused"]
        assert (await ann.ask("DELETE", f"{path}/{queued['queue_id']}")).status_code == 200
        assert await queue_of(ann, conversation) == {"items": [], "paused": False, "problem": None}


async def test_what_cannot_be_is_refused_with_a_sentence(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(Gate(name="end"), Text(text="Done."))) as model,
        AsyncApiClient(server.url) as ann,
        AsyncApiClient(server.url, token=await asyncio.to_thread(lambda: register(server)[1])) as ben,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, "Begin")
        await model.reached("end")
        busy = await ask_to_write(ann, conversation, "x", "later")
        assert busy.status_code == 400, busy.text
        # Without the choice it is refused as ever.
        plain = await ann.ask("POST", "/messages", {"conversation_id": conversation, "content": "x"})
        assert (plain.status_code, plain.json()["detail"]["kind"]) == (409, "run_active")
        for more, field in (
            ({"attachments": [{"name": "a.png", "data": PNG}]}, "images_not_steered"),
            ({"parent_id": "01a20ad0-0000-7000-8000-000000000001"}, "$.parent_id"),
            ({"tools": ["nothing"]}, "tool_unknown"),
        ):
            refused = await ask_to_write(ann, conversation, "x", "steer", **more)
            assert refused.status_code == 400, refused.text
            assert field in refused.text
        foreign = await ask_to_write(ben, conversation, "x", "queue")
        assert foreign.status_code == 404
        first = (await write(ann, conversation, "0", "queue"))["queue_id"]
        path = f"/conversations/{conversation}/queue"
        for method, where, body in (
            ("GET", path, None), ("PUT", f"{path}/{first}", {"mode": "steer"}),
            ("DELETE", f"{path}/{first}", None), ("POST", f"{path}/resume", None),
        ):  # fmt: skip
            assert (await ben.ask(method, where, body)).status_code == 404
        assert (await ann.ask("PUT", f"{path}/{conversation}", {"content": "x"})).status_code == 404
        for body in ({"content": " "}, {"content": ""}, {"mode": "now"}, {"other": 1}):
            assert (await ann.ask("PUT", f"{path}/{first}", body)).status_code == 400
        half = b'{"content": "\\ud83d"}'
        headers = {"authorization": f"Bearer {ann.token}", "content-type": "application/json"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as raw:
            assert (await raw.put(f"{path}/{first}", content=half)).status_code == 400
        assert await waiting(ann, conversation) == ["0"]
        for number in range(1, 20):
            await write(ann, conversation, str(number), "steer" if number % 2 else "queue")
        full = await ask_to_write(ann, conversation, "20", "queue")
        assert (full.status_code, full.json()["detail"]["kind"]) == (409, "queue_full")
        # Deleting the conversation deletes what waits.
        assert (await ann.ask("DELETE", f"/conversations/{conversation}")).status_code == 200
        assert (await ann.ask("GET", path)).status_code == 404
        assert (await ann.ask("GET", f"/runs/{run['id']}")).status_code == 404


async def test_send_now_turns_a_waiting_message_into_a_steer(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(user="Begin"), reply=[Text(text="First. "), Gate(name="end")]),
            Rule(when=When(user="now"), reply=[Text(text="Second.")]),
            Rule(when=When(user="alone"), reply=[Text(text="Third.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "Begin") as stream:
            await model.reached("end")
            await write(ann, conversation, "alone", "queue", attachments=[{"name": "a.png", "data": PNG}])
            queued = await write(ann, conversation, "now", "queue")
            path = f"/conversations/{conversation}/queue"
            images = (await queue_of(ann, conversation))["items"][0]
            assert images["attachments"] == ["a.png"]
            refused = await ann.ask("PUT", f"{path}/{images['queue_id']}", {"mode": "steer"})
            assert refused.json()["detail"]["kind"] == "images_not_steered"
            steered = await ann.ask("PUT", f"{path}/{queued['queue_id']}", {"mode": "steer"})
            assert steered.json()["data"]["mode"] == "steer"
            model.release("end")
            screen = await stream.to_the_end()
        assert screen.text == "First. Second."
        messages = await until_idle(ann, conversation, 4)
        assert said(messages[1]) == ["now"]
        assert (messages[2]["text"], messages[2]["attachments"][0]["name"]) == ("alone", "a.png")
        assert "image_url" in model.requests[2].body.decode()


async def test_an_image_that_waited_is_sent_now_and_counts_for_its_user(tmp_path: Path) -> None:
    image = {"name": "a.png", "data": b64encode(png() + bytes(720_000)).decode()}
    script = Script(
        rules=[
            Rule(when=When(user="Begin"), reply=[Text(text="So far "), Gate(name="end")]),
            Rule(reply=[Text(text="Seen.")]),
        ]
    )
    async with ScriptedProvider(script) as model:
        with ServerProcess(tmp_path, LUXX_LIMITS__STORAGE_MB_PER_USER="2") as server:
            async with AsyncApiClient(server.url) as ann:
                conversation = await ann.conversation(model.url)
                run = await ann.start_run(conversation, "Begin")
                await model.reached("end")
                queued = await write(ann, conversation, "Look", "queue", attachments=[image])
                await ann.cancel(run["id"])
                await ann.wait_for_end(run["id"])
                # No answer is made, which it would have to steer.
                path = f"/conversations/{conversation}/queue/{queued['queue_id']}"
                assert (await ann.ask("PUT", path, {})).json()["data"]["content"] == "Look"
                sent = await ann.ask("PUT", path, {"mode": "steer"})
                assert sent.status_code == 200, sent.text
                messages = await until_idle(ann, conversation, 4)
                assert (messages[2]["text"], messages[3]["text"]) == ("Look", "Seen.")
                body = {"conversation_id": conversation, "content": "And this", "attachments": [image]}
                assert (await ann.ask("POST", "/messages", body)).status_code == 200
                full = await ann.ask("POST", "/messages", body)
                assert (full.status_code, full.json()["detail"]["kind"]) == (413, "quota_exceeded")


@pytest.mark.parametrize("checks", [[], [{"on": "answer"}]], ids=["without checks", "with a check"])
async def test_only_what_follows_the_last_message_has_to_follow_a_schema(
    server: ServerProcess, checks: list[Json]
) -> None:
    schema = {"type": "object", "properties": {"trees": {"type": "integer"}}, "required": ["trees"]}
    demanded = {"type": "json_schema", "schema": schema}
    rules = [
        Rule(when=When(call=1), reply=[Text(text='{"trees": 1}'), Gate(name="counted")]),
        Rule(reply=[Text(text='{"trees": 2}')]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        agent = {"name": "Counter", "provider_id": await ann.connect(model.url), "checks": checks}
        agent_id = (await ann.post("/agents", agent))["id"]
        conversation = (await ann.post("/conversations", {"agent_id": agent_id}))["id"]
        run = await ann.start_run(conversation, "Count.", response_format=demanded)
        await model.reached("counted")
        await write(ann, conversation, "There is another one.", "steer")
        model.release("counted")
        screen = await ann.wait_for_end(run["id"])
        assert screen.text.endswith('{"trees": 2}')
        assert screen.data_of("warning") == []
        # The first text is judged too, before the message is found.
        assert [one["result"] for one in screen.data_of("verdict")] == ["valid"] * (2 * len(checks))
        assert (await ann.messages(conversation))[-1]["status"] == "complete"
