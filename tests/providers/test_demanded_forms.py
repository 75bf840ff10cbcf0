"""Roles that templates of models demand, and JSON where a server refuses the field for it: both are learned
from the refusal, and later requests begin so."""

import json
from typing import Any

import pytest
from provider_calls import CallResult, calling, target_of

from luxx.providers.adapter import Adaptation, CompletionRequest
from luxx.providers.demanded_forms import with_demanded_roles
from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.tool import ToolCall

ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
NO_SYSTEM = "System role not supported"
LAST_USER = "This model does not support assistant message prefill. It must end with a user message."
CALL = ToolCall(call_id="call_1", name="add", arguments="{}")
CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
ROOM: list[PromptMessage] = [
    SystemPrompt(text="Be brief."),
    UserPrompt(text="The task."),
    UserPrompt(text="[Hill] Yes."),
    UserPrompt(text="No.", name="Lake"),
]


async def ask(kind: str, request: CompletionRequest, *rules: Rule) -> tuple[list[Any], list[CallResult]]:
    """The bodies of the requests of two calls, and their results."""
    script = Script(rules=[*rules, Rule(reply=[Text(text="ok")])])
    async with ScriptedProvider(script) as server, calling() as caller:
        results = [await caller.call(target_of(server.url, kind), request) for _ in range(2)]
        return [received.json for received in server.requests], results


@pytest.mark.parametrize(
    "refusal",
    [
        Rule(status=400, message=ALTERNATE, times=1),
        Rule(status=500, message=f"Error at row 13, column 7: {ALTERNATE}", times=1),
        Rule(body='data: {"error": {"message": "Roles must alternate."}}\n\n', times=1),
        Rule(status=400, message="deepseek-reasoner does not support successive user messages", times=1),
    ],
)
async def test_roles_alternate_where_the_server_demands_it(refusal: Rule) -> None:
    sent, results = await ask("openai_compatible", CompletionRequest(model="m", messages=ROOM), refusal)
    assert [(result.text, result.error) for result in results] == [("ok", None)] * 2
    assert [[one["role"] for one in body["messages"]] for body in sent] == [
        ["system", "user", "user", "user"],
        ["system", "user"],
        ["system", "user"],
    ]
    assert sent[1]["messages"][1]["content"] == "The task.\n\n[Hill] Yes.\n\n[Lake] No."


async def test_system_text_stands_in_the_first_message_where_the_server_takes_none() -> None:
    request = CompletionRequest(model="m", messages=ROOM[:2])
    sent, results = await ask("openai_compatible", request, Rule(status=400, message=NO_SYSTEM, times=1))
    assert [result.text for result in results] == ["ok", "ok"]
    assert (
        sent[1]["messages"] == sent[2]["messages"] == [{"role": "user", "content": "Be brief.\n\nThe task."}]
    )


async def test_claude_that_takes_no_beginning_of_its_answer_gets_a_message_of_the_user() -> None:
    messages: list[PromptMessage] = [UserPrompt(text="Write."), AssistantPrompt(text="Once")]
    request = CompletionRequest(model="claude-opus-5", messages=messages)
    sent, results = await ask("anthropic", request, Rule(status=400, message=LAST_USER, times=1))
    assert [result.text for result in results] == ["ok", "ok"]
    assert [[one["role"] for one in body["messages"]] for body in sent] == [
        ["user", "assistant"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user"],
    ]


def test_every_history_becomes_one_of_alternating_roles() -> None:
    image = PromptImage(media_type="image/png", data=b"png")
    messages: list[PromptMessage] = [
        AssistantPrompt(text="Hello."),
        AssistantPrompt(text="Again."),
        AssistantPrompt(),
        UserPrompt(text="See", images=(image,), offsets=(3,)),
        UserPrompt(text="this."),
        AssistantPrompt(tool_calls=[CALL]),
        ToolPrompt(call_id="call_1", name="add", content="1"),
        UserPrompt(text="Stop."),
    ]
    adapted = with_demanded_roles(messages, frozenset({Adaptation.ALTERNATING}))
    assert [type(each) for each in adapted] == [
        UserPrompt,
        AssistantPrompt,
        UserPrompt,
        AssistantPrompt,
        ToolPrompt,
        AssistantPrompt,
        UserPrompt,
    ]
    assert isinstance(adapted[2], UserPrompt)
    assert adapted[2].parts() == ["See", image, "this."]
    longer = with_demanded_roles([*messages, UserPrompt(text="Now.")], frozenset({Adaptation.ALTERNATING}))
    assert longer[:-1] == adapted[:-1]
    assert longer[-1] == UserPrompt(text="Stop.\n\nNow.")


async def test_refused_schema_becomes_json_mode_and_then_an_instruction() -> None:
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], response_schema=CLOSED)
    refusals = [
        Rule(status=400, message="This response_format type is unavailable now", times=1),
        Rule(status=400, message="response_format is not supported by this model", times=1),
    ]
    sent, results = await ask("openai_compatible", request, *refusals)
    assert [result.text for result in results] == ["ok", "ok"]
    assert [body.get("response_format", {}).get("type") for body in sent] == [
        "json_schema",
        "json_object",
        None,
        None,
    ]
    schema = json.dumps(CLOSED, separators=(",", ":"))
    assert [schema in json.dumps(body["messages"]).replace('\\"', '"') for body in sent] == [
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("kind", "field", "message"),
    [
        ("anthropic", "output_config", "output_config: Extra inputs are not permitted"),
        ("gemini", "generationConfig", "JSON mode is not enabled for models/m"),
        ("openai_responses", "text", "Unsupported parameter: text.format"),
    ],
)
async def test_every_dialect_learns_that_a_server_takes_no_schema(
    kind: str, field: str, message: str
) -> None:
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], response_schema=CLOSED)
    sent, results = await ask(kind, request, Rule(status=400, message=message, times=1))
    assert [result.text for result in results] == ["ok", "ok"]
    assert [field in body for body in sent] == [True, False, False]
    assert all("Answer with JSON alone" in json.dumps(body) for body in sent[1:])


async def test_refusal_of_one_schema_is_not_remembered() -> None:
    request = CompletionRequest(model="m", messages=[UserPrompt(text="hello")], response_schema=CLOSED)
    refusal = Rule(status=400, message="Invalid schema for response_format 'answer'", times=1)
    sent, results = await ask("openai_compatible", request, refusal)
    assert [result.text for result in results] == ["ok", "ok"]
    types = [body.get("response_format", {}).get("type") for body in sent]
    assert types == ["json_schema", None, "json_schema"]
