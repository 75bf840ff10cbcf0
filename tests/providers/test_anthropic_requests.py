"""What the Anthropic adapter sends: turns, options by model, and lists of models."""

import json
from base64 import b64encode
from typing import Any

import pytest

from luxx.errors import MalformedStream, ProviderRefused
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.anthropic.request import strict_schema
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

Json = dict[str, Any]

ADD = ToolSpec(name="add", description="Adds.", parameters={"type": "object"})
SIGNED = {"type": "thinking", "thinking": "I add.", "signature": "sig"}
ASKED: list[PromptMessage] = [SystemPrompt(text="Be brief."), UserPrompt(text="1+1?")]


def answer_with_calls(*call_ids: str, arguments: str = '{"x": 1}', **fields: Any) -> AssistantPrompt:
    calls = [ToolCall(call_id=call_id, name="add", arguments=arguments) for call_id in call_ids]
    return AssistantPrompt(tool_calls=calls, **fields)


def result(call_id: str, **fields: Any) -> ToolPrompt:
    given: dict[str, Any] = {"call_id": call_id, "name": "add", "content": "2", **fields}
    return ToolPrompt(**given)


def target(base_url: str = "http://host") -> Target:
    return Target(provider_id=1, provider_type="anthropic", base_url=base_url, api_key="sk-secret")


def build_request(*messages: PromptMessage, model: str = "claude-sonnet-4-5", **fields: Any) -> Json:
    request = CompletionRequest(model=model, messages=list(messages or ASKED), **fields)
    return json.loads(ANTHROPIC.build_request(request, target(), stream=True).body)


def roles(body: Json) -> list[str]:
    return [turn["role"] for turn in body["messages"]]


@pytest.mark.parametrize(
    "base_url",
    ["http://host", "http://host/", "http://host/v1", "http://host/v1/", "http://host/v1/messages"],
)
def test_base_url_may_end_in_the_version_or_not(base_url: str) -> None:
    adapter = ANTHROPIC
    request = CompletionRequest(model="m", messages=ASKED)

    assert adapter.build_request(request, target(base_url), stream=True).url == "http://host/v1/messages"
    assert adapter.models_request(target(base_url)).url == "http://host/v1/models?limit=1000"


def test_key_version_and_system_text_are_where_the_dialect_has_them() -> None:
    built = ANTHROPIC.build_request(
        CompletionRequest(model="claude-sonnet-4-5", messages=ASKED, tools=[ADD]), target(), stream=True
    )
    body = json.loads(built.body)

    assert built.headers["x-api-key"] == "sk-secret"
    assert built.headers["anthropic-version"] == "2023-06-01"
    assert body["system"] == "Be brief."
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]
    assert body["tools"] == [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]


def test_results_of_parallel_calls_and_the_next_message_are_one_user_turn() -> None:
    body = build_request(
        *ASKED,
        answer_with_calls("a", "b"),
        result("a"),
        result("b", success=False),
        UserPrompt(text="And now?"),
    )

    assert roles(body) == ["user", "assistant", "user"]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "2"},
        {"type": "tool_result", "tool_use_id": "b", "content": "2", "is_error": True},
        {"type": "text", "text": "And now?"},
    ]


def test_two_users_messages_in_a_row_are_one_turn_and_empty_text_is_dropped() -> None:
    body = build_request(UserPrompt(text="One."), AssistantPrompt(text=" \n"), UserPrompt(text="Two."))

    assert [block["text"] for block in body["messages"][0]["content"]] == ["One.", "Two."]
    assert roles(body) == ["user"]


def test_images_come_before_the_text() -> None:
    image = PromptImage(media_type="image/png", data=b"png")

    content = build_request(UserPrompt(text="What is this?", images=(image,)))["messages"][0]["content"]

    source = {"type": "base64", "media_type": "image/png", "data": b64encode(b"png").decode()}
    assert content == [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]


def test_a_result_with_images_is_no_error_because_those_take_none() -> None:
    image = PromptImage(media_type="image/png", data=b"png")

    body = build_request(*ASKED, answer_with_calls("a"), result("a", success=False, images=(image,)))

    (block,) = body["messages"][2]["content"]
    assert [part["type"] for part in block["content"]] == ["text", "image"]
    assert "is_error" not in block


@pytest.mark.parametrize("arguments", ["", "{broken", "[1]", "null", '"x"'])
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(arguments: str) -> None:
    body = build_request(*ASKED, answer_with_calls("a", arguments=arguments), result("a"))

    assert body["messages"][1]["content"][0]["input"] == {}


def test_ids_are_made_valid_and_unique_and_results_follow_them() -> None:
    body = build_request(
        *ASKED,
        answer_with_calls("call_0"),
        result("call_0"),
        answer_with_calls("call_0", "fn:1"),
        result("call_0"),
        result("fn:1"),
    )

    first, second = (body["messages"][at]["content"] for at in (1, 3))
    ids = [block["id"] for block in [*first, *second]]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 3
    assert ":" not in "".join(ids)
    assert [block["tool_use_id"] for block in body["messages"][4]["content"]] == ids[1:]


def test_calls_in_the_history_are_named_even_if_no_tool_is_offered() -> None:
    body = build_request(*ASKED, answer_with_calls("a"), result("a"))

    assert [tool["name"] for tool in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in build_request(*ASKED, answer_with_calls("a"), result("a"), tools=[ADD])


def test_answer_is_limited_by_the_models_maximum_unless_requested() -> None:
    assert build_request(model="claude-opus-4-1")["max_tokens"] == 32_000
    assert build_request(model="some-model")["max_tokens"] > 0
    assert build_request(max_tokens=77)["max_tokens"] == 77


@pytest.mark.parametrize(
    ("model", "max_tokens", "expected"),
    [
        ("claude-sonnet-4-5-20250929", 64_000, {"type": "enabled", "budget_tokens": 16_000}),
        ("claude-3-7-sonnet-latest", 3_000, {"type": "enabled", "budget_tokens": 1_500}),
        ("claude-opus-4-20250514", 1_025, {"type": "enabled", "budget_tokens": 1_024}),
        ("claude-haiku-4-5", 1_024, None),
        ("claude-3-5-sonnet-20241022", 8_192, None),
        ("claude-3-opus-20240229", 4_096, None),
        ("claude-opus-4-6", 64_000, {"type": "adaptive", "display": "summarized"}),
        ("anthropic/claude-sonnet-4.6", 64_000, {"type": "adaptive", "display": "summarized"}),
        ("claude-opus-5-5", 500, {"type": "adaptive", "display": "summarized"}),
        ("claude-fable-5", 64_000, {"type": "adaptive", "display": "summarized"}),
        ("a-compatible-model", 8_192, {"type": "enabled", "budget_tokens": 4_096}),
    ],
)
def test_thinking_is_enabled_in_the_form_of_each_model(
    model: str, max_tokens: int, expected: Json | None
) -> None:
    body = build_request(model=model, max_tokens=max_tokens, thinking_enabled=True, temperature=0.5)

    assert body.get("thinking") == expected
    assert expected is None or "temperature" not in body


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "options"),
    [
        ("claude-opus-5-5", "low", {"type": "adaptive", "display": "summarized"}, {"effort": "low"}),
        ("claude-sonnet-4-5", "low", {"type": "enabled", "budget_tokens": 2_000}, None),
        ("claude-sonnet-4-5", "medium", {"type": "enabled", "budget_tokens": 8_000}, None),
        ("claude-sonnet-4-5", "high", {"type": "enabled", "budget_tokens": 16_000}, None),
        ("claude-3-opus-20240229", "high", None, None),
    ],
)
def test_effort_is_sent_in_the_form_of_each_model(
    model: str, effort: str, thinking: Json | None, options: Json | None
) -> None:
    wanted = {"thinking_enabled": True, "reasoning_effort": ReasoningEffort(effort), "max_tokens": 64_000}
    body = build_request(model=model, **wanted)

    assert body.get("thinking") == thinking
    assert body.get("output_config") == options
    off = build_request(model=model, **{**wanted, "thinking_enabled": False})
    assert not {"thinking", "output_config"} & off.keys() or off["thinking"]["type"] != "adaptive"


def test_effort_and_schema_of_an_answer_are_sent_together() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}
    body = build_request(
        model="claude-opus-5-5", thinking_enabled=True, reasoning_effort=ReasoningEffort.HIGH,
        response_schema=schema,
    )  # fmt: skip
    assert body["output_config"]["effort"] == "high"
    assert body["output_config"]["format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-sonnet-4-5", None),
        ("claude-opus-5", "disabled"),
        ("claude-sonnet-5-5", "between_tools"),
        ("claude-opus-5-5", None),
    ],
)
def test_thinking_is_switched_off_where_a_model_thinks_by_default(model: str, expected: str | None) -> None:
    assert build_request(model=model).get("thinking", {}).get("type") == expected


@pytest.mark.parametrize(
    ("model", "temperature", "expected"),
    [
        ("claude-sonnet-4-5", 0.3, 0.3),
        ("claude-sonnet-4-6", 2.0, 1.0),
        ("claude-opus-4-7", 0.3, None),
        ("claude-haiku-5-5", 0.3, None),
    ],
)
def test_temperature_is_sent_to_models_that_accept_it(
    model: str, temperature: float, expected: float | None
) -> None:
    assert build_request(model=model, temperature=temperature).get("temperature") == expected


def test_turn_that_called_tools_without_thinking_continues_without_it() -> None:
    notes = {"anthropic_content": [SIGNED, {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}}]}
    going_on = [*ASKED, answer_with_calls("a"), result("a")]

    assert "thinking" not in build_request(*going_on, thinking_enabled=True)
    assert "thinking" in build_request(*going_on, UserPrompt(text="Next."), thinking_enabled=True)
    signed = build_request(*ASKED, answer_with_calls("a", replay=notes), result("a"), thinking_enabled=True)
    assert "thinking" in signed
    assert signed["messages"][1]["content"][0] == SIGNED


def test_thinking_without_a_signature_and_answers_of_thinking_alone_are_left_out() -> None:
    unsigned = {"anthropic_content": [{**SIGNED, "signature": ""}, {"type": "text", "text": "2"}]}
    thought = {"anthropic_content": [SIGNED]}
    body = build_request(*ASKED, AssistantPrompt(text="2", replay=unsigned), UserPrompt(text="And?"))
    silent = build_request(*ASKED, AssistantPrompt(replay=thought), UserPrompt(text="And?"))

    assert body["messages"][1]["content"] == [{"type": "text", "text": "2"}]
    assert roles(silent) == ["user"]


def test_stored_blocks_that_no_longer_match_the_text_are_not_sent() -> None:
    notes = {"anthropic_content": [SIGNED, {"type": "text", "text": "old words"}]}

    body = build_request(*ASKED, AssistantPrompt(text="new words", replay=notes), UserPrompt(text="And?"))

    assert body["messages"][1]["content"] == [{"type": "text", "text": "new words"}]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_result", "tool_use_id": "toolu_9", "content": "2"},
        {"type": "text", "text": ["Two"]},
        {"type": "text", "text": "Two", "citations": 3},
        {"type": "thinking", "thinking": "I add.", "signature": 7},
        {"type": "redacted_thinking"},
        {"type": "server_tool_use", "id": ["a"], "name": "b", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": {}},
        {"type": ["text"]},
    ],
)
def test_invalid_stored_blocks_are_not_sent(block: Json) -> None:
    answer = AssistantPrompt(text="Two.", replay={"anthropic_content": [SIGNED, block]})

    turns = build_request(UserPrompt(text="1+1?"), answer)["messages"]

    assert turns[1]["content"] == [SIGNED, {"type": "text", "text": "Two."}]


def test_turn_of_which_thinking_alone_can_be_sent_is_left_out() -> None:
    search: dict[str, Any] = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {},
    }
    notes: dict[str, Any] = {"anthropic_content": [SIGNED, search], "anthropic_model": "claude-sonnet-4-5"}
    user_message = UserPrompt(text="1+1?")

    assert roles(build_request(user_message, AssistantPrompt(replay=notes), user_message)) == ["user"]


def test_servers_call_that_was_never_answered_is_left_out_unless_the_turn_goes_on() -> None:
    search: dict[str, Any] = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {},
    }
    paused = AssistantPrompt(text="I look.", replay={
        "paused": True, "anthropic_content": [{"type": "text", "text": "I look."}, search],
    })  # fmt: skip

    assert build_request(*ASKED, paused)["messages"][-1]["content"][-1] == search
    over = build_request(*ASKED, paused, UserPrompt(text="Never mind."))
    assert over["messages"][1]["content"] == [{"type": "text", "text": "I look."}]


def test_structured_answer_is_requested_in_the_form_of_each_model() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}},
        "required": ["n"],
        "additionalProperties": False,
    }

    asked = build_request(response_schema=schema)["output_config"]["format"]
    request_body = build_request(model="claude-3-5-haiku-latest", response_schema=schema)

    assert asked["type"] == "json_schema"
    assert asked["schema"] == {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": '{"minimum":1}'}},
        "required": ["n"],
        "additionalProperties": False,
    }
    assert "output_config" not in request_body
    assert json.dumps(schema).replace(" ", "") in request_body["system"].replace(" ", "")


def test_schema_with_definitions_and_choices_stays_one() -> None:
    schema = {
        "$defs": {"A": {"type": "object", "properties": {"x": {"type": "string", "format": "date"}}}},
        "oneOf": [{"$ref": "#/$defs/A"}, {"type": "array", "items": {"$ref": "#/$defs/A"}, "minItems": 3}],
    }

    assert strict_schema(schema) == {
        "anyOf": [
            {"$ref": "#/$defs/A"},
            {"type": "array", "items": {"$ref": "#/$defs/A"}, "description": '{"minItems":3}'},
        ],
        "$defs": {
            "A": {
                "type": "object",
                "properties": {"x": {"type": "string", "format": "date"}},
                "additionalProperties": False,
            }
        },
    }


CLOSED: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"n": {"type": "integer"}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        CLOSED | {"properties": {"tags": {"type": "object", "additionalProperties": {"type": "string"}}}},
        CLOSED | {"properties": {"list": {"type": "array", "items": {"type": "object"}}}},
        CLOSED | {"properties": {"any": True}},
        CLOSED | {"properties": {"any": {"description": "anything"}}},
        CLOSED | {"properties": {"one": {"anyOf": [CLOSED, {"type": "object"}]}}},
        CLOSED | {"properties": {"one": {"$ref": "#/$defs/one"}}, "$defs": {"one": {"type": "object"}}},
        CLOSED | {"patternProperties": {"^x": {"type": "string"}}},
        CLOSED | {"properties": {"one": {"type": ["object", "null"]}}},
    ],
)
def test_schema_that_the_field_would_narrow_is_an_instruction(schema: dict[str, Any]) -> None:
    body = build_request(response_schema=schema)
    assert "output_config" not in body
    assert "Answer with" in body["system"]
    if schema != {"type": "object"}:
        assert json.dumps(schema, separators=(",", ":")) in body["system"]


def test_closed_schema_that_may_be_null_stays_so() -> None:
    schema = CLOSED | {"properties": {"one": CLOSED | {"type": ["object", "null"]}}}
    sent = build_request(response_schema=schema)["output_config"]["format"]["schema"]
    assert sent["properties"]["one"]["type"] == ["object", "null"]


def test_unknown_model_gets_the_field_and_the_instruction() -> None:
    body = build_request(model="some-model", response_schema=CLOSED)
    assert body["output_config"]["format"]["schema"] == CLOSED
    assert "Answer with JSON alone" in body["system"]


def test_stops_and_the_end_of_a_last_answer_follow_the_rules_of_the_api() -> None:
    messages = [UserPrompt(text="Go on."), AssistantPrompt(text="The answer is \n ")]
    body = build_request(*messages, stop=["\n", "END", " "])
    assert body["stop_sequences"] == ["END"]
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "The answer is"}]
    assert "stop_sequences" not in build_request(stop=["\n"])


def test_list_of_models_is_read_page_by_page() -> None:
    adapter = ANTHROPIC
    page = b'{"data": [{"id": "a"}, {"id": "b"}], "has_more": true, "last_id": "b&c"}'

    following = adapter.next_models_request(target(), page)

    assert adapter.parse_models(page) == ["a", "b"]
    assert following is not None
    assert following.url == "http://host/v1/models?limit=1000&after_id=b%26c"
    assert adapter.next_models_request(target(), b'{"data": [], "has_more": false, "last_id": "b"}') is None


@pytest.mark.parametrize("body", [b"<html>", b'{"data": 3}', b"\xff", b'"x"'])
def test_an_invalid_list_of_models_is_garbled(body: bytes) -> None:
    with pytest.raises(MalformedStream):
        ANTHROPIC.parse_models(body)


def test_error_instead_of_a_list_of_models_is_reported() -> None:
    body = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "named"}}'
    with pytest.raises(ProviderRefused, match="named"):
        ANTHROPIC.parse_models(body)


def test_a_cached_prompt_is_marked_at_its_tools_its_system_and_its_last_two_user_turns() -> None:
    cache = {"cache_control": {"type": "ephemeral"}}
    thinking = {"anthropic_content": [SIGNED], "anthropic_model": "claude-sonnet-4-5"}
    messages = [*ASKED, answer_with_calls("a", "b", replay=thinking), result("a"), result("b")]

    body = build_request(*messages, UserPrompt(text="And?"), tools=[ADD, ADD], caches_prompt=True)

    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
    assert body["tools"] == [tool, {**tool, **cache}]
    assert body["system"] == [{"type": "text", "text": "Be brief.", **cache}]
    assert body["messages"][0]["content"] == [{"type": "text", "text": "1+1?", **cache}]
    assert body["messages"][1]["content"][0] == SIGNED
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "2"},
        {"type": "tool_result", "tool_use_id": "b", "content": "2"},
        {"type": "text", "text": "And?", **cache},
    ]


def test_tools_that_may_not_be_called_now_stay_as_they_were() -> None:
    messages = [*ASKED, answer_with_calls("a"), result("a")]
    before = build_request(*messages, tools=[ADD], caches_prompt=True)

    none = ToolChoice(mode=ToolChoiceMode.NONE)
    after = build_request(*messages, tools=[ADD], tool_choice=none, caches_prompt=True)

    assert after.pop("tool_choice") == {"type": "none"}
    assert after == before


def test_what_follows_the_history_is_not_cached() -> None:
    cache = {"cache_control": {"type": "ephemeral"}}
    tail = UserPrompt(text="Open: buy milk.")
    history = [*ASKED, answer_with_calls("a"), result("a")]

    after_result = build_request(*history, tail, tools=[ADD], caches_prompt=True, tail=1)
    after_text = build_request(*history, AssistantPrompt(text="2"), tail, caches_prompt=True, tail=1)

    assert after_result["messages"][0]["content"] == [{"type": "text", "text": "1+1?", **cache}]
    assert after_result["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "2", **cache},
        {"type": "text", "text": "Open: buy milk."},
    ]
    assert after_text["messages"][2]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert after_text["messages"][4]["content"] == [{"type": "text", "text": "Open: buy milk."}]
