# pyright: basic, reportAttributeAccessIssue=false
"""Messages of a client of `/v1` reach the model whole: order, names and reasoning are kept."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import DETAILS, IMAGE_URL, Person, png
from openai_api.test_chat import MODEL, WEATHER, last_body
from openai_api.test_responses import WEATHER as FUNCTIONS
from openai_api.test_true_endings import chunks_of

OTHER_URL = "data:image/png;base64," + base64.b64encode(png(7)).decode()


@pytest.fixture(scope="module")
def compatible(ann: Person, upstream: ScriptedProvider) -> Iterator[str]:
    """The name of a model at a server that is only known to be compatible."""
    body = {"name": "compatible", "provider_type": "openai_compatible", "base_url": f"{upstream.url}/v1"}
    provider_id = ann.api.good("POST", "/providers", json=body)["id"]
    yield "compatible/scripted"
    ann.api.good("DELETE", f"/providers/{provider_id}")


def answered(ann: Person, messages: list[Any], model: str = MODEL, **more: Any) -> dict[str, Any]:
    body = {"model": model, "messages": messages, **more}
    answer = ann.api.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def order_of(content: list[dict[str, Any]]) -> list[str]:
    return [part["text"] if part["type"] == "text" else part["image_url"]["url"] for part in content]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_texts_and_images_keep_their_order(
    ann: Person, upstream: ScriptedProvider, route: str, is_kept: bool
) -> None:
    is_chat = route.endswith("completions")
    texts = ["text" if is_chat else "input_text"] * 2
    images: list[Any] = [
        {"type": "image_url", "image_url": {"url": url}}
        if is_chat
        else {"type": "input_image", "image_url": url}
        for url in (IMAGE_URL, OTHER_URL)
    ]
    content = [
        {"type": texts[0], "text": "Before:"},
        images[0],
        {"type": texts[1], "text": "After:"},
        images[1],
    ]
    metadata = {}
    if is_kept:
        metadata = {"conversation_id": ann.api.good("POST", "/conversations", json={})["id"]}
    messages = [{"role": "user", "content": content}]
    body = {"model": MODEL, "messages" if is_chat else "input": messages, "metadata": metadata}
    answer = ann.api.http.post(route, json=body)
    assert answer.status_code == 200, answer.text
    sent = order_of(last_body(upstream)["messages"][-1]["content"])
    assert sent[:3] == ["Before:", IMAGE_URL, "After:"]
    assert sent[3] == OTHER_URL
    # In a conversation, images are named after the text.
    assert len(sent) == (5 if is_kept else 4)


def test_names_of_messages_reach_the_model(ann: Person, upstream: ScriptedProvider, compatible: str) -> None:
    messages = [
        {"role": "system", "name": "example", "content": "Be brief."},
        {"role": "user", "name": "Adam", "content": "I am from Seattle."},
        {"role": "assistant", "name": "Bot", "content": "Hello, Adam."},
        {"role": "user", "name": "Sam", "content": "Say hello."},
    ]
    answered(ann, messages)
    system, adam, bot, sam = last_body(upstream)["messages"]
    assert system["content"] == "[example] Be brief."
    assert [(one["name"], one["content"]) for one in (adam, bot, sam)] == [
        ("Adam", "I am from Seattle."),
        ("Bot", "Hello, Adam."),
        ("Sam", "Say hello."),
    ]
    answered(ann, messages, compatible)
    sent = last_body(upstream)["messages"]
    assert [one["content"] for one in sent[1:]] == [
        "[Adam] I am from Seattle.",
        "[Bot] Hello, Adam.",
        "[Sam] Say hello.",
    ]


@pytest.mark.parametrize(
    "reasoning",
    [
        {"reasoning_content": "I must look."},
        {"reasoning": "I must look."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "I must look.", "index": 0}]},
    ],
)
def test_reasoning_of_a_turn_with_tools_goes_back_in_its_form(
    ann: Person, upstream: ScriptedProvider, compatible: str, reasoning: dict[str, Any]
) -> None:
    call = {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    messages = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], **reasoning},
        {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
    ]
    answered(ann, messages, compatible, tools=WEATHER)
    sent = last_body(upstream)["messages"][1]
    assert {name: sent.get(name) for name in reasoning} == reasoning
    assert sent["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_details_of_reasoning_go_to_the_client_and_back(
    ann: Person, upstream: ScriptedProvider, compatible: str, is_streamed: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": "go into details"}]
    if is_streamed:
        deltas = [
            chunk["choices"][0]["delta"]
            for chunk in chunks_of(ann, {"model": compatible, "messages": messages, "tools": WEATHER})
        ]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I must look."
        (details,) = [delta["reasoning_details"] for delta in deltas if "reasoning_details" in delta]
        heads = [call for delta in deltas for call in delta.get("tool_calls", []) if "id" in call]
        calls = [head | {"function": head["function"] | {"arguments": "{}"}} for head in heads]
    else:
        message = answered(ann, messages, compatible, tools=WEATHER)["choices"][0]["message"]
        assert message["reasoning_content"] == "I must look."
        details, calls = message["reasoning_details"], message["tool_calls"]
    assert details == DETAILS
    messages += [
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_details": details},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"},
    ]
    answer = answered(ann, messages, compatible, tools=WEATHER)["choices"][0]["message"]
    assert "reasoning_details" not in answer
    assert last_body(upstream)["messages"][1]["reasoning_details"] == DETAILS


@pytest.mark.parametrize("is_streamed", [False, True])
def test_reasoning_before_a_call_goes_back_to_the_server(
    client: Any, upstream: ScriptedProvider, compatible: str, is_streamed: bool
) -> None:
    arguments: Any = {"model": compatible, "tools": FUNCTIONS, "reasoning": {"effort": "high"}}
    items: list[Any] = [{"role": "user", "content": "ponder it"}]
    if is_streamed:
        with client.responses.stream(**arguments, input=items) as stream:
            thoughts = [event.delta for event in stream if event.type == "response.reasoning_text.delta"]
            asked = stream.get_final_response()
        assert "".join(thoughts) == "I need the weather."
    else:
        asked = client.responses.create(**arguments, input=items)
    assert [item.type for item in asked.output] == ["reasoning", "function_call"]
    assert [part.text for part in asked.output[0].content] == ["I need the weather."]
    items += [item.model_dump(exclude_none=True) for item in asked.output]
    items.append({"type": "function_call_output", "call_id": "call_p", "output": "rain"})
    answer = client.responses.create(**arguments, input=items)
    assert answer.output_text == "It rains."
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    call = last_body(upstream)["messages"][1]
    assert (call["reasoning_content"], call["tool_calls"][0]["id"]) == ("I need the weather.", "call_p")


def test_reasoning_stays_with_the_calls_that_follow_it(
    client: Any, upstream: ScriptedProvider, compatible: str
) -> None:
    def call(call_id: str) -> list[Any]:
        return [
            {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": call_id, "output": "x"},
        ]

    def thought(text: str) -> Any:
        return {"type": "reasoning", "id": "r", "summary": [],
                "content": [{"type": "reasoning_text", "text": text}]}  # fmt: skip

    user = {"role": "user", "content": "hello"}
    items = [user, thought("unused"), user, *call("a"), thought("one"), thought("two"), *call("b"), user]
    client.responses.create(model=compatible, input=items)
    sent = [message for message in last_body(upstream)["messages"] if message.get("tool_calls")]
    assert [message.get("reasoning_content") for message in sent] == [None, "one\ntwo"]
