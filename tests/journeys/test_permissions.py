"""A tool of high risk asks before it runs; and a tool of one's own asks what it needs to know."""

import asyncio
import json

import pytest

from journeys.asking import answer, asks, open_questions, results, set_rules
from journeys.conftest import Traveller
from journeys.desk import Desk
from journeys.person import Json, Person
from journeys.scripts import calls
from journeys.server import LuxxServer
from journeys.survivor import Survivor
from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text, When


async def asked(ann: Person, run: Json) -> list[Json]:
    """The run's open questions, once it waits."""
    async with ann.follow(run["id"]) as stream:
        await stream.until("question_asked")
    return await open_questions(ann, run["id"])


def test_a_tool_of_high_risk_runs_once_it_is_allowed(server: LuxxServer, travel: Traveller) -> None:
    async def journey() -> None:
        async with (
            Desk(answers=True) as desk,
            Person(server.url) as ann,
            ScriptedProvider(asks(*calls("visit_risky", desk.port, "a"))) as model,
        ):
            conversation = await ann.conversation(model.url)
            run = await ann.begin(conversation)
            (question,) = await asked(ann, run)
            assert desk.visits == []
            assert (question["kind"], question["tool"], question["risk"]) == (
                "permission",
                "visit_risky",
                "high",
            )
            assert json.loads(question["arguments"]) == {"port": desk.port, "key": "a"}
            assert [option["label"] for option in question["options"]] == ["once", "always", "reject"]
            assert (question["required"], question["due_at"]) == (True, None)
            (execution,) = (await ann.get("/tool-calls", run_id=run["id"]))["items"]
            assert execution["status"] == "waiting"
            await answer(ann, question, "once")
            await ann.see(run["id"])
            assert desk.keys_seen() == ["a"]
            assert results((await ann.messages(conversation))[-1])[0]["data"] == "done a"

    travel(journey())


def test_a_rejected_call_does_not_run_and_the_note_goes_to_the_model(
    server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        async with (
            Desk(answers=True) as desk,
            Person(server.url) as ann,
            ScriptedProvider(asks(*calls("visit_risky", desk.port, "a"))) as model,
        ):
            conversation = await ann.conversation(model.url)
            run = await ann.begin(conversation)
            (question,) = await asked(ann, run)
            await answer(ann, question, "reject", note="not on a Sunday")
            await ann.see(run["id"])
            (result,) = results((await ann.messages(conversation))[-1])
            assert result["success"] is False
            assert "not on a Sunday" in result["error"]
            assert desk.visits == []

    travel(journey())


def test_a_person_may_change_the_arguments_within_what_the_tool_takes(
    server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        async with (
            Desk(answers=True) as desk,
            Person(server.url) as ann,
            ScriptedProvider(asks(*calls("visit_risky", desk.port, "a"))) as model,
        ):
            run = await ann.begin(await ann.conversation(model.url))
            (question,) = await asked(ann, run)
            path = f"/runs/{run['id']}/questions/{question['id']}/answer"
            for arguments in ({"port": "x", "key": "b"}, {"port": 1}, {"port": 1, "key": "b", "c": 1}):
                wrong = await ann.ask("POST", path, {"answer": "once", "arguments": arguments})
                assert (wrong.status_code, wrong.json()["detail"]["kind"]) == (400, "arguments_invalid")
            assert (await ann.ask("POST", path, {"answer": "perhaps"})).status_code == 400
            await answer(ann, question, "once", arguments={"port": desk.port, "key": "b"})
            screen = await ann.see(run["id"])
            assert desk.keys_seen() == ["b"]
            (event,) = [frame.data for frame in screen.frames if frame.event == "question_answered"]
            assert json.loads(event["arguments"]) == {"port": desk.port, "key": "b"}

    travel(journey())


def test_always_holds_from_then_on(server: LuxxServer, travel: Traveller) -> None:
    async def journey() -> None:
        async with Desk(answers=True) as desk, Person(server.url) as ann:
            again = calls("visit_risky", desk.port, "b")
            script = Script(
                rules=[
                    Rule(
                        when=When(has_tool_result=False),
                        reply=[*calls("visit_risky", desk.port, "a"), Counts()],
                    ),
                    Rule(when=When(has_tool_result=True, call=1), reply=[*again, Counts()]),
                    Rule(when=When(has_tool_result=True), reply=[Text(text="Done.")]),
                ]
            )
            async with ScriptedProvider(script) as model:
                run = await ann.begin(await ann.conversation(model.url))
                (question,) = await asked(ann, run)
                await answer(ann, question, "always")
                screen = await ann.see(run["id"])
                assert desk.keys_seen() == ["a", "b"]
                assert [frame.event for frame in screen.frames].count("question_asked") == 1
            await set_rules(ann)

    travel(journey())


def test_a_tool_run_by_hand_is_allowed_by_whoever_runs_it(server: LuxxServer, travel: Traveller) -> None:
    async def journey() -> None:
        async with Desk(answers=True) as desk, Person(server.url) as ann:
            arguments = {"port": desk.port, "key": "a"}
            done = await ann.post("/tools/visit_risky/execute", {"arguments": arguments})
            assert done == {"success": True, "data": "done a", "error": None}
            alone = await ann.post(
                "/tools/ask_clarification/execute",
                {"arguments": {"question_type": "scope", "question": "Who?", "options": []}},
            )
            assert alone["success"] is False
            assert "nobody can be asked" in alone["error"]

    travel(journey())


def test_a_tool_of_ones_own_gets_the_answer_to_what_it_asks(server: LuxxServer, travel: Traveller) -> None:
    async def journey() -> None:
        async with (
            Desk(answers=True) as desk,
            Person(server.url) as ann,
            ScriptedProvider(asks(*calls("visit_named", desk.port, "nobody"))) as model,
        ):
            run = await ann.begin(await ann.conversation(model.url))
            (question,) = await asked(ann, run)
            assert (question["prompt"], question["required"]) == ("Whom shall I name?", True)
            await answer(ann, question, "ann")
            await ann.see(run["id"])
            assert desk.keys_seen() == ["ann"]

    travel(journey())


def test_what_was_allowed_runs_once_even_if_the_server_dies_then(
    own_server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        async with (
            Desk() as desk,
            Survivor(own_server) as ann,
            ScriptedProvider(asks(*calls("visit_risky", desk.port, "a"))) as model,
        ):
            conversation = await ann.conversation(model.url)
            run = await ann.begin(conversation)
            (question,) = await asked(ann, run)
            await ann.kill_and_start()
            assert await open_questions(ann, run["id"]) == [question]
            await answer(ann, question, "once")
            await desk.visited()
            await ann.kill_and_start()
            await ann.see_through(run["id"])
            (result,) = results((await ann.messages(conversation))[-1])
            assert result["success"] is False
            assert "not known whether it took effect" in result["error"]
            assert desk.keys_seen() == ["a"]

    travel(journey())


@pytest.mark.parametrize("said", ["reject", "once"])
def test_a_slow_tool_beside_it_is_not_run_again_after_the_answer(
    server: LuxxServer, travel: Traveller, said: str
) -> None:
    async def journey() -> None:
        async with Desk() as desk, Person(server.url) as ann:
            both = [*calls("visit_once", desk.port, "slow"), *calls("visit_risky", desk.port, "risky")]
            async with ScriptedProvider(asks(*both)) as model:
                run = await ann.begin(await ann.conversation(model.url))
                slow = await desk.visited()
                slow.answer("done")
                (question,) = await asked(ann, run)
                await answer(ann, question, said)
                if said == "once":
                    (await desk.visited(2)).answer("done")
                async with asyncio.timeout(20):
                    await ann.see(run["id"])
                assert desk.keys_seen() == (["slow", "risky"] if said == "once" else ["slow"])

    travel(journey())
