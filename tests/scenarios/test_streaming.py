"""A run as its client sees it: the order of events, the shape of steps, and other ways to read the answer."""

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient
from scenarios.scripts import (
    FIRST_THOUGHT,
    PREFACE,
    PROSE,
    SECOND_THOUGHT,
    always_replies,
    calls,
    two_iterations,
    words,
)
from scenarios.tool_controller import ToolController

RUN_FIELDS = {
    "id",
    "kind",
    "subject_id",
    "status",
    "phase",
    "parent_run_id",
    "stop_reason",
    "error",
    "usage",
    "cost",
    "last_seq",
    "started_at",
    "finished_at",
}
MESSAGE_FIELDS = {
    "id",
    "conversation_id",
    "room_id",
    "parent_id",
    "role",
    "steps",
    "text",
    "content",
    "attachments",
    "citations",
    "token_count",
    "usage",
    "status",
    "sender_name",
    "sender_color",
    "round_number",
    "created_at",
}


async def test_a_turn_with_thinking_text_and_parallel_tools_streams_in_order(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            assert stream.response.headers["content-type"].startswith("text/event-stream")
            screen = await stream.to_the_end()
        assert [step["type"] for step in screen.ordered()] == [
            "thinking",
            "text",
            "tool_call",
            "tool_call",
            "tool_result",
            "tool_result",
            "thinking",
            "text",
        ]
        assert [step["index"] for step in screen.ordered()] == list(range(8))
        assert [step["content"] for step in screen.ordered() if step["type"] in ("thinking", "text")] == [
            FIRST_THOUGHT,
            PREFACE,
            SECOND_THOUGHT,
            PROSE,
        ]
        assert screen.text == PREFACE + PROSE
        assert screen.frames[0].event == "run"
        assert screen.frames[0].id is None
        assert set(screen.frames[0].data["run"]) >= RUN_FIELDS
        assert screen.events()[-1] == "done"
        assert screen.done is not None
        assert screen.done["status"] == "completed"
        message = await ann.answer_shown_by(conversation, screen)
        assert message["status"] == "complete"
        assert set(message) >= MESSAGE_FIELDS
        assert message["role"] == "assistant"
        assert message["token_count"] == screen.done["token_count"] == 60
        assert message["usage"] == screen.done["usage"]
        assert message["usage"]["prompt_tokens"] == 40
        run = await ann.run(screen.run_id)
        assert (run["status"], run["stop_reason"], run["error"]) == ("completed", "finished", None)
        assert run["last_seq"] == screen.last_id
        assert sorted(controller.keys_seen()) == ["a", "b"]


async def test_every_frame_names_its_run_and_time_and_only_logged_events_have_an_id(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            screen = await stream.to_the_end()
        deltas = [f for f in screen.frames if f.event == "process_step" and "delta" in f.step]
        assert deltas, "nothing was streamed"
        for frame in screen.frames:
            assert frame.data["run_id"] == screen.run_id
            assert frame.data["timestamp"].endswith("Z")
            is_live = frame.event == "run" or frame in deltas
            assert (frame.id is None) == is_live, frame
        logged = [frame.id for frame in screen.frames if frame.id is not None]
        assert logged == list(range(1, len(logged) + 1))


async def test_a_closing_step_carries_its_whole_content_and_a_tool_call_goes_pending_running_done(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            screen = await stream.to_the_end()
        logged = [f for f in screen.frames if f.event == "process_step" and f.id is not None]
        by_index = {at: [f.step for f in logged if f.step["index"] == at] for at in range(8)}
        for at in (0, 1, 6, 7):
            assert [step["status"] for step in by_index[at]] == ["done"]
        for at in (2, 3):
            assert [step["status"] for step in by_index[at]] == ["pending", "running", "done"]
            assert {step["name"] for step in by_index[at]} == {"visit_once"}
            assert '"key"' in by_index[at][0]["arguments"]
        for at in (4, 5):
            (result,) = by_index[at]
            assert result["success"] is True
            assert result["status"] == "done"
            assert '"success":true' in result["content"].replace(" ", "")
        called = {by_index[at][0]["id_ref"] for at in (2, 3)}
        assert called == {by_index[at][0]["id_ref"] for at in (4, 5)} == {"call-a", "call-b"}


async def test_two_tools_of_one_answer_run_at_the_same_time(server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(two_iterations(controller.port, text="Done.")) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            await controller.wait_for_visit(2)
            for visit in reversed(controller.visits):
                visit.answer(f"result {visit.key}")
            screen = await stream.to_the_end()
        results = {s["id_ref"]: s["content"] for s in screen.ordered() if s["type"] == "tool_result"}
        assert "result a" in results["call-a"]
        assert "result b" in results["call-b"]
        sent_messages = model.requests[-1].json["messages"]
        answers = {m["tool_call_id"]: m["content"] for m in sent_messages if m["role"] == "tool"}
        assert "result a" in answers["call-a"]
        assert "result b" in answers["call-b"]


async def test_the_phase_of_a_run_names_its_current_work(server: ServerProcess) -> None:
    async with ToolController() as controller, AsyncApiClient(server.url) as ann:
        rules = [
            *two_iterations(controller.port).rules[:1],
            Rule(reply=[Gate(name="on"), Text(text="Done.")]),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model:
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
                await stream.until("run")
                await controller.wait_for_visit(2)
                phases = [(await ann.run(stream.screen.run_id))["phase"]]
                controller.visits[0].answer("first")
                await stream.until("process_step", type="tool_result")
                phases.append((await ann.run(stream.screen.run_id))["phase"])
                controller.visits[1].answer("second")
                await model.arrived(2)
                phases.append((await ann.run(stream.screen.run_id))["phase"])
                model.release("on")
                await stream.to_the_end()
        assert phases == ["acting", "observing", "thinking"]


async def test_deltas_arrive_while_the_model_still_answers(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await model.reached("middle")
            while len(stream.screen.text) < len(PROSE) // 2:
                await stream.until("process_step", timeout=5)
            assert stream.screen.text == PROSE[: len(stream.screen.text)]
            assert stream.screen.last_id == 0
            assert (await ann.get(f"/conversations/{conversation}"))["run_id"] == stream.screen.run_id
            model.release("middle")
            screen = await stream.to_the_end()
        assert screen.text == PROSE
        assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None


async def test_a_message_sent_without_streaming_is_answered_by_the_finished_message(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(always_replies(*words(PROSE))) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        answer = await ann.post("/messages", {"conversation_id": conversation, "content": "Hello"})
        assert answer["text"] == PROSE
        assert answer["status"] == "complete"
        question, stored = await ann.messages(conversation)
        assert stored == answer
        assert question["role"] == "user"
        assert question["text"] == "Hello"
        assert stored["parent_id"] == question["id"]


async def test_a_client_that_wants_json_gets_202_with_the_run_and_reads_its_log(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["visit_once"])
        assert run["kind"] == "chat"
        assert run["subject_id"] == conversation
        assert run["status"] in ("queued", "running")
        screen = await ann.wait_for_end(run["id"])
        as_json = {"accept": "application/json"}
        path = f"/runs/{run['id']}/events"
        whole = (await ann.ask("GET", path, headers=as_json, limit=1000)).json()["data"]
        assert whole["has_more"] is False
        assert [e["seq"] for e in whole["events"]] == list(range(1, screen.last_id + 1))
        logged = [frame.data for frame in screen.frames if frame.id is not None]
        assert [{k: v for k, v in e.items() if k != "seq"} for e in whole["events"]] == logged

        paged = []
        has_more, at = True, 1
        while has_more:
            answer = await ann.ask("GET", path, headers=as_json, from_sequence=at, limit=3)
            page = answer.json()["data"]
            assert 1 <= len(page["events"]) <= 3
            assert page["events"][0]["seq"] == at
            paged += page["events"]
            has_more, at = page["has_more"], at + len(page["events"])
        assert paged == whole["events"]
        past = await ann.ask("GET", path, headers=as_json, from_sequence=screen.last_id + 1)
        assert past.json()["data"] == {"events": [], "has_more": False}


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "99999999999999999999"])
async def test_a_last_event_id_that_is_no_number_is_refused(server: ServerProcess, value: str) -> None:
    async with ScriptedProvider(always_replies(Text(text="Hi"))) as model, AsyncApiClient(server.url) as ann:
        run = await ann.start_run(await ann.conversation(model.url))
        await ann.wait_for_end(run["id"])
        path = f"/runs/{run['id']}/events"
        in_header = await ann.ask("GET", path, headers={"last-event-id": value})
        in_query = await ann.ask("GET", path, last_event_id=value)
        assert (in_header.status_code, in_query.status_code) == (400, 400)
        assert in_header.json()["success"] is False


async def test_accumulated_adds_the_text_so_far_to_each_delta(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, accumulated=True) as stream:
            await stream.until("process_step")
            await model.reached("middle")
            run_id = stream.screen.run_id
            async with (
                ann.follow(run_id, accumulated="1") as late,
                ann.follow(run_id) as plain,
            ):
                await late.until("process_step")
                model.release("middle")
                screens = [await response.to_the_end() for response in (stream, late, plain)]
        assert [screen.text for screen in screens] == [PROSE] * 3
        for screen, has_it in zip(screens, (True, True, False), strict=True):
            deltas = [f.step for f in screen.frames if f.event == "process_step" and "delta" in f.step]
            assert deltas
            assert all(("accumulated" in step) == has_it for step in deltas)


async def test_bytes_on_the_wire_grow_linearly_with_the_text(server: ServerProcess) -> None:
    async def check(ann: AsyncApiClient, model: ScriptedProvider, text: str) -> None:
        async with ann.send_and_follow(await ann.conversation(model.url)) as stream:
            frames = (await stream.to_the_end()).frames
            # The text once in deltas and once in its closing step, plus the head of each frame. The number of
            # frames depends on the reads; the size of a frame must not depend on the others.
            assert stream.reader.size < 3 * len(text) + 600 * len(frames) + 2000

    for text in ("word " * 500, "word " * 4000):
        async with (
            ScriptedProvider(always_replies(Text(text=text))) as model,
            AsyncApiClient(server.url) as ann,
        ):
            await check(ann, model, text)


async def test_reaching_the_most_iterations_asks_once_more_and_allows_no_call(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        visits = calls("visit_once", controller.port, *"abc")
        again = [Rule(reply=[Text(text="More. "), visit], times=1) for visit in visits]
        script = Script(rules=[*again, Rule(reply=[Text(text="That is all.")])])
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
                screen = await stream.to_the_end()
            assert screen.done is not None
            assert screen.done["status"] == "max_iterations_reached"
            run = await ann.run(screen.run_id)
            assert (run["status"], run["stop_reason"]) == ("completed", "max_iterations")
            assert len(controller.visits) == 3
            assert len(model.requests) == 4
            assert [request.json.get("tool_choice") for request in model.requests] == [None] * 3 + ["none"]
            message = await ann.answer_shown_by(conversation, screen)
            assert message["text"].endswith("That is all.")
            assert message["status"] == "complete"


async def test_the_next_prompt_contains_the_earlier_messages(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port, text="First answer.")) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "First question", tools=["visit_once"]) as stream:
            await stream.to_the_end()
        async with ann.send_and_follow(conversation, "Second question", tools=["visit_once"]) as stream:
            await stream.to_the_end()
        sent_messages = model.requests[2].json["messages"]
        spoken = [(m["role"], m["content"]) for m in sent_messages if m["role"] in ("user", "assistant")]
        assert ("user", "First question") in spoken
        assert spoken[-1] == ("user", "Second question")
        assert any(role == "assistant" and "First answer." in (text or "") for role, text in spoken)


@pytest.mark.long
async def test_a_silent_stream_is_kept_open_by_comments(
    server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await model.reached("middle")
            raw = stream.response.aiter_raw()
            while stream.reader.comments == 0:
                for frame in stream.reader.feed(await anext(raw)):
                    stream.screen.show(frame)
            model.release("middle")
            async for data in raw:
                for frame in stream.reader.feed(data):
                    stream.screen.show(frame)
            assert stream.screen.text == PROSE
            assert stream.screen.done is not None
