"""What a model must get back in its next turn: from an answer's stream to the request that continues it."""

import json
from typing import Any

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.providers.adapter import Adapter, CompletionRequest, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.wire.message import AssistantPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall

Json = dict[str, Any]

CALLS = [
    {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    for at in range(2)
]
SIZES = pytest.mark.parametrize("size", [1, 7, 4096])


def openai_stream(*deltas: Json) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return (
        b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    )


def continued(
    adapter: Adapter, reading: Reading, base_url: str, kind: str, model: str, **fields: Any
) -> list[Json]:
    """The messages of the request that continues the answer after its calls."""
    calls = [ToolCall(call_id=c["id"], name=c["name"], arguments=c["arguments"]) for c in reading.calls]
    answer = AssistantPrompt(
        text=reading.text, thinking=reading.thinking, tool_calls=calls, replay=reading.replay
    )
    results = [ToolPrompt(call_id=call.call_id, name=call.name, content="2") for call in calls]
    request = CompletionRequest(model=model, messages=[UserPrompt(text="1+1?"), answer, *results], **fields)
    target = Target(provider_id=1, provider_type=kind, base_url=base_url)
    return json.loads(adapter.build_request(request, target, stream=True).body)["messages"]


def after_openai(
    stream: bytes,
    size: int = 4096,
    *,
    base_url: str = "https://gateway.example/v1",
    kind: str = "openai_compatible",
    model: str = "m",
) -> Json:
    """The assistant's message in the request that continues the answer in this stream."""
    reading = read_in_pieces(OPENAI.parser, stream, size)
    return continued(OPENAI, reading, base_url, kind, model)[1]


@SIZES
@pytest.mark.parametrize("vendor", ["google", "vertex"])
def test_signatures_of_googles_models_go_back_with_their_calls(vendor: str, size: int) -> None:
    """https://github.com/earendil-works/pi/issues/6733 and /pull/7745 show both keys."""
    signed = {"extra_content": {vendor: {"thought_signature": "c2lnMQ=="}}}
    of_text = {"extra_content": {vendor: {"thought_signature": "c2lnMg=="}}}
    stream = openai_stream(
        {"content": "I add.", **of_text}, {"tool_calls": [CALLS[0] | signed]}, {"tool_calls": [CALLS[1]]}
    )

    message = after_openai(stream, size, model="gemini-3-pro")

    sent = [{key: value for key, value in call.items() if key != "index"} for call in CALLS]
    assert message == {
        "role": "assistant",
        "content": "I add.",
        "tool_calls": [sent[0] | signed, sent[1]],
        **of_text,
    }
    assert "extra_content" not in json.dumps(after_openai(stream, kind="openai"))


def test_google_gets_its_placeholder_for_calls_of_other_models() -> None:
    stream = openai_stream({"tool_calls": CALLS})
    google = "https://generativelanguage.googleapis.com/v1beta/openai"

    of_three = after_openai(stream, base_url=google, model="gemini-3-flash")["tool_calls"]
    of_two = after_openai(stream, base_url=google, model="gemini-2.5-flash")["tool_calls"]

    placeholder = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert [call.get("extra_content") for call in of_three] == [placeholder, None]
    assert [call.get("extra_content") for call in of_two] == [None, None]


@pytest.mark.parametrize(
    ("field", "to", "taken"),
    [
        ("reasoning", {}, "reasoning"),  # vLLM
        ("reasoning_content", {}, "reasoning_content"),
        ("reasoning", {"kind": "ollama"}, "reasoning"),
        ("reasoning_content", {"kind": "ollama"}, None),
        # Groq takes it for its reasoning models, and refuses it for the others:
        # https://github.com/vercel/ai/pull/8057
        ("reasoning", {"kind": "groq", "model": "openai/gpt-oss-120b"}, "reasoning"),
        ("reasoning", {"kind": "groq", "model": "moonshotai/kimi-k2-instruct"}, None),
        ("reasoning_content", {"kind": "groq", "model": "openai/gpt-oss-120b"}, None),
        ("reasoning", {"base_url": "https://api.cerebras.ai/v1"}, "reasoning"),
        ("reasoning_content", {"base_url": "https://api.cerebras.ai/v1"}, None),
        # These refuse a turn with tools that lacks its reasoning.
        ("reasoning", {"kind": "deepseek"}, "reasoning_content"),
        ("reasoning", {"base_url": "https://api.moonshot.ai/v1"}, "reasoning_content"),
        ("reasoning", {"kind": "openai"}, None),
        ("reasoning", {"kind": "mistral"}, None),
    ],
)
def test_reasoning_goes_back_in_the_field_that_the_server_takes(
    field: str, to: dict[str, str], taken: str | None
) -> None:
    message = after_openai(openai_stream({field: "I "}, {field: "add."}, {"tool_calls": CALLS}), **to)

    assert {key: value for key, value in message.items() if key.startswith("reasoning")} == (
        {} if taken is None else {taken: "I add."}
    )


def test_details_go_back_without_the_text_beside_them() -> None:
    detail = {"type": "reasoning.text", "text": "I add.", "signature": "c2ln", "index": 0}
    stream = openai_stream({"reasoning": "I add.", "reasoning_details": [detail]}, {"tool_calls": CALLS})

    message = after_openai(stream, kind="openrouter")

    assert message["reasoning_details"] == [detail]
    assert "reasoning" not in message


@SIZES
def test_minimax_gets_its_inline_thinking_back(size: int) -> None:
    content = "<think>\nI add.\n</think>\n\nWait."
    stream = openai_stream({"content": content[:10]}, {"content": content[10:]}, {"tool_calls": CALLS})

    assert after_openai(stream, size, base_url="https://api.minimax.io/v1")["content"] == content
    assert after_openai(stream, size)["content"] == "\n\nWait."


def anthropic_stream(block: Json, deltas: list[Json], model: str) -> bytes:
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"x": 1}}
    events: list[Json] = [
        {"type": "message_start", "message": {"model": model, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": call},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


@SIZES
@pytest.mark.parametrize("block", [{"signature": ""}, {}], ids=["empty signature", "no signature"])
@pytest.mark.parametrize(
    ("base_url", "model", "is_kept"),
    [
        ("https://api.deepseek.com/anthropic", "deepseek-v4", True),
        ("https://api.minimax.io/anthropic", "MiniMax-M2", True),
        ("https://api.anthropic.com", "a-model", False),
        ("https://gateway.example", "anthropic/claude-sonnet-5", False),
    ],
)
def test_unsigned_thinking_goes_back_to_servers_that_do_not_sign(
    block: Json, base_url: str, model: str, is_kept: bool, size: int
) -> None:
    thinking = {"type": "thinking", "thinking": "", **block}
    deltas = [{"type": "thinking_delta", "thinking": part} for part in ("I ", "add.")]
    reading = read_in_pieces(ANTHROPIC.parser, anthropic_stream(thinking, deltas, model), size)

    content = continued(ANTHROPIC, reading, base_url, "anthropic", model)[1]["content"]

    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"x": 1}}
    kept = [{**thinking, "thinking": "I add."}] if is_kept else []
    assert content == [*kept, call]


@pytest.mark.parametrize(
    ("adapter", "kind", "model", "list_name"),
    [
        (ANTHROPIC, "anthropic", "claude-sonnet-4-5", "messages"),
        (GEMINI, "gemini", "gemini-3-pro-preview", "contents"),
        (OPENAI, "mistral", "mistral-large-latest", "messages"),
    ],
    ids=["anthropic", "gemini", "mistral"],
)
def test_a_message_within_a_turn_changes_nothing_before_it(
    adapter: Adapter, kind: str, model: str, list_name: str
) -> None:
    """Another model's thinking is sent in the unfinished turn, and unsigned calls of it get a signature."""
    thinking = {"type": "thinking", "thinking": "I add.", "signature": "c2ln"}
    note = {"anthropic_content": [thinking], "anthropic_model": "claude-opus-4-1"}
    call = ToolCall(call_id="call12345", name="add", arguments="{}")
    turn = [
        UserPrompt(text="1+1?"),
        AssistantPrompt(thinking="I add.", tool_calls=[call], replay=note),
        ToolPrompt(call_id="call12345", name="add", content="2"),
    ]
    answer = AssistantPrompt(text="It is 2.")
    target = Target(provider_id=1, provider_type=kind, base_url="https://models.example")

    def sent(*messages: Any) -> list[Json]:
        request = CompletionRequest(model=model, messages=[*messages])
        return json.loads(adapter.build_request(request, target, stream=True).body)[list_name]

    before = sent(*turn)
    steered = sent(*turn, UserPrompt(text="Be brief.", is_inner=True), answer, UserPrompt(text="Why?"))
    within = sent(*turn, UserPrompt(text="Be brief.", is_inner=True))

    assert within[: len(before) - 1] == before[:-1]
    items = "content" if adapter is ANTHROPIC else "parts"
    if adapter is OPENAI:
        assert within[len(before) - 1] == before[-1]
        assert [message["role"] for message in within] == ["user", "assistant", "tool", "assistant", "user"]
    else:
        assert within[-1][items][: len(before[-1][items])] == before[-1][items]
        assert "c2ln" in json.dumps(within) or "skip_thought" in json.dumps(within)
        assert "c2ln" not in json.dumps(steered)
        assert "skip_thought" not in json.dumps(steered)
