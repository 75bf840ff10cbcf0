"""What the Gemini adapter sends, and how it reads lists of models."""

import json
from base64 import b64decode
from typing import Any

import pytest

from luxx.errors import MalformedStream
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.gemini.adapter import GEMINI
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
QUESTION = UserPrompt(text="1+1?")
RESULT = ToolPrompt(call_id="call_1", name="add", content="2")
TURN: list[PromptMessage] = [
    SystemPrompt(text="Be brief."),
    QUESTION,
    AssistantPrompt(text="", thinking="I add.", tool_calls=[CALL], replay={}),
    RESULT,
]


def gemini_target(base_url: str = "http://host/v1beta") -> Target:
    return Target(provider_id=1, provider_type="gemini", base_url=base_url, api_key="AIza-secret")


def build_request(messages: list[PromptMessage] = TURN, **fields: Any) -> dict[str, Any]:
    request = CompletionRequest(**{"model": "gemini-2.5-flash", "messages": messages, **fields})
    return json.loads(GEMINI.build_request(request, gemini_target(), stream=True).body)


def generation_config(**fields: Any) -> dict[str, Any]:
    return build_request(**fields).get("generationConfig", {})


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://host", "http://host/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("http://host/", "http://host/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("http://host/v1beta", "http://host/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("http://host/v1/", "http://host/v1/models/m:streamGenerateContent?alt=sse"),
        ("http://host/v1beta/openai", "http://host/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("http://host/v1beta/models", "http://host/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("http://host/gate/v1alpha", "http://host/gate/v1alpha/models/m:streamGenerateContent?alt=sse"),
        (
            "http://host/v1/publishers/google",
            "http://host/v1/publishers/google/models/m:streamGenerateContent?alt=sse",
        ),
        ("http://host/vision", "http://host/vision/v1beta/models/m:streamGenerateContent?alt=sse"),
    ],
)
def test_base_url_is_taken_with_or_without_its_version(base_url: str, url: str) -> None:
    request = CompletionRequest(model="m", messages=TURN)

    assert GEMINI.build_request(request, gemini_target(base_url), stream=True).url == url


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("models/gemini-2.5-pro", "models/gemini-2.5-pro"),
        ("tunedModels/mine", "tunedModels/mine"),
        ("../x?key=1#", "models/..%2Fx%3Fkey%3D1%23"),
    ],
)
def test_the_model_name_stays_within_its_path_segment(model: str, path: str) -> None:
    request = CompletionRequest(model=model, messages=TURN)

    built = GEMINI.build_request(request, gemini_target(), stream=False)

    assert built.url == f"http://host/v1beta/{path}:generateContent"


def test_key_is_in_a_header_and_never_in_the_address() -> None:
    adapter = GEMINI
    request = CompletionRequest(model="m", messages=TURN)

    for built in (
        adapter.build_request(request, gemini_target(), stream=True),
        adapter.models_request(gemini_target()),
    ):
        assert built.headers["x-goog-api-key"] == "AIza-secret"
        assert "AIza-secret" not in built.url


def test_messages_and_tools_are_sent() -> None:
    schema = {
        "$schema": "x",
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {}},
    }
    specs = [
        ToolSpec(name="add", description="Adds.", parameters=schema),
        ToolSpec(name="now", description="Tells the time.", parameters={"type": "object", "properties": {}}),
    ]

    body = build_request(tools=specs)

    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    call = {"id": "call_1", "name": "add", "args": {"x": 1}}
    result = {"id": "call_1", "name": "add", "response": {"output": "2"}}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "1+1?"}]},
        {"role": "model", "parts": [{"functionCall": call}]},
        {"role": "user", "parts": [{"functionResponse": result}]},
    ]
    (declared,) = body["tools"]
    assert declared["functionDeclarations"] == [
        {
            "name": "add",
            "description": "Adds.",
            "parametersJsonSchema": {key: value for key, value in schema.items() if key != "$schema"},
        },
        {"name": "now", "description": "Tells the time."},
    ]


def test_neighbouring_messages_of_one_role_are_one_turn() -> None:
    messages = [
        *TURN,
        UserPrompt(text="And now?"),
        UserPrompt(text=""),
        AssistantPrompt(),
        UserPrompt(text="Hm?"),
    ]

    roles = [(content["role"], len(content["parts"])) for content in build_request(messages)["contents"]]

    assert roles == [("user", 1), ("model", 1), ("user", 3)]


def test_failed_result_is_sent_as_an_error() -> None:
    failed = ToolPrompt(call_id="call_1", name="add", content="no", success=False)

    part = build_request([*TURN[:-1], failed])["contents"][-1]["parts"][0]

    assert part["functionResponse"]["response"] == {"error": "no"}


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"', "null", "NaN", "[" * 100_000, "\ud800"])
def test_arguments_that_are_no_object_are_sent_back_as_an_empty_one(arguments: str) -> None:
    call = ToolCall(call_id="call_1", name="add", arguments=arguments)

    part = build_request([QUESTION, AssistantPrompt(tool_calls=[call]), RESULT])["contents"][1]["parts"][0]

    assert part["functionCall"]["args"] == {}


@pytest.mark.parametrize(("name", "sent_as"), [("", "unnamed"), ("a b/ü", "a_b__"), ("1st", "_1st")])
def test_invalid_name_of_a_call_is_sent_back_as_a_valid_one(name: str, sent_as: str) -> None:
    call = ToolCall(call_id="c", name=name, arguments="{}")
    result = ToolPrompt(call_id="c", name=name, content="no such tool", success=False)

    contents = build_request([QUESTION, AssistantPrompt(tool_calls=[call]), result])["contents"]

    assert contents[1]["parts"][0]["functionCall"]["name"] == sent_as
    assert contents[2]["parts"][0]["functionResponse"]["name"] == sent_as


def test_images_come_before_the_text_and_unreadable_ones_are_named() -> None:
    images = (
        PromptImage(media_type="image/png", data=b"\x89PNG"),
        PromptImage(media_type="image/gif", data=b"GIF89a"),
    )

    png, gif, text = build_request([UserPrompt(text="What is it?", images=images)])["contents"][0]["parts"]

    assert b64decode(png["inlineData"]["data"]) == b"\x89PNG"
    assert png["inlineData"]["mimeType"] == "image/png"
    assert "image/gif" in gif["text"]
    assert text == {"text": "What is it?"}


def test_settings_are_sent_only_when_given() -> None:
    assert generation_config(model="gemini-2.0-flash") == {}
    assert generation_config(model="gemini-2.0-flash", temperature=0.0, max_tokens=9) == {
        "temperature": 0.0,
        "maxOutputTokens": 9,
    }


@pytest.mark.parametrize(
    ("model", "off", "on"),
    [
        ("gemini-2.5-flash", {"thinkingBudget": 0}, {"includeThoughts": True, "thinkingBudget": -1}),
        (
            "models/gemini-2.5-flash-lite",
            {"thinkingBudget": 0},
            {"includeThoughts": True, "thinkingBudget": -1},
        ),
        ("gemini-2.5-pro", {"thinkingBudget": 128}, {"includeThoughts": True, "thinkingBudget": -1}),
        ("gemini-3-pro-preview", {"thinkingLevel": "LOW"}, {"includeThoughts": True}),
        ("gemini-3.1-flash-preview", {"thinkingLevel": "MINIMAL"}, {"includeThoughts": True}),
        ("gemini-flash-latest", None, {"includeThoughts": True}),
        ("gemini-2.5-flash-image", None, None),
        ("gemini-2.0-flash", None, None),
        ("gemma-3-27b-it", None, None),
    ],
)
def test_thinking_is_switched_in_the_form_of_each_model(model: str, off: Any, on: Any) -> None:
    assert generation_config(model=model).get("thinkingConfig") == off
    assert generation_config(model=model, thinking_enabled=True).get("thinkingConfig") == on


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-2.5-flash", "low", {"thinkingBudget": 1_024}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 24_576}),
        ("gemini-3.1-flash-preview", "medium", {"thinkingLevel": "MEDIUM"}),
        ("gemini-3-pro-preview", "medium", {}),
        ("gemini-3-pro-preview", "high", {"thinkingLevel": "HIGH"}),
    ],
)
def test_effort_is_sent_in_the_form_of_each_model(model: str, effort: str, expected: Any) -> None:
    wanted = generation_config(model=model, thinking_enabled=True, reasoning_effort=ReasoningEffort(effort))
    assert wanted["thinkingConfig"] == {"includeThoughts": True, **expected}
    without = generation_config(model=model, reasoning_effort=ReasoningEffort(effort))
    assert without == generation_config(model=model)


def test_schema_of_the_answer_is_sent_where_the_model_takes_it() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    wanted = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    spec = ToolSpec(name="add", description="Adds.", parameters=schema)

    assert wanted.items() <= generation_config(response_schema=schema).items()
    assert not wanted.keys() & generation_config(response_schema=schema, tools=[spec]).keys()
    assert (
        wanted.items()
        <= generation_config(response_schema=schema, tools=[spec], model="gemini-3-flash").items()
    )


def signatures(messages: list[PromptMessage], model: str) -> list[Any]:
    return [
        part.get("thoughtSignature")
        for content in build_request(messages, model=model)["contents"]
        for part in content["parts"]
        if "functionCall" in part
    ]


def test_calls_of_another_model_are_marked_for_a_third_generation_in_the_turn_that_is_going_on() -> None:
    twin = ToolCall(call_id="call_2", name="add", arguments="{}")
    twin_result = ToolPrompt(call_id="call_2", name="add", content="0")
    going_on: list[PromptMessage] = [QUESTION, AssistantPrompt(tool_calls=[CALL, twin]), RESULT, twin_result]
    signed = AssistantPrompt(tool_calls=[CALL], replay={"gemini": [{"call": "call_1", "signature": "c2ln"}]})
    messages = [*TURN, *going_on, signed, RESULT]
    mark = "skip_thought_signature_validator"

    assert signatures(messages, "gemini-3-pro-preview") == [None, mark, None, "c2ln"]
    assert signatures(messages, "gemini-2.5-flash") == [None, None, None, "c2ln"]


@pytest.mark.parametrize(
    "notes",
    [
        [{"text": 99, "signature": "dA=="}, {"call": "call_1", "signature": "c2ln"}],
        [{"call": "gone", "signature": "Z29uZQ=="}, {"call": "call_1", "signature": "c2ln"}],
        [{"call": "call_1", "signature": "c2ln"}, {"text": "x"}, {}, {"part": 3}],
        [{"part": {}}, {"part": {"functionCall": {"name": "add"}}}, {"call": "call_1", "signature": "c2ln"}],
        [{"part": {"executableCode": {}, "functionCall": {}}}, {"call": "call_1", "signature": "c2ln"}],
        [{"text": -1}, {"text": 7, "signature": "not base64!"}, {"call": "call_1", "signature": "c2ln"}],
    ],
)
def test_notes_that_no_longer_match_the_message_are_ignored(notes: list[Any]) -> None:
    answer = AssistantPrompt(text="I add.", tool_calls=[CALL], replay={"gemini": notes})

    parts = build_request([QUESTION, answer, RESULT])["contents"][1]["parts"]

    assert [part["text"] for part in parts if "text" in part] == ["I add."]
    assert [part["thoughtSignature"] for part in parts if "functionCall" in part] == ["c2ln"]
    assert all(part.keys() <= {"text", "functionCall", "thoughtSignature"} for part in parts)
    assert "thoughtSignature" not in parts[0]


@pytest.mark.parametrize("replay", [{"gemini": None}, {"gemini": [1]}, {"reasoning_details": []}])
def test_notes_of_other_dialects_are_not_read(replay: dict[str, Any]) -> None:
    answer = AssistantPrompt(text="I add.", replay=replay)

    assert build_request([QUESTION, answer, QUESTION])["contents"][1]["parts"] == [{"text": "I add."}]


def test_models_that_answer_prompts_are_listed_by_their_names() -> None:
    listed = {
        "models": [
            {"name": "models/gemini-2.5-pro", "supportedGenerationMethods": ["generateContent"]},
            {"name": "models/embedding-001", "supportedGenerationMethods": ["embedContent"]},
            {"name": "models/without-methods"},
            {"displayName": "nameless"},
            7,
        ]
    }

    assert GEMINI.parse_models(json.dumps(listed).encode()) == ["gemini-2.5-pro", "without-methods"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"models": 3}', b"[" * 100_000])
def test_an_invalid_list_of_models_is_a_malformed_stream(body: bytes) -> None:
    with pytest.raises(MalformedStream):
        GEMINI.parse_models(body)


def test_pages_are_requested_until_there_is_no_next_one() -> None:
    following = GEMINI.next_models_request(gemini_target(), b'{"models": [], "nextPageToken": "a b&c"}')

    assert following is not None
    assert following.url == "http://host/v1beta/models?pageSize=1000&pageToken=a%20b%26c"
    assert GEMINI.next_models_request(gemini_target(), b'{"models": [], "nextPageToken": ""}') is None


def test_gemini_speaks_its_own_dialect_at_its_default_url() -> None:
    assert adapter_for("gemini").dialect == "gemini"
    assert default_base_url("gemini").endswith("/v1beta")
