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
    run_id = newest_run(ann)["id"]
    headers = {"accept": "application/json"}
    events = ann.api.good("GET", f"/runs/{run_id}/events", headers=headers)["events"]
    warnings = [event["message"] for event in events if event["type"] == "warning"]
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
