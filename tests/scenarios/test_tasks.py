"""Tasks at a real server: steps in their order, plans, failures, pauses, retries."""

import re
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.rooms import USUAL, RoomScreen, order
from scenarios.screen import Frame

RESULT = Rule(
    name="result", when=When(system="Write its final result"), reply=[Text(text="All done [a]."), USUAL]
)


def does(step_id: str, text: str, *before: Any, **more: Any) -> Rule:
    """What the model answers for a step."""
    user = rf"Your step \[{re.escape(step_id)}\]"
    return Rule(
        name=f"{step_id} {text}", when=When(user=user, **more), reply=[*before, Text(text=text), USUAL]
    )


async def new_task(ann: AsyncApiClient, provider_url: str, *steps: Json, **more: Any) -> str:
    provider_id = await ann.connect(provider_url)
    body = {"name": "Report", "goal": "Write the report", "provider_id": provider_id, "steps": [*steps]}
    return (await ann.post("/tasks", {**body, **more}))["id"]


def step(step_id: str, *depends_on: str, **more: Any) -> Json:
    return {
        "id": step_id,
        "name": f"Step {step_id}",
        "goal": f"Do {step_id}",
        "depends_on": [*depends_on],
        **more,
    }


async def execute(ann: AsyncApiClient, task_id: str, path: str = "execute") -> list[Frame]:
    """All frames of the task's run from its start, or with the path `resume` from its pause."""
    async with ann.streaming("POST", f"/tasks/{task_id}/{path}") as response:
        return (await AsyncEventStream(response, RoomScreen()).to_the_end()).frames


async def statuses(ann: AsyncApiClient, task_id: str) -> dict[str, str]:
    task = await ann.get(f"/tasks/{task_id}")
    return {one["id"]: one["status"] for one in task["steps"]}


async def test_steps_run_after_those_that_they_need_and_read_their_results(server: ServerProcess) -> None:
    rules = [does("a", "Facts of a"), does("b", "Facts of b"), does("c", "Together"), RESULT]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"), step("c", "a", "b"))
        frames = await execute(ann, task_id)
        events = [
            (frame.event, frame.data.get("step_id")) for frame in frames if frame.event.startswith("step_")
        ]
        assert events[:2] == [("step_start", "a"), ("step_start", "b")]
        assert events.index(("step_start", "c")) > max(
            events.index(("step_complete", "a")), events.index(("step_complete", "b"))
        )
        assert order(frames)[-1] == "task_complete"
        asked = next(one for one in model.requests if one.rule.startswith("c")).json["messages"][-1][
            "content"
        ]
        assert "Facts of a" in asked
        assert "Facts of b" in asked
        task = await ann.get(f"/tasks/{task_id}")
        assert (task["status"], task["result"]) == ("completed", "All done [a].")
        assert [one["output"] for one in task["steps"]] == ["Facts of a", "Facts of b", "Together"]
        assert [one["attempts"] for one in task["steps"]] == [1, 1, 1]


async def test_a_task_without_steps_is_planned_first_and_a_bad_plan_is_corrected(
    server: ServerProcess,
) -> None:
    bad = '{"steps": [{"id": "a", "name": "A", "goal": "g", "depends_on": ["z"]}]}'
    good = '{"steps": [{"id": "a", "name": "A", "goal": "g"}, {"id": "b", "name": "B", "depends_on": ["a"]}]}'
    planner = "Split the goal"
    rules = [
        Rule(name="bad", when=When(system=planner, call=1), reply=[Text(text=bad), USUAL]),
        Rule(name="good", when=When(system=planner, call=2), reply=[Text(text=f"Here: {good}"), USUAL]),
        does("a", "First"),
        does("b", "Second"),
        RESULT,
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url)
        frames = await execute(ann, task_id)
        kinds = order(frames)
        assert kinds.index("planning") < kinds.index("plan_created") < kinds.index("step_start")
        assert kinds.count("planning") == 2
        sent = next(one for one in model.requests if one.rule == "good").json["messages"][-1]["content"]
        assert "'z'" in sent
        assert await statuses(ann, task_id) == {"a": "completed", "b": "completed"}


async def test_a_failed_step_skips_what_needs_it_and_a_retry_runs_both(server: ServerProcess) -> None:
    fails = Rule(
        name="fails", when=When(user=r"Your step \[a\]", call=1), status=400, message="cannot do this"
    )
    rules = [fails, does("a", "Now it works"), does("b", "Alone"), does("c", "After a"), RESULT]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"), step("c", "a"))
        frames = await execute(ann, task_id)
        assert await statuses(ann, task_id) == {"a": "failed", "b": "completed", "c": "skipped"}
        skipped = [frame.data for frame in frames if frame.event == "step_skipped"]
        assert [(one["step_id"], one["because"]) for one in skipped] == [("c", "a")]
        assert frames[-1].data["status"] == "failed"
        task = await ann.get(f"/tasks/{task_id}")
        ended = await ann.get(f"/runs/{task['run_id']}")
        assert (task["status"], ended["status"], ended["stop_reason"]) == ("failed", "failed", "steps_failed")
        assert ended["error"] == "step a failed; retry, or skip what is not needed"
        run = await ann.post(f"/tasks/{task_id}/steps/a/retry")
        await ann.follow_all(run["id"])
        assert (await ann.get(f"/runs/{run['id']}"))["status"] == "completed"
        assert await statuses(ann, task_id) == dict.fromkeys("abc", "completed")
        assert [one.rule for one in model.requests].count("b Alone") == 1


async def test_a_pause_makes_steps_in_progress_pending_and_resume_runs_them(server: ServerProcess) -> None:
    rules = [
        Rule(
            name="slow",
            when=When(user=r"Your step \[a\]", call=1),
            reply=[Text(text="Half "), Gate(name="gate"), USUAL],
        ),
        does("a", "Whole"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"))
        async with ann.streaming("POST", f"/tasks/{task_id}/execute") as response:
            stream = AsyncEventStream(response, RoomScreen())
            await stream.until("process_step")
            paused = await ann.post(f"/tasks/{task_id}/pause")
            frames = (await stream.to_the_end()).frames
        assert (paused["status"], order(frames)[-1]) == ("paused", "task_paused")
        assert (await ann.get(f"/tasks/{task_id}"))["status"] == "block"
        assert await statuses(ann, task_id) == {"a": "pending"}
        resumed = await execute(ann, task_id, "resume")
        assert order(resumed) == ["step_start", "step_complete", "task_complete"]
        assert next(one.id for one in resumed if one.id is not None) == (frames[-1].id or 0) + 1
        task = await ann.get(f"/tasks/{task_id}")
        assert (task["status"], task["result"], task["steps"][0]["attempts"]) == ("completed", "Whole", 2)


async def test_a_task_waits_for_its_approval_and_a_step_for_its_own(server: ServerProcess) -> None:
    rules = [does("a", "First"), does("b", "Second"), RESULT]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(
            ann, model.url, step("a"), step("b", "a", require_approval=True), require_approval=True
        )
        run = (
            await ann.ask("POST", f"/tasks/{task_id}/execute", headers={"accept": "application/json"})
        ).json()
        run_id = run["data"]["id"]
        await ann.until_status(run_id, "waiting")
        assert model.requests == []
        assert (await ann.get(f"/tasks/{task_id}"))["status"] == "block"
        await ann.post(f"/tasks/{task_id}/approve", {})
        await ann.until_status(run_id, "waiting", last_seq=3)
        assert await statuses(ann, task_id) == {"a": "completed", "b": "pending"}
        await ann.post(f"/tasks/{task_id}/approve", {"step_ids": ["b"]})
        await ann.follow_all(run_id)
        assert await statuses(ann, task_id) == {"a": "completed", "b": "completed"}


async def test_a_cancelled_task_is_terminated(server: ServerProcess) -> None:
    slow = Rule(name="slow", reply=[Text(text="Half "), Gate(name="gate"), USUAL])
    async with ScriptedProvider(Script(rules=[slow])) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"))
        async with ann.streaming("POST", f"/tasks/{task_id}/execute") as response:
            stream = AsyncEventStream(response, RoomScreen())
            await stream.until("process_step")
            await ann.post(f"/tasks/{task_id}/cancel")
            frames = (await stream.to_the_end()).frames
        assert frames[-1].data["status"] == "terminated"
        assert (await ann.get(f"/tasks/{task_id}"))["status"] == "terminated"
        assert await statuses(ann, task_id) == {"a": "pending", "b": "pending"}
