# pyright: basic, reportAttributeAccessIssue=false
"""Responses with the official SDK of OpenAI."""

import json
from typing import Any

import pytest

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import IMAGE_URL, Person
from openai_api.test_bad_requests import check
from openai_api.test_chat import MODEL, last_body

WEATHER: list[Any] = [
    {"type": "function", "name": "get_weather", "description": "The weather of a city", "strict": False,
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
]  # fmt: skip


def test_response_to_a_text(client: Any, upstream: ScriptedProvider) -> None:
    response = client.responses.create(
        model=MODEL, input="Say hello.", instructions="Be brief.", max_output_tokens=30, store=False
    )
    assert response.output_text == "Hello there, friend."
    assert (response.status, response.object, response.model) == ("completed", "response", MODEL)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (12, 4)
    body = last_body(upstream)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["max_completion_tokens"] == 30


def test_events_of_a_stream_are_those_of_openai(client: Any) -> None:
    events = list(client.responses.create(model=MODEL, input="Say hello.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type.removeprefix("response.") for event in events]
    assert types[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(types[4:-4]) == {"output_text.delta"}
    assert types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Hello there, friend."
    assert events[-1].response.output_text == text


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tools_and_an_image_make_a_round_trip(
    client: Any, upstream: ScriptedProvider, is_streamed: bool
) -> None:
    parts = [
        {"type": "input_text", "text": "How is the weather here?"},
        {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"},
    ]
    items: list[Any] = [{"role": "user", "content": parts}]
    arguments: Any = {"model": MODEL, "tools": WEATHER, "tool_choice": "auto"}
    if is_streamed:
        with client.responses.stream(**arguments, input=items) as stream:
            types = [event.type for event in stream]
            asked = stream.get_final_response()
        assert types.count("response.function_call_arguments.done") == 2
    else:
        asked = client.responses.create(**arguments, input=items)
    calls = [item for item in asked.output if item.type == "function_call"]
    assert [(call.call_id, json.loads(call.arguments)["city"]) for call in calls] == [
        ("call_a", "Oslo"),
        ("call_b", "Rome"),
    ]
    assert last_body(upstream)["messages"][0]["content"][1]["image_url"]["url"] == IMAGE_URL
    items += [call.model_dump(exclude_none=True) for call in calls]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    answer = client.responses.create(**arguments, input=items)
    assert answer.output_text == "It rains in Oslo."
    roles = [message["role"] for message in last_body(upstream)["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


def test_history_of_codex_with_searched_tools_is_read(client: Any, upstream: ScriptedProvider) -> None:
    search = {
        "type": "tool_search_call",
        "call_id": "s",
        "execution": "client",
        "arguments": {"query": "docs"},
    }
    found = {"type": "tool_search_output", "call_id": "s", "status": "completed", "execution": "client",
             "tools": [{"type": "function", "name": "find"}]}  # fmt: skip
    secret = {"type": "encrypted_content", "encrypted_content": "gAAA"}
    output = {**OUTPUT, "output": [secret, {"type": "input_text", "text": "seen"}]}
    user = {"role": "user", "content": "hello"}
    client.responses.create(model=MODEL, input=[user, search, found, CALL, output, user])
    results = [message["content"] for message in last_body(upstream)["messages"] if message["role"] == "tool"]
    assert results == ['[{"type":"function","name":"find"}]', "seen"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_cut_answer_is_incomplete(client: Any, is_streamed: bool) -> None:
    if is_streamed:
        *_, last = client.responses.create(model=MODEL, input="be cut", stream=True)
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = client.responses.create(model=MODEL, input="be cut")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_failure_within_a_stream_is_a_failed_response(client: Any, upstream: ScriptedProvider) -> None:
    stream = client.responses.create(model=MODEL, input="break off now", stream=True)
    events: list[Any] = []
    for event in stream:
        events.append(event)
        upstream.release("broken")
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert "it broke" in events[-1].response.error.message


def test_answer_in_a_schema(client: Any, upstream: ScriptedProvider) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    text: Any = {"format": {"type": "json_schema", "name": "city", "schema": schema}}
    response = client.responses.create(model="scripted/gpt-4.1-mini", input="as JSON", text=text)
    assert json.loads(response.output_text) == {"city": "Oslo"}
    assert last_body(upstream)["response_format"]["json_schema"]["schema"] == schema


def test_conversation_keeps_a_response(client: Any, ann: Person) -> None:
    talk = ann.api.good("POST", "/conversations", json={"title": "kept"})["id"]
    client.responses.create(model=MODEL, input="Say hello.", metadata={"conversation_id": talk})
    assert ann.api.good("GET", f"/messages?conversation_id={talk}")["total"] == 2


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "x"}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "x"}, OUTPUT]}, "input[1]"),
        ({"input": [{"role": "user", "content": "x"}, CALL]}, "input[1]"),
        ({"input": [{"role": "user", "content": "x"}, CALL, {**OUTPUT, "call_id": "b"}]}, "input[2]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0]"),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "http://x/a.png"}]}
                ]
            },
            "input[0].content[0].image_url",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": "x"}, CALL, {**OUTPUT, "output": [{"type": "file"}]}]},
            "input[2].output[0].type",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "response_format"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"model": "nobody/model"}, "model"),
    ],
)
def test_wrong_field_of_a_response_is_named(ann: Person, wrong: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "input": "hello", **wrong}
    status = 404 if "model" in wrong else 400
    check(ann.api.http.post("/v1/responses", json=body), status, param)
