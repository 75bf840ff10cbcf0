"""Skills in runs: what a model learns of them, which calls an active one refuses, also after a crash."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import SOON_SECONDS, RestartingClient
from scenarios.scripts import calls
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

READS = "file_read file_write(notes/*) shell_execute(git status *)"
TOOLS = [
    "file_read",
    "file_write",
    "file_list",
    "shell_execute",
    "activate_skill",
    "skill_read",
    "visit_once",
]


def put_skill(data_dir: Path, name: str, allowed: str | None, body: str = "Do it well.") -> None:
    folder = data_dir / "skills" / name
    (folder / "assets").mkdir(parents=True)
    (folder / "assets" / "form.md").write_text("The form of it.", "utf-8")
    line = "" if allowed is None else f"allowed-tools: {allowed}\n"
    front = f"---\nname: {name}\ndescription: Is for {name}.\n{line}---\n"
    (folder / "SKILL.md").write_text(f"{front}{body}\n", "utf-8")


@pytest.fixture(scope="module")
def skilled_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("skilled") / "data"
    put_skill(data_dir, "note-keeping", READS)
    put_skill(data_dir, "listing", "file_list, file_read")
    put_skill(data_dir, "handing-on", "delegate file_write")
    put_skill(data_dir, "manners", None)
    (data_dir / "skills" / "broken").mkdir()
    (data_dir / "skills" / "broken" / "SKILL.md").write_text("no front matter", "utf-8")
    with ServerProcess(data_dir.parent, data_dir=data_dir, **CONTROLLED_TOOLS) as started_server:
        yield started_server


def activate_call(name: str, call_id: str = "call-skill") -> Call:
    return Call(name="activate_skill", arguments={"name": name}, id=call_id)


def rounds(*replies: list[object]) -> Script:
    """One reply for each call of the model, in order, and a text at the end."""
    rules = [Rule(when=When(call=1), reply=list(replies[0]), times=1)]  # type: ignore[arg-type]
    rules += [Rule(reply=list(reply), times=1) for reply in replies[1:]]  # type: ignore[arg-type]
    return Script(rules=[*rules, Rule(reply=[Text(text="Done.")])])


def offered_tools(request: Json) -> set[str]:
    return {tool["function"]["name"] for tool in request.get("tools", [])}


async def results(ann: AsyncApiClient, conversation: str) -> dict[str, Json]:
    """The result of each call, by its id."""
    message = (await ann.messages(conversation))[-1]
    tool_results = [step for step in message["steps"] if step["type"] == "tool_result"]
    return {step["id_ref"]: {**step, **json.loads(step["content"])} for step in tool_results}


def write(path: str, call_id: str) -> Call:
    return Call(name="file_write", arguments={"path": path, "content": "x"}, id=call_id)


async def test_a_model_sees_skills_by_name_and_gets_the_instructions_when_it_activates_one(
    skilled_server: ServerProcess,
) -> None:
    reads = Call(name="skill_read", arguments={"name": "manners", "path": "assets/form.md"}, id="read")
    climbs = Call(name="skill_read", arguments={"name": "manners", "path": "../listing/SKILL.md"}, id="climb")
    script = rounds([activate_call("manners"), activate_call("nothing", "none")], [reads, climbs])
    async with ScriptedProvider(script) as model, AsyncApiClient(skilled_server.url) as ann:
        conversation = await ann.conversation(model.url)
        screen = await ann.wait_for_end((await ann.start_run(conversation, tools=TOOLS))["id"])
        first = model.requests[0].json
        assert "- note-keeping: Is for note-keeping." in first["messages"][0]["content"]
        assert "Do it well" not in json.dumps(first)
        assert "broken" not in json.dumps(first)
        results_by_call = await results(ann, conversation)
        assert results_by_call["call-skill"]["data"]["instructions"] == "Do it well."
        assert "note-keeping" in results_by_call["none"]["error"]
        assert results_by_call["read"]["data"]["content"] == "The form of it."
        assert results_by_call["climb"]["success"] is False
        (event,) = [frame.data for frame in screen.frames if frame.event == "skill_activated"]
        assert (event["name"], event["allowed_tools"]) == ("manners", None)
        assert offered_tools(model.requests[1].json) == offered_tools(first)


async def test_an_active_skill_refuses_and_audits_what_it_does_not_allow(
    skilled_server: ServerProcess,
) -> None:
    script = rounds(
        [activate_call("note-keeping")],
        [
            write("notes/a.md", "inside"),
            write("secret.md", "outside"),
            Call(name="file_list", arguments={}, id="hidden"),
            Call(name="file_list", arguments={"wrong": 1}, id="hidden-and-wrong"),
            Call(name="shell_execute", arguments={"command": "git status; id"}, id="joined"),
        ],
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(skilled_server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=TOOLS)
        await ann.wait_for_end(run["id"])
        assert model.requests[1].json["tools"] == model.requests[0].json["tools"]
        results_by_call = await results(ann, conversation)
        assert results_by_call["inside"]["success"] is True
        for refused in ("outside", "hidden", "hidden-and-wrong", "joined"):
            assert results_by_call[refused]["outcome"] == "denied", refused
            assert "the skill note-keeping is active" in results_by_call[refused]["error"]
            assert "secret.md" not in json.dumps(await ann.get("/files"))
        audited = (await ann.get("/admin/audit", action="tool_call"))["items"]
        mine = [entry for entry in audited if entry["target_id"] == run["id"]]
        assert {entry["detail"]["kind"] for entry in mine} == {"skill"}
        assert {entry["detail"]["name"] for entry in mine} >= {"file_list", "file_write"}


async def test_a_second_skill_never_restores_tools_that_the_first_removed(
    skilled_server: ServerProcess,
) -> None:
    script = rounds(
        [activate_call("note-keeping")],
        [activate_call("listing", "second")],
        [Call(name="file_list", arguments={}, id="list"), write("notes/b.md", "write")],
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(skilled_server.url) as ann:
        conversation = await ann.conversation(model.url)
        await ann.wait_for_end((await ann.start_run(conversation, tools=TOOLS))["id"])
        results_by_call = await results(ann, conversation)
        assert results_by_call["list"]["outcome"] == results_by_call["write"]["outcome"] == "denied"


async def test_a_subagent_has_no_more_tools_than_the_run_that_delegates(
    skilled_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller:
        task = {"task": "Do it.", "system_prompt": "the hand"}
        rules = [
            Rule(
                when=When(system="the hand", has_tool_result=False),
                reply=[*calls("visit_once", controller.port, "a"), write("notes/d.md", "write")],
            ),
            Rule(when=When(system="the hand"), reply=[Text(text="I could write.")]),
            Rule(when=When(has_tool_result=False), reply=[activate_call("handing-on")]),
            Rule(reply=[Call(name="delegate", arguments=task, id="call-sub")], times=1),
            Rule(reply=[Text(text="Done.")]),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(skilled_server.url) as ann:
            conversation = await ann.conversation(model.url)
            await ann.wait_for_end((await ann.start_run(conversation, tools=[*TOOLS, "delegate"]))["id"])
            results_by_call = await results(ann, conversation)
            own = await ann.wait_for_end(results_by_call["call-sub"]["data"]["run_id"])
            ended = {step["id_ref"]: step for step in own.ordered() if step["type"] == "tool_result"}
            assert ended["call-a"]["outcome"] == "denied"
            assert "handing-on" in ended["call-a"]["content"]
            assert ended["write"]["success"] is True
            assert controller.keys_seen() == []


async def test_a_skill_allows_nothing_that_a_rule_denies(skilled_server: ServerProcess) -> None:
    script = rounds([activate_call("note-keeping")], [write("notes/c.md", "denied")])
    async with ScriptedProvider(script) as model, AsyncApiClient(skilled_server.url) as ann:
        conversation = await ann.conversation(model.url)
        rule = {"tool": "file_write", "pattern": "notes/c*", "action": "deny"}
        assert (await ann.ask("PUT", "/permissions/rules?scope=user", [rule])).is_success  # type: ignore[arg-type]
        await ann.wait_for_end((await ann.start_run(conversation, tools=TOOLS))["id"])
        assert (await results(ann, conversation))["denied"]["outcome"] == "denied"
        await ann.ask("PUT", "/permissions/rules?scope=user", [])  # type: ignore[arg-type]


@pytest.mark.heavy
async def test_a_killed_run_with_an_active_skill_continues_with_the_same_tools(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    put_skill(data_dir, "listing", "file_list")
    with ServerProcess(tmp_path, **CONTROLLED_TOOLS) as server:
        async with ToolController(answers=True) as controller, RestartingClient(server) as ann:
            visit = calls("visit_once", controller.port, "a")
            script = Script(
                rules=[
                    Rule(when=When(has_tool_result=False), reply=[activate_call("listing")]),
                    Rule(
                        when=When(has_tool_result=True, call=1),
                        reply=[Text(text="Now "), Gate(name="killed here")],
                        times=1,
                    ),
                    Rule(reply=list(visit), times=1),
                    Rule(reply=[Text(text="Done.")]),
                ]
            )
            async with ScriptedProvider(script) as model:
                conversation = await ann.conversation(model.url)
                run = await ann.start_run(conversation, tools=TOOLS)
                await model.reached("killed here")
                # The current text of the skill does not matter any more.
                folder = data_dir / "skills" / "listing" / "SKILL.md"
                wide = await asyncio.to_thread(folder.read_text, "utf-8")
                await asyncio.to_thread(folder.write_text, wide.replace("file_list", "visit_once"), "utf-8")
                await ann.kill_and_start()
                await model.arrived(3, SOON_SECONDS)
                await ann.follow_to_end(run["id"])
                assert model.requests[2].json["tools"] == model.requests[0].json["tools"]
                assert (await results(ann, conversation))["call-a"]["outcome"] == "denied"
                assert controller.keys_seen() == []


async def test_the_list_of_skills_names_broken_ones(skilled_server: ServerProcess) -> None:
    async with AsyncApiClient(skilled_server.url) as ann:
        listed = await ann.get("/skills")
        assert listed["total"] == 5
        skills = {item["name"]: item for item in listed["items"]}
        assert skills["note-keeping"]["tools"] == [
            *("file_read", "file_write(notes/*)", "shell_execute(git status *)")
        ]
        assert skills["manners"]["tools"] is None
        assert "front matter" in skills["broken"]["problem"]
        (line,) = skilled_server.lines_with("skill_broken")
        assert "front matter" in line
        assert str(skilled_server.data_dir) not in json.dumps(listed)
        by_hand = await ann.post("/tools/activate_skill/execute", {"arguments": {"name": "manners"}})
        assert by_hand["data"]["instructions"] == "Do it well."
