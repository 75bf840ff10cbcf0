"""Any history becomes a request that the vendor's own types accept and whose order its rules allow.

A further dialect is one more row of `ROWS`: its adapter, a target, the SDK's type and its rules.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from histories import histories, names, said
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sdk_types import ANTHROPIC, OPENAI, accepted_by

from luxx.providers.adapter import Adapter, CompletionRequest, Target
from luxx.providers.anthropic import AnthropicAdapter
from luxx.providers.openai import OpenAIAdapter
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolSpec

Json = dict[str, Any]

SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}},
    "required": ["city"],
}


def openai_rules(body: Json, asked: CompletionRequest) -> None:
    """Results follow their calls at once, in the calls' order; a system text comes first."""
    messages = body["messages"]
    wanted: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert wanted, f"a result without a call: {message}"
            assert message["tool_call_id"] == wanted.pop(0)
            continue
        assert not wanted, f"calls without results: {wanted}"
        wanted = [call["id"] for call in message.get("tool_calls", [])]
        if message["role"] == "user" and isinstance(message["content"], list):
            _assert_images_come_first([part["type"] for part in message["content"]])
    assert not wanted
    assert [at for at, message in enumerate(messages) if message["role"] == "system"] in ([], [0])
    _assert_all_said([_openai_text(message) for message in messages], asked.messages)
    assert len([1 for message in messages if message["role"] == "tool"]) == _results(asked.messages)


def anthropic_rules(body: Json, asked: CompletionRequest) -> None:
    """Turns alternate, a user's first; results open the turn after their calls; ids are unique."""
    turns = body["messages"]
    assert [turn["role"] for turn in turns] == [("user", "assistant")[at % 2] for at in range(len(turns))]
    assert turns[-1]["role"] == "user"
    seen: set[str] = set()
    wanted: list[str] = []
    for turn in turns:
        blocks = turn["content"]
        kinds = [block["type"] for block in blocks]
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert kinds[: len(results)] == ["tool_result"] * len(results)
        assert results == wanted
        wanted = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert all(re.fullmatch("[a-zA-Z0-9_-]+", call_id) and call_id not in seen for call_id in wanted)
        assert len(set(wanted)) == len(wanted)
        seen.update(wanted)
    assert not wanted
    _assert_all_said(
        [_blocks_text(turn["content"]) for turn in turns] + [body.get("system", "")], asked.messages
    )
    assert len(seen) == _results(asked.messages)
    for one in asked.messages:
        if isinstance(one, UserPrompt) and one.images:
            _assert_images_stand_before(one, turns)
    _assert_switches_fit(body)
    offered = {tool["name"] for tool in body.get("tools", [])}
    called = {b["name"] for turn in turns for b in turn["content"] if b["type"] == "tool_use"}
    assert asked.tools or offered == called


def _assert_switches_fit(body: Json) -> None:
    thinking = body.get("thinking", {"type": "disabled"})
    assert body["max_tokens"] > 0
    assert 1024 <= thinking.get("budget_tokens", 1024) < max(body["max_tokens"], 1025)
    assert thinking["type"] == "disabled" or "temperature" not in body
    assert 0 <= body.get("temperature", 0) <= 1


def _assert_images_come_first(kinds: list[str]) -> None:
    assert "image_url" not in kinds[kinds.index("text") :] if "text" in kinds else True


def _assert_images_stand_before(said_with: UserPrompt, turns: list[Json]) -> None:
    expected = ["image"] * len(said_with.images) + ["text"]
    for turn in turns:
        kinds = [block["type"] for block in turn["content"]]
        texts_there = [block.get("text") for block in turn["content"]]
        for at, text in enumerate(texts_there):
            start = at - len(said_with.images)
            if text == said_with.text and start >= 0 and kinds[start : at + 1] == expected:
                return
    raise AssertionError(f"the images are not right before {said_with.text!r}")


def _assert_all_said(sent: list[str], messages: list[PromptMessage]) -> None:
    whole = "".join(sent)
    for message in messages:
        if isinstance(message, SystemPrompt | UserPrompt | AssistantPrompt) and message.text.strip():
            assert message.text in whole


def _openai_text(message: Json) -> str:
    content = message["content"] or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _blocks_text(blocks: list[Json]) -> str:
    return "".join(block.get("text", "") for block in blocks)


def _results(messages: list[PromptMessage]) -> int:
    return sum(isinstance(message, ToolPrompt) for message in messages)


class Row(NamedTuple):
    adapter: Adapter
    provider_type: str
    sdk: Any
    rules: Callable[[Json, CompletionRequest], None]
    models: list[str]


ROWS = {
    "openai": Row(OpenAIAdapter(), "openai", OPENAI, openai_rules, ["gpt-4.1-mini", "gpt-5", "o3"]),
    "anthropic": Row(
        AnthropicAdapter(),
        "anthropic",
        ANTHROPIC,
        anthropic_rules,
        ["claude-sonnet-4-5", "claude-opus-5-5", "claude-sonnet-5", "claude-3-5-haiku-latest", "a-model"],
    ),
}

tools = st.builds(ToolSpec, name=names, description=said, parameters=st.just(SCHEMA))


@st.composite
def requests(draw: st.DrawFn, models: list[str]) -> CompletionRequest:
    return CompletionRequest(
        model=draw(st.sampled_from(models)),
        messages=draw(histories()),
        tools=draw(st.lists(tools, max_size=2, unique_by=lambda tool: tool.name)),
        thinking_enabled=draw(st.booleans()),
        temperature=draw(st.none() | st.floats(0, 2)),
        max_tokens=draw(st.none() | st.integers(1, 100_000)),
        response_schema=draw(st.none() | st.just(SCHEMA)),
    )


@pytest.mark.parametrize("dialect", ROWS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_history_is_sent_as_the_vendors_types_and_rules_have_it(
    dialect: str, data: st.DataObject
) -> None:
    row = ROWS[dialect]
    asked = data.draw(requests(row.models))
    target = Target(provider_id=1, provider_type=row.provider_type, base_url="https://models.example")

    sent = row.adapter.build_request(asked, target, stream=True)

    row.rules(accepted_by(row.sdk, sent.body), asked)
