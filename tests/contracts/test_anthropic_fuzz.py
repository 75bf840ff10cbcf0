"""No stream breaks the Anthropic adapter: it reads it or reports an error, and the notes can be sent back."""

import json
from typing import Any

from anthropic_answers import AnswerBlock, answers, stream_of
from hypothesis import given
from hypothesis import strategies as st
from wire_reading import read_in_pieces

from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.wire.message import AssistantPrompt, UserPrompt
from luxx.wire.tool import ToolCall

TARGET = Target(provider_id=1, provider_type="anthropic", base_url="https://models.example")
KEYS = [
    "type", "index", "delta", "content_block", "message", "usage", "error", "text", "thinking",
    "partial_json", "signature", "citation", "citations", "content", "input", "id", "name", "stop_reason",
    "stop_details", "model", "input_tokens", "data",
]  # fmt: skip
WORDS = [
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "message", "error", "text", "thinking", "tool_use", "server_tool_use", "text_delta",
    "thinking_delta", "input_json_delta", "citations_delta", "compaction", "compaction_delta", "end_turn",
    "web_search_tool_result", "pause_turn", "{", "",
]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
events = st.dictionaries(st.sampled_from(KEYS), values, max_size=5).flatmap(
    lambda fields: st.sampled_from(WORDS[:8]).map(lambda kind: {**fields, "type": kind})
)


def survives(stream: bytes, size: int) -> None:
    """`read_in_pieces` catches ProviderError, the only exception allowed; the result is sent as a history."""
    reading = read_in_pieces(ANTHROPIC.parser, stream, size)
    json.dumps(reading.replay)
    calls = [ToolCall(call_id=c["id"], name=c["name"], arguments=c["arguments"]) for c in reading.calls]
    answer = AssistantPrompt(text=reading.text, tool_calls=calls, replay=reading.replay)
    for history in ([answer], [UserPrompt(text="a"), answer, UserPrompt(text="b")]):
        request = CompletionRequest(model="claude-sonnet-4-5", messages=history, thinking_enabled=True)
        json.loads(ANTHROPIC.build_request(request, TARGET, stream=True).body)


@given(event_values=st.lists(events, max_size=12), size=st.integers(1, 300))
def test_events_of_any_shape_are_read_or_refused(event_values: list[Any], size: int) -> None:
    survives(b"".join(f"data: {json.dumps(value)}\n\n".encode() for value in event_values), size)


@given(answer=answers(), data=st.data(), size=st.integers(1, 300))
def test_bytes_that_are_lost_or_spoiled_are_read_or_refused(
    answer: list[AnswerBlock], data: st.DataObject, size: int
) -> None:
    stream = bytearray(stream_of(answer))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
        if not stream:
            break
    survives(bytes(stream), size)


def test_endless_nesting_is_refused_or_kept_out() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    block = {"type": "server_tool_use", "id": "a", "name": "b", "input": {}}
    call = {"type": "tool_use", "id": "c", "name": "d", "input": {}}
    written = [{"type": "input_json_delta", "partial_json": deep}]
    survives(stream_of([AnswerBlock(block, written, block), AnswerBlock(call, written, call)]), 4096)
    survives(b'data: {"type":"content_block_start","content_block":{"x":' + deep.encode() + b"}}\n\n", 4096)
