"""Permission rules in runs: what they allow, what they deny, and which rule "always" creates."""

import asyncio
import json
import sqlite3

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import FINAL_TEXT, answer, asks, clarification, open_questions, set_rules
from scenarios.restarting_client import RestartingClient
from scenarios.scripts import calls
from scenarios.tool_controller import ToolController


async def wait_for_questions(ann: AsyncApiClient, run: Json) -> list[Json]:
    """The run's open questions, when it waits."""
    async with ann.follow(run["id"]) as stream:
        await stream.until("question_asked")
    return await open_questions(ann, run["id"])


def visit(controller: ToolController, key: str, tool: str = "visit_risky") -> Call:
    return calls(tool, controller.port, key)[0]


async def tool_results(ann: AsyncApiClient, conversation: str) -> list[Json]:
    """The tool_result steps of the last message."""
    message = (await ann.messages(conversation))[-1]
    return [step for step in message["steps"] if step["type"] == "tool_result"]


def last_tool_message(model: ScriptedProvider) -> str:
    """Everything that the model received with its last request."""
    return model.requests[-1].body.decode()


async def test_always_creates_a_rule_and_answers_the_questions_of_other_runs_that_it_covers(
    server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        for_a, for_b = asks(visit(controller, "a"), visit(controller, "b")), asks(visit(controller, "c"))
        async with ScriptedProvider(for_a) as first, ScriptedProvider(for_b) as second:
            first_run = await ann.start_run(await ann.conversation(first.url))
            two = await ann.start_run(await ann.conversation(second.url))
            a, _b = await wait_for_questions(ann, first_run)
            (c,) = await wait_for_questions(ann, two)
            assert (a["usual"], "risk is high" in a["because"]) == ("*", True)
            await answer(ann, a, "always")
            await ann.wait_for_end(first_run["id"])
            await ann.wait_for_end(two["id"])
            assert sorted(controller.keys_seen()) == ["a", "b", "c"]
            (settled,) = (await ann.get(f"/runs/{two['id']}/questions"))["items"]
            assert settled["id"] == c["id"]
            assert (settled["status"], settled["answer"]) == ("answered", "always")
            assert settled["answered_by"] == "rule"
            (rule,) = await ann.get("/permissions/rules")
            assert (rule["tool"], rule["pattern"], rule["action"]) == ("visit_risky", "*", "allow")
        async with ScriptedProvider(asks(visit(controller, "d"))) as third:
            screen = await ann.wait_for_end((await ann.start_run(await ann.conversation(third.url)))["id"])
            assert "question_asked" not in [frame.event for frame in screen.frames]
        entries = (await ann.get("/admin/audit", action="rules_change"))["items"]
        assert entries[0]["target_type"] == "user"
        await set_rules(ann)


async def test_a_rule_created_just_before_the_question_answers_it(server: ServerProcess) -> None:
    async with ToolController() as controller, AsyncApiClient(server.url) as ann:
        async with ScriptedProvider(
            asks(visit(controller, "slow", "visit_once"), visit(controller, "b"))
        ) as model:
            run = await ann.start_run(await ann.conversation(model.url))
            slow = await controller.wait_for_visit()
            # It has been judged by now, and is asked about when the other call has ended.
            await set_rules(ann, "allow visit_risky(*)")
            slow.answer("done")
            (await controller.wait_for_visit(2)).answer("done")
            await ann.wait_for_end(run["id"])
            (settled,) = (await ann.get(f"/runs/{run['id']}/questions"))["items"]
            assert (settled["status"], settled["answered_by"]) == ("answered", "rule")
        await set_rules(ann)


@pytest.mark.parametrize("more", [{}, {"key": "changed"}], ids=["rejected", "changed"])
async def test_an_answer_to_a_call_has_priority_over_always_for_another(
    server: ServerProcess, more: Json
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        async with ScriptedProvider(asks(visit(controller, "a"), visit(controller, "b"))) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            a, b = await wait_for_questions(ann, run)
            if more:
                await answer(ann, a, "once", arguments={"port": controller.port, **more})
            else:
                await answer(ann, a, "reject")
            await answer(ann, b, "always")
            await ann.wait_for_end(run["id"])
            assert sorted(controller.keys_seen()) == (["b", "changed"] if more else ["b"])
        await set_rules(ann)


async def audited_call(ann: AsyncApiClient, run_id: str) -> Json:
    """The only entry of the audit log about the calls of a run, which is written a moment after the call."""
    async with asyncio.timeout(20):
        while True:
            entries = (await ann.get("/admin/audit", action="tool_call"))["items"]
            if found := [entry for entry in entries if entry["target_id"] == run_id]:
                (entry,) = found
                return entry
            await asyncio.sleep(0.05)


async def test_denied_rejected_and_corrected_differ_for_users_and_for_the_model(
    server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        await set_rules(ann, "deny visit_outside(secret*)")
        wanted = [
            visit(controller, "a"),
            visit(controller, "b"),
            visit(controller, "c"),
            visit(controller, "d"),
        ]
        wanted.append(visit(controller, "secret-e", "visit_outside"))
        async with ScriptedProvider(asks(*wanted)) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            a, b, c, d = await wait_for_questions(ann, run)
            await answer(ann, a, "reject", note="use the other file")
            await answer(ann, b, "reject")
            await answer(ann, c, "once", arguments={"port": controller.port, "key": "C"}, note="louder")
            await answer(ann, d, "once")
            await ann.wait_for_end(run["id"])
            steps = {step["id_ref"]: step for step in await tool_results(ann, conversation)}
            outcomes = {key: step.get("outcome") for key, step in steps.items()}
            assert outcomes == {
                "call-a": "rejected",
                "call-b": "rejected",
                "call-c": "corrected",
                "call-d": None,
                "call-secret-e": "denied",
            }
            errors = {key: json.loads(step["content"])["error"] or "" for key, step in steps.items()}
            assert "use the other file. Follow the note" in errors["call-a"]
            assert "find another way" in errors["call-b"]
            assert "the user's rule 1 says: deny visit_outside(secret*)" in errors["call-secret-e"]
            assert "changed the arguments" in steps["call-c"]["note"]
            assert "They say: louder" in steps["call-c"]["note"]
            assert "They say: louder" in last_tool_message(model)
            assert sorted(controller.keys_seen()) == ["C", "d"]
        entry = await audited_call(ann, run["id"])
        assert entry["outcome"] == "refused"
        assert entry["detail"] == {"name": "visit_outside", "kind": "rule", "permission_level": 4}
        await set_rules(ann)


async def test_a_deny_rule_has_priority_over_an_earlier_approval(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        async with ScriptedProvider(asks(visit(controller, "a"))) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            (question,) = await wait_for_questions(ann, run)
            await set_rules(ann, "deny visit_*(*)")
            await answer(ann, question, "once")
            await ann.wait_for_end(run["id"])
            (step,) = await tool_results(ann, conversation)
            assert step["outcome"] == "denied"
            assert controller.visits == []
        await set_rules(ann)


async def test_a_tool_that_is_always_denied_is_not_shown_to_the_model(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await set_rules(ann, "deny visit_risky(*)")
        async with ScriptedProvider(Script(rules=[Rule(reply=[Text(text="Hi.")])])) as model:
            conversation = await ann.conversation(model.url)
            await ann.wait_for_end((await ann.start_run(conversation, tools=True))["id"])
            assert '"visit_risky"' not in last_tool_message(model)
            assert '"visit_once"' in last_tool_message(model)
        await set_rules(ann)


async def test_rules_of_a_project_bind_its_conversations_alone(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        project = (await ann.post("/projects", {"name": "quiet"}))["id"]
        await set_rules(ann, "allow visit_*(*)")
        await set_rules(ann, "deny visit_risky(*)", scope="project", id=project)
        script = asks(visit(controller, "a"))
        async with ScriptedProvider(script) as model:
            provider_id = await ann.connect(model.url)
            for project_id, outcome in ((project, "denied"), (None, None)):
                body = {"provider_id": provider_id, "project_id": project_id}
                conversation = (await ann.post("/conversations", body))["id"]
                await ann.wait_for_end((await ann.start_run(conversation))["id"])
                (step,) = await tool_results(ann, conversation)
                assert step.get("outcome") == outcome
            assert controller.keys_seen() == ["a"]
        await ann.ask("DELETE", f"/projects/{project}")
        await set_rules(ann)


async def test_an_approval_does_not_apply_to_changed_arguments(
    own_server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        RestartingClient(own_server) as ann,
        ScriptedProvider(asks(visit(controller, "harmless"))) as model,
    ):
        run = await ann.start_run(await ann.conversation(model.url))
        (question,) = await wait_for_questions(ann, run)
        await ann.kill()
        await asyncio.to_thread(swap_arguments, own_server, run["id"])
        await ann.start()
        await answer(ann, question, "once")
        async with ann.follow(run["id"]) as stream:
            await stream.until("question_answered")
            again = (await stream.until("question_asked")).data
        assert json.loads(again["arguments"])["key"] == "changed!"
        assert controller.visits == []
        (second,) = await open_questions(ann, run["id"])
        await answer(ann, second, "once")
        await ann.wait_for_end(run["id"])
        assert controller.keys_seen() == ["changed!"]


def swap_arguments(server: ServerProcess, run_id: str) -> None:
    """Changes the arguments of the call in the database while its question is open."""
    with sqlite3.connect(server.data_dir / "luxx.db") as database:
        query = "SELECT seq, data FROM run_events WHERE run_id = ? AND type = 'process_step'"
        for seq, data in database.execute(query, (run_id,)).fetchall():
            changed = data.replace(b"harmless\\\\\\", b"changed!\\\\\\").replace(
                b'harmless\\"', b'changed!\\"'
            )
            database.execute(
                "UPDATE run_events SET data = ? WHERE run_id = ? AND seq = ?", (changed, run_id, seq)
            )
    database.close()


async def test_an_ask_shows_in_every_client_and_is_answered_once(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(visit(controller, "a"))) as model,
    ):
        run = await ann.start_run(await ann.conversation(model.url))
        async with ann.follow(run["id"]) as event_stream, ann.follow(run["id"]) as two:
            shown = [(await stream.until("question_asked")).data for stream in (event_stream, two)]
            assert shown[0] == shown[1]
            path = f"/runs/{run['id']}/questions/{shown[0]['question_id']}/answer"
            all_said = await asyncio.gather(
                *(ann.ask("POST", path, {"answer": said}) for said in ("once", "reject", "once"))
            )
            assert sorted(each.status_code for each in all_said) == [200, 409, 409]
            answered_events = [
                (await stream.until("question_answered")).data for stream in (event_stream, two)
            ]
            assert answered_events[0] == answered_events[1]
            for stream in (event_stream, two):
                assert (await stream.to_the_end()).done is not None
        assert len(controller.visits) <= 1


async def test_an_unattended_run_is_denied_calls_that_ask_and_continues(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        choices = [clarification("call-1"), clarification("call-2", required=True)]
        async with ScriptedProvider(asks(visit(controller, "a"), *choices)) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, when_asked="deny")
            screen = await ann.wait_for_end(run["id"])
            assert "question_asked" not in [frame.event for frame in screen.frames]
            steps = {step["id_ref"]: step for step in await tool_results(ann, conversation)}
            assert steps["call-a"]["outcome"] == "denied"
            assert "nobody is there to be asked" in steps["call-a"]["content"]
            assert json.loads(steps["call-1"]["content"])["data"]["answer"] == "blue"
            assert "nobody is there to be asked" in steps["call-2"]["content"]
            assert controller.visits == []


def tainting(controller: ToolController) -> Script:
    """Visits an untrusted source, then sends data outside."""
    return Script(
        rules=[
            Rule(
                when=When(user="Hello", has_tool_result=False),
                reply=[visit(controller, "news", "visit_strangers"), Counts()],
            ),
            Rule(
                when=When(user="Hello", has_tool_result=True, call=1),
                reply=[
                    visit(controller, "out", "visit_outside"),
                    visit(controller, "in", "visit_once"),
                    Counts(),
                ],
            ),
            Rule(
                when=When(user="again", has_tool_result=False),
                reply=[visit(controller, "later", "visit_outside"), Counts()],
            ),
            Rule(when=When(has_tool_result=True), reply=[Text(text=FINAL_TEXT)]),
        ]
    )


async def test_once_untrusted_content_is_in_a_conversation_outgoing_calls_ask(
    own_server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        RestartingClient(own_server) as ann,
        ScriptedProvider(tainting(controller)) as model,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        (question,) = await wait_for_questions(ann, run)
        assert (question["tool"], question["risk"]) == ("visit_outside", "low")
        assert "visit_strangers has brought untrusted content" in question["because"]
        assert sorted(controller.keys_seen()) == ["in", "news"]
        await ann.kill_and_start()
        assert await open_questions(ann, run["id"]) == [question]
        await answer(ann, question, "once")
        screen = await ann.follow_to_end(run["id"])
        tainted = [frame.data for frame in screen.frames if frame.event == "tainted"]
        assert [event["by"] for event in tainted] == ["visit_strangers"]
        flags = [step.get("is_untrusted") for step in await tool_results(ann, conversation)]
        assert flags == [True, None, None]
        later = await ann.start_run(conversation, "again")
        (question,) = await wait_for_questions(ann, later)
        assert json.loads(question["arguments"])["key"] == "later"
        await set_rules(ann, "allow visit_outside(other)")
        await answer(ann, question, "always")
        assert (await ann.get("/permissions/rules"))[-1]["pattern"] == "*"
        screen = await ann.wait_for_end(later["id"])
        assert "tainted" in [frame.event for frame in screen.frames]
        assert sorted(controller.keys_seen()) == ["in", "later", "news", "out"]


def shell(command: str, call_id: str) -> Call:
    return Call(name="shell_execute", arguments={"command": command}, id=call_id)


async def test_always_for_a_command_does_not_cover_its_options_that_run_or_write(
    own_server: ServerProcess,
) -> None:
    async with AsyncApiClient(own_server.url) as ann:
        async with ScriptedProvider(asks(shell("pip list", "list"), shell("git grep x", "grep"))) as model:
            run = await ann.start_run(await ann.conversation(model.url))
            for question in await wait_for_questions(ann, run):
                await answer(ann, question, "always")
            await ann.wait_for_end(run["id"])
        stored_patterns = [rule["pattern"] for rule in await ann.get("/permissions/rules")]
        assert sorted(stored_patterns) == ["git grep *", "pip list *"]
        more = [
            shell("pip list --local", "other"),
            shell("git grep -in y", "looks"),
            shell("pip list --log written", "writes"),
            shell("git grep -O'touch ran' y", "runs"),
        ]
        async with ScriptedProvider(asks(*more)) as model:
            run = await ann.start_run(await ann.conversation(model.url))
            questions = await wait_for_questions(ann, run)
            assert {question["call_id"] for question in questions} == {"writes", "runs"}
            for question in questions:
                await answer(ann, question, "reject")
            await ann.wait_for_end(run["id"])
