"""Limits of a run and of a day: they are shown beforehand, enforced, and named in a sentence when reached."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.client import ApiClient
from api.conftest import answering, connect
from api.schema import Document
from api.server_process import ServerProcess
from api.streams import stream_message, stream_run
from luxx.providers.scripted import (
    Call,
    Counts,
    Finish,
    Gate,
    Rule,
    ScriptedProvider,
    Text,
    When,
)

MODEL = "own-model"
MOST_ANSWER = 300
CALLS_PER_RUN, TOKENS_PER_RUN, TOKENS_PER_DAY = 2, 6_000, 12_000
SETTINGS = {
    "LUXX_LIMITS__TOOL_CALLS_PER_RUN": str(CALLS_PER_RUN),
    "LUXX_LIMITS__TOKENS_PER_RUN": str(TOKENS_PER_RUN),
    "LUXX_LIMITS__TOKENS_PER_DAY": str(TOKENS_PER_DAY),
    "LUXX_LIMITS__COST_PER_DAY": "1",
    "LUXX_LIMITS__SECONDS_PER_RUN": "600",
    "LUXX_MODELS": f"[{{pattern: {MODEL}, context_window: 64000, max_output: {MOST_ANSWER}, "
    "input_price: 1, output_price: 4}]",
}
DAY = {"limit", "spent", "reserved", "left"}
numbers = itertools.count()


def list_files_call(number: int) -> Call:
    return Call(name="file_list", arguments={}, id=f"call-{number}")


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    rules = [
        Rule(name="waits", when=When(user="wait"), reply=[Text(text="I am"), Gate(name="g"), Finish()]),
        Rule(
            name="dear",
            when=When(user="dear", has_tool_result=False),
            reply=[Text(text="I look. "), list_files_call(0), Counts(prompt=5_500, completion=20)],
        ),
        Rule(
            name="many",
            when=When(user="many", has_tool_result=False),
            reply=[
                list_files_call(1),
                list_files_call(2),
                list_files_call(3),
                Counts(prompt=100, completion=20),
            ],
        ),
        Rule(
            name="one by one",
            when=When(user="one by one", call=1),
            reply=[list_files_call(4), Counts(prompt=100, completion=20)],
        ),
        Rule(
            name="and one more",
            when=When(user="one by one"),
            reply=[list_files_call(5), Counts(prompt=100, completion=20)],
            times=1,
        ),
        Rule(name="spends", when=When(user="spend"), reply=[Text(text="Gone."), Counts(prompt=2_700)]),
        Rule(name="answers", reply=[Text(text="Hello."), Counts(prompt=50, completion=10), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("limited"), **SETTINGS) as running:
        yield running


@pytest.fixture
def carol(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """A new user without usage."""
    with ApiClient(server, document).register(f"carol{next(numbers)}") as person:
        connect(person, upstream)
        yield person


def new_chat(person: ApiClient, **more: Any) -> str:
    chat_id: str = person.good("POST", "/conversations", json={"model": MODEL, **more})["id"]
    return chat_id


def limits_of(person: ApiClient) -> dict[str, Any]:
    limits: dict[str, Any] = person.good("GET", "/usage/limits")
    days = ("tokens_per_day", "shared_tokens_per_day", "cost_per_day")
    assert set(limits) == {"resets_at", *days, "per_run", "concurrent_turns"}
    assert all(set(limits[day]) == DAY for day in days)
    return limits


def say(
    person: ApiClient, chat: str, content: str, **more: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a message's run, and the run."""
    with stream_message(person, chat, content, **more) as stream:
        frames = stream.read_to_end()
    return frames, person.good("GET", f"/runs/{frames[0]['run']['id']}")


def test_a_user_sees_what_may_still_be_spent(carol: ApiClient) -> None:
    limits = limits_of(carol)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    assert limits["resets_at"] == f"{tomorrow}T00:00:00Z"
    whole = {"spent": 0, "reserved": 0}
    assert limits["tokens_per_day"] == {**whole, "limit": TOKENS_PER_DAY, "left": TOKENS_PER_DAY}
    assert limits["cost_per_day"] == {**whole, "limit": 1.0, "left": 1.0}
    assert limits["shared_tokens_per_day"] == {**whole, "limit": None, "left": None}
    assert limits["concurrent_turns"] == 20
    assert limits["per_run"] == {
        "tokens": TOKENS_PER_RUN,
        "cost": None,
        "seconds": 600.0,
        "tool_calls": CALLS_PER_RUN,
        "iterations": 10,
    }
    # Without tools, because the definitions of tools count as prompt tokens.
    hello = {"conversation_id": new_chat(carol), "content": "hello", "tools": False}
    carol.good("POST", "/messages", json=hello)
    limits = limits_of(carol)
    assert limits["tokens_per_day"] == {
        "limit": TOKENS_PER_DAY,
        "spent": 60,
        "reserved": 0,
        "left": TOKENS_PER_DAY - 60,
    }
    assert limits["cost_per_day"]["spent"] == pytest.approx((50 * 1 + 10 * 4) / 1e6)


def test_the_maximum_of_a_call_is_reserved_during_it_and_released_after_it(
    carol: ApiClient, upstream: ScriptedProvider
) -> None:
    chat = new_chat(carol)
    with stream_message(carol, chat, "wait", tools=False) as stream:
        stream.until("process_step")
        limits = limits_of(carol)
        reserved = limits["tokens_per_day"]
        assert MOST_ANSWER < reserved["reserved"] < MOST_ANSWER + 200
        assert reserved["left"] == TOKENS_PER_DAY - reserved["reserved"]
        assert 0 < limits["cost_per_day"]["reserved"] < 0.01
        assert next(each for each in upstream.requests if each.rule == "waits").json[
            "max_completion_tokens"
        ] == (MOST_ANSWER)
        carol.good("POST", f"/runs/{stream.received[0]['run']['id']}/cancel")
        stream.read_to_end()
    limits = limits_of(carol)
    assert (limits["tokens_per_day"]["reserved"], limits["cost_per_day"]["reserved"]) == (0, 0)
    assert 0 < limits["tokens_per_day"]["spent"] < reserved["reserved"]


def test_a_run_that_has_used_its_tokens_keeps_what_it_produced_and_says_why(carol: ApiClient) -> None:
    chat = new_chat(carol)
    frames, run = say(carol, chat, "dear", tools=["file_list"])
    assert (run["status"], run["stop_reason"]) == ("completed", "tokens")
    assert [frame["type"] for frame in frames[-2:]] == ["error", "done"]
    assert (frames[-2]["code"], frames[-2]["retryable"]) == ("tokens_per_run", False)
    assert "limits.tokens_per_run" in frames[-2]["message"]
    assert run["error"] == frames[-2]["message"]
    assert frames[-1]["status"] == "stopped"
    message = carol.good("GET", f"/messages?conversation_id={chat}")["items"][0]
    assert (message["status"], message["text"]) == ("partial", "I look. ")
    assert [step["status"] for step in message["steps"]] == ["done", "done", "done"]
    assert carol.good("GET", f"/conversations/{chat}")["run_id"] is None
    assert limits_of(carol)["tokens_per_day"]["spent"] == 5_520


def test_a_message_whose_answer_exceeds_the_run_limit_is_refused_and_kept(carol: ApiClient) -> None:
    chat = new_chat(carol)
    body = {"conversation_id": chat, "content": "word " * 4_000, "tools": False}
    refused = carol.bad("POST", "/messages", 400, json=body)
    detail = refused["detail"]
    assert detail["kind"] == "tokens_per_run"
    assert carol.good("GET", f"/runs/{detail['run_id']}")["stop_reason"] == "tokens"
    answer, asked = carol.good("GET", f"/messages?conversation_id={chat}")["items"]
    assert (answer["id"], answer["status"], answer["steps"]) == (detail["message_id"], "partial", [])
    assert asked["text"] == body["content"]
    assert limits_of(carol)["tokens_per_day"]["spent"] == 0


def test_the_rest_of_the_daily_limit_shortens_answers_and_then_refuses(
    carol: ApiClient, upstream: ScriptedProvider
) -> None:
    for _ in range(4):
        carol.good(
            "POST", "/messages", json={"conversation_id": new_chat(carol), "content": "spend", "tools": False}
        )
    left = limits_of(carol)["tokens_per_day"]["left"]
    assert left == TOKENS_PER_DAY - 4 * 2_700
    # The prompt leaves headroom for an answer, not for the longest: two letters count as one token.
    body = {"conversation_id": new_chat(carol), "content": "spend" + "e" * 1_650, "tools": False}
    carol.good("POST", "/messages", json=body)
    assert 256 <= upstream.requests[-1].json["max_completion_tokens"] < MOST_ANSWER
    body = {"conversation_id": new_chat(carol), "content": "hello", "tools": False}
    refused = carol.ask("POST", "/messages", json=body)
    assert refused.status_code == 429
    assert refused.json()["detail"]["kind"] == "tokens_per_day"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400


def test_a_daily_limit_without_headroom_for_one_token_counts_as_spent(carol: ApiClient) -> None:
    for _ in range(4):
        carol.good(
            "POST", "/messages", json={"conversation_id": new_chat(carol), "content": "spend", "tools": False}
        )
    body = {"conversation_id": new_chat(carol), "content": "x" * 2_400, "tools": False}
    refused = carol.bad("POST", "/messages", 429, json=body)
    assert refused["detail"]["kind"] == "tokens_per_day"
    run = carol.good("GET", f"/runs/{refused['detail']['run_id']}")
    assert (run["status"], run["stop_reason"]) == ("completed", "tokens")
    assert "midnight" in run["error"]


def test_calls_of_tools_past_the_limit_are_not_run_and_the_model_answers_without(
    carol: ApiClient, upstream: ScriptedProvider
) -> None:
    chat = new_chat(carol)
    frames, run = say(carol, chat, "many", tools=["file_list"])
    assert (run["status"], run["stop_reason"]) == ("completed", "max_iterations")
    assert frames[-1]["status"] == "max_iterations_reached"
    (warning,) = [frame for frame in frames if frame["type"] == "warning"]
    assert "limits.tool_calls_per_run" in warning["message"]
    message = carol.good("GET", f"/messages?conversation_id={chat}")["items"][0]
    results = [step for step in message["steps"] if step["type"] == "tool_result"]
    assert sorted((step["id_ref"], step["success"]) for step in results) == [
        ("call-1", True),
        ("call-2", True),
        ("call-3", False),
    ]
    (refused,) = [step for step in results if not step["success"]]
    assert "not run" in refused["content"]
    assert (message["status"], message["text"]) == ("complete", "Hello.")
    assert upstream.requests[-1].json["tool_choice"] == "none"
    assert upstream.requests[-1].json["tools"] == upstream.requests[-2].json["tools"]
    calls = carol.good("GET", f"/tool-calls?run_id={run['id']}")["items"]
    assert sorted(call["status"] for call in calls) == ["failed", "success", "success"]


def test_no_tool_may_be_called_after_the_last_allowed_call(
    carol: ApiClient, upstream: ScriptedProvider
) -> None:
    chat = new_chat(carol)
    frames, run = say(carol, chat, "one by one", tools=["file_list"])
    assert run["stop_reason"] == "max_iterations"
    assert [frame["type"] for frame in frames].count("warning") == 1
    assert [each.json.get("tool_choice") for each in upstream.requests[-3:]] == [None, None, "none"]


def test_a_model_of_unknown_price_is_refused_where_money_is_limited(carol: ApiClient) -> None:
    chat = new_chat(carol, model="nobody-knows")
    refused = carol.bad("POST", "/messages", 400, json={"conversation_id": chat, "content": "hello"})
    assert refused["detail"]["kind"] == "price_unknown"
    assert "models" in refused["error"]
    assert carol.good("GET", f"/messages?conversation_id={chat}")["items"] == []


def test_a_client_can_reconnect_to_the_stream_of_a_stopped_run(carol: ApiClient) -> None:
    frames, run = say(carol, new_chat(carol), "dear", tools=["file_list"])
    with stream_run(carol, run["id"]) as stream:
        again = stream.read_to_end()
    assert [frame for frame in again if frame["seq"]] == [frame for frame in frames if frame["seq"]]
