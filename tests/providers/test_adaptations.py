"""A request that a server refuses is sent once more as the refusal demands, and later ones begin so."""

from typing import Any

import msgspec
import pytest
from provider_calls import ASK, CallResult, calling, target_of

from luxx.errors import ProviderRefused
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.registry import completion_adapter
from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from luxx.wire.message import AssistantPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall, ToolChoice, ToolChoiceMode, ToolSpec

ANSWER = Rule(reply=[Text(text="ok")])

ONLY_IN_RESPONSES = "This model is only supported in v1/responses and not in v1/chat/completions."
NO_TOOLS_WITH_EFFORT = (
    "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions."
)
WANTS_NEW_LIMIT = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)
WANTS_OLD_LIMIT = "Unrecognized request argument supplied: max_completion_tokens"
NO_TEMPERATURE = "Unsupported value: 'temperature' does not support 0.5 with this model."
NO_SUMMARIES = "Your organization must be verified to generate reasoning summaries."
NOTHING_ENCRYPTED = "Encrypted content is not supported with this model."
UNREADABLE = "The encrypted content gAAA could not be verified. Reason: it could not be decrypted."


async def asked_twice(
    provider_type: str, request: CompletionRequest, status: int, message: str
) -> tuple[list[tuple[str, dict[str, Any]]], list[CallResult]]:
    """The path and the body of each request when the first is refused, and the two results."""
    rules = [Rule(status=status, message=message, times=1), ANSWER]
    async with ScriptedProvider(Script(rules=rules)) as server, calling() as caller:
        results = [await caller.call(target_of(server.url, provider_type), request) for _ in range(2)]
        return [(received.path, received.json) for received in server.requests], results


@pytest.mark.parametrize(
    ("provider_type", "fields", "status", "message", "refused", "accepted"),
    [
        ("azure_openai", {"max_tokens": 9}, 400, WANTS_NEW_LIMIT, "max_tokens", "max_completion_tokens"),
        ("openai_compatible", {"max_tokens": 9}, 400, WANTS_NEW_LIMIT, "max_tokens", "max_completion_tokens"),
        ("openai", {"max_tokens": 9}, 400, WANTS_OLD_LIMIT, "max_completion_tokens", "max_tokens"),
        ("azure_openai", {"temperature": 0.5}, 400, NO_TEMPERATURE, "temperature", "messages"),
        ("openai_responses", {"temperature": 0.5}, 400, NO_TEMPERATURE, "temperature", "input"),
        ("openai_responses", {}, 400, NOTHING_ENCRYPTED, "include", "input"),
        ("openai_responses", {"thinking_enabled": True}, 400, NO_SUMMARIES, "reasoning", "input"),
        ("openai", {}, 404, ONLY_IN_RESPONSES, "messages", "input"),
        ("openai", {}, 400, NO_TOOLS_WITH_EFFORT, "messages", "input"),
        ("azure_openai", {}, 400, "The chatCompletion operation does not work with it.", "messages", "input"),
    ],
)
async def test_refused_request_is_sent_as_demanded_and_the_next_ones_too(
    provider_type: str, fields: dict[str, Any], status: int, message: str, refused: str, accepted: str
) -> None:
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], **fields)

    sent, results = await asked_twice(provider_type, request, status, message)

    assert [(result.text, result.error, result.waits) for result in results] == [("ok", None, [])] * 2
    assert [refused in body for _, body in sent] == [True, False, False]
    assert all(accepted in body for _, body in sent[1:])
    assert [path.endswith("/responses") for path, _ in sent] == ["input" in body for _, body in sent]


async def test_unreadable_reasoning_is_left_out_of_this_conversation_only() -> None:
    call = ToolCall(call_id="call_1", name="add", arguments="{}")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    items = [reasoning, {"type": "function_call", "call": "call_1"}]
    note = {"openai_responses": {"origin": "127.0.0.1 m", "items": items}}
    answer = AssistantPrompt(tool_calls=[call], replay=note)
    result = ToolPrompt(call_id="call_1", name="add", content="{}")
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello"), answer, result])

    sent, results = await asked_twice("openai_responses", request, 400, UNREADABLE)

    assert [result.text for result in results] == ["ok", "ok"]
    assert [reasoning in body["input"] for _, body in sent] == [True, False, True]


@pytest.mark.parametrize(
    "message",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
        "Missing `reasoning_content` field in the assistant message at message index 1.",
    ],
)
async def test_server_that_wants_reasoning_gets_it_for_calls_of_which_none_is_known(message: str) -> None:
    call = ToolCall(call_id="call_1", name="add", arguments="{}")
    known = AssistantPrompt(thinking="I add.", tool_calls=[call])
    result = ToolPrompt(call_id="call_1", name="add", content="{}")
    messages = [UserPrompt(text="hello"), AssistantPrompt(tool_calls=[call]), result, known, result]

    sent, results = await asked_twice(
        "openai_compatible", CompletionRequest(model="m", messages=messages), 400, message
    )

    assert [result.text for result in results] == ["ok", "ok"]
    fields = [[each.get("reasoning_content") for each in body["messages"][1::2]] for _, body in sent]
    assert fields == [[None, None], [" ", "I add."], [" ", "I add."]]


async def test_server_that_wants_reasoning_is_asked_once_where_there_are_no_calls() -> None:
    rule = Rule(status=400, message="The `reasoning_content` must be passed back to the API.")
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        result = await caller.call(target_of(server.url, "openai_compatible"), ASK)

        assert isinstance(result.error, ProviderRefused)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("provider_type", "message"),
    [
        ("openai_compatible", ONLY_IN_RESPONSES),
        ("openai_responses", ONLY_IN_RESPONSES),
        ("openai_responses", "no such model"),
        ("openai", WANTS_NEW_LIMIT),
        ("anthropic", ONLY_IN_RESPONSES),
    ],
)
async def test_refusal_that_demands_nothing_possible_is_the_error(provider_type: str, message: str) -> None:
    async with (
        ScriptedProvider(Script(rules=[Rule(status=400, message=message)])) as server,
        calling() as caller,
    ):
        result = await caller.call(target_of(server.url, provider_type), ASK)

        assert isinstance(result.error, ProviderRefused)
        assert len(server.requests) == 1


async def test_server_that_refuses_every_form_is_asked_once_in_each() -> None:
    rules = [
        Rule(status=400, message=WANTS_NEW_LIMIT, times=1),
        Rule(status=400, message=WANTS_OLD_LIMIT),
    ]
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], max_tokens=9)
    async with ScriptedProvider(Script(rules=rules)) as server, calling() as caller:
        result = await caller.call(target_of(server.url, "openai_compatible"), request)

        assert isinstance(result.error, ProviderRefused)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("provider_type", "base_url", "model", "dialect"),
    [
        ("openai", "https://api.openai.com/v1", "gpt-5.4-mini", "openai_responses"),
        ("openai", "https://api.openai.com/v1", "o3-pro", "openai_responses"),
        ("openai", "https://api.openai.com/v1", "gpt-5-codex", "openai_responses"),
        ("openai", "https://api.openai.com/v1", "computer-use-preview", "openai_responses"),
        ("openai", "https://api.openai.com/v1", "ft:o4-mini:acme", "openai_responses"),
        ("openai", "https://eu.api.openai.com/v1", "gpt-6", "openai_responses"),
        ("openai_compatible", "https://api.openai.com/v1", "gpt-5", "openai_responses"),
        ("openai", "https://api.openai.com/v1", "gpt-4.1-mini", "openai"),
        ("openai", "https://api.openai.com/v1", "gpt-5-chat-latest", "openai"),
        ("openai", "http://127.0.0.1:8000/v1", "gpt-5", "openai"),
        ("openai_compatible", "https://models.example/v1", "gpt-5", "openai"),
        ("openrouter", "https://openrouter.ai/api/v1", "openai/gpt-5", "openai"),
        ("openai_responses", "https://models.example/v1", "any", "openai_responses"),
        ("azure_openai", "https://acme.openai.azure.com", "gpt-5", "openai_responses"),
        ("openai", "https://acme.openai.azure.com/openai/v1", "gpt-5", "openai_responses"),
        ("azure_openai", "https://acme.openai.azure.com/openai/v1", "my-deployment", "openai"),
        (
            "azure_openai",
            "https://acme.openai.azure.com/openai/deployments/gpt-5?api-version=2024-10-21",
            "gpt-5",
            "openai",
        ),
    ],
)
def test_openais_models_that_need_responses_are_called_there(
    provider_type: str, base_url: str, model: str, dialect: str
) -> None:
    target = Target(provider_id=1, provider_type=provider_type, base_url=base_url)
    request = CompletionRequest(model=model, messages=[])

    assert completion_adapter(request, target).dialect == dialect


TOOLS = [
    ToolSpec(name=name, description=f"Tool {name}", parameters={"type": "object", "properties": {}})
    for name in ("first", "second", "third")
]


def sent_tools(body: dict[str, Any]) -> list[str]:
    """The names of the tools in a request of any dialect."""
    listed = body.get("tools", [])
    declared = [each for one in listed for each in one.get("functionDeclarations", [])]
    return [(each.get("function") or each)["name"] for each in declared or listed]


@pytest.mark.parametrize(
    ("provider_type", "message"),
    [
        ("openai_compatible", "Invalid schema for function 'second': array schema missing items"),
        ("openai_compatible", "Invalid 'tools[1].function.parameters': too many properties"),
        ("openai_responses", "Invalid schema for function 'second': None is not of type 'object'"),
        ("anthropic", "tools.1.custom.input_schema: JSON schema is invalid. It must match draft 2020-12"),
        (
            "gemini",
            "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: is empty",
        ),
    ],
)
async def test_a_tool_that_the_server_refuses_is_left_out_of_this_and_later_requests(
    provider_type: str, message: str
) -> None:
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], tools=TOOLS)

    sent, results = await asked_twice(provider_type, request, 400, message)

    assert [(result.text, result.error, result.waits) for result in results] == [("ok", None, [])] * 2
    assert [sent_tools(body) for _, body in sent] == [["first", "second", "third"], *[["first", "third"]] * 2]
    assert [list(result.refused_tools) for result in results] == [["second"], []]


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("Invalid schema for function 'unknown': it has no type", {}),
        ("Invalid 'tools[7].function.name'", {}),
        ("Invalid schema for response_format 'answer'", {}),
        ("Invalid schema for function 'second'", {"needs_tools": True}),
        (
            "Invalid schema for function 'second'",
            {"tool_choice": ToolChoice(mode=ToolChoiceMode.REQUIRED, name="second")},
        ),
    ],
)
async def test_a_refusal_of_no_tool_that_can_be_spared_is_final(message: str, fields: dict[str, Any]) -> None:
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], tools=TOOLS, **fields)
    rule = Rule(status=400, message=message)
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        result = await caller.call(target_of(server.url, "openai_compatible"), request)

        assert isinstance(result.error, ProviderRefused)
        assert len(server.requests) == 1


async def test_at_most_five_tools_are_left_out_and_a_changed_one_is_tried_again() -> None:
    tools = [msgspec.structs.replace(TOOLS[0], name=f"t{number}") for number in range(9)]
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], tools=tools)
    always = Rule(status=400, message="Invalid 'tools[0].function.parameters'", times=6)
    async with ScriptedProvider(Script(rules=[always, ANSWER])) as server, calling() as caller:
        target = target_of(server.url, "openai_compatible")
        refused = await caller.call(target, request)
        changed = msgspec.structs.replace(tools[0], description="Another")
        await caller.call(target, msgspec.structs.replace(request, tools=[changed, *tools[1:]]))

        assert isinstance(refused.error, ProviderRefused)
        assert len(server.requests) == 7
        assert sent_tools(server.requests[-1].json) == ["t0", "t5", "t6", "t7", "t8"]
