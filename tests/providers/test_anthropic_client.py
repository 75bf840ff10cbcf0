"""The Anthropic adapter behind the real client, against the scripted provider's side of the dialect."""

import json
from typing import Any

import pytest
from provider_calls import CallResult, calling, target_of

from luxx.errors import ProviderFailed
from luxx.providers.adapter import CompletionRequest
from luxx.providers.client import Completion
from luxx.providers.scripted import (
    Bytes,
    Call,
    Counts,
    Fail,
    Faults,
    Finish,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall, ToolSpec
from luxx.wire.turn import FinishReason, ReplayDelta

ADD = ToolSpec(name="add", description="Adds.", parameters={"type": "object"})
ASK: list[PromptMessage] = [SystemPrompt(text="You are an adder."), UserPrompt(text="hello")]
REPLY = [
    Thinking(text="I think."),
    Text(text="Let me add."),
    Call(name="add", arguments={"x": 1}, id="toolu_a"),
    Call(name="add", arguments="{broken", id="toolu_b"),
    Counts(prompt=11, completion=7),
]


def request(*more: PromptMessage, **fields: Any) -> CompletionRequest:
    return CompletionRequest(model="m", messages=[*ASK, *more], tools=[ADD], **fields)


async def complete(rule: Rule) -> Completion:
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        return await caller.client.complete(request(), target_of(server.url, "anthropic"))


@pytest.mark.parametrize("faults", [Faults(), Faults(split=1), Faults(split=7)])
async def test_all_kinds_of_deltas_arrive(faults: Faults) -> None:
    rule = Rule(when=When(system="adder", user="hello", model="m"), reply=REPLY, faults=faults)

    got = await complete(rule)

    assert (got.thinking, got.text) == ("I think.", "Let me add.")
    assert got.tool_calls == [
        ToolCall(call_id="toolu_a", name="add", arguments='{"x":1}'),
        ToolCall(call_id="toolu_b", name="add", arguments="{broken"),
    ]
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (11, 7)
    assert got.finish is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", FinishReason.STOP), ("length", FinishReason.LENGTH), ("pause_turn", FinishReason.PAUSED)],
)
async def test_the_stop_reason_arrives(reason: str, finish: FinishReason) -> None:
    assert (await complete(Rule(reply=[Text(text="x"), Finish(reason=reason)]))).finish is finish


async def test_next_request_carries_the_signature_and_the_results() -> None:
    rules = [
        Rule(when=When(has_tool_result=False), reply=REPLY),
        Rule(when=When(has_tool_result=True), reply=[Text(text="Two.")]),
    ]

    async with ScriptedProvider(Script(rules=rules)) as server, calling() as caller:
        to = target_of(server.url, "anthropic")
        first = await caller.call(to, request())
        assert first.error is None
        replay = next(delta.data for delta in first.deltas if isinstance(delta, ReplayDelta))
        calls = [
            ToolCall(call_id=call_id, name="add", arguments='{"x":1}') for call_id in ("toolu_a", "toolu_b")
        ]
        answer = AssistantPrompt(text="Let me add.", tool_calls=calls, replay=replay)
        results = [ToolPrompt(call_id=call.call_id, name="add", content="2") for call in calls]
        second = await caller.call(to, request(answer, *results))
        assert second.text == "Two."
        messages = json.loads(server.requests[-1].body)["messages"]

    thinking = {"type": "thinking", "thinking": "I think.", "signature": "scripted-signature"}
    assert messages[1]["content"][0] == thinking
    assert [block["type"] for block in messages[1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["toolu_a", "toolu_b"]


async def call_scripted(*rules: Rule, **settings: Any) -> CallResult:
    async with ScriptedProvider(Script(rules=list(rules))) as server, calling(**settings) as caller:
        return await caller.call(target_of(server.url, "anthropic"), request())


OVERLOADED = Fail(message="Overloaded", kind="overloaded_error")


async def test_overload_before_the_first_delta_is_retried() -> None:
    got = await call_scripted(
        Rule(reply=[OVERLOADED], times=1), Rule(reply=[Text(text="Now then.")]), retries=2
    )

    assert (got.text, got.error) == ("Now then.", None)
    assert [retry.attempt for retry in got.retries] == [2]
    assert "Overloaded" in got.retries[0].reason


async def test_overload_after_the_first_delta_is_an_error_that_keeps_the_text() -> None:
    got = await call_scripted(Rule(reply=[Text(text="Well, "), OVERLOADED]), retries=2)

    assert got.text == "Well, "
    assert isinstance(got.error, ProviderFailed)
    assert got.retries == []


async def test_overload_as_a_status_is_retried() -> None:
    got = await call_scripted(Rule(status=529, times=1), Rule(reply=[Text(text="Now.")]), retries=2)

    assert (got.text, len(got.retries)) == ("Now.", 1)


async def test_answer_whose_body_stays_open_is_complete() -> None:
    rule = Rule(reply=[Text(text="All said.")], faults=Faults(keep_open=True))

    got = await call_scripted(rule, idle_timeout_seconds=60)

    assert (got.text, got.error) == ("All said.", None)


async def test_second_message_of_one_stream_is_read_though_the_first_has_ended() -> None:
    def said(text: str) -> str:
        events = [
            {"type": "message_start", "message": {"model": "m", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": text}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        return "".join(f"data: {json.dumps(value)}\n\n" for value in events)

    got = await call_scripted(Rule(reply=[Bytes(data=said("One, ")), Bytes(data=said("two."))]))

    assert (got.text, got.error) == ("One, two.", None)


async def test_models_are_listed() -> None:
    async with ScriptedProvider(Script(rules=[], models=["a", "b"])) as server, calling() as caller:
        result = await caller.client.list_models(target_of(server.url, "anthropic"))
    assert result == ["a", "b"]
