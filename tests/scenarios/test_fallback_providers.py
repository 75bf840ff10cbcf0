"""The fallback providers of an agent: used in order when a provider fails for good, also after a restart."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from msgspec.structs import replace

from luxx.providers.scripted import Counts, Fail, Faults, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, clarification, open_questions
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import said, started

DROP_AT = 400
"""Bytes of a stream: after the first text and before its end."""

REFUSES = Rule(name="refuses", status=401, message="wrong key")


async def agent_with_fallbacks(ann: AsyncApiClient, first: str, *fallbacks: str) -> Json:
    """An agent whose provider has the address `first`."""
    provider_ids = [await ann.connect(url) for url in (first, *fallbacks)]
    body = {
        "name": "Careful",
        "provider_id": provider_ids[0],
        "fallbacks": [{"provider_id": provider_id} for provider_id in provider_ids[1:]],
    }
    return await ann.post("/agents", body)


async def test_the_next_fallback_answers_when_a_provider_fails_for_good(server: ServerProcess) -> None:
    answers = Rule(name="answers", reply=[Text(text="Here I am."), Counts(prompt=5, completion=3)])
    async with (
        ScriptedProvider(Script(rules=[REFUSES])) as first,
        ScriptedProvider(Script(rules=[REFUSES])) as second,
        ScriptedProvider(Script(rules=[answers])) as third,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url, third.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert (screen.text, screen.done and screen.done["status"]) == ("Here I am.", "completed")
        retries = screen.data_of("retrying")
        assert [event["fallback"] for event in retries] == [1, 2]
        assert "wrong key" in retries[0]["reason"]
        assert [len(provider.requests) for provider in (first, second, third)] == [1, 1, 1]
        run = (await ann.get("/runs", subject_id=conversation))["items"][0]
        assert (run["status"], run["usage"]["completion_tokens"]) == ("completed", 3)


async def test_the_run_fails_with_the_last_error_when_no_fallback_is_left(server: ServerProcess) -> None:
    last = Rule(name="is gone", status=404, message="no such model")
    async with (
        ScriptedProvider(Script(rules=[REFUSES])) as first,
        ScriptedProvider(Script(rules=[last])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert screen.done is not None
        assert screen.done["status"] == "failed"
        run = (await ann.get("/runs", subject_id=conversation))["items"][0]
        assert "no such model" in run["error"]


async def test_a_wait_that_cannot_help_goes_to_the_fallback_at_once(server: ServerProcess) -> None:
    limits = Rule(name="limits", status=429, message="slow down", headers={"retry-after": "3600"})
    reply = [Gate(name="answer"), Text(text="Here I am."), Counts(prompt=5, completion=3)]
    async with (
        ScriptedProvider(Script(rules=[limits])) as first,
        ScriptedProvider(Script(rules=[Rule(name="answers", reply=reply)])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        run_id = (await ann.start_run(conversation))["id"]
        await second.reached("answer", 20)
        assert (await ann.run(run_id))["phase"] == "thinking"
        second.release("answer")
        screen = await ann.wait_for_end(run_id)
        assert screen.text == "Here I am."
        (retry,) = screen.data_of("retrying")
        assert (retry["fallback"], retry["delay_ms"]) == (1, 0)
        assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_without_a_fallback_the_error_names_the_time_to_wait(server: ServerProcess) -> None:
    limits = Rule(name="limits", status=429, message="slow down", headers={"retry-after": "3600"})
    async with ScriptedProvider(Script(rules=[limits])) as only, AsyncApiClient(server.url) as ann:
        agent = await agent_with_fallbacks(ann, only.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert screen.done
        assert screen.done["status"] == "failed"
        run = (await ann.get("/runs", subject_id=conversation))["items"][0]
        assert "slow down. Try again in 1 hour, or choose another model." in run["error"]
        assert len(only.requests) == 1


async def test_an_answer_that_breaks_off_is_kept_and_not_made_again_elsewhere(server: ServerProcess) -> None:
    breaks = Rule(
        name="breaks off", reply=[Text(text="Half of "), Text(text="it")], faults=Faults(drop_at=DROP_AT)
    )
    async with (
        ScriptedProvider(Script(rules=[breaks])) as first,
        ScriptedProvider(Script(rules=[])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert screen.text
        assert "Half of it".startswith(screen.text)
        assert screen.done
        assert screen.done["status"] == "failed"
        assert second.requests == []


async def test_a_run_says_which_fallbacks_it_passes_over_and_why(server: ServerProcess) -> None:
    answers = Rule(name="answers", reply=[Text(text="Here I am."), Counts(prompt=5, completion=3)])
    async with (
        ScriptedProvider(Script(rules=[REFUSES])) as first,
        ScriptedProvider(Script(rules=[answers])) as last,
        AsyncApiClient(server.url) as ann,
    ):
        urls = ("http://127.0.0.1:9/deleted", "http://127.0.0.1:9/disabled", last.url)
        agent = await agent_with_fallbacks(ann, first.url, *urls)
        deleted, disabled, _ = [fallback["provider_id"] for fallback in agent["fallbacks"]]
        assert (await ann.ask("DELETE", f"/providers/{deleted}")).is_success
        assert (await ann.ask("PUT", f"/providers/{disabled}", {"enabled": False})).is_success
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert screen.text == "Here I am."
        said = [frame.data for frame in screen.frames if frame.event in ("warning", "retrying")]
        assert [event["type"] for event in said] == ["warning", "warning", "retrying"]
        assert said[0]["message"] == (
            f"Fallback 1 of the agent 'Careful' cannot be used: there is no provider {deleted}."
        )
        assert "Fallback 2 of the agent 'Careful' cannot be used" in said[1]["message"]
        assert "is disabled" in said[1]["message"]
        assert said[2]["fallback"] == 3


async def test_a_fallback_that_was_deleted_meanwhile_is_passed_over(server: ServerProcess) -> None:
    late = Rule(name="refuses", reply=[Gate(name="late"), Fail(message="no", code=401)])
    async with (
        ScriptedProvider(Script(rules=[late])) as first,
        ScriptedProvider(Script(rules=[])) as second,
        ScriptedProvider(Script(rules=[Rule(reply=[Text(text="Third.")])])) as third,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url, third.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        run = await ann.start_run(conversation)
        await first.reached("late")
        lost = agent["fallbacks"][0]["provider_id"]
        assert (await ann.ask("DELETE", f"/providers/{lost}")).is_success
        first.release("late")
        screen = await ann.wait_for_end(run["id"])
    assert screen.text == "Third."
    assert [one["fallback"] for one in screen.data_of("retrying")] == [1, 2]
    assert second.url in screen.data_of("retrying")[1]["reason"]
    assert screen.done is not None
    assert screen.done["provider_name"] == third.url


async def test_a_run_that_fails_names_the_fallbacks_that_could_not_be_used(server: ServerProcess) -> None:
    async with ScriptedProvider(Script(rules=[REFUSES])) as only, AsyncApiClient(server.url) as ann:
        agent = await agent_with_fallbacks(ann, only.url, "http://127.0.0.1:9/deleted")
        deleted = agent["fallbacks"][0]["provider_id"]
        assert (await ann.ask("DELETE", f"/providers/{deleted}")).is_success
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert screen.done
        assert screen.done["status"] == "failed"
        (warning,) = [one["message"] for one in screen.data_of("warning")]
        assert f"there is no provider {deleted}" in warning
        assert screen.error
        assert "wrong key" in screen.error["message"]


async def test_nothing_is_said_of_a_lost_fallback_that_is_not_needed(server: ServerProcess) -> None:
    answers = Rule(name="answers", reply=[Text(text="Here I am."), Counts(prompt=5, completion=3)])
    async with ScriptedProvider(Script(rules=[answers])) as only, AsyncApiClient(server.url) as ann:
        agent = await agent_with_fallbacks(ann, only.url, "http://127.0.0.1:9/deleted")
        assert (await ann.ask("DELETE", f"/providers/{agent['fallbacks'][0]['provider_id']}")).is_success
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert screen.text == "Here I am."
        assert "warning" not in screen.events()


async def answer_and_warnings(ann: AsyncApiClient, agent: Json) -> tuple[str, list[str]]:
    """The text and the warnings of a run of the agent in a new conversation."""
    conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
    screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
    warnings = [one["message"] for one in screen.data_of("warning")]
    return screen.text, warnings


async def test_a_provider_that_failed_is_asked_again_after_a_minute(server: ServerProcess) -> None:
    refuses = Rule(name="refuses", status=401, message="wrong key", times=1)
    first_answers = Rule(name="answers", reply=[Text(text="First."), Counts(prompt=5, completion=3)])
    answers = Rule(name="answers", reply=[Text(text="Second."), Counts(prompt=5, completion=3)])
    breaks = Rule(name="breaks", status=404, message="gone")
    async with (
        ScriptedProvider(Script(rules=[refuses, first_answers])) as first,
        ScriptedProvider(Script(rules=[replace(answers, times=2), breaks])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        assert await answer_and_warnings(ann, agent) == ("Second.", [])
        assert await answer_and_warnings(ann, agent) == (
            "Second.",
            [
                f"The provider '{first.url}' failed less than a minute ago; scripted of the provider "
                f"'{second.url}' answers in its place."
            ],
        )
        assert (len(first.requests), len(second.requests)) == (1, 2)
        # Where nobody else answers, it is asked all the same.
        assert (await answer_and_warnings(ann, agent))[0] == "First."
        assert (len(first.requests), len(second.requests)) == (2, 3)
        with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as database, database:
            earlier = "datetime(failed_at, '-61 seconds')"
            database.execute(f"UPDATE provider_failures SET failed_at = {earlier}")
        assert await answer_and_warnings(ann, agent) == ("First.", [])
        assert (len(first.requests), len(second.requests)) == (3, 3)


async def test_a_request_that_is_refused_is_no_failure_of_its_provider(server: ServerProcess) -> None:
    refuses = Rule(name="refuses", status=400, message="no such field")
    answers = Rule(name="answers", reply=[Text(text="Second."), Counts(prompt=5, completion=3)])
    async with (
        ScriptedProvider(Script(rules=[refuses])) as first,
        ScriptedProvider(Script(rules=[answers])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        for _ in range(2):
            assert await answer_and_warnings(ann, agent) == ("Second.", [])
        assert (len(first.requests), len(second.requests)) == (2, 2)


@pytest.mark.heavy
async def test_a_restarted_run_goes_on_with_the_fallback_that_it_had_reached(
    own_server: ServerProcess,
) -> None:
    rules = [
        Rule(name="asks", when=When(has_tool_result=False), reply=[clarification(required=True)]),
        Rule(name="ends", when=When(has_tool_result=True), reply=[Text(text="Red it is.")]),
    ]
    async with (
        ScriptedProvider(Script(rules=[REFUSES])) as first,
        ScriptedProvider(Script(rules=rules)) as second,
        RestartingClient(own_server) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        async with ann.send_and_follow(conversation, tools=True) as stream:
            await stream.until("question_asked")
            run_id = stream.screen.run_id
            await ann.kill()
        await ann.start()
        (question,) = await open_questions(ann, run_id)
        await answer(ann, question, "red")
        screen = await ann.follow_to_end(run_id)
        assert screen.text == "Red it is."
        assert len(first.requests) == 1, "the failed provider is not asked again"


async def test_a_lost_call_of_a_fallback_is_billed_as_its_own(tmp_path: Path) -> None:
    rules = [
        Rule(name="lost", times=1, reply=[Text(text="I begin."), Gate(name="lost")]),
        Rule(name="ends", reply=[Text(text="Red it is.")]),
    ]
    with ServerProcess(tmp_path, LUXX_LIMITS__TOKENS_PER_RUN="1000000") as own:
        async with (
            ScriptedProvider(Script(rules=[REFUSES])) as first,
            ScriptedProvider(Script(rules=rules, models=["other"])) as second,
            RestartingClient(own) as ann,
        ):
            one, other = await ann.connect(first.url), await ann.connect(second.url, model="other")
            fallbacks = [{"provider_id": other, "model": "other"}]
            body = {"name": "Careful", "provider_id": one, "model": "scripted", "fallbacks": fallbacks}
            agent = await ann.post("/agents", body)
            conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
            run = await ann.start_run(conversation)
            await second.reached("lost")
            await ann.kill()
            second.release("lost")
            await ann.start()
            screen = await ann.follow_to_end(run["id"])
            assert screen.text.endswith("Red it is.")
            used = await ann.get("/usage", group_by="model")
    assert [row["key"] for row in used["items"]] == ["other"]


async def test_a_seat_that_waited_for_an_answer_goes_on_with_its_fallback(server: ServerProcess) -> None:
    rules = [
        Rule(name="asks", when=When(has_tool_result=False), reply=[clarification(required=True)]),
        Rule(name="ends", when=When(has_tool_result=True), reply=[Text(text="Red it is.")]),
    ]
    async with (
        ScriptedProvider(Script(rules=[REFUSES])) as first,
        ScriptedProvider(Script(rules=rules)) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        room = await ann.post(
            "/chat-rooms",
            {
                "title": "Talk",
                "task": "Find it out",
                "agents": [{"name": "Asker", "role": "asks", "agent_id": agent["id"]}],
                "stop": {"rounds": 1},
            },
        )
        async with started(ann, room["id"]) as stream:
            await stream.until("question_asked")
            (question,) = await open_questions(ann, stream.screen.run_id)
            await answer(ann, question, "red")
            frames = (await stream.to_the_end()).frames
        assert [text for _, text in said(frames)] == ["Red it is."]
        assert len(first.requests) == 1, "the failed provider is not asked again"
        assert len(second.requests) == 2
