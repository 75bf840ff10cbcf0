"""Every message, run and step says which provider and model answered, also where a fallback did."""

from api.server_process import ServerProcess

from luxx.providers.scripted import Finish, Gate, Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient, Json
from scenarios.rooms import new_room, run_to_the_end, says
from scenarios.test_fallback_providers import REFUSES, agent_with_fallbacks
from scenarios.test_tasks import does, execute, new_task, step


def used(shown: Json) -> tuple[int | None, str | None, str | None]:
    return shown["provider_id"], shown["provider_name"], shown["model"]


async def test_message_run_and_events_name_the_fallback_that_answered(server: ServerProcess) -> None:
    answers = Rule(name="answers", reply=[Text(text="A long"), Finish(reason="length")])
    async with (
        ScriptedProvider(Script(rules=[REFUSES])) as first,
        ScriptedProvider(Script(rules=[answers])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallbacks(ann, first.url, second.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        answered_by = (agent["fallbacks"][0]["provider_id"], second.url, "scripted")
        assert screen.done is not None
        assert (used(screen.done), screen.done["finish"]) == (answered_by, "length")
        question, answer = (await ann.get("/messages", conversation_id=conversation))["items"][::-1]
        assert (used(answer), answer["finish"]) == (answered_by, "length")
        assert (used(question), question["finish"]) == ((None, None, None), None)
        assert used((await ann.get("/runs", subject_id=conversation))["items"][0]) == answered_by


async def test_a_run_names_its_model_from_the_start_and_a_cancelled_answer_has_no_finish(
    server: ServerProcess,
) -> None:
    waits = Rule(name="waits", reply=[Text(text="One"), Gate(name="never")])
    async with ScriptedProvider(Script(rules=[waits])) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            frame = await stream.until("run")
            assert (frame.data["run"]["provider_name"], frame.data["run"]["model"]) == (model.url, "scripted")
            await stream.until("process_step")
            await ann.post(f"/runs/{stream.screen.run_id}/cancel")
        answer = (await ann.get("/messages", conversation_id=conversation))["items"][0]
        assert (answer["status"], answer["finish"], answer["model"]) == ("partial", None, "scripted")


async def test_an_export_keeps_the_names_and_the_markdown_shows_them(server: ServerProcess) -> None:
    script = Script(rules=[Rule(name="answers", reply=[Text(text="Yes")])])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        await ann.ask("PUT", f"/providers/{provider_id}", {"name": "The lab"})
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        await ann.wait_for_end((await ann.start_run(conversation))["id"])
        markdown = (await ann.ask("GET", f"/conversations/{conversation}/export", format="md")).text
        assert ", scripted of The lab\n" in markdown
        document = (await ann.ask("GET", f"/conversations/{conversation}/export", format="json")).json()
        report = await ann.post("/conversations/import", document)
        (imported,) = report["conversation_ids"]
        answer = (await ann.get("/messages", conversation_id=imported))["items"][0]
        # The id of a provider means nothing on another server.
        assert (used(answer), answer["finish"]) == ((None, "The lab", "scripted"), "stop")
        await ann.ask("DELETE", f"/providers/{provider_id}")
        answer = (await ann.get("/messages", conversation_id=conversation))["items"][0]
        assert used(answer) == (provider_id, "The lab", "scripted"), "a deleted provider is still named"


async def test_messages_of_a_room_name_their_models(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(Script(rules=says("Anna", "I begin"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        frames = await run_to_the_end(ann, room["id"])
        (message,) = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"]
        assert (message["provider_name"], message["model"], message["finish"]) == (
            model.url,
            "scripted",
            "stop",
        )
        ends = [frame.data for frame in frames if frame.event == "message_end"]
        stored = [frame.data["message"] for frame in frames if frame.event == "message"]
        assert [used(one) for one in (*ends, *stored)] == [used(message)] * 2
        run = (await ann.get("/runs", subject_id=room["id"]))["items"][0]
        assert used(run) == (None, None, None)
        markdown = (await ann.ask("GET", f"/chat-rooms/{room['id']}/export", format="md")).text
        assert ", scripted of http" in markdown


async def test_steps_of_a_task_name_their_models(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(Script(rules=[does("a", "Facts")])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        task_id = await new_task(ann, model.url, step("a"))
        (before,) = (await ann.get(f"/tasks/{task_id}"))["steps"]
        assert used(before) == (None, None, None)
        frames = await execute(ann, task_id)
        (done,) = (await ann.get(f"/tasks/{task_id}"))["steps"]
        assert (done["provider_name"], done["model"]) == (model.url, "scripted")
        ends = [frame.data for frame in frames if frame.event == "step_complete"]
        assert used(ends[0]) == used(done)
        transcript = await ann.get(f"/tasks/{task_id}/steps/a/transcript")
        assert used(transcript) == used(done)
