"""Limits hold for whatever begins after a run was admitted: seats, steps, subagents, tests of providers."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from api.client import ApiClient
from api.conftest import answering, connect
from api.schema import Document
from api.server_process import ServerProcess
from api.streams import stream_message
from luxx.providers.scripted import Call, Counts, Finish, Rule, ScriptedProvider, Text, When

MODEL = "own-model"
SHARED_TOKENS = 20_000
TURNS = 2
SETTINGS = {
    "LUXX_LIMITS__LEVEL1_TOKENS_PER_DAY": str(SHARED_TOKENS),
    "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": str(TURNS),
    "LUXX_MODELS": f"[{{pattern: {MODEL}, context_window: 64000, max_output: 300, "
    "input_price: 1, output_price: 4}]",
}
SPEND = 15_000
"""Tokens of each answer to `spend`: one fits `SHARED_TOKENS`, two do not."""

DONE = [Text(text="Done."), Counts(prompt=50, completion=10), Finish()]
JSON = {"accept": "application/json"}
numbers = itertools.count()


def delegating(text: str, task: str) -> Rule:
    """The rule that answers a message with four subagents."""
    calls = [Call(name="delegate", arguments={"task": task}, id=f"call-{number}") for number in range(4)]
    return Rule(name=text, when=When(user=text, has_tool_result=False), reply=[*calls, Finish()])


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    rules = [
        delegating("four parts", "part"),
        delegating("four bills", "spend"),
        Rule(name="spends", when=When(user="spend"), reply=[Text(text="Gone."), Counts(prompt=SPEND)]),
        Rule(name="answers", reply=DONE),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("turns"), **SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def shared_id(admin: ApiClient, upstream: ScriptedProvider) -> int:
    provider_id = connect(admin, upstream)
    admin.good("PUT", f"/providers/{provider_id}", json={"is_shared": True, "default_model": MODEL})
    return provider_id


@pytest.fixture
def carol(server: ServerProcess, document: Document, shared_id: int) -> Iterator[ApiClient]:
    """A new user of level 1, who has only the shared provider."""
    with ApiClient(server, document).register(f"carol{next(numbers)}") as person:
        yield person


def new_chat(person: ApiClient, provider_id: int) -> str:
    body = {"model": MODEL, "provider_id": provider_id}
    chat_id: str = person.good("POST", "/conversations", json=body)["id"]
    return chat_id


def new_seats(count: int, provider_id: int) -> list[dict[str, Any]]:
    names = (f"Seat {number}" for number in range(count))
    return [{"name": name, "provider_id": provider_id, "model": MODEL} for name in names]


def run_to_end(person: ApiClient, path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run that a request starts, once it has ended or paused, and its events."""
    with person.http.stream("POST", path, headers={"accept": "text/event-stream"}) as response:
        response.read()
    assert response.status_code == 200, response.text
    run_id = response.text.split('"run_id":"')[1].split('"')[0]
    events = person.good("GET", f"/runs/{run_id}/events?limit=500", headers=JSON)["events"]
    return person.good("GET", f"/runs/{run_id}"), events


def most_at_once(events: list[dict[str, Any]], begin: str, end: str) -> int:
    """How many turns were in progress at once."""
    changes = [1 if event["type"] == begin else -1 for event in events if event["type"] in (begin, end)]
    assert sum(changes) == 0
    return max(itertools.accumulate(changes))


def spend_shared_tokens(person: ApiClient, provider_id: int) -> None:
    """Two answers: the second is made, because its own size is not known before."""
    for _ in range(2):
        body = {"conversation_id": new_chat(person, provider_id), "content": "spend", "tools": False}
        person.good("POST", "/messages", json=body)


def test_seats_that_speak_at_once_stay_within_the_limit_of_concurrent_turns(
    carol: ApiClient, shared_id: int
) -> None:
    room = {
        "title": "r",
        "task": "t",
        "max_rounds": 2,
        "policy": "parallel",
        "agents": new_seats(4, shared_id),
    }
    path = f"/chat-rooms/{carol.good('POST', '/chat-rooms', json=room)['id']}"
    run, events = run_to_end(carol, f"{path}/start")
    assert (run["status"], run["stop_reason"]) == ("completed", "rounds")
    assert sum(event["type"] == "message_end" for event in events) == 8
    assert most_at_once(events, "message_start", "message_end") == TURNS


def test_steps_of_a_task_stay_within_the_limit_of_concurrent_turns(carol: ApiClient, shared_id: int) -> None:
    steps = [{"id": f"s{number}", "name": f"s{number}", "goal": "g"} for number in range(5)]
    task = {"name": "t", "goal": "g", "provider_id": shared_id, "steps": steps, "max_concurrent_steps": 5}
    task_id = carol.good("POST", "/tasks", json=task)["id"]
    run, events = run_to_end(carol, f"/tasks/{task_id}/execute")
    assert run["status"] == "completed"
    steps_only = [event for event in events if str(event.get("step_id", "")).startswith("s")]
    assert most_at_once(steps_only, "step_start", "step_complete") == TURNS


def test_subagents_stay_within_the_limit_of_concurrent_turns(carol: ApiClient, shared_id: int) -> None:
    with stream_message(carol, new_chat(carol, shared_id), "four parts", tools=["delegate"]) as stream:
        frames = stream.read_to_end()
    assert frames[-1]["status"] == "completed"
    assigned = [frame for frame in frames if frame["type"] == "subagent_assigned"]
    runs = [carol.good("GET", f"/runs/{run_id}") for run_id in {one["subagent_run_id"] for one in assigned}]
    assert [run["status"] for run in runs] == ["completed"] * 4
    changes = sorted([(run["started_at"], 1) for run in runs] + [(run["finished_at"], -1) for run in runs])
    assert max(itertools.accumulate(change for _, change in changes)) == TURNS
    chats = [new_chat(carol, shared_id) for _ in range(TURNS)]
    for chat in chats:  # All slots are free again.
        body = {"conversation_id": chat, "content": "hi", "tools": False}
        started = carol.good("POST", "/messages/stream", json=body, headers=JSON)
        assert started["status"] == "running"


def test_a_user_of_level_1_sees_the_limit_of_shared_providers(
    carol: ApiClient, admin: ApiClient, shared_id: int
) -> None:
    shared = carol.good("GET", "/usage/limits")["shared_tokens_per_day"]
    assert shared == {"limit": SHARED_TOKENS, "spent": 0, "reserved": 0, "left": SHARED_TOKENS}
    spend_shared_tokens(carol, shared_id)
    shared = carol.good("GET", "/usage/limits")["shared_tokens_per_day"]
    assert (shared["spent"], shared["left"]) == (2 * SPEND, 0)
    assert admin.good("GET", "/usage/limits")["shared_tokens_per_day"]["limit"] is None


def test_no_room_call_subagent_step_or_test_exceeds_the_limit_of_shared_providers(
    carol: ApiClient, shared_id: int, upstream: ScriptedProvider
) -> None:
    room = {"title": "r", "task": "spend", "agents": new_seats(1, shared_id)}
    room_id = carol.good("POST", "/chat-rooms", json=room)["id"]
    agent = {"name": f"agent{next(numbers)}", "provider_id": shared_id, "model": MODEL}
    agent_id = carol.good("POST", "/agents", json=agent)["id"]
    own = connect(carol, upstream)
    step = {"id": "s", "name": "s", "goal": "spend", "agent_id": agent_id}
    task = {"name": "t", "goal": "g", "provider_id": own, "steps": [step]}
    task_id = carol.good("POST", "/tasks", json=task)["id"]
    chat = new_chat(carol, shared_id)
    spend_shared_tokens(carol, shared_id)
    calls = len(upstream.requests)

    refused = carol.bad("POST", "/messages", 429, json={"conversation_id": chat, "content": "hi"})
    assert refused["detail"]["kind"] == "level1_tokens_per_day"
    assert "shared providers" in refused["error"]
    run, _ = run_to_end(carol, f"/chat-rooms/{room_id}/start")
    assert (run["status"], run["stop_reason"]) == ("completed", "tokens")
    assert "limits.level1_tokens_per_day" in run["error"]
    body = {"model": f"room/{room_id}", "messages": [{"role": "user", "content": "spend"}]}
    carol.ask("POST", "/v1/chat/completions", json=body)
    run, _ = run_to_end(carol, f"/tasks/{task_id}/execute")
    assert run["status"] == "paused"
    assert "limits.level1_tokens_per_day" in run["error"]
    assert carol.good("GET", f"/tasks/{task_id}")["status"] == "block"
    tested = carol.bad("POST", f"/providers/{shared_id}/test", 429)
    assert tested["detail"]["kind"] == "level1_tokens_per_day"
    assert len(upstream.requests) == calls, "no model call was made"

    body = {"conversation_id": new_chat(carol, own), "content": "hi", "tools": False}
    carol.good("POST", "/messages", json=body)
    assert carol.good("GET", "/usage/limits")["shared_tokens_per_day"]["spent"] == 2 * SPEND


def test_subagents_share_the_limit_of_shared_providers(carol: ApiClient, shared_id: int) -> None:
    with stream_message(carol, new_chat(carol, shared_id), "four bills", tools=["delegate"]) as stream:
        stream.read_to_end()
    day = carol.good("GET", "/usage/limits")["shared_tokens_per_day"]
    assert day["spent"] < 3 * SPEND, "two subagents at once may have started before the first answer"


def test_a_test_of_a_provider_is_usage(carol: ApiClient, upstream: ScriptedProvider) -> None:
    own = connect(carol, upstream)
    carol.good("PUT", f"/providers/{own}", json={"default_model": MODEL})
    assert carol.good("POST", f"/providers/{own}/test")["ok"]
    sums = carol.good("GET", "/usage")["sums"]
    assert (sums["completions"], sums["prompt_tokens"], sums["completion_tokens"]) == (1, 50, 10)
    assert sums["cost"] == pytest.approx(50 / 1e6 + 4 * 10 / 1e6)
    assert carol.good("GET", "/usage?group_by=conversation")["items"] == []
    carol.bad("POST", "/providers/999999/test", 404)
