"""An answer that one server begins and a fallback of the same dialect ends: what only the first can read is
sent to nobody else."""

import json
from typing import Any, NamedTuple

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Bytes,
    Call,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from luxx.providers.scripted.responses import ENCRYPTED
from luxx.providers.scripted.script import ReplyEvent
from scenarios.client import AsyncApiClient

CALL_ID = "functions.python_eval:0/" + "x" * 90
CALL = Call(name="python_eval", arguments={"expression": "6*7"}, id=CALL_ID)
REFUSES = Rule(name="is broken", when=When(has_tool_result=True), status=404, message="gone")
ANSWERS = Rule(name="answers", reply=[Text(text="It is 42.")])


def chunks(*deltas: dict[str, Any]) -> Bytes:
    """A stream of the OpenAI dialect with these deltas and calls at its end."""
    sent = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    sent.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return Bytes(data="".join(f"data: {json.dumps(chunk)}\n\n" for chunk in sent) + "data: [DONE]\n\n")


FRAGMENT: dict[str, Any] = {
    "index": 0,
    "id": CALL_ID,
    "type": "function",
    "function": {"name": "python_eval", "arguments": '{"expression": "6*7"}'},
}


class Row(NamedTuple):
    """A provider type, and an answer of it that calls a tool; `secret`: what only its server can read."""

    provider_type: str
    model: str
    reply: list[ReplyEvent]
    secret: str


SIGNED = {"extra_content": {"google": {"thought_signature": "c2VjcmV0"}}}
DETAILS = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 0}]}
THOUGHT: list[ReplyEvent] = [Thinking(text="I compute."), Text(text="Let me see. "), CALL]
ROWS = [
    Row("anthropic", "claude-sonnet-4-5", THOUGHT, "scripted-signature"),
    Row("gemini", "gemini-3-pro-preview", THOUGHT, "c2NyaXB0ZWQ="),
    Row("openai_responses", "gpt-5", THOUGHT, ENCRYPTED),
    Row("openai_compatible", "of-google", [chunks({"tool_calls": [FRAGMENT | SIGNED]})], "c2VjcmV0"),
    Row("openrouter", "a-model", [chunks(DETAILS, {"tool_calls": [FRAGMENT]})], "c2VjcmV0"),
]


def ids_in(value: Any) -> list[str]:
    """The ids of calls and results in a request."""
    if isinstance(value, list):
        return [found for item in value for found in ids_in(item)]
    if not isinstance(value, dict):
        return []
    own = [each for name, each in value.items() if name in ("id", "call_id", "tool_call_id", "tool_use_id")]
    return own + [found for each in value.values() for found in ids_in(each)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.provider_type} {row.model}")
async def test_a_fallback_of_the_same_dialect_gets_no_foreign_signature(
    server: ServerProcess, row: Row
) -> None:
    calls = Rule(name="calls", when=When(has_tool_result=False), reply=row.reply)
    async with (
        ScriptedProvider(Script(rules=[calls, REFUSES])) as first,
        ScriptedProvider(Script(rules=[ANSWERS])) as second,
        AsyncApiClient(server.url) as ann,
    ):
        agent = await agent_with_fallback(ann, row, first.url, second.url)
        conversation = (await ann.post("/conversations", {"agent_id": agent})).get("id")
        async with ann.send_and_follow(conversation, "6 times 7?", tools=["python_eval"]) as stream:
            screen = await stream.to_the_end()
        assert screen.text.endswith("It is 42.")
        own, foreign = first.requests[1], second.requests[0]
    assert row.secret in own.body.decode()
    assert row.secret not in foreign.body.decode()
    for request in (own, foreign):
        call_id, result_id = ids_in({**request.json, "tools": []})[-2:]
        assert call_id == result_id
        assert len(call_id) <= 64


async def agent_with_fallback(
    ann: AsyncApiClient, row: Row, *urls: str, fallback_model: str | None = None
) -> int:
    """An agent whose provider has the first address, and its fallback the second; both have one model, unless
    that of the fallback is given."""
    providers = [await ann.connect(url, row.provider_type, row.model) for url in urls]
    body = {
        "name": f"Careful {row.model}",
        "provider_id": providers[0],
        "fallbacks": [{"provider_id": providers[1], "model": fallback_model}],
        "thinking_enabled": True,
    }
    return (await ann.post("/agents", body))["id"]


async def test_a_fallback_gets_no_more_than_fits_its_own_window(server: ServerProcess) -> None:
    filler = "The gardener waters the old pear tree behind the wall every evening. " * 120
    says = Rule(name="says", times=5, reply=[Text(text="I see.", pieces=1)])
    gone = Rule(name="is gone", status=404, message="gone")
    async with (
        ScriptedProvider(Script(rules=[says, gone])) as first,
        ScriptedProvider(Script(rules=[ANSWERS], window=8192)) as second,
        AsyncApiClient(server.url) as ann,
    ):
        large = Row("openai_compatible", "gpt-4.1-mini", [], "")
        agent = await agent_with_fallback(ann, large, first.url, second.url, fallback_model="smollm2-360m")
        conversation = (await ann.post("/conversations", {"agent_id": agent}))["id"]
        for number in range(6):
            text = f"Message {number}: {filler}"
            async with ann.send_and_follow(conversation, text, tools=False, max_tokens=500) as stream:
                screen = await stream.to_the_end()
        assert screen.text == "It is 42."
        # The events say so before the call, which the provider does not refuse.
        events = [event for event in screen.events() if event in ("retrying", "context_compressed")]
        assert events == ["retrying", "context_compressed"]
        assert [request.rule for request in second.requests] == ["answers"]
        (compressed,) = screen.data_of("context_compressed")
        assert (compressed["window"], compressed["overflow"]) == (8192, False)
        assert "Message 5" in second.requests[0].body.decode()
