"""A tool that was not offered is refused for every caller: a chat, a subagent, and a run after a restart."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, clarification, open_questions
from scenarios.restarting_client import RestartingClient
from scenarios.scripts import calls
from scenarios.test_compositions import chain, compose, visits
from scenarios.test_skills import activate_call, put_skill, rounds
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

HIDDEN = ("visit_again", "visit_risky", "shell_execute", "file_write", "python_eval", "web_fetch")
"""Tools of the server that no test here offers: no refusal may name them."""


@pytest.fixture(scope="module")
def skilled_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("skilled") / "data"
    put_skill(data_dir, "visiting", "visit_once visit_again")
    with ServerProcess(data_dir.parent, data_dir=data_dir, **CONTROLLED_TOOLS) as started_server:
        yield started_server


async def results(ann: AsyncApiClient, conversation: str) -> dict[str, Json]:
    """The result of each call, by its id."""
    message = (await ann.messages(conversation))[-1]
    tool_results = [step for step in message["steps"] if step["type"] == "tool_result"]
    return {step["id_ref"]: {**step, **json.loads(step["content"])} for step in tool_results}


def check_refused(result: Json, called: str = "", offered: tuple[str, ...] = ()) -> None:
    assert result["success"] is False, result
    assert "among those offered here" in result["error"], result
    named = result["error"].replace(repr(called), "")
    assert not [name for name in HIDDEN if name in named and name not in offered], result


async def send(ann: AsyncApiClient, entry_point: str, conversation: str, tools: Any) -> None:
    """Gets an answer of the model through this entry point, to the end of the run."""
    if entry_point == "sent":
        await ann.post("/messages", {"conversation_id": conversation, "content": "Go.", "tools": tools})
    elif entry_point == "streamed":
        async with ann.send_and_follow(conversation, "Go.", tools=tools) as stream:
            await stream.to_the_end()
    else:
        asked = (await ann.messages(conversation))[0]["id"]
        if entry_point == "edited":
            changed = await ann.ask("PUT", f"/messages/{asked}", {"content": "Go on."})
            asked = changed.json()["data"]["id"]
        path, headers = f"/messages/{asked}/regenerate", {"accept": "application/json"}
        response = await ann.ask("POST", path, {"tools": tools}, headers=headers)
        assert response.status_code == 202, response.text
        await ann.wait_for_end(response.json()["data"]["id"])


@pytest.mark.parametrize("entry_point", ["sent", "streamed", "regenerated", "edited"])
async def test_with_tools_false_no_call_is_run(server: ServerProcess, entry_point: str) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        is_again = entry_point in ("regenerated", "edited")
        first = [Rule(reply=[Text(text="Hello.")], times=1)] if is_again else []
        tries = [
            *calls("visit_once", controller.port, "a"),
            Call(name="result_read", arguments={"ref": "call-a"}, id="read"),
            Call(name="delegate", arguments={"task": "Visit."}, id="sub"),
            clarification("ask"),
        ]
        rules = [
            Rule(when=When(has_tool_result=False), reply=tries),
            Rule(when=When(has_tool_result=True), reply=[Text(text="I could not.")]),
        ]
        async with ScriptedProvider(Script(rules=[*first, *rules])) as model:
            conversation = await ann.conversation(model.url)
            if is_again:
                await ann.wait_for_end((await ann.start_run(conversation, "Go."))["id"])
            await send(ann, entry_point, conversation, False)
            assert controller.visits == []
            results_by_call = await results(ann, conversation)
            assert set(results_by_call) == {"call-a", "read", "sub", "ask"}
            for result in results_by_call.values():
                check_refused(result)
                assert "there are: none" in result["error"]
        # The same tool runs when it is offered.
        async with ScriptedProvider(Script(rules=[*first, *rules])) as model:
            conversation = await ann.conversation(model.url)
            if is_again:
                await ann.wait_for_end((await ann.start_run(conversation, "Go."))["id"])
            await send(ann, entry_point, conversation, ["visit_once"])
            assert controller.keys_seen() == ["a"]


async def test_only_listed_tools_are_run_and_a_refusal_names_no_other(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        script = rounds(
            [
                *calls("visit_once", controller.port, "a"),
                *calls("visit_again", controller.port, "b"),
                *calls("visit_risky", controller.port, "c"),
                Call(name="nothing_such", arguments={}, id="none"),
                clarification("ask"),
            ],
            [Call(name="visit_again", arguments={}, id="wrong")],
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=["visit_once"])
            await ann.wait_for_end(run["id"])
            results_by_call = await results(ann, conversation)
            assert controller.keys_seen() == ["a"]
            assert results_by_call["call-a"]["success"] is True
            for call_id in ("call-b", "call-c", "ask", "wrong", "none"):
                check_refused(results_by_call[call_id], results_by_call[call_id]["name"])
            # The answer must not reveal whether there is such a tool.
            words = {call_id: results_by_call[call_id]["error"].split("'")[2] for call_id in ("none", "ask")}
            assert words["none"] == words["ask"]
            assert results_by_call["call-b"]["outcome"] == "denied"


async def test_no_tool_is_run_after_the_last_model_call_which_may_call_none(server: ServerProcess) -> None:
    """The server allows three iterations with tools, and one more."""

    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        visits = [calls("visit_once", controller.port, key) for key in "abcd"]
        script = Script(rules=[Rule(reply=list(visit), times=1) for visit in visits])
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
                screen = await stream.to_the_end()
            assert [request.json.get("tool_choice") for request in model.requests] == [None] * 3 + ["none"]
            assert model.requests[3].json["tools"] == model.requests[0].json["tools"]
            assert len(controller.visits) == 3
            tool_results = [step for step in screen.ordered() if step["type"] == "tool_result"]
            assert [step["success"] for step in tool_results] == [True, True, True, False]
            assert "among those offered here; there are: none" in tool_results[-1]["content"]


async def test_a_skill_offers_no_tool_and_unoffered_tools_are_not_delegated(
    skilled_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(skilled_server.url) as ann:
        script = rounds(
            [activate_call("visiting")],
            [
                *calls("visit_once", controller.port, "a"),
                *calls("visit_again", controller.port, "b"),
                Call(name="delegate", arguments={"task": "Visit."}, id="sub"),
            ],
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=["activate_skill", "visit_once"])
            await ann.wait_for_end(run["id"])
            results_by_call = await results(ann, conversation)
            assert controller.keys_seen() == ["a"]
            check_refused(results_by_call["call-b"], "visit_again")
            check_refused(results_by_call["sub"])
            runs = (await ann.get("/runs", page_size=100))["items"]
            assert not [listed_run for listed_run in runs if listed_run["parent_run_id"] == run["id"]]
            audited = (await ann.get("/admin/audit", action="tool_call"))["items"]
            mine = [entry["detail"] for entry in audited if entry["target_id"] == run["id"]]
            assert {(entry["kind"], entry["name"]) for entry in mine} == {
                ("offer", "visit_again"),
                ("offer", "delegate"),
            }


async def test_a_subagent_runs_its_own_tools_and_no_other_tool_of_its_parent(
    server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        given = {"task": "Visit.", "system_prompt": "the hand", "tools": ["visit_once"]}
        script = Script(
            rules=[
                Rule(
                    when=When(system="the hand", has_tool_result=False),
                    reply=[
                        *calls("visit_once", controller.port, "a"),
                        *calls("visit_again", controller.port, "b"),
                        Call(name="file_write", arguments={"path": "x", "content": "x"}, id="write"),
                    ],
                ),
                Rule(when=When(system="the hand", has_tool_result=True), reply=[Text(text="Done.")]),
                Rule(
                    when=When(has_tool_result=False),
                    reply=[Call(name="delegate", arguments=given, id="sub")],
                ),
                Rule(when=When(has_tool_result=True), reply=[Text(text="Done.")]),
            ]
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=["visit_once", "visit_again", "delegate"])
            await ann.wait_for_end(run["id"])
            runs = (await ann.get("/runs", page_size=100))["items"]
            (child,) = [listed_run for listed_run in runs if listed_run["parent_run_id"] == run["id"]]
            screen = await ann.wait_for_end(child["id"])
            assert controller.keys_seen() == ["a"]
            results_by_call = {s["id_ref"]: s for s in screen.ordered() if s["type"] == "tool_result"}
            assert results_by_call["call-a"]["success"] is True
            for call_id, name in (("call-b", "visit_again"), ("write", "file_write")):
                check_refused(
                    {**results_by_call[call_id], **json.loads(results_by_call[call_id]["content"])}, name
                )


async def test_offering_a_composition_does_not_offer_its_members(
    own_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(own_server.url) as ann:
        await compose(ann, visits("errands", "visit_once a", "visit_again b"))
        await compose(ann, visits("other", "visit_once c"))
        script = rounds(
            [
                chain(controller, "errands"),
                chain(controller, "other", "not-offered"),
                *calls("visit_again", controller.port, "d"),
            ]
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            await ann.wait_for_end((await ann.start_run(conversation, tools=["errands"]))["id"])
            results_by_call = await results(ann, conversation)
            assert results_by_call["call-chain"]["success"] is True, results_by_call["call-chain"]
            assert controller.keys_seen() == ["a", "b"]
            check_refused(results_by_call["not-offered"])
            check_refused(results_by_call["call-d"], "visit_again")
            assert "errands" in results_by_call["call-d"]["error"]


async def test_the_offered_tools_survive_a_restart_and_an_answered_question(
    own_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, RestartingClient(own_server) as ann:
        script = rounds(
            [*calls("visit_risky", controller.port, "a"), *calls("visit_strangers", controller.port, "b")],
            [*calls("visit_once", controller.port, "c"), *calls("visit_again", controller.port, "d")],
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=["visit_risky", "visit_once"])
            async with ann.follow(run["id"]) as stream:
                await stream.until("question_asked")
            await ann.kill_and_start()
            (question,) = await open_questions(ann, run["id"])
            assert question["tool"] == "visit_risky"
            await answer(ann, question, "always")
            await ann.follow_to_end(run["id"])
            results_by_call = await results(ann, conversation)
            assert sorted(controller.keys_seen()) == ["a", "c"]
            assert results_by_call["call-a"]["success"] is results_by_call["call-c"]["success"] is True
            check_refused(results_by_call["call-b"], offered=("visit_risky",))
            check_refused(results_by_call["call-d"], "visit_again", offered=("visit_risky",))


async def test_a_direct_tool_call_does_not_depend_on_offered_tools(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        arguments = {"port": controller.port, "key": "hand"}
        executed = await ann.post("/tools/visit_once/execute", {"arguments": arguments})
        assert executed["success"] is True, executed
        unknown = await ann.ask("POST", "/tools/nothing_such/execute", {"arguments": {}})
        assert unknown.status_code == 404
