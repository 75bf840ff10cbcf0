"""Patterns in plans and tasks, and what people decide and correct: it becomes a part of their pattern."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Finish, Rule, ScriptedProvider, Text, When
from patterns.test_learning import READER, USAGE, WRITTEN, calls, connect, given, rows, until_looked_at

PATTERN: dict[str, Any] = {
    "name": "Chart of the sales",
    "goal": "Make a chart of the sales of Anneliese Vogel",
    "steps": [
        {"description": "Draw the chart"},
        {"description": "List the files first", "tools": ["file_list"]},
    ],
}
ASKED = "Make a chart of the sales of Bernhard Koch"
REFERENCE = "stands for what the request names"
DETACHED = {"accept": "application/json"}
PLAN = {
    "steps": [{"id": name, "name": name, "goal": f"Write part {name}"} for name in ("one", "two", "three")]
}


def asks(text: str) -> Call:
    options = [{"label": label, "description": "", "is_recommended": False} for label in ("line", "table")]
    arguments = {"question_type": "scope", "question": text, "options": options}
    return Call(name="ask_clarification", arguments=arguments, id="call-ask")


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    finish = Finish(reason="tool_calls")
    asking = [*calls(), asks("Which kind of chart for Anneliese?")]
    rules = [
        Rule(when=When(system=READER), reply=[Text(text=json.dumps(WRITTEN)), USAGE, Finish()]),
        Rule(when=When(system="Split the goal"), reply=[Text(text=json.dumps(PLAN)), USAGE, Finish()]),
        Rule(when=When(user="Your step", has_tool_result=False), reply=[*calls(), finish]),
        Rule(when=When(user="chart", has_tool_result=False), reply=[*asking, finish]),
        Rule(reply=[Text(text="Done."), USAGE, Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("decisions"), LUXX_PATTERNS__WAIT_SECONDS="0") as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: ServerProcess, model: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document_of(server)).sign_in() as person:
        connect(person, model)
        person.good("PUT", "/tenant", json={"learn_patterns": True})
        yield person


def until_ended(person: ApiClient, run_id: str) -> dict[str, Any]:
    for _ in range(200):
        run = person.good("GET", f"/runs/{run_id}")
        if run["status"] in ("completed", "failed", "cancelled"):
            return run
        time.sleep(0.1)
    raise AssertionError("the run has not ended in 20 s")


def answer_all(person: ApiClient, text: str, *answers: str, **fields: Any) -> str:
    """Sends a message and answers each question that follows. Returns the conversation."""
    conversation = person.good("POST", "/conversations", json=fields)["id"]
    body = {"conversation_id": conversation, "content": text, "tools": ["file_list", "ask_clarification"]}
    run_id = person.good("POST", "/messages/stream", json=body, headers=DETACHED)["id"]
    for answer in answers:
        for _ in range(200):
            open_ones = person.good("GET", f"/runs/{run_id}/questions", params={"status": "open"})["items"]
            if open_ones:
                break
            time.sleep(0.1)
        path = f"/runs/{run_id}/questions/{open_ones[0]['id']}/answer"
        person.good("POST", path, json={"answer": answer})
    assert until_ended(person, run_id)["status"] == "completed"
    return conversation


def points(person: ApiClient, pattern_id: str) -> list[list[str]]:
    return [step["decision_points"] for step in person.good("GET", f"/patterns/{pattern_id}")["steps"]]


def changed_steps(person: ApiClient, pattern_id: str) -> list[Any]:
    """The steps before each change of them, the newest first."""
    history = person.good("GET", f"/patterns/{pattern_id}/history")
    return [one["before"]["steps"] for one in history if "steps" in one["before"]]


def used_in(server: ServerProcess, run_id: str) -> list[str]:
    """The patterns in the log of a run."""
    found = rows(server, f"SELECT data FROM run_events WHERE run_id = '{run_id}' AND type = 'pattern_used'")
    return [json.loads(data)["pattern_id"] for (data,) in found]


def test_answers_and_corrections_change_the_pattern_of_their_person(
    server: ServerProcess, admin: ApiClient
) -> None:
    pattern = admin.good("POST", "/patterns", json=PATTERN)
    id_ = pattern["id"]
    answer_all(admin, ASKED, "use", "a line chart for Anneliese Vogel")
    until_looked_at(server)
    # In the step that calls the tool before the question, without the name.
    assert points(admin, id_) == [[], ["which kind of chart for {name}: a line chart for {name}"]]
    assert changed_steps(admin, id_) == [pattern["steps"]]
    # Another answer takes the place of the first; words about the pattern itself are a correction.
    answer_all(admin, ASKED, "only the totals by month", "a table")
    until_looked_at(server)
    assert points(admin, id_) == [["only the totals by month"], ["which kind of chart for {name}: a table"]]
    # The same answers again change nothing.
    changes = changed_steps(admin, id_)
    answer_all(admin, ASKED, "use", "a table")
    until_looked_at(server)
    after = admin.good("GET", f"/patterns/{id_}")
    assert changed_steps(admin, id_) == changes
    assert (after["usage_count"], after["success_count"]) == (3, 3)

    # What a model is given has them; a conversation that is not recorded neither gets nor changes it.
    answer_all(admin, ASKED, "a line chart", record=False)
    # A pattern that others get too is changed by people only.
    admin.good("POST", f"/patterns/{id_}/share")
    answer_all(admin, ASKED, "use", "a line chart")
    until_looked_at(server)
    assert points(admin, id_) == [step["decision_points"] for step in after["steps"]]
    assert admin.good("GET", f"/patterns/{id_}")["usage_count"] == 4
    admin.good("DELETE", f"/patterns/{id_}")


def test_plans_are_drawn_with_the_pattern_that_fits(
    server: ServerProcess, admin: ApiClient, model: ScriptedProvider
) -> None:
    until_looked_at(server)
    pattern = admin.good("POST", "/patterns", json={**PATTERN, "goal": "Write a report of the weather"})
    goal = "Write the report of the weather for Anneliese"
    at = len(model.requests)
    plan = admin.good("POST", "/tasks/plan", json={"goal": goal})
    (sent,) = model.requests[at:]
    assert sent.json["messages"][-1]["content"].count(REFERENCE) == 1
    assert used_in(server, plan["run_id"]) == [pattern["id"]]
    other = {"goal": "Translate a poem"}
    assert admin.good("POST", "/tasks/plan", json=other)["steps"]
    assert REFERENCE not in str(model.requests[-1].json)

    # A task that is planned when it begins counts for the pattern.
    task = admin.good("POST", "/tasks", json={"name": "Report", "goal": goal})["id"]
    run = admin.good("POST", f"/tasks/{task}/execute", headers=DETACHED)
    assert until_ended(admin, run["id"])["status"] == "completed"
    assert used_in(server, run["id"]) == [pattern["id"]]
    until_looked_at(server)
    after = admin.good("GET", f"/patterns/{pattern['id']}")
    assert (after["usage_count"], after["success_count"]) == (1, 1)

    # In a chat the plan has it, once, and nobody is asked; the answer is made from the plan.
    at = len(model.requests)
    conversation = admin.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": goal, "planning": "always", "tools": ["file_list"]}
    message = admin.good("POST", "/messages", json=body)
    given_to = [REFERENCE in str(one.json) for one in model.requests[at:]]
    assert given_to == [True] + [False] * (len(given_to) - 1)
    assert len(given_to) > 4
    assert given(message) == []
    assert used_in(server, message["plan_run_id"]) == [pattern["id"]]
    until_looked_at(server)
    assert admin.good("GET", f"/patterns/{pattern['id']}")["usage_count"] == 2
    admin.good("DELETE", f"/patterns/{pattern['id']}")


def test_a_task_kept_as_a_template_suggests_a_pattern(server: ServerProcess, admin: ApiClient) -> None:
    until_looked_at(server)
    step = {"id": "s1", "name": "List the files of Anneliese", "required_tools": ["file_list"]}
    document = {"version": 1, "name": "Summary", "goal": "Write a summary of the files", "steps": [step]}
    body = {"name": "Weekly", "document": document}
    template = admin.good("POST", "/task-templates", json=body)["id"]
    admin.good("POST", "/task-templates", json={**body, "name": "Again"})
    (draft,) = admin.good("GET", "/patterns")["items"]
    assert (draft["status"], draft["usage_count"], draft["name"]) == ("draft", 0, "summary")
    assert draft["steps"][0]["description"] == "list the files of {name}"
    assert draft["steps"][0]["tools"] == ["file_list"]
    made = len(admin.good("GET", "/runs", params={"kind": "pattern"})["items"])
    for count in (1, 2, 3):
        task = admin.good("POST", f"/task-templates/{template}/instantiate", json={})["id"]
        run = admin.good("POST", f"/tasks/{task}/execute", headers=DETACHED)
        assert until_ended(admin, run["id"])["status"] == "completed"
        until_looked_at(server)
        assert admin.good("GET", f"/patterns/{draft['id']}")["success_count"] == count
    after = admin.good("GET", f"/patterns/{draft['id']}")
    assert (after["status"], len(after["sources"])) == ("active", 3)
    assert len(admin.good("GET", "/runs", params={"kind": "pattern"})["items"]) == made
    # Where nothing is learned, a template suggests nothing.
    admin.good("PUT", "/tenant", json={"learn_patterns": False})
    admin.good(
        "POST", "/task-templates", json={"name": "Else", "document": {**document, "goal": "Sort mail"}}
    )
    assert admin.good("GET", "/patterns")["total"] == 1
    assert rows(server, "SELECT 1 FROM run_ended WHERE reader = 'patterns'") == []
    admin.good("PUT", "/tenant", json={"learn_patterns": True})
