"""The event log of a conversation, the calls of its tools, and their complete results."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.client import ApiClient
from api.conftest import answering, connect, numbers
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

ROWS = [{"line": f"{number:05d}", "words": "some words in it"} for number in range(3_000)]
ACCEPT = {"accept": "application/json"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    """A model that lists files, makes a large text, names a missing file, and then reports it."""
    asks = [
        Call(name="file_list", arguments={}, id="call-a"),
        Call(name="process_data", arguments={"data": ROWS, "operation": "format"}, id="call-b"),
        Call(name="file_read", arguments={"path": "missing.txt"}, id="call-c"),
        Counts(prompt=10, completion=5),
        Finish(reason="tool_calls"),
    ]
    repeats = [
        Rule(
            name=f"repeats {number}",
            when=When(user="repeat yourself", call=number),
            reply=[Call(name="file_read", arguments={"path": f"{number}.txt"}, id="call_0"), Finish()],
        )
        for number in (1, 2)
    ]
    rules = [
        *repeats,
        Rule(name="waits", when=When(user="wait"), reply=[Text(text="so far"), Gate(name="g"), Finish()]),
        Rule(name="asks", when=When(user="use tools", has_tool_result=False), reply=asks),
        Rule(name="answers", reply=[Text(text="Done."), Counts(prompt=20, completion=2), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def dora(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """A user of level 1."""
    with ApiClient(server, document).register(f"dora{next(numbers)}") as person:
        connect(person, upstream)
        yield person


@pytest.fixture(scope="module")
def chat(dora: ApiClient) -> str:
    """A conversation with three answers; the middle one has no tool calls."""
    chat_id: str = dora.good("POST", "/conversations", json={})["id"]
    for content in ("use tools", "hello", "use tools, again"):
        dora.good("POST", "/messages", json={"conversation_id": chat_id, "content": content})
    return chat_id


def log_of(person: ApiClient, run_id: str) -> list[dict[str, Any]]:
    """Every event of a run. A page ends at its limit in bytes before it ends at its limit in events."""
    events: list[dict[str, Any]] = []
    while True:
        path = f"/runs/{run_id}/events?limit=1000&from_sequence={len(events) + 1}"
        page = person.good("GET", path, headers=ACCEPT)
        events += page["events"]
        if not page["has_more"]:
            return events


def logs_of(person: ApiClient, chat: str) -> list[dict[str, Any]]:
    """Every event of every run, from the runs' own logs, oldest run first."""
    runs = person.good("GET", f"/runs?subject_id={chat}&page_size=100")["items"][::-1]
    events: list[dict[str, Any]] = []
    for run in runs:
        events += log_of(person, run["id"])
    return events


def read_all_pages(person: ApiClient, path: str, name: str, limit: int) -> list[dict[str, Any]]:
    """All entries, by following the cursor."""
    entries: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = {"limit": limit, **({"cursor": cursor} if cursor else {})}
        page = person.good("GET", path, params=query)
        assert set(page) == {name, "has_more", "cursor"}
        assert len(page[name]) <= limit
        entries += page[name]
        cursor = page["cursor"]
        if not page["has_more"]:
            return entries


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_a_conversations_events_are_those_of_its_runs_in_order(
    dora: ApiClient, chat: str, limit: int
) -> None:
    events = read_all_pages(dora, f"/conversations/{chat}/events", "events", limit)
    assert events == logs_of(dora, chat)
    assert len({(event["run_id"], event["seq"]) for event in events}) == len(events)
    assert len({event["run_id"] for event in events}) == 3


def test_the_cursor_goes_on_where_there_was_nothing_more(dora: ApiClient) -> None:
    chat = dora.good("POST", "/conversations", json={})["id"]
    path = f"/conversations/{chat}/events"
    assert dora.good("GET", path) == {"events": [], "has_more": False, "cursor": None}
    dora.good("POST", "/messages", json={"conversation_id": chat, "content": "hello"})
    first = dora.good("GET", path)
    nothing = dora.good("GET", path, params={"cursor": first["cursor"]})
    assert nothing == {"events": [], "has_more": False, "cursor": first["cursor"]}
    dora.good("POST", "/messages", json={"conversation_id": chat, "content": "hello"})
    second = dora.good("GET", path, params={"cursor": nothing["cursor"]})
    assert first["events"] + second["events"] == logs_of(dora, chat)
    for wrong in ("x", "äöü", "AAAA", first["cursor"] + "A", "kgH/", "_" * 120):
        refused = dora.bad("GET", path, 400, params={"cursor": wrong})
        assert set(refused["detail"]["fields"]) == {"cursor"}


def test_runs_have_the_title_of_their_conversation(dora: ApiClient) -> None:
    chat = dora.good("POST", "/conversations", json={"title": "Colours"})["id"]
    dora.good("POST", "/messages", json={"conversation_id": chat, "content": "hello"})
    (run,) = dora.good("GET", "/runs", params={"subject_id": chat})["items"]
    dora.good("PUT", f"/conversations/{chat}", json={"title": "Shades"})
    assert (run["title"], dora.good("GET", f"/runs/{run['id']}")["title"]) == ("Colours", "Shades")


def test_the_status_names_the_running_run_and_the_end_of_its_log(dora: ApiClient) -> None:
    chat = dora.good("POST", "/conversations", json={})["id"]
    path = f"/conversations/{chat}/execution-status"
    assert dora.good("GET", path) == {
        "is_running": False, "is_waiting": False, "last_sequence": 0, "current_message_id": None, "run": None,
    }  # fmt: skip
    with stream_message(dora, chat, "wait") as stream:
        stream.until("process_step")
        run = stream.received[0]["run"]
        execution = dora.good("GET", path)
        assert (execution["is_running"], execution["current_message_id"]) == (True, run["message_id"])
        assert execution["run"]["id"] == run["id"]
        dora.good("POST", f"/runs/{run['id']}/cancel")
        last = stream.read_to_end()[-1]
    execution = dora.good("GET", path)
    assert (execution["is_running"], execution["current_message_id"]) == (False, None)
    assert (execution["last_sequence"], execution["run"]["status"]) == (last["seq"], "cancelled")


def test_tool_executions_show_the_arguments_and_the_outcome(dora: ApiClient, chat: str) -> None:
    path = f"/conversations/{chat}/tool-executions"
    executions = dora.good("GET", path)["executions"]
    assert read_all_pages(dora, path, "executions", 1) == executions
    names = [(each["tool_name"], each["call_id"], each["status"]) for each in executions]
    once = [
        ("file_list", "call-a", "success"),
        ("process_data", "call-b", "success"),
        ("file_read", "call-c", "failed"),
    ]
    assert names == once * 2
    events = {(event["run_id"], event["seq"]): event for event in logs_of(dora, chat)}
    for each in executions:
        asked = events[each["run_id"], each["seq"]]["step"]
        assert asked["id_ref"] == each["call_id"]
        assert asked["arguments"] == each["tool_input"]
        assert asked["index"] == each["step_number"]
        assert each["started_at"] <= each["completed_at"]
        assert each["duration_ms"] >= 0
        assert each["tool_output"]["success"] is (each["status"] == "success")
    assert json.loads(executions[1]["tool_input"])["data"] == ROWS
    messages = dora.good("GET", f"/messages?conversation_id={chat}&page_size=100")["items"][::-1]
    by_message = [
        dora.good("GET", path, params={"message_id": message["id"]})["executions"] for message in messages
    ]
    assert by_message == [executions[:3], executions[:3], [], [], executions[3:], executions[3:]]
    assert {each["message_id"] for each in executions[3:]} == {messages[-1]["id"]}
    other = dora.good("POST", "/conversations", json={})["id"]
    dora.bad("GET", f"/conversations/{other}/tool-executions", 404, params={"message_id": messages[0]["id"]})


def test_tool_calls_are_listed_newest_first_by_tool_and_by_run(dora: ApiClient, chat: str) -> None:
    run = dora.good("GET", f"/runs?subject_id={chat}")["items"][0]["id"]
    inside = dora.good("GET", f"/conversations/{chat}/tool-executions")["executions"]
    page = dora.good("GET", "/tool-calls", params={"run_id": run})
    assert page["items"] == inside[3:][::-1]
    page = dora.good("GET", "/tool-calls", params={"tool": "file_list"})
    assert [each["tool_name"] for each in page["items"]] == ["file_list"] * page["total"]
    everything = dora.good("GET", "/tool-calls", params={"page_size": 100})
    assert everything["total"] == len(everything["items"]) == 6
    second = dora.good("GET", "/tool-calls", params={"page_size": 4, "page": 2})
    assert second["items"] == everything["items"][4:]
    assert dora.good("GET", "/tool-calls", params={"tool": "no_such"})["items"] == []


def test_a_result_that_was_cut_can_be_read_whole(dora: ApiClient, chat: str) -> None:
    run = dora.good("GET", f"/runs?subject_id={chat}")["items"][0]["id"]
    path = f"/runs/{run}/results/call-b"
    text, offset = "", 0
    while True:
        piece = dora.good("GET", path, params={"offset": offset, "limit": 70_000})
        assert (piece["call_id"], piece["offset"], piece["is_cut"]) == ("call-b", offset, True)
        text += piece["output"]
        offset += len(piece["output"])
        if not piece["has_more"]:
            break
    assert len(text) == piece["total"]
    assert '"line": "00000"' in json.loads(text)["result"]
    assert '"line": "02999"' in json.loads(text)["result"]
    beyond = dora.good("GET", path, params={"offset": 2**31 - 1})
    assert (beyond["output"], beyond["has_more"]) == ("", False)
    listed = dora.good("GET", f"/runs/{run}/results/call-a")
    assert listed["is_cut"] is False
    assert json.loads(listed["output"])
    assert "missing.txt" in dora.good("GET", f"/runs/{run}/results/call-c")["output"]
    dora.bad("GET", f"/runs/{run}/results/call-z", 404)


def test_calls_with_the_same_id_are_kept_apart(dora: ApiClient) -> None:
    chat = dora.good("POST", "/conversations", json={})["id"]
    dora.good("POST", "/messages", json={"conversation_id": chat, "content": "repeat yourself"})
    executions = dora.good("GET", f"/conversations/{chat}/tool-executions")["executions"]
    assert [json.loads(call["tool_input"])["path"] for call in executions] == ["1.txt", "2.txt"]
    assert executions[0]["call_id"] == "call_0" != executions[1]["call_id"]
    for call in executions:
        result = dora.good("GET", f"/runs/{call['run_id']}/results/{call['call_id']}")
        assert json.loads(call["tool_input"])["path"] in result["output"]


def test_question_that_was_answered_again_has_the_calls_of_all_its_answers(dora: ApiClient) -> None:
    chat = dora.good("POST", "/conversations", json={})["id"]
    first = dora.good("POST", "/messages", json={"conversation_id": chat, "content": "use tools"})
    question = first["parent_id"]
    path = f"/conversations/{chat}/tool-executions"

    def runs_of(message_id: str) -> list[str]:
        executions = dora.good("GET", path, params={"message_id": message_id})["executions"]
        return [call["run_id"] for call in executions]

    sent = {"headers": ACCEPT, "json": {}}
    again = dora.ask("POST", f"/messages/{question}/regenerate", **sent).json()["data"]
    with stream_run(dora, again["id"]) as stream:
        stream.read_to_end()
    one, two = runs_of(first["id"]), runs_of(again["message_id"])
    assert runs_of(question) == one + two
    assert len(one) == len(two) == 3
    dora.good("DELETE", f"/messages/{again['message_id']}")
    assert runs_of(question) == one
    dora.good("DELETE", f"/messages/{question}")
    assert dora.good("GET", f"/runs?subject_id={chat}")["items"] == []


def test_what_was_deleted_is_not_replayed(dora: ApiClient) -> None:
    chat = dora.good("POST", "/conversations", json={})["id"]
    dora.good("POST", "/messages", json={"conversation_id": chat, "content": "hello"})
    answer = dora.good("POST", "/messages", json={"conversation_id": chat, "content": "use tools"})
    calls = dora.good("GET", "/tool-calls")["total"]
    dora.good("DELETE", f"/messages/{answer['parent_id']}")
    assert dora.good("GET", "/tool-calls")["total"] == calls - 3
    assert dora.good("GET", f"/conversations/{chat}/tool-executions")["executions"] == []
    events = dora.good("GET", f"/conversations/{chat}/events")["events"]
    assert len({event["run_id"] for event in events}) == 1
