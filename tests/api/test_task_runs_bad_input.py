"""Wrong requests to plan, execute and steer tasks are refused with a sentence and change nothing."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from api.client import ApiClient
from api.conftest import connect, numbers
from api.schema import Document
from api.server_process import ServerProcess
from luxx.providers.scripted import ScriptedProvider

PLAN = "/tasks/plan"
STEPS = [{"id": "a", "name": "A"}, {"id": "b", "name": "B", "depends_on": ["a"], "require_approval": True}]


class Case(NamedTuple):
    """A wrong request; `field` is what the refusal names, None where nothing in the body is wrong."""

    name: str
    path: str
    body: Any
    field: str | None = None
    status: int = 400


GOAL = {"goal": "A report"}
PLANS = [
    Case("no goal", PLAN, {}, "$.goal"),
    Case("an empty goal", PLAN, {"goal": ""}, "$.goal"),
    Case("a goal without words", PLAN, {"goal": " \n\t "}, "$.goal"),
    Case("a goal that is a number", PLAN, {"goal": 5}, "$.goal"),
    Case("a goal of a book", PLAN, {"goal": "x" * 10_001}, "$.goal"),
    Case("constraints that are a list", PLAN, GOAL | {"constraints": ["soon"]}, "$.constraints"),
    Case("constraints of a book", PLAN, GOAL | {"constraints": "x" * 10_001}, "$.constraints"),
    Case("tools as a text", PLAN, GOAL | {"tools": "web_search"}, "$.tools"),
    Case("a tool without a name", PLAN, GOAL | {"tools": [""]}, "$.tools[0]"),
    Case("a tool that does not exist", PLAN, GOAL | {"tools": ["web_search", "no_such"]}, "$.tools"),
    Case("too many tools", PLAN, GOAL | {"tools": ["web_search"] * 201}, "$.tools"),
    Case("agents by their names", PLAN, GOAL | {"agents": ["Basic"]}, "$.agents[0]"),
    Case("an agent of zero", PLAN, GOAL | {"agents": [0]}, "$.agents[0]"),
    Case("an agent that does not exist", PLAN, GOAL | {"agents": [1, 987_654]}, "$.agents[1]", 404),
    Case("too many agents", PLAN, GOAL | {"agents": [1] * 21}, "$.agents"),
    Case("a provider that does not exist", PLAN, GOAL | {"provider_id": 987_654}, "$.provider_id", 404),
    Case("a provider by its name", PLAN, GOAL | {"provider_id": "local"}, "$.provider_id"),
    Case("an agent_id that does not exist", PLAN, GOAL | {"agent_id": 987_654}, "$.agent_id", 404),
    Case("an unknown field", PLAN, GOAL | {"steps": []}, "$.steps"),
    Case("a list", PLAN, [GOAL], "$"),
]
RUNS = [
    Case("approve with a text", "/approve", {"step_ids": "b"}, "$.step_ids"),
    Case("approve an empty id", "/approve", {"step_ids": [""]}, "$.step_ids[0]"),
    Case("approve a number", "/approve", {"step_ids": [1]}, "$.step_ids[0]"),
    Case("approve a long id", "/approve", {"step_ids": ["x" * 65]}, "$.step_ids[0]"),
    Case("approve too many", "/approve", {"step_ids": ["b"] * 201}, "$.step_ids"),
    Case("approve with an unknown field", "/approve", {"steps": ["b"]}, "$.steps"),
    Case("approve null", "/approve", {"step_ids": None}, "$.step_ids"),
    Case("approve an unknown step", "/approve", {"step_ids": ["b", "zz"]}, None, 404),
    Case("approve a step that needs none", "/approve", {"step_ids": ["a"]}, None, 409),
    Case("approve a task that needs none", "/approve", {}, None, 409),
    Case("skip an unknown step", "/steps/zz/skip", None, None, 404),
    Case("skip a step with NUL in its name", "/steps/%00a/skip", None),
    Case("skip a step with a strange name", "/steps/%2e%2e%0a/skip", None, None, 404),
    Case("retry an unknown step", "/steps/zz/retry", None, None, 404),
    Case("retry a pending step", "/steps/a/retry", None, None, 409),
    Case("retry a step of a long name", f"/steps/{'x' * 300}/retry", None, None, 404),
    Case("pause before the start", "/pause", None, None, 409),
    Case("resume before the start", "/resume", None, None, 409),
    Case("cancel before the start", "/cancel", None, None, 409),
]
READS = [
    ("/events", {}, 404, None),
    ("/events", {"last_event_id": "-1"}, 400, "last_event_id"),
    ("/events", {"last_event_id": "x"}, 400, "last_event_id"),
    ("/events", {"from_sequence": "x"}, 400, "from_sequence"),
    ("/events", {"limit": "0"}, 400, "limit"),
    ("/events", {"limit": "1000000"}, 400, "limit"),
    ("/events", {"accumulated": "perhaps"}, 400, "accumulated"),
    ("/steps/a/transcript", {}, 404, None),
    ("/steps/a/transcript", {"attempt": "0"}, 400, "attempt"),
    ("/steps/a/transcript", {"attempt": "one"}, 400, "attempt"),
    ("/steps/zz/transcript", {}, 404, None),
    ("/steps/task:plan-1/transcript", {}, 404, None),
    ("/steps/task:result/transcript", {}, 404, None),
]


@pytest.fixture(scope="module")
def planner(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"planner{next(numbers)}") as person:
        connect(person, upstream)
        yield person


@pytest.fixture(scope="module")
def task_path(planner: ApiClient) -> str:
    body = {"name": "Report", "goal": "Write it", "steps": STEPS}
    return f"/tasks/{planner.good('POST', '/tasks', json=body)['id']}"


def check_refusal(answer: dict[str, Any], field: str | None) -> None:
    sentence = answer["error"]
    assert sentence
    assert not any(word in sentence for word in ("Traceback", "msgspec", "^", "\\x"))
    if field is not None:
        assert field in answer["detail"]["fields"], answer


@pytest.mark.parametrize("case", PLANS, ids=lambda case: case.name)
def test_a_wrong_wish_for_a_plan_is_refused(
    planner: ApiClient, upstream: ScriptedProvider, case: Case
) -> None:
    calls, runs = len(upstream.requests), planner.good("GET", "/runs")["total"]
    check_refusal(planner.bad("POST", case.path, case.status, json=case.body), case.field)
    assert len(upstream.requests) == calls
    assert planner.good("GET", "/runs")["total"] == runs


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.name)
def test_a_wrong_request_about_the_run_of_a_task_is_refused(
    planner: ApiClient, task_path: str, case: Case
) -> None:
    before = planner.good("GET", task_path)
    body = {} if case.body is None else {"json": case.body}
    check_refusal(planner.bad("POST", task_path + case.path, case.status, **body), case.field)
    assert planner.good("GET", task_path) == before


@pytest.mark.parametrize(("path", "query", "status", "field"), READS)
def test_a_wrong_question_about_the_run_of_a_task_is_refused(
    planner: ApiClient, task_path: str, path: str, query: dict[str, str], status: int, field: str | None
) -> None:
    check_refusal(planner.bad("GET", task_path + path, status, params=query), field)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"goal": "a", "goal": "b"}', b'{"goal": "a\x00"}'])
def test_a_body_that_is_no_json_is_refused(planner: ApiClient, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    check_refusal(planner.bad("POST", PLAN, 400, content=content, headers=headers), None)


def test_agents_of_another_user_cannot_be_planned_with(
    planner: ApiClient, bob: ApiClient, upstream: ScriptedProvider
) -> None:
    theirs = bob.good("POST", "/agents", json={"name": "Bob's", "role": "secret"})["id"]
    calls = len(upstream.requests)
    foreign = planner.bad("POST", PLAN, 404, json=GOAL | {"agents": [theirs]})
    unknown = planner.bad("POST", PLAN, 404, json=GOAL | {"agents": [987_654]})
    assert foreign["error"].replace(f" {theirs}", " 987654") == unknown["error"]
    assert foreign["detail"].keys() == unknown["detail"].keys()
    assert len(upstream.requests) == calls
    planner.good("POST", PLAN, json=GOAL)
    assert "secret" not in str(upstream.requests[-1].json)
