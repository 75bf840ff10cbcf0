"""What the Responses adapter sends, field by field, and what it sends back of earlier answers."""

import json
from typing import Any

import pytest

from luxx.providers.adapter import Adaptation, CompletionRequest, Target
from luxx.providers.openai_responses.adapter import RESPONSES
from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.model_settings import ReasoningEffort
from luxx.wire.tool import ToolCall, ToolChoice, ToolChoiceMode, ToolSpec

OPENAI_URL = "https://api.openai.com/v1"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = ToolCall(call_id="call_1", name="weather", arguments='{"city": "Oslo"}')
RESULT = ToolPrompt(call_id="call_1", name="weather", content="12")
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
SENT_CALL = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
SENT_RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "12"}
ORIGIN = "api.openai.com gpt-5"


def body_of(base_url: str = OPENAI_URL, *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    fields = {"model": "gpt-5-mini", "messages": [UserPrompt(text="Hi")], **fields}
    target = Target(provider_id=1, provider_type="openai_responses", base_url=base_url, api_key="sk-secret")
    return json.loads(RESPONSES.build_request(CompletionRequest(**fields), target, stream=stream).body)


def input_of(*messages: PromptMessage, **fields: Any) -> list[dict[str, Any]]:
    return body_of(messages=list(messages), **fields)["input"]


def noted(*items: dict[str, Any], origin: str = ORIGIN) -> dict[str, Any]:
    return {"openai_responses": {"origin": origin, "items": list(items)}}


def test_plain_question_keeps_nothing_at_the_provider() -> None:
    assert body_of() == {
        "model": "gpt-5-mini",
        "input": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream_options": {"include_obfuscation": False},
    }


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_tokens": 5}, {"max_output_tokens": 16}),
        ({"max_tokens": 500}, {"max_output_tokens": 500}),
        ({"thinking_enabled": True}, {"reasoning": {"effort": "medium", "summary": "auto"}}),
        ({"temperature": 0.5}, {}),
        (
            {"response_schema": SCHEMA},
            {
                "text": {
                    "format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": False}
                }
            },
        ),
        ({"parallel_tool_calls": False}, {}),
        ({"stop": ["END"]}, {}),
    ],
)
def test_option_is_sent_in_the_words_of_the_dialect(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    assert body_of(**fields) == {**body_of(), **sent}


def test_tools_are_flat_and_say_whether_they_are_strict() -> None:
    tool = ToolSpec(name="weather", description="The weather.", parameters=SCHEMA)
    named = ToolChoice(mode=ToolChoiceMode.REQUIRED, name="weather")

    body = body_of(tools=[tool], tool_choice=named, parallel_tool_calls=True)

    assert body["tools"] == [
        {
            "type": "function",
            "name": "weather",
            "description": "The weather.",
            "parameters": SCHEMA,
            "strict": False,
        }
    ]
    assert body["tool_choice"] == {"type": "function", "name": "weather"}
    assert body["parallel_tool_calls"] is True
    choice = ToolChoice(mode=ToolChoiceMode.REQUIRED)
    assert body_of(tools=[tool], tool_choice=choice)["tool_choice"] == "required"


@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-4o-mini", "gpt-5-chat-latest"])
def test_model_without_reasoning_gets_a_temperature_and_no_switches_of_reasoning(model: str) -> None:
    body = body_of(model=model, temperature=0.5, thinking_enabled=True)

    assert body["temperature"] == 0.5
    assert not {"include", "reasoning"} & body.keys()


def test_effort_of_the_request_is_sent_to_a_model_that_thinks() -> None:
    wanted = {"model": "gpt-5.4", "reasoning_effort": ReasoningEffort.LOW}
    assert body_of(**wanted, thinking_enabled=True)["reasoning"]["effort"] == "low"
    assert "reasoning" not in body_of(**wanted)


def test_another_vendor_gets_no_options_of_openai() -> None:
    body = body_of("https://api.x.ai/v1", model="grok-4.3", temperature=0.5, thinking_enabled=True)

    assert body["reasoning"] == {"summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["temperature"] == 0.5
    assert "stream_options" not in body


def test_images_come_before_the_text_and_system_texts_are_instructions() -> None:
    image = PromptImage(media_type="image/png", data=b"png")
    messages = [
        SystemPrompt(text="Be brief."),
        UserPrompt(text="What?", images=(image,)),
        SystemPrompt(text="!"),
    ]

    body = body_of(messages=messages)

    assert body["instructions"] == "Be brief."
    assert body["input"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "data:image/png;base64,cG5n", "detail": "auto"},
                {"type": "input_text", "text": "What?"},
            ],
        },
        {"role": "developer", "content": "!"},
    ]


def test_reasoning_comes_back_unchanged_before_what_it_led_to_and_phases_stay() -> None:
    note = noted(
        {"type": "message", "length": 4, "phase": "commentary"},
        REASONING,
        {"type": "function_call", "call": "call_1", "namespace": "geo"},
    )
    answer = AssistantPrompt(text="Wait", tool_calls=[CALL], replay=note)

    assert input_of(UserPrompt(text="Hi"), answer, RESULT)[1:] == [
        {"type": "message", "role": "assistant", "content": "Wait", "phase": "commentary"},
        REASONING,
        {**SENT_CALL, "namespace": "geo"},
        SENT_RESULT,
    ]


@pytest.mark.parametrize(
    "note",
    [
        noted(REASONING, {"type": "function_call", "call": "call_1"}, origin="api.x.ai grok-4.3"),
        noted(REASONING, {"type": "function_call", "call": "call_1"}, origin="api.openai.com o3"),
        noted(REASONING, {"type": "image_generation_call"}, {"type": "function_call", "call": "call_1"}),
        noted(REASONING, {"type": "function_call", "call": "call_of_before"}),
        noted({"type": "function_call", "call": "call_1"}, REASONING),
        noted({**REASONING, "encrypted_content": None}, {"type": "function_call", "call": "call_1"}),
        noted({"type": "message", "length": 99}, REASONING, {"type": "function_call", "call": "call_1"}),
        noted({"type": "message", "length": -1}, {"type": 3}),
        {"openai_responses": {"origin": ORIGIN, "items": "none"}},
        {"openai_responses": ["x"]},
    ],
    ids=[
        "another host", "another family", "its item is left out", "its call is gone", "nothing follows",
        "not encrypted", "text was edited", "invalid items", "no list", "no object",
    ],
)  # fmt: skip
def test_reasoning_that_the_server_would_refuse_is_left_out(note: dict[str, Any]) -> None:
    answer = AssistantPrompt(text="", thinking="I look.", tool_calls=[CALL], replay=note)

    assert input_of(UserPrompt(text="Hi"), answer, RESULT)[1:] == [SENT_CALL, SENT_RESULT]


def test_notes_are_left_out_once_the_server_refused_them() -> None:
    note = noted(REASONING, {"type": "function_call", "call": "call_1"})
    answer = AssistantPrompt(tool_calls=[CALL], replay=note)
    refused = frozenset({Adaptation.NO_NOTES})

    sent = input_of(UserPrompt(text="Hi"), answer, RESULT, adaptations=refused)

    assert sent[1:] == [SENT_CALL, SENT_RESULT]


def test_call_of_a_custom_tool_and_its_result_keep_their_types() -> None:
    call = ToolCall(call_id="call_1", name="sql", arguments="SELECT 1")
    answer = AssistantPrompt(tool_calls=[call], replay=noted({"type": "custom_tool_call", "call": "call_1"}))

    assert input_of(UserPrompt(text="Hi"), answer, RESULT)[1:] == [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "SELECT 1"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "12"},
    ]


def test_images_of_a_result_are_parts_of_its_output() -> None:
    image = PromptImage(media_type="image/png", data=b"png")
    result = ToolPrompt(call_id="call_1", name="weather", content="12", images=(image,))

    assert input_of(UserPrompt(text="Hi"), AssistantPrompt(tool_calls=[CALL]), result)[2]["output"] == [
        {"type": "input_text", "text": "12"},
        {"type": "input_image", "image_url": "data:image/png;base64,cG5n", "detail": "auto"},
    ]


def test_every_call_has_a_result_and_every_result_a_call() -> None:
    asked = UserPrompt(text="Hi")
    answer = AssistantPrompt(tool_calls=[CALL, ToolCall(call_id="call_2", name="weather", arguments="{")])

    unanswered = input_of(asked, answer, RESULT)
    orphaned = input_of(asked, RESULT)
    twice = input_of(
        asked, AssistantPrompt(tool_calls=[CALL]), RESULT, AssistantPrompt(tool_calls=[CALL]), RESULT
    )

    second = {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": "{}"}
    no_result = {"type": "function_call_output", "call_id": "call_2"}
    assert unanswered[1:] == [
        SENT_CALL, second, SENT_RESULT, {**no_result, "output": "The result of this call is not known."},
    ]  # fmt: skip
    assert orphaned[1:] == [{"role": "user", "content": "The result of an earlier call of weather: 12"}]
    assert [item["call_id"] for item in twice[1:]] == ["call_1", "call_1", "call_1_1", "call_1_1"]
