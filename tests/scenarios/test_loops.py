"""A model repeats itself: the call that brings nothing new waits for a person, whose choice is obeyed; a run
that nobody watches gets one notice, then ends; a text without end is cut.
"""

from collections.abc import Iterator

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.questions import answer, open_questions, results
from scenarios.restarting_client import RestartingClient
from scenarios.tool_controller import CONTROLLED_TOOLS

SEEN = Call(name="file_exists", arguments={"path": "seen.txt"})
OTHER = Call(name="file_exists", arguments={"path": "other.txt"})
END = Text(text="It is not there.")


@pytest.fixture(scope="module")
def patient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """As many rounds of tools as by default."""
    with ServerProcess(tmp_path_factory.mktemp("loops"), **CONTROLLED_TOOLS) as started_server:
        yield started_server


def repeats(*made: tuple[Call, int], ends: bool = True) -> Script:
    """These calls so often, one in each answer, and then a text."""
    rules = [Rule(name=f"calls {at}", times=times, reply=[call]) for at, (call, times) in enumerate(made)]
    return Script(rules=[*rules, Rule(name="ends", reply=[END])] if ends else rules)


async def asked(ann: AsyncApiClient, stream: AsyncEventStream) -> Json:
    """The open question about a repetition, which comes within a second of the result before."""
    await stream.until("doom_loop_detected")
    event = (await stream.until("question_asked", timeout=10)).data
    (question,) = await open_questions(ann, event["run_id"])
    assert (question["kind"], question["decision_type"]) == ("decision", "doom_loop")
    assert (question["required"], question["due_at"]) == (True, None)
    return question


async def test_the_third_equal_call_waits_and_is_skipped(patient_server: ServerProcess) -> None:
    async with ScriptedProvider(repeats((SEEN, 3))) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            question = await asked(ann, stream)
            assert [option["label"] for option in question["options"]] == [
                "stop", "continue", "correct", "skip",
            ]  # fmt: skip
            assert question["tool"] == "file_exists"
            assert "seen.txt" in question["arguments"]
            # Then no process drives the run, and no other request is made.
            await ann.until_status(question["run_id"], "waiting")
            assert len(model.requests) == 3
            for wrong in (
                {"answer": "correct"},
                {"answer": "correct", "arguments": {"file": "x"}},
                {"answer": "skip", "arguments": {"path": "x"}},
                {"answer": ["skip", "stop"]},
                {"answer": " "},
            ):
                path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
                response = await ann.ask("POST", path, wrong)
                assert response.status_code == 400, (wrong, response.text)
            await answer(ann, question, "skip")
            screen = await stream.to_the_end()
        (detected,) = screen.data_of("doom_loop_detected")
        calls = [step["id_ref"] for step in screen.ordered() if step["type"] == "tool_call"]
        assert (detected["kind"], detected["tool"], detected["times"]) == ("call", "file_exists", 3)
        assert (detected["call_ids"], detected["held"]) == (calls, calls[2:])
        (intervened,) = screen.data_of("doom_loop_intervened")
        assert (intervened["choice"], intervened["call_ids"]) == ("skip", calls[2:])
        message = await ann.answer_shown_by(conversation, screen)
        assert [result["success"] for result in results(message)] == [True, True, False]
        assert "A person skipped it" in results(message)[2]["error"]
        assert (message["text"], message["status"]) == (END.text, "complete")


async def test_after_continue_this_call_asks_no_more_and_others_do(patient_server: ServerProcess) -> None:
    script = repeats((SEEN, 5), (OTHER, 3), ends=False)
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await answer(ann, await asked(ann, stream), "continue")
            second = await asked(ann, stream)
            assert "other.txt" in second["arguments"]
            await answer(ann, second, "stop")
            screen = await stream.to_the_end()
        assert len(model.requests) == 8
        message = await ann.answer_shown_by(conversation, screen)
        assert [result["success"] for result in results(message)] == [True] * 7
        assert screen.done is not None
        ended = screen.done
        assert (ended["status"], ended["stop_reason"], ended["finish"]) == ("stopped", "doom_loop", "loop")
        run = await ann.run(ended["run_id"])
        assert (run["status"], run["stop_reason"]) == ("completed", "doom_loop")
        assert (message["status"], message["finish"]) == ("partial", "loop")


async def test_a_correction_runs_other_arguments_or_is_a_note(patient_server: ServerProcess) -> None:
    script = repeats((SEEN, 3), (OTHER, 3))
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await answer(
                ann, await asked(ann, stream), "correct", arguments={"path": "third.txt"}, note="Here."
            )
            await answer(ann, await asked(ann, stream), "Look at the mail instead.")
            screen = await stream.to_the_end()
        shown = [step for step in screen.ordered() if step["type"] == "tool_result"]
        assert shown[2]["outcome"] == "corrected"
        assert "third.txt" in shown[2]["note"]
        assert "Here." in shown[2]["note"]
        message = await ann.answer_shown_by(conversation, screen)
        assert "Look at the mail instead." in results(message)[5]["error"]
        assert [one["choice"] for one in screen.data_of("doom_loop_intervened")] == ["correct", "correct"]
        assert "Look at the mail instead." in str(model.requests[-1].body)


async def test_a_run_that_nobody_watches_gets_one_notice_then_ends(patient_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(repeats((SEEN, 9), ends=False)) as model,
        AsyncApiClient(patient_server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, when_asked="deny") as stream:
            screen = await stream.to_the_end()
        assert len(model.requests) == 4
        assert [one["times"] for one in screen.data_of("doom_loop_detected")] == [3, 3]
        assert screen.data_of("question_asked") == []
        message = await ann.answer_shown_by(conversation, screen)
        assert "If calls repeat again, the run ends." in results(message)[2]["error"]
        assert screen.done is not None
        assert screen.done["stop_reason"] == "doom_loop"
        assert (message["status"], message["steps"][-1]["status"]) == ("partial", "cancelled")


async def test_cycles_are_held_and_a_sixth_equal_failure_is_noted(patient_server: ServerProcess) -> None:
    missing = [(Call(name="file_read", arguments={"path": f"missing{at}.txt"}), 1) for at in range(6)]
    cycle = [(call, 1) for call in (SEEN, OTHER, SEEN, OTHER)]
    async with (
        ScriptedProvider(repeats(*cycle, (SEEN, 1))) as model,
        ScriptedProvider(repeats(*missing)) as failing,
        AsyncApiClient(patient_server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await answer(ann, await asked(ann, stream), "skip", note="Stop looking.")
            screen = await stream.to_the_end()
        (detected,) = screen.data_of("doom_loop_detected")
        assert (detected["kind"], detected["times"], len(detected["call_ids"])) == ("cycle", 3, 5)
        assert "They say: Stop looking." in str(model.requests[5].body)
        conversation = await ann.conversation(failing.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        (detected,) = screen.data_of("doom_loop_detected")
        assert (detected["kind"], detected["tool"], detected["times"]) == ("error", "file_read", 6)
        assert "failed 6 times in the same way" in str(failing.requests[-1].body)


async def test_the_question_survives_a_kill_and_no_request_is_made_meanwhile(
    own_server: ServerProcess,
) -> None:
    async with ScriptedProvider(repeats((SEEN, 3))) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            question = await asked(ann, stream)
        await ann.kill_and_start()
        assert await open_questions(ann, question["run_id"]) == [question]
        assert len(model.requests) == 3
        async with ann.follow(question["run_id"]) as stream:
            await stream.until("question_asked")
            await answer(ann, question, "correct", arguments={"path": "third.txt"})
            screen = await stream.to_the_end()
        message = await ann.answer_shown_by(conversation, screen)
        assert [result["success"] for result in results(message)] == [True, True, True]
        assert len(model.requests) == 4


async def test_an_endless_text_is_cut_and_a_long_table_is_not(patient_server: ServerProcess) -> None:
    endless = Text(text="I am sorry. " * 4000, pieces=4000)
    table = Text(text="".join(f"| {at} | row |\n" for at in range(10_000)), pieces=3000)
    script = Script(
        rules=[
            Rule(name="table", when=When(user="table"), reply=[table]),
            Rule(name="endless", when=When(user="endless"), reply=[endless]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "a table") as stream:
            screen = await stream.to_the_end()
        assert screen.text == table.text
        async with ann.send_and_follow(conversation, "endless") as stream:
            screen = await stream.to_the_end()
        message = await ann.answer_shown_by(conversation, screen)
        assert 2000 <= len(message["text"]) <= 4000
        assert (message["finish"], message["status"]) == ("loop", "partial")
        (detected,) = screen.data_of("doom_loop_detected")
        assert (detected["kind"], detected["call_ids"]) == ("text", [])
        assert screen.done is not None
        assert (screen.done["status"], screen.done["stop_reason"]) == ("stopped", "doom_loop")
