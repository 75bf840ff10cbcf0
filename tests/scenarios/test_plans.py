"""`POST /tasks/plan` at a real server: a plan or one clear failure; no task is stored."""

import asyncio
import json
from typing import Any

import httpx
from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.rooms import USUAL, RoomScreen, order
from scenarios.test_tasks import execute, new_task, step

STRUCTURED = "gpt-4.1-mini"
"""A model with structured output and a known price."""

STEPS: list[Json] = [
    {"id": "find", "name": "Find sources", "goal": "Ten links.", "tools": ["web_search"]},
    {"id": "sum", "name": "Sum up", "depends_on": ["find"], "agent": "Careful", "expected_output": "A page."},
]
GOOD = json.dumps({"steps": STEPS})


def plans(*texts: str) -> Script:
    """A model that answers with these texts, one after another."""
    return Script(
        rules=[
            Rule(name=f"plan {number}", when=When(call=number), reply=[Text(text=text), USUAL])
            for number, text in enumerate(texts, 1)
        ]
    )


async def ask_plan(ann: AsyncApiClient, **body: Any) -> httpx.Response:
    return await ann.ask("POST", "/tasks/plan", body)


async def runs_of_plans(ann: AsyncApiClient) -> list[Json]:
    return (await ann.get("/runs", kind="task", subject_id="plan"))["items"]


async def structured_provider(ann: AsyncApiClient, url: str) -> int:
    body = {"name": url, "provider_type": "openai", "base_url": f"{url}/v1", "api_key": "sk-a"}
    return (await ann.post("/providers", {**body, "default_model": STRUCTURED}))["id"]


async def test_a_plan_has_steps_for_a_task_an_estimate_and_its_cost_and_stores_no_task(
    own_server: ServerProcess,
) -> None:
    async with ScriptedProvider(plans(GOOD)) as model, AsyncApiClient(own_server.url) as ann:
        provider_id = await structured_provider(ann, model.url)
        agent = await ann.post("/agents", {"name": "Careful", "role": "reads twice"})
        tasks_before = (await ann.get("/tasks"))["total"]
        response = await ask_plan(
            ann, goal="A report", constraints="In one day", tools=["web_search"], agents=[agent["id"]],
            provider_id=provider_id,
        )  # fmt: skip
        plan = response.json()["data"]
        assert (await ann.get("/tasks"))["total"] == tasks_before
        first, second = plan["steps"]
        assert (first["id"], first["required_tools"], first["agent_id"]) == ("find", ["web_search"], None)
        assert (second["depends_on"], second["agent_id"], second["required_tools"]) == (
            ["find"],
            agent["id"],
            [],
        )
        assert second["expected_output"] == "A page."
        estimate = plan["estimate"]
        assert (estimate["turns"], estimate["basis"]) == (3, "assumed")
        assert (estimate["prompt_tokens"], estimate["completion_tokens"]) == (18_000, 3_000)
        assert estimate["cost"] > 0
        assert estimate["seconds"] is None
        run = await ann.run(plan["run_id"])
        assert (run["status"], run["usage"]["prompt_tokens"]) == ("completed", 10)
        assert plan["cost"] == run["cost"] > 0
        used = (await ann.get("/usage", group_by="task"))["items"]
        assert [one["cost"] for one in used if one["key"] == "plan"] == [plan["cost"]]
        sent = model.requests[0].json
        assert "A report" in sent["messages"][-1]["content"]
        assert "In one day" in sent["messages"][-1]["content"]
        assert "reads twice" in sent["messages"][-1]["content"]
        assert sent["response_format"]["json_schema"]["schema"]["required"] == ["steps"]
        task = await ann.post("/tasks", {"name": "From a plan", "goal": "A report", "steps": plan["steps"]})
        assert [step["id"] for step in task["steps"]] == ["find", "sum"]


async def test_an_estimate_has_the_means_of_earlier_steps_once_there_are_five(
    own_server: ServerProcess,
) -> None:
    rules = [
        Rule(
            name="plan",
            when=When(system="Split the goal"),
            reply=[Text(text='{"steps": [{"name": "A"}]}'), USUAL],
        ),
        Rule(name="works", reply=[Text(text="Done"), USUAL]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(own_server.url) as ann:
        provider_id = await ann.connect(model.url)
        for count, basis in ((4, "assumed"), (1, "measured")):
            task_id = await new_task(ann, f"{model.url}/{basis}", *(step(f"s{n}") for n in range(count)))
            await ann.ask("PUT", f"/tasks/{task_id}", {"provider_id": provider_id})
            await execute(ann, task_id)
            plan = (await ask_plan(ann, goal="A report", provider_id=provider_id)).json()["data"]
            assert plan["estimate"]["basis"] == basis
        assert plan["estimate"]["measured_steps"] == 5
        assert (plan["estimate"]["prompt_tokens"], plan["estimate"]["completion_tokens"]) == (10, 5)
        assert plan["estimate"]["seconds"] is not None


async def test_a_wrong_plan_is_corrected_twice_and_then_refused_whole(server: ServerProcess) -> None:
    wrong = '{"steps": [{"id": "a", "name": "A", "depends_on": ["a"], "tools": ["no_such_tool"]}]}'
    async with (
        ScriptedProvider(plans(wrong, "I cannot.", GOOD.replace("Careful", "none"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        provider_id = await ann.connect(model.url)
        plan = (await ask_plan(ann, goal="A report", provider_id=provider_id)).json()["data"]
        assert [step["id"] for step in plan["steps"]] == ["find", "sum"]
        sent = model.requests[2].json["messages"]
        assert "no_such_tool" in sent[-3]["content"]
        assert "has no plan" in sent[-1]["content"]
        assert plan["estimate"]["cost"] is None
    async with ScriptedProvider(plans(wrong, wrong, wrong)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        refused = await ask_plan(ann, goal="A report", provider_id=provider_id)
        body = refused.json()
        assert (refused.status_code, body["detail"]["kind"]) == (502, "plan_invalid")
        assert "no_such_tool" in body["error"]
        assert (await ann.run(body["detail"]["run_id"]))["status"] == "failed"
        assert len(model.requests) == 3


async def test_a_plan_can_be_followed_as_a_stream(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(plans(GOOD.replace("Careful", "none"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        provider_id = await ann.connect(model.url)
        body = {"goal": "A report", "provider_id": provider_id}
        async with ann.plan_and_follow(RoomScreen(), **body) as stream:
            frames = (await stream.to_the_end()).frames
        assert order(frames) == ["planning", "plan_created", "task_complete"]
        assert [frame.data["purpose"] for frame in frames if frame.event == "cost_update"] == ["plan"]
        created = next(frame.data for frame in frames if frame.event == "plan_created")
        assert created["task_id"] is None
        assert created["estimate"]["turns"] == 3
        assert [step["id"] for step in created["steps"]] == ["find", "sum"]


async def test_a_client_that_disconnects_ends_the_call_upstream(server: ServerProcess) -> None:
    slow = Rule(name="slow", reply=[Text(text="{"), Gate(name="gate"), USUAL])
    async with ScriptedProvider(Script(rules=[slow])) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        before = {run["id"] for run in await runs_of_plans(ann)}
        asking = asyncio.create_task(ask_plan(ann, goal="A report", provider_id=provider_id))
        await model.arrived()
        request = model.requests[0]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await request.wait_closed(5)
        (run,) = [one for one in await runs_of_plans(ann) if one["id"] not in before]
        await ann.until_status(run["id"], "cancelled")


async def test_a_cancelled_plan_answers_that_it_was_cancelled(server: ServerProcess) -> None:
    slow = Rule(name="slow", reply=[Text(text="{"), Gate(name="gate"), USUAL])
    async with ScriptedProvider(Script(rules=[slow])) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        asking = asyncio.create_task(ask_plan(ann, goal="A report", provider_id=provider_id))
        await model.arrived()
        request = model.requests[0]
        run = (await runs_of_plans(ann))[0]
        await ann.cancel(run["id"])
        await request.wait_closed(5)
        answer = await asking
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            {"kind": "run_cancelled", "run_id": run["id"]},
        )
