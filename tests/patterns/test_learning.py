"""Patterns are learned from answers that went well, without their data, and given to later requests."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Finish, Gate, Rule, ScriptedProvider, Text, When

READER = "You describe a way of working"
SECRETS = ("Anneliese Vogel", "ACME-77123", "4111 1111 1111 1111", "anneliese@vogel.example")
CHART = "Make a chart of the sales of Anneliese Vogel, order ACME-77123, paid by 4111 1111 1111 1111"
LATER = "Make a chart of the sales of Bernhard Koch, order BX-90"
WRITTEN = {
    "name": "Chart of sales for Anneliese Vogel",
    "description": "Makes a chart of sales.",
    "steps": [
        {
            "description": "List the files, mail anneliese@vogel.example",
            "tools": ["file_list", "unknown_tool"],
            "expected_output": "the names of the files",
            "decision_points": [],
        },
        {"description": "Draw the chart", "tools": [], "expected_output": "a chart", "decision_points": []},
    ],
}
USAGE = Counts(prompt=100, completion=10)


def calls() -> list[Any]:
    return [Call(name="file_list", arguments={}, id=f"call-{number}") for number in range(3)]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    finish = Finish(reason="tool_calls")
    task = {"task": "Draw a chart of all windows and doors"}
    delegated = [*calls(), Call(name="delegate", arguments=task, id="call-d")]
    rules = [
        Rule(when=When(system=READER), reply=[Text(text=json.dumps(WRITTEN)), USAGE, Finish()]),
        Rule(when=When(user="Let another", has_tool_result=False), reply=[*delegated, finish]),
        Rule(when=When(user="Lost invoices"), status=401, message="the key is refused"),
        Rule(when=When(user="quickly", has_tool_result=False), reply=[*calls()[:2], finish]),
        Rule(when=When(user="chart", has_tool_result=False), reply=[*calls(), finish]),
        Rule(reply=[Text(text="The chart of Anneliese Vogel is ready."), USAGE, Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("patterns"), LUXX_PATTERNS__WAIT_SECONDS="0") as running:
        yield running


def connect(person: ApiClient, model: ScriptedProvider) -> None:
    """Makes the model the default of an administrator."""
    person.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
    body = {"name": "scripted", "provider_type": "openai", "base_url": f"{model.url}/v1"}
    keys = {"api_key": "sk-a-key", "default_model": "scripted"}
    provider = person.good("POST", "/providers", json={**body, **keys})
    person.good("PUT", "/settings", json={"default_provider_id": provider["id"]})


@pytest.fixture(scope="module")
def admin(server: ServerProcess, model: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document_of(server)).sign_in() as person:
        connect(person, model)
        yield person


def say(person: ApiClient, text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    conversation = person.good("POST", "/conversations", json=fields)["id"]
    body = {"conversation_id": conversation, "content": text, "tools": ["file_list"]}
    return conversation, person.good("POST", "/messages", json=body)


def say_and_decide(person: ApiClient, text: str, answer: Any) -> tuple[str, dict[str, Any]]:
    """The conversation and the message of a person who is asked whether the pattern is used."""
    conversation = person.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": text, "tools": ["file_list"]}
    waiting = person.bad("POST", "/messages", 409, json=body)["detail"]
    path = f"/runs/{waiting['run_id']}/questions"
    (question,) = person.good("GET", path)["items"]
    assert (question["kind"], question["decision_type"]) == ("decision", "pattern")
    assert [option["label"] for option in question["options"]] == ["use", "skip"]
    person.good("POST", f"{path}/{question['id']}/answer", json={"answer": answer})
    for _ in range(300):
        run = person.good("GET", f"/runs/{waiting['run_id']}")
        if run["status"] == "completed":
            break
        time.sleep(0.1)
    messages = person.good("GET", "/messages", params={"conversation_id": conversation})["items"]
    return conversation, next(one for one in messages if one["role"] == "assistant")


def given(answer: dict[str, Any]) -> list[str]:
    """The patterns in the steps of an answer."""
    return [step["id_ref"] for step in answer["steps"] if step.get("name") == "pattern"]


def rows(server: ServerProcess, query: str) -> list[Any]:
    with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database:
        return database.execute(query).fetchall()


def until_looked_at(server: ServerProcess) -> None:
    """Waits until no run is to be looked at and no run makes a pattern."""
    for _ in range(300):
        waiting = rows(server, "SELECT 1 FROM run_ended WHERE reader = 'patterns'")
        running = rows(server, "SELECT 1 FROM runs WHERE kind = 'pattern' AND finished_at IS NULL")
        if not (waiting or running):
            return
        time.sleep(0.1)
    raise AssertionError("the runs were not looked at in 30 s")


def test_three_successes_make_a_pattern_active_which_the_fourth_message_is_given(
    server: ServerProcess, admin: ApiClient, model: ScriptedProvider
) -> None:
    # While the switch is off there is no row and no call.
    before = len(model.requests)
    say(admin, CHART)
    assert len(model.requests) - before == 2
    assert rows(server, "SELECT 1 FROM run_ended WHERE reader = 'patterns'") == []
    time.sleep(0.5)
    assert admin.good("GET", "/patterns")["items"] == []

    assert admin.good("PUT", "/tenant", json={"learn_patterns": True})["learn_patterns"] is True
    say(admin, CHART)
    until_looked_at(server)
    (pattern,) = admin.good("GET", "/patterns")["items"]
    assert (pattern["status"], pattern["success_count"], pattern["scope"]) == ("draft", 1, "user")
    assert [step["tools"] for step in pattern["steps"]] == [["file_list"], []]
    assert pattern["tool_chains"] == [["file_list"] * 3]
    # One call made it, and what it cost is in the usage.
    (run,) = admin.good("GET", "/runs", params={"kind": "pattern"})["items"]
    assert (run["status"], run["usage"]["prompt_tokens"]) == ("completed", 100)
    purposes = rows(server, f"SELECT purpose FROM usage_records WHERE run_id = '{run['id']}'")
    assert purposes == [("extraction",)]
    asked = next(one for one in model.requests if READER in one.body.decode())

    conversation, _ = say(admin, LATER)
    assert "learned pattern" not in str(model.requests[-1].json)
    say(admin, CHART)
    until_looked_at(server)
    pattern = admin.good("GET", f"/patterns/{pattern['id']}")
    assert (pattern["status"], pattern["success_count"]) == ("active", 3)
    assert len(pattern["sources"]) == 3
    assert [one["before"] for one in admin.good("GET", f"/patterns/{pattern['id']}/history")] == [
        {"status": "draft"}
    ]
    # The later two asked no model.
    assert len(admin.good("GET", "/runs", params={"kind": "pattern"})["items"]) == 1

    at = len(model.requests)
    conversation, answer = say_and_decide(admin, LATER, "use")
    first, second = (one.json["messages"] for one in model.requests[at : at + 2])
    assert pattern["steps"][1]["description"] in first[-1]["content"]
    assert second[: len(first)] == first
    assert sum("stands for what the request names" in str(one["content"]) for one in second) == 1
    assert given(answer) == [pattern["id"]]
    # Waiting for a person is no call that was lost.
    assert rows(server, "SELECT 1 FROM run_events WHERE type IN ('retrying', 'warning')") == []
    events = admin.good("GET", f"/conversations/{conversation}/events", params={"limit": 200})["events"]
    (used,) = (one for one in events if one["type"] == "pattern_used")
    assert used["pattern_id"] == pattern["id"]
    assert used["similarity"] >= 80
    (match,) = admin.good("POST", "/patterns/match", json={"text": LATER})["matches"]
    assert (match["id"], match["similarity"]) == (pattern["id"], used["similarity"])
    until_looked_at(server)
    assert admin.good("GET", f"/patterns/{pattern['id']}")["usage_count"] == 4

    # Without a person the run goes on with it; who wants none gets none, and own words reach the model.
    at = len(model.requests)
    _, answer = say_and_decide(admin, LATER, "skip")
    assert given(answer) == []
    assert "stands for what the request names" not in str([one.json for one in model.requests[at:]])
    _, answer = say_and_decide(admin, LATER, "only the last two years")
    assert given(answer) == [pattern["id"]]
    assert "only the last two years" in str(model.requests[-1].json)
    conversation = admin.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": LATER, "tools": ["file_list"], "when_asked": "deny"}
    assert given(admin.good("POST", "/messages", json=body)) == [pattern["id"]]
    until_looked_at(server)

    # Nothing of the person is stored, and the model of the extraction saw none of it.
    dump = "\n".join(str(rows(server, f"SELECT * FROM {name}")) for name in
                     ("patterns", "pattern_words", "pattern_uses", "pattern_changes"))  # fmt: skip
    stored = dump + str(rows(server, "SELECT request FROM runs WHERE kind = 'pattern'")) + asked.body.decode()
    for secret in (*SECRETS, "Anneliese", "Vogel", "77123", "1111"):
        assert secret not in stored, secret

    # Each source can be opened: a run that is deleted with its conversation is none any more.
    sources = admin.good("GET", f"/patterns/{pattern['id']}")["sources"]
    for source in sources[:2]:
        subject = admin.good("GET", f"/runs/{source}")["subject_id"]
        admin.good("DELETE", f"/conversations/{subject}")
    assert admin.good("GET", f"/patterns/{pattern['id']}")["sources"] == sources[2:]


def test_short_tainted_and_left_out_runs_teach_nothing(
    server: ServerProcess, admin: ApiClient, model: ScriptedProvider
) -> None:
    admin.good("PUT", "/tenant", json={"learn_patterns": True})
    until_looked_at(server)
    known = rows(server, "SELECT count(*), sum(usage_count) FROM patterns")
    say(admin, "Make a chart of the weather quickly")
    conversation, _ = say(admin, CHART, record=False)
    assert admin.good("GET", f"/conversations/{conversation}")["record"] is False
    # What was off at the end of the answer counts, not what is on when Luxx looks at it.
    assert (
        rows(server, f"SELECT 1 FROM run_ended WHERE subject_id = '{conversation}' AND reader = 'patterns'")
        == []
    )
    admin.good("PUT", f"/conversations/{conversation}", json={"record": None})
    events = admin.good("GET", f"/conversations/{conversation}/events", params={"limit": 200})["events"]
    assert [one for one in events if one["type"] == "pattern_used"] == []
    until_looked_at(server)
    assert rows(server, "SELECT count(*), sum(usage_count) FROM patterns") == known


def test_errors_of_a_provider_are_no_failures_of_a_pattern(server: ServerProcess, admin: ApiClient) -> None:
    admin.good("PUT", "/tenant", json={"learn_patterns": True})
    goal = "Translate the letters about the weather"
    body = {"name": "Lost invoices", "goal": goal, "steps": [{"description": "Read the letters"}]}
    path = f"/patterns/{admin.good('POST', '/patterns', json=body)['id']}"
    for _ in range(6):
        conversation = admin.good("POST", "/conversations", json={})["id"]
        sent = {"conversation_id": conversation, "content": goal, "when_asked": "deny"}
        assert admin.bad("POST", "/messages", 502, json=sent)["detail"]["kind"] == "provider_key_refused"
        events = admin.good("GET", f"/conversations/{conversation}/events", params={"limit": 200})["events"]
        assert [one["pattern_id"] for one in events if one["type"] == "pattern_used"] == [path[10:]]
    until_looked_at(server)
    pattern = admin.good("GET", path)
    assert (pattern["status"], pattern["failure_count"], pattern["usage_count"]) == ("active", 0, 0)
    admin.good("DELETE", path)


def test_tainted_and_delegated_runs_teach_nothing(
    server: ServerProcess, admin: ApiClient, model: ScriptedProvider
) -> None:
    """The same requests teach where nothing taints them and nobody was given them."""
    admin.good("PUT", "/tenant", json={"learn_patterns": True})
    skill = {
        "name": "unread",
        "description": "Is read by nobody.",
        "scope": "tenant",
        "content": "Draw the chart.",
    }
    skill = admin.good("POST", "/skills", json=skill)
    assert skill["is_reviewed"] is False

    def send(text: str, **fields: Any) -> list[tuple[str, int]]:
        """Sends the message and returns how much is known when its runs have been looked at."""
        conversation = admin.good("POST", "/conversations", json={})["id"]
        body = {"conversation_id": conversation, "content": text, **fields}
        answer = admin.good("POST", "/messages", json=body)
        assert [step["success"] for step in answer["steps"] if step["type"] == "tool_result"][:3] == [
            True
        ] * 3
        until_looked_at(server)
        return rows(server, "SELECT id, usage_count FROM patterns ORDER BY id")

    until_looked_at(server)
    known = rows(server, "SELECT id, usage_count FROM patterns ORDER BY id")
    windows = "Draw a chart of all windows and doors"
    assert send(windows, tools=["file_list"], skills=["unread"]) == known
    taught = send(windows, tools=["file_list"])
    assert len(taught) == len(known) + 1
    # The subagent makes three calls for a request that is known now; only the run that delegates counts.
    asked = len(model.requests)
    others = send("Let another person prepare the garden", tools=["file_list", "delegate"])
    assert sum("windows and doors" in one.body.decode() for one in model.requests[asked:]) >= 2
    assert [use for use in others if use in taught] == taught
    assert len(others) == len(taught) + 1


def test_a_server_killed_while_it_learns_makes_one_pattern(tmp_path: Path) -> None:
    finish = Finish(reason="tool_calls")
    rules = [
        Rule(when=When(system=READER, call=1), reply=[Gate(name="learning"), Text(text="too late")]),
        Rule(when=When(system=READER), reply=[Text(text=json.dumps(WRITTEN)), USAGE, Finish()]),
        Rule(when=When(user="chart", has_tool_result=False), reply=[*calls(), finish]),
        Rule(reply=[Text(text="Done."), USAGE, Finish()]),
    ]
    with answering(rules) as model, ServerProcess(tmp_path, LUXX_PATTERNS__WAIT_SECONDS="0") as server:
        with ApiClient(server, document_of(server)).sign_in() as person:
            connect(person, model)
            person.good("PUT", "/tenant", json={"learn_patterns": True})
            say(person, CHART)
        asked = 0
        for _ in range(200):
            if asked := sum(READER in one.body.decode() for one in model.requests):
                break
            time.sleep(0.1)
        assert asked == 1
        server.kill()
        server.start()
        until_looked_at(server)
        assert rows(server, "SELECT status FROM runs WHERE kind = 'pattern'") == [("completed",)]
        assert rows(server, "SELECT status, success_count, usage_count FROM patterns") == [("draft", 1, 1)]
        assert rows(server, "SELECT count(*) FROM pattern_uses") == [(1,)]
        assert sum(READER in one.body.decode() for one in model.requests) == 2
