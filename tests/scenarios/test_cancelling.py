"""Ways to stop a run: by a cancel or by deleting what it belongs to; a second message is refused
meanwhile.
"""

import asyncio
import time
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Faults,
    Gate,
    Received,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from scenarios.client import AsyncApiClient
from scenarios.screen import Screen
from scenarios.scripts import FIRST_THOUGHT, PREFACE, PROSE, always_replies, calls, two_iterations, words
from scenarios.tool_controller import ToolController

PROMPTLY_SECONDS = 0.5


async def cancel_promptly(ann: AsyncApiClient, run_id: str, upstream: Received | None) -> dict[str, Any]:
    """Cancels; checks that the answer and the close of the upstream's socket come in time."""
    begun = time.monotonic()
    answer = await ann.cancel(run_id)
    took = time.monotonic() - begun
    assert answer.status_code == 200, answer.text
    assert took < PROMPTLY_SECONDS, f"cancel took {took:.3f} s"
    if upstream is not None:
        await upstream.wait_closed(5)
        assert upstream.closed_at is not None
        assert upstream.closed_at - begun < PROMPTLY_SECONDS, "the upstream's socket stayed open"
    return answer.json()["data"]


async def check_cancelled(ann: AsyncApiClient, conversation: str, screen: Screen) -> dict[str, Any]:
    """The message of a cancelled run; checks that it is partial and what the client shows."""
    assert screen.done is not None
    assert screen.done["status"] == "stopped"
    assert screen.events().count("done") == 1
    run = await ann.run(screen.run_id)
    assert (run["status"], run["stop_reason"], run["phase"]) == ("cancelled", "cancelled", None)
    assert run["finished_at"] is not None
    assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None
    message = await ann.answer_shown_by(conversation, screen)
    assert message["status"] == "partial"
    again = await ann.cancel(screen.run_id)
    assert again.status_code == 409, again.text
    return message


async def test_cancel_during_text_keeps_the_text_so_far(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await model.reached("middle")
            while "word109 " not in stream.screen.text:
                await stream.until("process_step", timeout=5)
            text_so_far = stream.screen.text
            await cancel_promptly(ann, stream.screen.run_id, model.requests[0])
            screen = await stream.to_the_end(timeout=5)
        message = await check_cancelled(ann, conversation, screen)
        assert message["text"] == text_so_far
        assert [step["status"] for step in message["steps"]] == ["cancelled"]


async def test_cancel_during_thinking_keeps_the_thought(server: ServerProcess) -> None:
    reply = [Thinking(text=FIRST_THOUGHT), Gate(name="thinking"), Text(text="never said")]
    async with ScriptedProvider(always_replies(*reply)) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("process_step", type="thinking")
            await cancel_promptly(ann, stream.screen.run_id, model.requests[0])
            screen = await stream.to_the_end(timeout=5)
        (step,) = (await check_cancelled(ann, conversation, screen))["steps"]
        assert (step["type"], step["content"], step["status"]) == ("thinking", FIRST_THOUGHT, "cancelled")


async def test_cancel_during_a_tool_stops_the_tool(server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(Script(rules=two_iterations(controller.port).rules[:1])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            await controller.wait_for_visit(2)
            controller.visits[0].answer("in time")
            await stream.until("process_step", type="tool_result")
            await cancel_promptly(ann, stream.screen.run_id, None)
            await controller.visits[1].stopped(PROMPTLY_SECONDS)
            screen = await stream.to_the_end(timeout=5)
        message = await check_cancelled(ann, conversation, screen)
        assert message["text"] == PREFACE
        calls_made = [s["status"] for s in message["steps"] if s["type"] == "tool_call"]
        assert sorted(calls_made) == ["cancelled", "done"]
        results = [s for s in message["steps"] if s["type"] == "tool_result"]
        assert any("in time" in result["content"] for result in results)
        assert len(model.requests) == 1


async def test_cancel_before_the_first_byte_ends_with_an_empty_partial_message(server: ServerProcess) -> None:
    script = always_replies(Text(text="never"), faults=Faults(never_start=True))
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("run")
            await model.arrived(1)
            await cancel_promptly(ann, stream.screen.run_id, model.requests[0])
            screen = await stream.to_the_end(timeout=5)
        message = await check_cancelled(ann, conversation, screen)
        assert message["steps"] == []


async def test_cancel_during_the_wait_before_a_retry_makes_no_further_call(server: ServerProcess) -> None:
    script = always_replies(status=429, headers={"retry-after": "20"})
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("retrying")
            assert (await ann.run(stream.screen.run_id))["phase"] == "retrying"
            await cancel_promptly(ann, stream.screen.run_id, None)
            screen = await stream.to_the_end(timeout=5)
        await check_cancelled(ann, conversation, screen)
        assert len(model.requests) == 1


async def test_a_retried_call_that_is_cancelled_is_in_phase_thinking_and_in_the_ledger(
    server: ServerProcess,
) -> None:
    script = Script(
        rules=[
            Rule(times=1, status=429, headers={"retry-after": "0"}),
            Rule(reply=[Text(text="never")], faults=Faults(never_start=True)),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("retrying")
            await model.arrived(2)
            assert (await ann.run(stream.screen.run_id))["phase"] == "thinking"
            await cancel_promptly(ann, stream.screen.run_id, model.requests[1])
            screen = await stream.to_the_end(timeout=5)
        await check_cancelled(ann, conversation, screen)
        sums = (await ann.get(f"/conversations/{conversation}/usage"))["sums"]
        assert (sums["completions"], sums["estimated"]) == (1, 1)
        assert sums["prompt_tokens"] > 0


async def test_cancel_before_the_request_is_sent_costs_nothing(server: ServerProcess) -> None:
    """The provider accepts the connection and never answers the TLS handshake."""

    connected = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        while await reader.read(4096):
            pass
        writer.close()

    silent = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(f"https://127.0.0.1:{port}")
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("run")
            await connected.wait()
            await cancel_promptly(ann, stream.screen.run_id, None)
            screen = await stream.to_the_end(timeout=5)
        await check_cancelled(ann, conversation, screen)
        sums = (await ann.get(f"/conversations/{conversation}/usage"))["sums"]
        assert (sums["completions"], sums["total_tokens"]) == (0, 0)


async def test_cancel_reaches_every_client_also_one_that_waits_for_the_whole_answer(
    server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as first:
            await model.reached("middle")
            await first.until("process_step")
            async with ann.follow(first.screen.run_id) as second:
                await second.until("process_step")
                await cancel_promptly(ann, first.screen.run_id, model.requests[0])
                screens = [await first.to_the_end(timeout=5), await second.to_the_end(timeout=5)]
        assert screens[0].ordered() == screens[1].ordered()
        await check_cancelled(ann, conversation, screens[1])


async def test_a_finished_run_refuses_cancel(server: ServerProcess) -> None:
    async with ScriptedProvider(always_replies(Text(text="Hi"))) as model, AsyncApiClient(server.url) as ann:
        async with ann.send_and_follow(await ann.conversation(model.url)) as stream:
            screen = await stream.to_the_end()
        answer = await ann.cancel(screen.run_id)
        assert answer.status_code == 409
        assert answer.json()["code"] == 409
        assert (await ann.run(screen.run_id))["status"] == "completed"


async def test_a_cancelled_conversation_goes_on_with_the_next_message(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(user="first"), reply=words(PROSE, "middle")),
            Rule(when=When(user="second"), reply=[Text(text="Gladly.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "first") as stream:
            await model.reached("middle")
            await stream.until("process_step")
            await cancel_promptly(ann, stream.screen.run_id, model.requests[0])
            cut = await stream.to_the_end(timeout=5)
        async with ann.send_and_follow(conversation, "second") as stream:
            screen = await stream.to_the_end()
        assert (await ann.answer_shown_by(conversation, screen))["text"] == "Gladly."
        sent_messages = model.requests[1].json["messages"]
        assert any(m["role"] == "assistant" and m["content"] == cut.text for m in sent_messages)


async def test_a_second_message_while_one_runs_is_refused_with_the_runs_id(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        body = {"conversation_id": conversation, "content": "And now?"}
        for path in ("/messages", "/messages/stream"):
            refused = await ann.ask("POST", path, body)
            assert refused.status_code == 409
            assert refused.json()["detail"]["run_id"] == run["id"]
        await model.reached("middle")
        model.release("middle")
        await ann.wait_for_end(run["id"])
        assert [message["role"] for message in await ann.messages(conversation)] == ["user", "assistant"]
        assert (await ann.post("/messages", body))["text"] == PROSE
        assert len(await ann.messages(conversation)) == 4


async def test_of_ten_messages_sent_at_once_one_runs(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        answers = await _all_at_once(ann, conversation, 10)
        assert sorted(answers) == [202] + [409] * 9
        model.release("middle")
        run_id = (await ann.get(f"/conversations/{conversation}"))["run_id"]
        if run_id is not None:
            await ann.wait_for_end(run_id)
        assert [message["role"] for message in await ann.messages(conversation)] == ["user", "assistant"]
        assert len(model.requests) == 1


async def _all_at_once(ann: AsyncApiClient, conversation: str, count: int) -> list[int]:
    body = {"conversation_id": conversation, "content": "Me first"}
    asking = [
        ann.ask("POST", "/messages/stream", body, headers={"accept": "application/json"})
        for _ in range(count)
    ]
    return [answer.status_code for answer in await asyncio.gather(*asking)]


async def check_deleted(ann: AsyncApiClient, conversation: str, run_id: str) -> None:
    assert (await ann.ask("GET", "/messages", conversation_id=conversation)).status_code == 404
    for path in (f"/conversations/{conversation}", f"/runs/{run_id}", f"/runs/{run_id}/events"):
        assert (await ann.ask("GET", path)).status_code == 404, path
    assert (await ann.cancel(run_id)).status_code == 404
    runs = await ann.get("/runs", subject_id=conversation)
    assert runs["items"] == []


async def test_deleting_a_conversation_stops_its_run_and_leaves_nothing(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await model.reached("middle")
            await stream.until("process_step")
            begun = time.monotonic()
            assert (await ann.ask("DELETE", f"/conversations/{conversation}")).status_code == 200
            await model.requests[0].wait_closed(5)
            assert model.requests[0].closed_at is not None
            assert model.requests[0].closed_at - begun < PROMPTLY_SECONDS
            await stream.to_the_end(timeout=5)
        await check_deleted(ann, conversation, stream.screen.run_id)


async def test_deleting_a_conversation_stops_the_tool_that_runs_in_it(server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(always_replies(*calls("visit_once", controller.port, "a"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["visit_once"])
        visit = await controller.wait_for_visit()
        assert (await ann.ask("DELETE", f"/conversations/{conversation}")).status_code == 200
        await visit.stopped(PROMPTLY_SECONDS)
        await check_deleted(ann, conversation, run["id"])
        assert len(model.requests) == 1


async def test_deleting_the_message_stops_its_run(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("middle")
        question = next(m for m in await ann.messages(conversation) if m["role"] == "user")
        assert (await ann.ask("DELETE", f"/messages/{question['id']}")).status_code == 200
        await model.requests[0].wait_closed(PROMPTLY_SECONDS)
        assert await ann.messages(conversation) == []
        shown = await ann.get(f"/conversations/{conversation}")
        assert shown["run_id"] is None
        assert shown["selected_leaf_id"] is None
        run_response = await ann.ask("GET", f"/runs/{run['id']}")
        assert run_response.status_code == 404 or run_response.json()["data"]["status"] == "cancelled"
        model.release("middle")
        assert (await ann.post("/messages", {"conversation_id": conversation, "content": "Again"}))[
            "text"
        ] == PROSE


async def test_deleting_an_earlier_message_stops_the_run_that_follows_it(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(user="first"), reply=[Text(text="One.")]),
            Rule(when=When(user="second"), reply=words(PROSE, "middle")),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        answer = await ann.post("/messages", {"conversation_id": conversation, "content": "first"})
        await ann.start_run(conversation, "second")
        await model.reached("middle")
        assert (await ann.ask("DELETE", f"/messages/{answer['id']}")).status_code == 200
        await model.requests[1].wait_closed(PROMPTLY_SECONDS)
        (question,) = await ann.messages(conversation)
        assert question["text"] == "first"
        shown = await ann.get(f"/conversations/{conversation}")
        assert (shown["run_id"], shown["selected_leaf_id"]) == (None, question["id"])
