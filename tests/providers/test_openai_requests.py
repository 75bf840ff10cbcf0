"""What the OpenAI adapter sends, in the variant of each provider."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from luxx.errors import InvalidInput, MalformedStream
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.providers.registry import adapter_for, default_base_url
from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.model_settings import ReasoningEffort
from luxx.wire.tool import ToolCall, ToolSpec

CALL = ToolCall(call_id="call_1", name="add", arguments='{"x": 1}')
TURN: list[PromptMessage] = [
    SystemPrompt(text="Be brief."),
    UserPrompt(text="1+1?"),
    AssistantPrompt(text="", thinking="I add.", tool_calls=[CALL], replay={}),
    ToolPrompt(call_id="call_1", name="add", content="2"),
]


def target(kind: str = "openai_compatible", base_url: str = "http://host/v1") -> Target:
    return Target(provider_id=1, provider_type=kind, base_url=base_url, api_key="sk-secret")


def build_request(kind: str = "openai_compatible", *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    fields = {"model": "m", "messages": TURN, **fields}
    request = OPENAI.build_request(CompletionRequest(**fields), target(kind), stream=stream)
    return json.loads(request.body)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://host/v1", "http://host/v1/chat/completions"),
        ("http://host/v1/", "http://host/v1/chat/completions"),
        ("http://host", "http://host/chat/completions"),
        ("http://host/v1/chat/completions", "http://host/v1/chat/completions"),
    ],
)
def test_base_url_is_used_as_given(base_url: str, url: str) -> None:
    request = CompletionRequest(model="m", messages=TURN)

    assert OPENAI.build_request(request, target(base_url=base_url), stream=True).url == url


def test_images_are_sent_as_parts_before_the_text() -> None:
    image = PromptImage(media_type="image/png", data=b"png")

    shown, alone, plain = (
        build_request(messages=[UserPrompt(text=text, images=images)])["messages"][0]["content"]
        for text, images in (("What is this?", (image,)), ("", (image,)), ("Hello", ()))
    )

    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
    assert shown == [part, {"type": "text", "text": "What is this?"}]
    assert alone == [part]
    assert plain == "Hello"


def test_images_of_results_follow_them_as_a_users_message_and_are_in_them_for_mistral() -> None:
    image = PromptImage(media_type="image/png", data=b"png")
    calls = [replace(CALL, call_id=f"call_{number}") for number in (1, 2)]
    results = [ToolPrompt(call_id=call.call_id, name="add", content="2", images=(image,)) for call in calls]
    turn = [AssistantPrompt(tool_calls=calls), *results, UserPrompt(text="And?")]

    sent = build_request(messages=turn)["messages"]
    assert [each["role"] for each in sent] == ["assistant", "tool", "tool", "user", "user"]
    assert [part["type"] for part in sent[3]["content"]] == ["image_url", "image_url", "text"]
    to_mistral = build_request("mistral", messages=turn)["messages"]
    assert [each["role"] for each in to_mistral] == ["assistant", "tool", "tool", "assistant", "user"]
    assert [part["type"] for part in to_mistral[1]["content"]] == ["image_url", "text"]


def test_messages_tools_and_key_are_sent() -> None:
    spec = ToolSpec(name="add", description="Adds.", parameters={"type": "object"})
    request = CompletionRequest(model="m", messages=TURN, tools=[spec], temperature=0.5, max_tokens=9)

    built = OPENAI.build_request(request, target(), stream=True)
    body = json.loads(built.body)

    assert built.headers["authorization"] == "Bearer sk-secret"
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x": 1}'}
    assert body["messages"][3] == {"role": "tool", "tool_call_id": "call_1", "content": "2"}
    assert body["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)
    assert body["stream_options"] == {"include_usage": True}


def test_request_without_stream_asks_for_no_stream_options() -> None:
    body = build_request(stream=False)

    assert body["stream"] is False
    assert "stream_options" not in body


def test_deepseek_gets_its_reasoning_back_with_tool_turns() -> None:
    assert build_request("deepseek")["messages"][2]["reasoning_content"] == "I add."
    assert "reasoning_content" not in build_request("openai")["messages"][2]


@pytest.mark.parametrize(
    ("provider_type", "base_url", "stands"),
    [
        ("deepseek", "https://api.deepseek.com", ""),
        ("openai_compatible", "https://api.moonshot.ai/v1", " "),
    ],
)
def test_vendor_that_requires_reasoning_gets_what_it_takes_for_unknown_one(
    provider_type: str, base_url: str, stands: str
) -> None:
    request = CompletionRequest(
        model="m", messages=[AssistantPrompt(tool_calls=[CALL])], thinking_enabled=True
    )
    target = Target(provider_id=None, provider_type=provider_type, base_url=base_url)
    sent = json.loads(OPENAI.build_request(request, target, stream=True).body)

    assert sent["messages"][0]["reasoning_content"] == stands


def test_reasoning_goes_back_to_any_server_that_streamed_it_in_that_field() -> None:
    assistant = AssistantPrompt(
        thinking="I add.", tool_calls=[CALL], replay={"reasoning_field": "reasoning_content"}
    )

    assert build_request(messages=[assistant])["messages"][0]["reasoning_content"] == "I add."


def test_reasoning_is_not_replayed_with_plain_text_turns() -> None:
    assistant = AssistantPrompt(text="2", thinking="I add.")

    assert build_request("deepseek", messages=[assistant])["messages"][0] == {
        "role": "assistant",
        "content": "2",
    }


def test_reasoning_details_go_back_to_openrouter_unchanged() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x==", "index": 0}]
    assistant = AssistantPrompt(text="2", replay={"reasoning_details": details})

    assert build_request("openrouter", messages=[assistant])["messages"][0]["reasoning_details"] == details


@pytest.mark.parametrize("details", ["text", {"type": "reasoning.text"}, [1, None, {}, {"type": 2}]])
def test_unknown_notes_are_not_sent(details: Any) -> None:
    notes = {"reasoning_details": details, "refusal": {"words": "No."}, "reasoning_field": "content"}

    assert build_request("openrouter", messages=[AssistantPrompt(text="2", replay=notes)])["messages"] == [
        {"role": "assistant", "content": "2"}
    ]
    assert build_request("openrouter", messages=[AssistantPrompt(replay=notes)])["messages"] == []


@pytest.mark.parametrize("provider_type", ["openai", "mistral", "groq"])
def test_reasoning_is_not_sent_to_providers_that_refuse_it(provider_type: str) -> None:
    notes = {"reasoning_field": "reasoning_content"}
    assistant = AssistantPrompt(thinking="I add.", tool_calls=[CALL], replay=notes)

    assert build_request(provider_type, messages=[assistant])["messages"][0].keys() == {
        "role", "content", "tool_calls",
    }  # fmt: skip


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", "", "[" * 100_000, '{"x": "\ud800"}'])
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(arguments: str) -> None:
    call = ToolCall(call_id="a", name="add", arguments=arguments)

    message = build_request(messages=[AssistantPrompt(tool_calls=[call])])["messages"][0]

    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_mistral_gets_ids_in_its_form_and_results_still_match() -> None:
    body = build_request("mistral")
    call_id = body["messages"][2]["tool_calls"][0]["id"]

    assert len(call_id) == 9
    assert call_id.isalnum()
    assert body["messages"][3]["tool_call_id"] == call_id


def test_assistant_message_with_nothing_in_it_is_left_out() -> None:
    assert build_request(messages=[AssistantPrompt(), UserPrompt(text="hi")])["messages"] == [
        {"role": "user", "content": "hi"}
    ]


def test_response_schema_becomes_the_providers_format() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    assert build_request(response_schema=schema)["response_format"]["json_schema"]["schema"] == schema
    request = build_request("deepseek", response_schema=schema)
    assert request["response_format"] == {"type": "json_object"}
    assert json.dumps(schema, separators=(",", ":")) in request["messages"][0]["content"]


@pytest.mark.parametrize("kind", ["openai", "openai_compatible", "deepseek", "local"])
def test_any_object_is_json_mode_with_the_word_that_vendors_demand(kind: str) -> None:
    request = build_request(kind, response_schema={"type": "object"})
    assert request["response_format"] == {"type": "json_object"}
    assert request["messages"][0]["content"] == "Be brief.\n\nAnswer with one JSON object and nothing else."
    named: list[PromptMessage] = [UserPrompt(text="Give me json.")]
    assert build_request(kind, response_schema={"type": "object"}, messages=named)["messages"] == [
        {"role": "user", "content": "Give me json."}
    ]


@pytest.mark.parametrize(
    ("kind", "model", "wanted", "field", "value"),
    [
        ("deepseek", "deepseek-chat", True, "thinking", {"type": "enabled"}),
        ("glm", "glm-4.7", False, "thinking", {"type": "disabled"}),
        ("openrouter", "m", True, "reasoning", {"enabled": True}),
        ("openai", "gpt-5", True, "reasoning_effort", "medium"),
        ("openai", "gpt-4o", True, "reasoning_effort", None),
        ("qwen", "qwen3", False, "enable_thinking", False),
        ("local", "m", True, "chat_template_kwargs", {"enable_thinking": True}),
        ("openai_compatible", "m", True, "thinking", None),
    ],
)
def test_thinking_is_switched_with_the_providers_own_field(
    kind: str, model: str, wanted: bool, field: str, value: Any
) -> None:
    assert build_request(kind, model=model, thinking_enabled=wanted).get(field) == value


@pytest.mark.parametrize(
    ("kind", "model", "field", "value"),
    [
        ("openrouter", "m", "reasoning", {"effort": "high"}),
        ("openai", "gpt-5", "reasoning_effort", "high"),
        ("openai", "gpt-4o", "reasoning_effort", None),
        ("local", "m", "chat_template_kwargs", {"enable_thinking": True, "reasoning_effort": "high"}),
        ("qwen", "qwen3", "enable_thinking", True),
        ("deepseek", "deepseek-chat", "thinking", {"type": "enabled"}),
    ],
)
def test_effort_is_sent_where_the_provider_takes_one(kind: str, model: str, field: str, value: Any) -> None:
    effort = ReasoningEffort.HIGH
    body = build_request(kind, model=model, thinking_enabled=True, reasoning_effort=effort)
    assert body.get(field) == value
    without = build_request(kind, model=model, reasoning_effort=effort)
    assert without == build_request(kind, model=model)


def test_openai_reasoning_models_get_no_temperature() -> None:
    body = build_request("openai", model="o3-mini", temperature=0.2, max_tokens=5)

    assert "temperature" not in body
    assert body["max_completion_tokens"] == 5


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": [{"id": "a"}, {"id": "b"}]}',
        b'[{"id": "a"}, "b"]',
        b'{"models": [{"name": "a"}, {"name": "b"}]}',
    ],
)
def test_list_of_models_is_read_in_every_shape(body: bytes) -> None:
    assert OPENAI.parse_models(body) == ["a", "b"]


@pytest.mark.parametrize("body", [b"<html>", b'{"data": 3}', b"\xff"])
def test_an_invalid_list_of_models_is_garbled(body: bytes) -> None:
    with pytest.raises(MalformedStream):
        OPENAI.parse_models(body)


@pytest.mark.parametrize(
    "kind", ["openai", "deepseek", "glm", "openrouter", "mistral", "groq", "ollama", "local"]
)
def test_compatible_providers_speak_the_openai_dialect(kind: str) -> None:
    assert adapter_for(kind).dialect == "openai"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("nonsense", "unknown_provider_type"),
    ],
)
def test_provider_without_an_adapter_is_refused_with_its_kind(kind: str, error: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        adapter_for(kind)

    assert raised.value.kind == error


def test_types_with_a_default_url_have_a_base_url() -> None:
    assert default_base_url("deepseek").startswith("https://")
    assert default_base_url("openai_compatible") == ""
