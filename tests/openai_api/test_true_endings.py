"""How an answer ended, and what it has of its calls, as a client of `/v1` reads it."""

import json
from typing import Any

import pytest

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import Person
from openai_api.test_chat import MODEL, WEATHER
from openai_api.test_stateless import newest_run


def chunks_of(ann: Person, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = ann.api.http.post("/v1/chat/completions", json={**body, "stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def warnings_of_newest(ann: Person, field: str = "message") -> list[str]:
    """A field of each warning of the newest run."""
    headers = {"accept": "application/json"}
    events = ann.api.good("GET", f"/runs/{newest_run(ann)['id']}/events", headers=headers)["events"]
    return [event[field] for event in events if event["type"] == "warning"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_end_for_an_unknown_reason_is_never_called_regular(
    ann: Person, upstream: ScriptedProvider, is_streamed: bool
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "end strangely"}]}
    if is_streamed:
        finish = chunks_of(ann, body)[-1]["choices"][0]["finish_reason"]
    else:
        choice = ann.api.http.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert choice["message"]["content"] == "One"
        finish = choice["finish_reason"]
    assert finish == "unknown"


def test_message_that_ended_for_an_unknown_reason_has_no_finish_and_a_warning(ann: Person) -> None:
    conversation = ann.api.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "end strangely"}
    message = ann.api.good("POST", "/messages", json=body)
    assert (message["text"], message["finish"]) == ("One", None)
    warnings = warnings_of_newest(ann)
    assert len(warnings) == 1
    assert "eaten_by_a_bear" in warnings[0]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_call_without_arguments_has_an_empty_object(ann: Person, is_streamed: bool) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "call nothing"}], "tools": WEATHER}
    if is_streamed:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(ann, body)]
        parts = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", [])]
        arguments = "".join(parts)
    else:
        answer = ann.api.http.post("/v1/chat/completions", json=body).json()
        arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments == "{}"


def test_json_mode_is_tried_with_a_model_that_nobody_described(
    ann: Person, upstream: ScriptedProvider
) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "as JSON"}],
        "response_format": {"type": "json_object"},
    }
    answer = ann.api.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert upstream.requests[-1].json["response_format"] == {"type": "json_object"}


def test_text_that_was_cut_within_an_emoji_is_kept_with_a_warning(
    ann: Person, upstream: ScriptedProvider
) -> None:
    conversation = ann.api.good("POST", "/conversations", json={})["id"]
    for path in ("/messages", "/messages/stream"):
        content = (
            b'{"conversation_id": "%s", "content": "cut \\ud83d here \\\\ud83d"}' % conversation.encode()
        )
        headers = {"content-type": "application/json"}
        answer = ann.api.http.post(path, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        assert upstream.requests[-1].json["messages"][-1]["content"] == "cut \ufffd here \\ud83d"
        assert ["U+FFFD" in warning for warning in warnings_of_newest(ann)] == [True]


def test_replacement_character_that_a_person_typed_is_no_cut(ann: Person, upstream: ScriptedProvider) -> None:
    conversation = ann.api.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "what is \ufffd?"}
    ann.api.good("POST", "/messages", json=body)
    assert upstream.requests[-1].json["messages"][-1]["content"] == "what is \ufffd?"
    assert warnings_of_newest(ann) == []


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("content", "is_met"), [("as JSON", True), ("in words", False), ("Say hello.", False)]
)
def test_answer_that_does_not_follow_its_schema_is_not_complete(
    ann: Person, content: str, is_met: bool
) -> None:
    conversation = ann.api.good("POST", "/conversations", json={})["id"]
    format_ = {"type": "json_schema", "schema": SCHEMA}
    body = {"conversation_id": conversation, "content": content, "response_format": format_}
    message = ann.api.good("POST", "/messages", json=body)
    assert message["status"] == ("complete" if is_met else "partial")
    assert warnings_of_newest(ann, "code") == ([] if is_met else ["schema_not_met"])
    named: dict[str, Any] = {"name": "place", "schema": SCHEMA}
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "response_format": {"type": "json_schema", "json_schema": named},
    }
    choice = ann.api.http.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert choice["finish_reason"] == ("stop" if is_met else "schema_not_met")
    assert choice["message"]["content"]
    response = {"model": MODEL, "input": content, "text": {"format": {"type": "json_schema", **named}}}
    status = ann.api.http.post("/v1/responses", json=response).json()["status"]
    assert status == ("completed" if is_met else "incomplete")


def test_half_of_a_pair_is_replaced_and_told(ann: Person) -> None:
    conversation = ann.api.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "half a pair"}
    assert ann.api.good("POST", "/messages", json=body)["text"] == "One \ufffd two"
    assert ["U+FFFD" in warning for warning in warnings_of_newest(ann)] == [True]
