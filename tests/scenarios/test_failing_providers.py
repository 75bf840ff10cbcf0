"""Providers that fail: what is retried, what the user learns, and what is stored."""

from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Bytes,
    Call,
    Fail,
    Faults,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from scenarios.client import AsyncApiClient
from scenarios.screen import Screen
from scenarios.scripts import FIRST_THOUGHT, PREFACE, PROSE, always_replies, calls, words
from scenarios.tool_controller import ToolController

HALF = PROSE[: len(PROSE) // 2]
CALLS_AT_MOST = 2
"""One retry, as the impatient server is configured."""


async def check_failed(ann: AsyncApiClient, conversation: str, screen: Screen) -> dict[str, Any]:
    """The message of a failed run; checks that the client was informed and that the question is stored."""
    assert screen.done is not None, "no done came"
    assert screen.done["status"] == "failed"
    events = screen.events()
    assert events.count("error") == events.count("done") == 1
    assert events.index("error") < events.index("done")
    assert screen.error is not None
    assert screen.error["message"]
    assert screen.error["code"]
    assert isinstance(screen.error["retryable"], bool)
    run = await ann.run(screen.run_id)
    assert (run["status"], run["stop_reason"]) == ("failed", "error")
    assert run["error"] == screen.error["message"]
    message = await ann.answer_shown_by(conversation, screen)
    assert message["status"] in ("partial", "failed")
    question = (await ann.messages(conversation))[0]
    assert (question["role"], question["text"], question["status"]) == ("user", "Hello", "complete")
    assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None
    return message


async def test_a_busy_provider_is_retried_after_the_time_that_it_names(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(status=429, headers={"retry-after": "1"}, times=1),
            Rule(reply=[Text(text="Now then.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            retrying = (await stream.until("retrying")).data
            screen = await stream.to_the_end()
        assert retrying["attempt"] >= 1
        assert 1000 <= retrying["delay_ms"] < 3000
        assert retrying["reason"]
        assert screen.text == "Now then."
        assert screen.done is not None
        assert screen.done["status"] == "completed"
        assert (await ann.answer_shown_by(conversation, screen))["status"] == "complete"
        assert len(model.requests) == 2


@pytest.mark.parametrize("status", [500, 503, 529])
async def test_a_permanent_failure_ends_the_run_and_keeps_the_message(
    impatient_server: ServerProcess, status: int
) -> None:
    script = always_replies(status=status, message="the scripted machine is broken")
    async with ScriptedProvider(script) as model, AsyncApiClient(impatient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        await check_failed(ann, conversation, screen)
        assert "retrying" in screen.events()
        assert len(model.requests) == CALLS_AT_MOST


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_is_not_retried(impatient_server: ServerProcess, status: int) -> None:
    async with (
        ScriptedProvider(always_replies(status=status)) as model,
        AsyncApiClient(impatient_server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        await check_failed(ann, conversation, screen)
        assert len(model.requests) == 1
        assert screen.error is not None
        assert screen.error["retryable"] is False


async def test_a_waiting_post_is_answered_502_with_the_run_and_the_message(
    impatient_server: ServerProcess,
) -> None:
    script = always_replies(*words(HALF), faults=Faults(drop_at=2500))
    async with ScriptedProvider(script) as model, AsyncApiClient(impatient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        body = {"conversation_id": conversation, "content": "Hello"}
        answer = await ann.ask("POST", "/messages", body)
        assert answer.status_code == 502
        failure = answer.json()
        assert (failure["success"], failure["code"]) == (False, 502)
        assert failure["error"]
        assert "Traceback" not in answer.text
        assert "sk-a-key" not in answer.text
        detail = failure["detail"]
        assert (await ann.run(detail["run_id"]))["status"] == "failed"
        message = await ann.message(conversation, detail["message_id"])
        assert message["status"] in ("partial", "failed")
        screen = await ann.wait_for_end(detail["run_id"])
        await check_failed(ann, conversation, screen)


@pytest.mark.parametrize(
    ("name", "faults"),
    [("falls silent", Faults(stall_at=2500)), ("hangs up", Faults(drop_at=2500))],
)
async def test_a_connection_that_breaks_leaves_the_text_so_far(
    impatient_server: ServerProcess, name: str, faults: Faults
) -> None:
    reply = [Thinking(text=FIRST_THOUGHT), *words(PROSE)]
    async with (
        ScriptedProvider(always_replies(*reply, faults=faults)) as model,
        AsyncApiClient(impatient_server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        message = await check_failed(ann, conversation, screen)
        assert message["status"] == "partial"
        assert message["text"], f"a provider that {name} left nothing"
        assert PROSE.startswith(message["text"])
        assert message["steps"][-1]["status"] == "error"
        assert 1 <= len(model.requests) <= CALLS_AT_MOST
        await model.requests[-1].wait_closed(5)


async def test_a_provider_that_never_starts_times_out(impatient_server: ServerProcess) -> None:
    script = always_replies(Text(text="never"), faults=Faults(never_start=True))
    async with ScriptedProvider(script) as model, AsyncApiClient(impatient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        message = await check_failed(ann, conversation, screen)
        assert message["steps"] == []
        assert len(model.requests) == CALLS_AT_MOST


@pytest.mark.parametrize(
    "reply",
    [
        [Text(text="So far so "), Bytes(data="data: {]garbage\n\n")],
        [Bytes(data="<html><body>Bad gateway</body></html>")],
        [Bytes(data="")],
        [Bytes(data='data: {"choices": "not a list"}\n\ndata: [DONE]\n\n')],
    ],
    ids=["after some text", "a page", "nothing", "another shape"],
)
async def test_garbage_from_a_provider_ends_the_run_with_a_message(
    impatient_server: ServerProcess, reply: list[Any]
) -> None:
    async with ScriptedProvider(always_replies(*reply)) as model, AsyncApiClient(impatient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        message = await check_failed(ann, conversation, screen)
        assert message["text"] in ("", "So far so ")


async def test_an_answer_with_damaged_bytes_is_never_treated_as_complete(
    impatient_server: ServerProcess,
) -> None:
    script = always_replies(*words(PROSE), faults=Faults(garble_at=5000))
    async with ScriptedProvider(script) as model, AsyncApiClient(impatient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        message = await ann.answer_shown_by(conversation, screen)
        assert message["text"] != PROSE
        if message["status"] != "complete":
            await check_failed(ann, conversation, screen)


async def test_an_error_inside_the_stream_ends_the_run_with_the_text_so_far(
    impatient_server: ServerProcess,
) -> None:
    reply = [Text(text="I begin"), Fail(message="overloaded in the middle")]
    async with ScriptedProvider(always_replies(*reply)) as model, AsyncApiClient(impatient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        message = await check_failed(ann, conversation, screen)
        assert (message["text"], message["status"]) == ("I begin", "partial")


async def test_a_failure_after_tools_keeps_their_results_and_the_next_message_sees_them(
    impatient_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(impatient_server.url) as ann:
        script = Script(
            rules=[
                Rule(
                    when=When(user="Hello", has_tool_result=False),
                    reply=[Text(text=PREFACE), *calls("visit_once", controller.port, "a")],
                ),
                Rule(when=When(user="Hello"), status=400),
                Rule(when=When(user="again"), reply=[Text(text="As the tool said: done a.")]),
            ]
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
                screen = await stream.to_the_end()
            message = await check_failed(ann, conversation, screen)
            assert message["status"] == "partial"
            assert [s["type"] for s in message["steps"]] == ["text", "tool_call", "tool_result"]
            async with ann.send_and_follow(conversation, "again", tools=["visit_once"]) as stream:
                screen = await stream.to_the_end()
            assert screen.text == "As the tool said: done a."
            sent_messages = model.requests[-1].json["messages"]
            assert any(m["role"] == "tool" and "done a" in m["content"] for m in sent_messages)
            assert controller.keys_seen() == ["a"]


async def test_a_tool_that_fails_or_is_unknown_is_a_result_for_the_model_not_the_end(
    impatient_server: ServerProcess,
) -> None:
    async with ToolController() as controller, AsyncApiClient(impatient_server.url) as ann:
        broken = [
            *calls("visit_once", 1, "refused"),
            *calls("no_such_tool", controller.port, "unknown"),
            *calls("visit_once", controller.port, "fine"),
        ]
        spoiled = Call(name="visit_once", arguments='{"port": ', id="call-spoiled")
        script = Script(
            rules=[
                Rule(when=When(has_tool_result=False), reply=[*broken, spoiled]),
                Rule(reply=[Text(text="I see.")]),
            ]
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
                (await controller.wait_for_visit()).answer("ok")
                screen = await stream.to_the_end()
            message = await ann.answer_shown_by(conversation, screen)
            assert message["status"] == "complete"
            succeeded = {s["id_ref"]: s["success"] for s in message["steps"] if s["type"] == "tool_result"}
            assert succeeded == {
                "call-refused": False,
                "call-unknown": False,
                "call-fine": True,
                "call-spoiled": False,
            }
            assert len(controller.visits) == 1


async def test_a_provider_that_is_not_reachable_fails_with_a_message(impatient_server: ServerProcess) -> None:
    async with AsyncApiClient(impatient_server.url) as ann:
        async with ScriptedProvider(Script(rules=[])) as model:
            conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        await check_failed(ann, conversation, screen)
