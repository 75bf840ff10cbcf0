"""One row per dialect: its adapter, its providers, the vendor's types, and the rules of its API.

A further dialect is one more row of `ROWS`; the tests of requests run for each row.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from sdk_types import (
    accepted_by_anthropic,
    accepted_by_google,
    accepted_by_openai,
    accepted_by_responses,
)

from luxx.providers.adapter import Adapter, CompletionRequest, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.providers.openai_responses.adapter import RESPONSES
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt

Json = dict[str, Any]


def openai_rules(body: Json, asked: CompletionRequest) -> None:
    """Results directly follow their calls, in the same order; a system text comes first."""
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


def responses_rules(body: Json, asked: CompletionRequest) -> None:
    """Nothing is stored; the calls of a turn get their results before anything else is said; ids are unique;
    reasoning is followed by what it led to."""
    assert body["store"] is False
    assert body.get("max_output_tokens", 16) >= 16
    assert all(tool["strict"] is False for tool in body.get("tools", []))
    items = body["input"]
    assert items
    wanted: list[str] = []
    seen: set[str] = set()
    outputs = 0
    for item, following in zip(items, [*items[1:], None], strict=True):
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            assert item["call_id"] not in seen
            assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", item["call_id"])
            seen.add(item["call_id"])
            wanted.append(item["call_id"])
        elif kind in ("function_call_output", "custom_tool_call_output"):
            wanted.remove(item["call_id"])
            outputs += 1
        elif item.get("role") in ("user", "developer"):
            assert not wanted, f"calls without results: {wanted}"
        if kind == "reasoning":
            assert item["encrypted_content"]
            assert following is not None
            assert following.get("role") != "user"
    assert not wanted
    assert outputs == _results(asked.messages)
    said = [_blocks_text(item["content"]) for item in items if isinstance(item.get("content"), list)]
    said += [item["content"] for item in items if isinstance(item.get("content"), str)]
    _assert_all_said([body.get("instructions", ""), *said], asked.messages)


def anthropic_rules(body: Json, asked: CompletionRequest) -> None:
    """Turns alternate and begin with the user; results come first in the turn after their calls; ids are
    unique."""
    turns = body["messages"]
    assert [assistant_turn["role"] for assistant_turn in turns] == [
        ("user", "assistant")[at % 2] for at in range(len(turns))
    ]
    assert turns[-1]["role"] == "user"
    earlier_ids: set[str] = set()
    wanted: list[str] = []
    for assistant_turn in turns:
        blocks = assistant_turn["content"]
        kinds = [block["type"] for block in blocks]
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert kinds[: len(results)] == ["tool_result"] * len(results)
        assert sorted(results) == sorted(wanted)
        wanted = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert all(
            re.fullmatch("[a-zA-Z0-9_-]+", call_id) and call_id not in earlier_ids for call_id in wanted
        )
        assert len(set(wanted)) == len(wanted)
        earlier_ids.update(wanted)
    assert not wanted
    _assert_all_said(
        [_blocks_text(assistant_turn["content"]) for assistant_turn in turns] + [_system_text(body)],
        asked.messages,
    )
    assert len(earlier_ids) == _results(asked.messages)
    for message in asked.messages:
        if isinstance(message, UserPrompt) and message.images:
            _assert_images_stand_before(message, turns)
    _assert_switches_fit(body)
    blocks = [block for assistant_turn in turns for block in assistant_turn["content"]]
    system = body.get("system") or []
    marked = [block for block in [*blocks, *body.get("tools", []), *system] if "cache_control" in block]
    assert len(marked) <= 4
    assert not [block for block in marked if block.get("type") in ("thinking", "redacted_thinking")]
    offered = {tool["name"] for tool in body.get("tools", [])}
    called = {
        b["name"] for assistant_turn in turns for b in assistant_turn["content"] if b["type"] == "tool_use"
    }
    assert asked.tools or offered == called


def _system_text(body: Json) -> str:
    system = body.get("system", "")
    return system if isinstance(system, str) else _blocks_text(system)


def gemini_rules(body: Json, asked: CompletionRequest) -> None:
    """Turns alternate, begin with the user and are not empty; results directly follow their calls, by id and
    name."""
    contents = body["contents"]
    roles = [content["role"] for content in contents]
    assert roles == [("user", "model")[at % 2] for at in range(len(contents))]
    wanted: list[tuple[str, str]] = []
    for content in contents:
        parts = content["parts"]
        assert parts
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert sorted((result["id"], result["name"]) for result in results) == sorted(wanted)
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert not (calls and results)
        assert all(isinstance(call["args"], dict) for call in calls)
        wanted = [(call["id"], call["name"]) for call in calls]
    assert not wanted
    system = body.get("systemInstruction", {"parts": []})
    _assert_all_said([_blocks_text(content["parts"]) for content in [*contents, system]], asked.messages)


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
    for assistant_turn in turns:
        kinds = [block["type"] for block in assistant_turn["content"]]
        texts_there = [block.get("text") for block in assistant_turn["content"]]
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
    """The texts of blocks or parts; the text of thoughts and other types does not count."""
    said = [
        block
        for block in blocks
        if block.get("type", "text") in ("text", "input_text") and not block.get("thought")
    ]
    return "".join(block.get("text") or "" for block in said)


def _results(messages: list[PromptMessage]) -> int:
    return sum(isinstance(message, ToolPrompt) for message in messages)


class Row(NamedTuple):
    """`accepts` gives the body's JSON, or raises if the vendor's types refuse it from this provider."""

    adapter: Adapter
    provider_types: list[str]
    accepts: Callable[[bytes, str], Json]
    rules: Callable[[Json, CompletionRequest], None]
    models: list[str]

    def body(self, asked: CompletionRequest, provider_type: str) -> bytes:
        target = Target(provider_id=1, provider_type=provider_type, base_url="https://models.example")
        return self.adapter.build_request(asked, target, stream=True).body


ROWS = {
    "openai": Row(
        OPENAI,
        [
            "openai", "openai_compatible", "deepseek", "glm", "openrouter", "mistral", "groq", "qwen",
            "ollama", "local", "azure_openai",
        ],
        accepted_by_openai,
        openai_rules,
        ["gpt-4.1-mini", "gpt-5", "o3", "deepseek-reasoner"],
    ),
    "openai-responses": Row(
        RESPONSES,
        ["openai_responses", "openai", "azure_openai"],
        accepted_by_responses,
        responses_rules,
        ["gpt-5", "gpt-5.6-mini", "o3-pro", "gpt-4.1"],
    ),
    "anthropic": Row(
        ANTHROPIC,
        ["anthropic"],
        accepted_by_anthropic,
        anthropic_rules,
        ["claude-sonnet-4-5", "claude-opus-5-5", "claude-sonnet-5", "claude-3-5-haiku-latest", "a-model"],
    ),
    "gemini": Row(
        GEMINI,
        ["gemini"],
        accepted_by_google,
        gemini_rules,
        [
            "gemini-2.0-flash", "gemini-2.5-flash", "gemini-2.5-pro", "gemini-3-pro-preview",
            "gemini-flash-latest",
        ],
    ),
}  # fmt: skip
