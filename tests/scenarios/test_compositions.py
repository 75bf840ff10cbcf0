"""Compositions in runs: a model calls one like a tool; its members ask and are cancelled like other calls."""

import asyncio
import json

from api.server_process import ServerProcess

from luxx.providers.scripted import Call, ScriptedProvider
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, only_asks, open_questions, results, set_rules
from scenarios.restarting_client import RestartingClient
from scenarios.tool_controller import ToolController

ENDS_SECONDS = 5.0


def visits(name: str, *members: str, **more: object) -> Json:
    """A composition of visits such as `visit_once a`, with the controller's port as its argument."""
    made: list[Json] = []
    for index, text in enumerate(members):
        tool, _, key = text.partition(" ")
        arguments: Json = {"port": {"$from": "input", "path": "port"}, "key": key}
        if key == "previous":
            arguments["key"] = {"$from": "previous", "path": "data"}
        made.append({"id": f"m{index}", "tool": tool, "arguments": arguments})
    parameters = [{"name": "port", "type": "integer"}]
    return {"name": name, "description": "Visits.", "parameters": parameters, "members": made, **more}


def chain(controller: ToolController, name: str, call_id: str = "call-chain") -> Call:
    return Call(name=name, arguments={"port": controller.port}, id=call_id)


async def compose(ann: AsyncApiClient, composition: Json) -> Json:
    return await ann.post("/tools/compositions", composition)


async def test_after_a_crash_and_an_answer_no_member_of_a_composition_runs_twice(
    own_server: ServerProcess,
) -> None:
    async with (
        ToolController() as controller,
        RestartingClient(own_server) as ann,
        ScriptedProvider(asks(chain(controller, "errands"))) as model,
    ):
        tools = ("visit_once a", "visit_risky b", "visit_risky c", "visit_once d")
        composition = await compose(ann, visits("errands", *tools))
        assert (composition["risk"], composition["problems"]) == ("high", [])
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        (await controller.wait_for_visit()).answer("sofa")
        async with ann.follow(run["id"]) as stream:
            first = (await stream.until("question_asked")).data
        assert (first["tool"], first["call_id"]) == ("visit_risky", "call-chain")
        assert json.loads(first["arguments"]) == {"port": controller.port, "key": "b"}
        assert '"errands"' in model.requests[0].body.decode()
        await ann.kill_and_start()
        (question,) = await open_questions(ann, run["id"])
        await answer(ann, question, "once", arguments={"port": controller.port, "key": "B"}, note="loud")
        (await controller.wait_for_visit(2)).answer("bed")
        async with ann.follow(run["id"]) as stream:
            while (await stream.until("question_asked")).data["question_id"] == question["id"]:
                pass
        (question,) = await open_questions(ann, run["id"])
        await ann.kill_and_start()
        await answer(ann, question, "once")
        (await controller.wait_for_visit(3)).answer("chair")
        (await controller.wait_for_visit(4)).answer("table")
        screen = await ann.follow_to_end(run["id"])
        assert controller.keys_seen() == ["a", "B", "c", "d"]
        (result,) = results((await ann.messages(conversation))[-1])
        assert result["success"], result
        assert result["data"]["output"] == "table"
        assert [member["status"] for member in result["data"]["members"]] == ["done"] * 4
        assert "They say: loud" in result["data"]["members"][1]["note"]
        ended = [frame.data for frame in screen.frames if frame.event == "members_ended"]
        assert [[member["id"] for member in event["members"]] for event in ended] == [["m0"], ["m1"]]
        assert {event["call_id"] for event in ended} == {"call-chain"}
        (listed,) = (await ann.get("/tool-calls", tool="errands"))["items"]
        assert listed["status"] == "success"
        counted = await ann.get(f"/tools/compositions/{composition['id']}")
        assert (counted["success_count"], counted["failure_count"]) == (1, 0)


async def test_a_composition_that_was_running_when_the_server_died_is_interrupted_and_not_run_again(
    own_server: ServerProcess,
) -> None:
    async with (
        ToolController() as controller,
        RestartingClient(own_server) as ann,
        ScriptedProvider(asks(chain(controller, "errands"))) as model,
    ):
        await compose(ann, visits("errands", "visit_once a", "visit_again b"))
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        (await controller.wait_for_visit()).answer("done")
        await controller.wait_for_visit(2)
        await ann.kill_and_start()
        await ann.follow_to_end(run["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        assert "it is not known whether it took effect" in result["error"]
        assert controller.keys_seen() == ["a", "b"]


async def test_a_cancelled_run_stops_all_members_in_flight(server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(only_asks(chain(controller, "at_once"))) as model,
    ):
        composition = await compose(ann, visits("at_once", "visit_once a", "visit_once b", kind="parallel"))
        run = await ann.start_run(await ann.conversation(model.url))
        one, two = await controller.wait_for_visit(1), await controller.wait_for_visit(2)
        assert (await ann.cancel(run["id"])).status_code == 200
        await asyncio.gather(one.stopped(ENDS_SECONDS), two.stopped(ENDS_SECONDS))
        assert (await ann.run(run["id"]))["status"] == "cancelled"
        counted = await ann.get(f"/tools/compositions/{composition['id']}")
        assert (counted["success_count"], counted["failure_count"]) == (0, 0)
        await ann.ask("DELETE", f"/tools/compositions/{composition['id']}")


async def test_parallel_members_ask_one_by_one_and_always_answers_the_rest(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(chain(controller, "both"))) as model,
    ):
        members = ("visit_risky a", "visit_once b", "visit_risky c")
        composition = await compose(ann, visits("both", *members, kind="parallel"))
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"]) as stream:
            await stream.until("question_asked")
        (question,) = await open_questions(ann, run["id"])
        await answer(ann, question, "always")
        await ann.wait_for_end(run["id"])
        assert sorted(controller.keys_seen()) == ["a", "b", "c"]
        (result,) = results((await ann.messages(conversation))[-1])
        assert result["data"]["output"] == {"m0": "done a", "m1": "done b", "m2": "done c"}
        await set_rules(ann)
        await ann.ask("DELETE", f"/tools/compositions/{composition['id']}")


async def test_a_question_about_a_composition_is_answered_like_one_about_a_tool(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(chain(controller, "asked_about"))) as model,
    ):
        composition = await compose(ann, visits("asked_about", "visit_once a"))
        await set_rules(ann, "ask asked_about(*)")
        runs = [await ann.start_run(await ann.conversation(model.url)) for _ in range(2)]
        questions: list[Json] = []
        for run in runs:
            async with ann.follow(run["id"]) as stream:
                await stream.until("question_asked")
            questions += await open_questions(ann, run["id"])
        assert [question["tool"] for question in questions] == ["asked_about"] * 2
        path = f"/runs/{runs[0]['id']}/questions/{questions[0]['id']}/answer"
        for arguments in ({"port": "x"}, {}, {"port": 1, "other": 2}):
            wrong = await ann.ask("POST", path, {"answer": "once", "arguments": arguments})
            assert (wrong.status_code, wrong.json()["detail"]["kind"]) == (400, "arguments_invalid")
        assert controller.visits == []
        await answer(ann, questions[0], "always")
        # The rule of this answer covers the question of the other run.
        for run in runs:
            await ann.wait_for_end(run["id"])
        assert controller.keys_seen() == ["a", "a"]
        (covered,) = (await ann.get(f"/runs/{runs[1]['id']}/questions"))["items"]
        assert (covered["status"], covered["answered_by"]) == ("answered", "rule")
        await set_rules(ann)
        await ann.ask("DELETE", f"/tools/compositions/{composition['id']}")


async def test_one_answer_is_for_one_member_though_another_would_make_the_same_call(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(chain(controller, "twice"))) as model,
    ):
        composition = await compose(ann, visits("twice", "visit_risky a", "visit_risky a", kind="parallel"))
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"]) as stream:
            requests = [(await stream.until("question_asked")).data]
            (question,) = await open_questions(ann, run["id"])
            await answer(ann, question, "once", arguments={"port": controller.port, "key": "A"})
            requests.append((await stream.until("question_asked")).data)
        assert controller.keys_seen() == ["A"]
        (question,) = await open_questions(ann, run["id"])
        assert [each["member"] for each in requests] == ["m0", question["member"]] == ["m0", "m1"]
        await answer(ann, question, "reject")
        await ann.wait_for_end(run["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        assert [each["status"] for each in result["data"]["members"]] == ["done", "rejected"]
        assert controller.keys_seen() == ["A"]
        await ann.ask("DELETE", f"/tools/compositions/{composition['id']}")


async def test_an_unattended_run_is_denied_a_member_that_asks(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(chain(controller, "alone"))) as model,
    ):
        composition = await compose(ann, visits("alone", "visit_once a", "visit_risky previous"))
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, when_asked="deny")
        await ann.wait_for_end(run["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        assert "its member m1 (visit_risky) was denied" in result["error"]
        assert controller.keys_seen() == ["a"]
        await ann.ask("DELETE", f"/tools/compositions/{composition['id']}")


async def test_a_composition_is_offered_by_its_name_and_unknown_names_are_refused(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(chain(controller, "named"))) as model,
    ):
        composition = await compose(ann, visits("named", "visit_once a"))
        await compose(ann, visits("unnamed", "visit_once a"))
        conversation = await ann.conversation(model.url)
        refused = await ann.ask(
            "POST",
            "/messages",
            {"conversation_id": conversation, "content": "Hello", "tools": ["named", "nobodys"]},
        )
        assert (refused.status_code, "nobodys" in refused.json()["error"]) == (400, True)
        run = await ann.start_run(conversation, tools=["named"])
        await ann.wait_for_end(run["id"])
        offered = [tool["function"]["name"] for tool in model.requests[0].json["tools"]]
        assert offered == ["named", "result_read"]
        await ann.ask("DELETE", f"/tools/compositions/{composition['id']}")
