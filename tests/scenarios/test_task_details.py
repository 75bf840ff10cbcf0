"""Tasks at a real server: what steps read and keep, budgets, retries, requests that do not fit the state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.questions import clarification
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL, RoomScreen, order
from scenarios.scripts import calls
from scenarios.test_started_tasks import in_seconds, until_status
from scenarios.test_tasks import RESULT, does, execute, new_task, statuses, step
from scenarios.tool_controller import ToolController

JSON = {"accept": "application/json"}
LONG = " ".join(map(str, range(9_000)))


def fails(step_id: str, call: int = 1) -> Rule:
    when = When(user=rf"Your step \[{step_id}\]", call=call)
    return Rule(name=f"{step_id} fails {call}", when=when, status=400, message="cannot do this")


async def refused(ann: AsyncApiClient, path: str, body: Json | None = None) -> tuple[int, str, str]:
    response = await ann.ask("POST", path, body, headers=JSON)
    answer = response.json()
    assert not response.is_success, answer
    return response.status_code, answer["detail"]["kind"], answer["error"]


@asynccontextmanager
async def held(ann: AsyncApiClient, task_id: str) -> AsyncIterator[AsyncEventStream]:
    """The task's run while its first step waits at a gate."""
    async with ann.streaming("POST", f"/tasks/{task_id}/execute") as response:
        stream = AsyncEventStream(response, RoomScreen())
        await stream.until("process_step")
        yield stream


async def test_a_cut_result_is_read_whole_also_in_a_later_run_and_by_a_step_without_tools(
    server: ServerProcess,
) -> None:
    reads = Call(name="result_read", arguments='{"ref": "step:a", "offset": 30000}', id="call-r")
    asks = When(user=r"Your step \[b\]", has_tool_result=False)
    rules = [
        does("a", LONG),
        fails("b"),
        Rule(name="b reads", when=asks, reply=[reads, USUAL]),
        does("b", "Read it", has_tool_result=True),
        RESULT,
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b", "a", required_tools=[]))
        await execute(ann, task_id)
        run = await ann.post(f"/tasks/{task_id}/steps/b/retry")
        await ann.follow_all(run["id"])
        assert await statuses(ann, task_id) == {"a": "completed", "b": "completed"}
        asked = next(one for one in model.requests if one.rule == "b reads").json
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["result_read"]
        assert "result_read with the ref step:a" in asked["messages"][-1]["content"]
        read = next(one for one in model.requests if one.rule == "b Read it").json["messages"][-1]
        assert LONG[30_000:30_500] in read["content"]


async def test_a_step_has_a_transcript_of_each_attempt_with_what_it_was_given(server: ServerProcess) -> None:
    rules = [fails("b"), does("a", "Facts of a"), does("b", "Together"), RESULT]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b", "a"))
        path = f"/tasks/{task_id}/steps/b/transcript"
        assert (await ann.ask("GET", path)).status_code == 404
        await execute(ann, task_id)
        run = await ann.post(f"/tasks/{task_id}/steps/b/retry")
        await ann.follow_all(run["id"])
        newest, first = await ann.get(path), await ann.get(path, attempt=1)
        assert (newest["attempt"], newest["run_id"], newest["status"]) == (2, run["id"], "completed")
        assert "Facts of a" in newest["input"]
        assert newest["steps"][-1]["content"] == "Together"
        assert newest["usage"]["prompt_tokens"] == 10
        assert newest["started_at"] <= newest["finished_at"]
        assert (first["attempt"], first["status"], first["steps"]) == (1, "failed", [])
        assert "cannot do this" in first["error"]
        result = await ann.get(f"/tasks/{task_id}/steps/task:result/transcript")
        assert result["steps"][-1]["content"] == "All done [a]."
        assert (await ann.ask("GET", path, attempt=3)).status_code == 404
        shown = (await ann.get(f"/tasks/{task_id}"))["steps"][1]
        assert (shown["attempts"], shown["usage"]["prompt_tokens"]) == (2, 10)
        assert shown["duration_ms"] is not None
        assert shown["error"] is None


async def test_a_retry_leaves_what_a_person_skipped_and_what_needs_another_failed_step(
    server: ServerProcess,
) -> None:
    rules = [fails("a"), fails("b"), does("a", "Now"), does("c", "After a"), RESULT]
    gate = Rule(
        name="gate", when=When(user=r"Your step \[g\]"), reply=[Text(text="x"), Gate(name="g"), USUAL]
    )
    async with ScriptedProvider(Script(rules=[gate, *rules])) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(
            ann, model.url, step("g"), step("a", "g"), step("b", "g"), step("c", "a"), step("d", "a", "b"),
            step("e", "a"), step("f", "e"), step("h", "d"),
        )  # fmt: skip
        async with held(ann, task_id) as stream:
            await ann.post(f"/tasks/{task_id}/steps/e/skip")
            model.release("g")
            await stream.to_the_end()
        before = (await ann.get(f"/tasks/{task_id}"))["steps"]
        causes = {one["id"]: one["skipped_because"] for one in before if one["status"] == "skipped"}
        assert causes.pop("d") in ("a", "b")
        assert causes.pop("h") in ("a", "b")
        assert causes == {"c": "a", "e": "", "f": "e"}
        assert (await refused(ann, f"/tasks/{task_id}/steps/c/retry"))[:2] == (409, "step_not_failed")
        run = await ann.post(f"/tasks/{task_id}/steps/a/retry")
        await ann.follow_all(run["id"])
        assert await statuses(ann, task_id) == {
            "g": "completed", "a": "completed", "b": "failed", "c": "completed", "d": "skipped",
            "e": "skipped", "f": "skipped", "h": "skipped",
        }  # fmt: skip


async def test_a_task_pauses_at_a_budget_and_continues_after_it_is_raised(tmp_path: Path) -> None:
    answers = [does("a", "First"), does("b", "Second"), RESULT]
    limited = {"LUXX_LIMITS__TOKENS_PER_DAY": "12"}
    with ServerProcess(tmp_path, **limited) as server:
        async with ScriptedProvider(Script(rules=answers)) as model:
            async with AsyncApiClient(server.url) as ann:
                task_id = await new_task(ann, model.url, step("a"), step("b", "a"))
                frames = await execute(ann, task_id)
                assert order(frames)[-2:] == ["error", "task_paused"]
                task = await ann.get(f"/tasks/{task_id}")
                assert (task["status"], await statuses(ann, task_id)) == (
                    "block",
                    {"a": "pending", "b": "pending"},
                )
                run = await ann.run(task["run_id"])
                assert (run["status"], "limits.tokens_per_day" in run["error"]) == ("paused", True)
                # So is one whose time comes then: it is not lost, and its owner sees why.
                timed_id = await new_task(ann, model.url, step("a"), step("b", "a"), start_at=in_seconds(0.2))
                timed = await until_status(ann, timed_id, "block")
                run = await ann.run(timed["run_id"])
                assert (run["status"], "limits.tokens_per_day" in run["error"]) == ("paused", True)
            server.stop()
            with ServerProcess(tmp_path) as richer:
                async with AsyncApiClient(richer.url) as ann:
                    await execute(ann, task_id, "resume")
                    task = await ann.get(f"/tasks/{task_id}")
                    assert (task["status"], task["result"]) == ("completed", "All done [a].")
                    assert (await ann.run(task["run_id"]))["error"] is None
                    await execute(ann, timed_id, "resume")
                    assert (await ann.get(f"/tasks/{timed_id}"))["status"] == "completed"


async def test_requests_that_do_not_fit_the_state_are_refused_with_the_reason(server: ServerProcess) -> None:
    gate = [Text(text="x"), Gate(name="g"), USUAL]
    slow = Rule(name="slow", when=When(user=r"Your step \[a\]", call=1), reply=gate)
    async with (
        ScriptedProvider(Script(rules=[slow, does("a", "Whole"), does("b", "Second"), RESULT])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        task_id = await new_task(ann, model.url, step("a"), step("b", "a"))
        path = f"/tasks/{task_id}"
        never = (409, "task_not_running", "this task has not been executed")
        for action in ("pause", "resume", "cancel", "approve"):
            body = {"step_ids": []} if action == "approve" else None
            expected = (409, "nothing_to_approve") if action == "approve" else never[:2]
            assert (await refused(ann, f"{path}/{action}", body))[: len(expected)] == expected, action
        assert (await refused(ann, f"{path}/steps/a/retry"))[:2] == (409, "step_not_failed")
        async with held(ann, task_id) as stream:
            assert (await refused(ann, f"{path}/execute"))[:2] == (409, "run_active")
            assert (await refused(ann, f"{path}/resume"))[:2] == (409, "run_not_paused")
            assert (await refused(ann, f"{path}/approve", {"step_ids": ["a"]}))[1] == "nothing_to_approve"
            assert (await refused(ann, f"{path}/steps/a/retry"))[:2] == (409, "run_active")
            assert (await refused(ann, f"{path}/steps/z/skip"))[:2] == (404, "task_step_not_found")
            await ann.post(f"{path}/pause")
            await stream.to_the_end()
        for action in ("execute", "pause", "steps/a/retry"):
            status, _kind, why = await refused(ann, f"{path}/{action}")
            assert (status, "is paused; resume it" in why) == (409, True), action
        await execute(ann, task_id, "resume")
        assert (await refused(ann, f"{path}/execute"))[:2] == (409, "nothing_to_execute")
        for action in ("pause", "steps/b/skip"):
            assert (await refused(ann, f"{path}/{action}"))[0] == 409
        assert (await refused(ann, f"{path}/cancel"))[:2] == (409, "run_ended")
        assert (await refused(ann, f"{path}/resume"))[:2] == (409, "run_not_paused")
        assert (await refused(ann, f"{path}/steps/a/retry"))[:2] == (409, "step_not_failed")


@pytest.mark.parametrize("state", ["paused", "waiting"])
async def test_a_task_that_is_paused_or_waits_can_be_cancelled(server: ServerProcess, state: str) -> None:
    gate = [Text(text="x"), Gate(name="g"), USUAL]
    rules = [Rule(name="slow", reply=gate)] if state == "paused" else []
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), require_approval=state == "waiting")
        if state == "paused":
            async with held(ann, task_id) as stream:
                await ann.post(f"/tasks/{task_id}/pause")
                await stream.to_the_end()
        else:
            response = await ann.ask("POST", f"/tasks/{task_id}/execute", headers=JSON)
            await ann.until_status(response.json()["data"]["id"], "waiting")
        run = await ann.post(f"/tasks/{task_id}/cancel")
        await ann.until_status(run["id"], "cancelled")
        assert (await ann.get(f"/tasks/{task_id}"))["status"] == "terminated"
        assert await statuses(ann, task_id) == {"a": "pending"}


async def test_a_result_made_from_untrusted_content_taints_the_steps_that_read_it(
    server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller:

        def uses(step_id: str, tool: str) -> Rule:
            when = When(user=rf"Your step \[{step_id}\]", has_tool_result=False)
            return Rule(
                name=f"{step_id} uses", when=when, reply=[*calls(tool, controller.port, step_id), USUAL]
            )

        rules = [
            uses("a", "visit_strangers"), does("a", "News", has_tool_result=True), does("b", "Summary"),
            uses("c", "visit_outside"), does("c", "Sent", has_tool_result=True), RESULT,
        ]  # fmt: skip
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            task_id = await new_task(ann, model.url, step("a"), step("b", "a"), step("c", "b"))
            response = await ann.ask("POST", f"/tasks/{task_id}/execute", headers=JSON)
            run_id = response.json()["data"]["id"]
            await ann.until_status(run_id, "waiting")
            assert (await ann.get(f"/tasks/{task_id}"))["status"] == "block"
            assert await statuses(ann, task_id) == {"a": "completed", "b": "completed", "c": "running"}
            (question,) = (await ann.get(f"/runs/{run_id}/questions"))["items"]
            assert "visit_strangers has brought untrusted content" in question["because"]
            await ann.post(f"/runs/{run_id}/questions/{question['id']}/answer", {"answer": "once"})
            await ann.follow_all(run_id)
            assert (await ann.get(f"/tasks/{task_id}"))["status"] == "completed"


async def test_a_step_that_waits_for_a_person_leaves_its_place_to_the_next(server: ServerProcess) -> None:
    when = When(user=r"Your step \[a\]", has_tool_result=False)
    rules = [
        Rule(name="a asks", when=when, reply=[clarification("q"), USUAL]),
        does("a", "Answered", has_tool_result=True),
        does("b", "Beside it", Text(text="So far "), Gate(name="b")),
        RESULT,
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"), max_concurrent_steps=1)
        async with ann.streaming("POST", f"/tasks/{task_id}/execute") as response:
            stream = AsyncEventStream(response, RoomScreen())
            asked = (await stream.until("question_asked")).data
            await model.reached("b")
            path = f"/runs/{asked['run_id']}/questions/{asked['question_id']}/answer"
            await ann.post(path, {"answer": "blue"})
            await stream.until("question_answered")
            model.release("b")
            frames = (await stream.to_the_end()).frames
        ends = [frame.data["step_id"] for frame in frames if frame.event == "step_complete"]
        assert ends[:2] == ["b", "a"]
        # The answered step continues once there is a place again.
        result = next(frame for frame in frames if frame.data.get("step", {}).get("type") == "tool_result")
        ended = next(frame for frame in frames if frame.event == "step_complete")
        assert (result.id or 0) > (ended.id or 0)


async def test_the_stream_of_a_resumed_task_that_is_queued_does_not_end_at_its_pause(tmp_path: Path) -> None:
    def waits(step_id: str) -> Rule:
        when = When(user=rf"Your step \[{step_id}\]", call=1)
        return Rule(name=f"{step_id} waits", when=when, reply=[Text(text="x"), Gate(name=step_id), USUAL])

    rules = [waits("a"), does("a", "Whole"), waits("b")]
    with ServerProcess(tmp_path, LUXX_LIMITS__CONCURRENT_RUNS_PER_USER="1") as server:
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            task_id = await new_task(ann, model.url, step("a"))
            other_id = await new_task(ann, f"{model.url}/", step("b"))
            async with held(ann, task_id) as stream:
                await ann.post(f"/tasks/{task_id}/pause")
                await stream.to_the_end()
            async with held(ann, other_id):
                resumed = await ann.ask("POST", f"/tasks/{task_id}/resume", headers=JSON)
                assert (resumed.status_code, resumed.json()["data"]["status"]) == (202, "queued")
                async with ann.streaming("GET", f"/tasks/{task_id}/events") as response:
                    screen = RoomScreen()
                    screen.attach()
                    stream = AsyncEventStream(response, screen)
                    await stream.until("task_paused")
                    model.release("b")
                    frames = (await stream.to_the_end()).frames
            assert order(frames)[-1] == "task_complete"
            assert (await ann.get(f"/tasks/{task_id}"))["result"] == "Whole"


async def test_a_step_can_be_left_out_before_the_first_run_and_while_paused(server: ServerProcess) -> None:
    gate = Rule(
        name="slow", when=When(user=r"Your step \[a\]", call=1), reply=[Text(text="x"), Gate(name="g")]
    )
    rules = [gate, does("a", "Whole")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        steps = [step("a"), step("b"), step("c", "b"), step("d"), step("e", "d")]
        task_id = await new_task(ann, model.url, *steps)
        path = f"/tasks/{task_id}"
        assert await ann.post(f"{path}/steps/b/skip") is None
        before = {
            one["id"]: (one["status"], one["skipped_because"]) for one in (await ann.get(path))["steps"]
        }
        assert before == {
            "a": ("pending", None), "b": ("skipped", ""), "c": ("skipped", "b"), "d": ("pending", None),
            "e": ("pending", None),
        }  # fmt: skip
        assert (await refused(ann, f"{path}/steps/b/skip"))[:2] == (409, "step_ended")
        await ann.ask("PUT", path, {"max_concurrent_steps": 1})
        async with held(ann, task_id) as stream:
            await ann.post(f"{path}/pause")
            await stream.to_the_end()
        run = await ann.post(f"{path}/steps/d/skip")
        assert run["status"] == "paused"
        skipped = {"a": "pending", "b": "skipped", "c": "skipped", "d": "skipped", "e": "skipped"}
        assert await statuses(ann, task_id) == skipped
        frames = await execute(ann, task_id, "resume")
        left_out = [
            (one.data["step_id"], one.data["because"]) for one in frames if one.event == "step_skipped"
        ]
        assert left_out == [("d", ""), ("e", "d")]
        assert await statuses(ann, task_id) == {**skipped, "a": "completed"}
        assert (await ann.get(path))["result"] == "Whole"
        assert (await refused(ann, f"{path}/steps/a/skip"))[:2] == (409, "step_ended")


async def test_a_failed_step_that_a_person_skips_holds_nothing_up(server: ServerProcess) -> None:
    rules = [fails("a"), does("b", "Without a"), does("c", "After b"), does("d", "Done"), fails("e"), RESULT]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        steps = [step("a"), step("b", "a"), step("c", "b"), step("d"), step("e", "d")]
        task_id = await new_task(ann, model.url, *steps)
        path = f"/tasks/{task_id}"
        await execute(ann, task_id)
        assert await statuses(ann, task_id) == {
            "a": "failed", "b": "skipped", "c": "skipped", "d": "completed", "e": "failed",
        }  # fmt: skip
        first = (await ann.get(path))["run_id"]
        run = await ann.post(f"{path}/steps/a/skip")
        assert run["id"] != first
        await ann.follow_all(run["id"])
        found = {one["id"]: one for one in (await ann.get(path))["steps"]}
        assert (found["a"]["status"], found["a"]["skipped_because"]) == ("skipped", "a")
        assert "cannot do this" in found["a"]["error"]
        assert (found["b"]["output"], found["c"]["output"]) == ("Without a", "After b")
        asked = next(one for one in model.requests if one.rule == "b Without a").json
        assert "a person skipped it: it has no result" in asked["messages"][-1]["content"]
        assert (await ann.get(path))["status"] == "failed"

        # Nothing needs the other one: no run begins, and the task has no failed step any more.
        left = await ann.post(f"{path}/steps/e/skip")
        assert left["id"] == run["id"]
        task = await ann.get(path)
        assert (task["status"], task["run_id"]) == ("completed", run["id"])
        assert (await refused(ann, f"{path}/steps/e/skip"))[:2] == (409, "step_ended")


async def test_a_plan_that_a_pause_cut_is_drawn_anew_after_a_restart(own_server: ServerProcess) -> None:
    plan = '{"steps": [{"id": "a", "name": "A", "goal": "Do a", "depends_on": []}]}'
    rules = [
        Rule(name="cut", when=When(call=1), reply=[Text(text="Half a plan"), Gate(name="g")]),
        Rule(name="killed", when=When(call=2), reply=[Text(text="Half again"), Gate(name="k")]),
        Rule(name="plans", when=When(call=3), reply=[Text(text=plan)]),
        Rule(name="works", reply=[Text(text="Done")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        task_id = await new_task(ann, model.url)
        async with held(ann, task_id) as stream:
            await ann.post(f"/tasks/{task_id}/pause")
            frames = (await stream.to_the_end()).frames
        assert order(frames) == ["planning", "steered", "task_paused"]
        run = (await ann.ask("POST", f"/tasks/{task_id}/resume", headers=JSON)).json()["data"]
        await model.reached("k")
        await ann.kill_and_start()
        await ann.follow_all(run["id"])
        assert (await ann.get(f"/tasks/{task_id}"))["result"] == "Done"
        events = (await ann.ask("GET", f"/runs/{run['id']}/events", headers=JSON)).json()["data"]["events"]
        ended = [one["step_id"] for one in events if one["type"] == "step_complete"]
        assert ended == ["a"]
        # The attempt after the resume does not begin with the text that the pause cut.
        assert "assistant" not in [one["role"] for one in model.requests[2].json["messages"]]
