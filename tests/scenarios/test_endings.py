"""Why an answer ended reaches people: message, event, run and export say so; and the next prompt obeys it."""

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Bytes, Call, Finish, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import AsyncApiClient, Json
from scenarios.rooms import new_room, run_to_the_end, says
from scenarios.test_tasks import execute, new_task, statuses, step


async def ended(ann: AsyncApiClient, conversation: str, **more: object) -> tuple[Json, Json, Json]:
    """Sends a message; the `done` event, the answer and the run."""
    run_id = (await ann.start_run(conversation, **more))["id"]  # type: ignore[arg-type]
    screen = await ann.wait_for_end(run_id)
    assert screen.done is not None
    answer = (await ann.get("/messages", conversation_id=conversation))["items"][0]
    return screen.done, answer, await ann.run(run_id)


@pytest.mark.parametrize(
    ("reason", "finish", "sentence"),
    [
        ("length", "length", "reached its limit of tokens before it wrote any text"),
        ("model_context_window_exceeded", "context_full", "context window of the model was full"),
        ("content_filter", "content_filter", "A content filter of the provider withheld the answer"),
        ("refusal", "refusal", "The model declined to answer this"),
        ("stop", "stop", "The model ended its answer without any text."),
    ],
)
async def test_every_ending_reaches_the_message_the_event_and_the_run(
    server: ServerProcess, reason: str, finish: str, sentence: str
) -> None:
    script = Script(
        rules=[
            Rule(name="text", when=When(user="Write"), reply=[Text(text="So far"), Finish(reason=reason)]),
            Rule(name="none", when=When(user="Think"), reply=[Thinking(text="Hm"), Finish(reason=reason)]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        for content, text in (("Write", "So far"), ("Think", "")):
            conversation = await ann.conversation(model.url)
            done, answer, run = await ended(ann, conversation, content=content)

            assert (done["finish"], answer["finish"]) == (finish, finish)
            assert (done["status"], answer["status"], run["status"]) == ("completed", "complete", "completed")
            assert run["stop_reason"] == ("finished" if finish == "stop" else finish)
            assert answer["text"] == text
            notices = [one["notice"] for one in answer["steps"] if "notice" in one]
            assert len(notices) == (content == "Think")
            assert all(sentence in one for one in notices)
        markdown = (await ann.ask("GET", f"/conversations/{conversation}/export", format="md")).text
        assert sentence in markdown
        assert (f"ended by {finish.replace('_', ' ')}" in markdown) is (finish != "stop")
        document = (await ann.ask("GET", f"/conversations/{conversation}/export", format="json")).json()
        (imported,) = (await ann.post("/conversations/import", document))["conversation_ids"]
        kept = (await ann.get("/messages", conversation_id=imported))["items"][0]
        assert (kept["finish"], kept["text"], kept["steps"]) == (finish, "", answer["steps"])


async def test_a_refused_answer_is_not_sent_to_the_model_that_refused_but_to_another(
    server: ServerProcess,
) -> None:
    refuses = Rule(
        name="refuses", when=When(user="Begin"), reply=[Text(text="It be"), Finish(reason="refusal")]
    )
    script = Script(
        models=["strict", "lenient"], rules=[refuses, Rule(name="goes on", reply=[Text(text="Yes")])]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        for name, kept in (("strict", False), ("lenient", True)):
            body = {"provider_id": provider_id, "model": "strict"}
            conversation = (await ann.post("/conversations", body))["id"]
            await ended(ann, conversation, content="Begin")
            if name != "strict":
                await ann.ask("PUT", f"/conversations/{conversation}", {"model": name})
            await ended(ann, conversation, content="Go on")
            sent = model.requests[-1].json["messages"]
            assert sent[-1]["content"] == "Go on"
            assert any(one["content"] == "It be" for one in sent) is kept


async def test_the_notice_on_a_missing_text_is_for_people_only(server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(name="silent", when=When(user="Begin"), reply=[Finish(reason="length")]),
            Rule(name="goes on", reply=[Text(text="Yes")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        await ended(ann, conversation, content="Begin")
        await ended(ann, conversation, content="Go on")
        roles = [one["role"] for one in model.requests[-1].json["messages"] if one["role"] != "system"]
        assert roles == ["user", "user"]


async def test_a_call_that_was_cut_is_an_error_for_the_model_and_one_of_a_refusal_is_not_made(
    server: ServerProcess,
) -> None:
    cut = Call(name="file_list", arguments='{"path": "a', id="call_1")
    script = Script(
        rules=[
            Rule(
                name="cut",
                when=When(user="List", has_tool_result=False),
                reply=[cut, Finish(reason="length")],
            ),
            Rule(name="goes on", when=When(user="List"), reply=[Text(text="Well")]),
            Rule(
                name="refuses",
                when=When(user="Refuse"),
                reply=[Call(name="file_list", arguments={}, id="call_2"), Finish(reason="content_filter")],
            ),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        _, answer, run = await ended(ann, conversation, content="List", tools=["file_list"])
        call, result, _ = answer["steps"]
        assert (call["status"], result["success"]) == ("error", False)
        assert "before the arguments were complete" in result["content"]
        assert (answer["text"], answer["finish"], run["stop_reason"]) == ("Well", "stop", "finished")
        _, answer, run = await ended(ann, conversation, content="Refuse", tools=["file_list"])
        assert [one["status"] for one in answer["steps"]] == ["error", "done"]
        assert (answer["text"], "content filter" in answer["steps"][1]["notice"]) == ("", True)
        assert run["stop_reason"] == "content_filter"


async def test_a_tool_that_the_provider_refuses_is_left_out_and_named_once(server: ServerProcess) -> None:
    refusal = Rule(status=400, message="Invalid schema for function 'file_read': no type", times=1)
    script = Script(rules=[refusal, Rule(reply=[Text(text="Read.")])])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        screens = []
        for content in ("One", "Two"):
            run = await ann.start_run(conversation, content=content)
            screens.append(await ann.wait_for_end(run["id"]))

        warnings = [[one["message"] for one in screen.data_of("warning")] for screen in screens]
        assert len(warnings[0]) == 1
        assert "refuses the tool file_read" in warnings[0][0]
        assert warnings[1] == []
        names = [{one["function"]["name"] for one in sent.json["tools"]} for sent in model.requests]
        assert ["file_read" in each for each in names] == [True, False, False]
        assert names[0] - names[1] == {"file_read"}


async def test_an_unknown_reason_is_a_warning_that_names_it(server: ServerProcess) -> None:
    rule = Rule(name="odd", reply=[Text(text="So far"), Finish(reason="abort")])
    async with ScriptedProvider(Script(rules=[rule])) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            warning = (await stream.until("warning")).data["message"]
            await stream.to_the_end()
        assert "(abort)" in warning
        assert (await ann.get("/messages", conversation_id=conversation))["items"][0]["finish"] is None


async def test_an_error_as_bare_json_in_the_middle_fails_the_run(server: ServerProcess) -> None:
    chunk = '{"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": "stop"}]}'
    broken = Bytes(data=f'data: {chunk}\n\n{{"error": {{"message": "It was cancelled.", "code": 499}}}}\n')
    async with (
        ScriptedProvider(Script(rules=[Rule(name="broken", reply=[broken])])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        done, answer, run = await ended(ann, conversation)
        assert (done["status"], done["finish"]) == ("failed", "error")
        assert (answer["status"], answer["text"], answer["finish"]) == ("partial", "Half", "error")
        assert "It was cancelled." in run["error"]


async def test_rooms_say_how_a_message_ended(server: ServerProcess) -> None:
    rules = [*says("Anna", "I begin"), Rule(name="cut", reply=[Finish(reason="content_filter")])]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Bert", max_rounds=1)
        frames = await run_to_the_end(ann, room["id"])
        ends = [frame.data for frame in frames if frame.event == "message_end"]
        assert [one["finish"] for one in ends] == ["stop", "content_filter"]
        assert [one["content"].strip() for one in ends] == ["I begin", ""]
        message = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"][0]
        assert [one.get("notice", "") for one in message["steps"]] == [
            "A content filter of the provider withheld the answer, and gave no reason."
        ]


async def test_no_seat_reads_a_notice_on_the_missing_text_of_another(server: ServerProcess) -> None:
    rules = [
        Rule(name="silent", when=When(system="You are Anna in"), reply=[Finish(reason="stop")]),
        Rule(name="speaks", when=When(system="You are Bert in"), reply=[Text(text="I speak")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Bert", max_rounds=2)
        await run_to_the_end(ann, room["id"])
        read = [one["content"] for request in model.requests for one in request.json["messages"][1:]]
        assert {one for one in read if "Find it out" not in one} == {
            "[Bert] I speak",
            "I speak",
            "It is your turn again.",
        }


async def test_a_step_that_was_cut_says_so_and_one_that_was_refused_fails(server: ServerProcess) -> None:
    def does(step_id: str, text: str, reason: str) -> Rule:
        name = rf"Your step \[{step_id}\]"
        return Rule(name=step_id, when=When(user=name), reply=[Text(text=text), Finish(reason=reason)])

    rules = [
        does("a", "Half of it", "length"),
        does("b", "It beg", "refusal"),
        does("c", "Together", "stop"),
        Rule(name="result", reply=[Text(text="Done")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"), step("c", "a"))
        frames = await execute(ann, task_id)
        ends = {frame.data["step_id"]: frame.data for frame in frames if frame.event == "step_complete"}
        assert [ends[one]["finish"] for one in "abc"] == ["length", "refusal", "stop"]
        assert "stopped the answer" in ends["b"]["error"]
        assert await statuses(ann, task_id) == {"a": "completed", "b": "failed", "c": "completed"}
        steps = (await ann.get(f"/tasks/{task_id}"))["steps"]
        assert [one["finish"] for one in steps] == ["length", "refusal", "stop"]
        read = next(one for one in model.requests if one.rule == "c").json["messages"][-1]["content"]
        assert "Result of step [a] (cut at the limit of tokens of its model):\n```\nHalf of it" in read


async def test_a_step_without_any_text_has_failed_and_its_output_is_empty(server: ServerProcess) -> None:
    rules = [
        Rule(
            name="a", when=When(user=r"Your step \[a\]"), reply=[Thinking(text="Hm"), Finish(reason="stop")]
        ),
        Rule(
            name="b", when=When(user=r"Your step \[b\]"), reply=[Text(text="Half"), Finish(reason="length")]
        ),
        Rule(name="d", when=When(user=r"Your step \[d\]"), reply=[Finish(reason="length")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"), step("c", "a"), step("d"))
        await execute(ann, task_id)
        steps = {one["id"]: one for one in (await ann.get(f"/tasks/{task_id}"))["steps"]}
        assert {name: (one["status"], one["output"]) for name, one in steps.items()} == {
            "a": ("failed", ""),
            "b": ("completed", "Half"),
            "c": ("skipped", None),
            "d": ("failed", ""),
        }
        assert steps["a"]["error"] == "The model ended its answer without any text."
        assert "limit of tokens before it wrote any text" in steps["d"]["error"]


async def test_a_plan_without_any_text_is_asked_for_again_without_words_of_the_server(
    server: ServerProcess,
) -> None:
    plan = '{"steps": [{"id": "a", "name": "A", "goal": "Do a", "depends_on": []}]}'
    rules = [
        Rule(name="silent", when=When(call=1), reply=[Finish(reason="stop")]),
        Rule(name="plans", when=When(call=2), reply=[Text(text=plan)]),
        Rule(name="a", reply=[Text(text="Done")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url)
        await execute(ann, task_id)
        assert (await ann.get(f"/tasks/{task_id}"))["status"] == "completed"
        asked = model.requests[1].json["messages"]
        assert "assistant" not in [one["role"] for one in asked]
        assert "This is no valid plan" in asked[-1]["content"]
