"""A conversation with thinking and tools crosses five dialects in every order: each model gets all that was
said and done, its own reasoning as it was, and nobody else's.
"""

from base64 import b64encode
from itertools import permutations
from typing import Any, NamedTuple

import anthropic_answers
import gemini_answers
import openai_answers
import pytest
import responses_answers
from dialects import ROWS
from wire_reading import Reading, read_in_pieces

from luxx.providers.adapter import CompletionRequest, Target
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall, ToolSpec

Json = dict[str, Any]
TOOL = ToolSpec(name="add", description="Adds.", parameters={"type": "object", "properties": {}})


class Speaker(NamedTuple):
    """A model: its dialect and provider, its answer with a call, and the signature of its reasoning."""

    row: str
    provider: str
    model: str
    stream: bytes
    signature: str

    def request(self, messages: list[PromptMessage]) -> CompletionRequest:
        return CompletionRequest(model=self.model, messages=messages, tools=[TOOL], thinking_enabled=True)

    def body(self, messages: list[PromptMessage]) -> bytes:
        return ROWS[self.row].body(self.request(messages), self.provider)

    def reading(self) -> Reading:
        target = Target(provider_id=1, provider_type=self.provider, base_url="https://models.example")
        adapter = ROWS[self.row].adapter
        return read_in_pieces(lambda: adapter.parser_for(self.request([]), target), self.stream, 4096)


def _chat(name: str, reasoning: Json) -> bytes:
    function = {"name": "add", "arguments": '{"x": 1}'}
    call = {"index": 0, "id": f"call_{name}", "type": "function", "function": function}
    return openai_answers.stream_of([reasoning, {"content": f"{name} speaks."}, {"tool_calls": [call]}])


def _responses() -> bytes:
    call = {"type": "function_call", "call_id": "call_responses", "name": "add", "arguments": '{"x": 1}'}
    summary = [{"type": "summary_text", "text": "responses thinks"}]
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "sig-responses"}
    content = [{"type": "output_text", "text": "responses speaks."}]
    return responses_answers.stream_of([{"type": "message", "content": content}, reasoning, call])


def _anthropic() -> bytes:
    thinking = {"type": "thinking", "thinking": "anthropic thinks", "signature": "sig-anthropic"}
    text = {"type": "text", "text": "anthropic speaks."}
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"x": 1}}
    blocks = [anthropic_answers.AnswerBlock(block, [], block) for block in (thinking, text, call)]
    return anthropic_answers.stream_of(blocks, stop_reason="tool_use")


def _gemini(signature: str) -> bytes:
    thought = {"text": "gemini thinks", "thought": True}
    call = {"functionCall": {"name": "add", "args": {"x": 1}}, "thoughtSignature": signature}
    return gemini_answers.stream_of([thought, {"text": "gemini speaks."}, call])


GEMINI_SIGNATURE = b64encode(b"sig-gemini").decode()
DETAIL = {"type": "reasoning.encrypted", "data": "sig-openrouter", "format": "anthropic-claude-v1"}
SPEAKERS = {
    "chat": Speaker("openai", "openai", "gpt-4.1", _chat("chat", {"reasoning_content": "chat thinks"}), ""),
    "openrouter": Speaker(
        "openai", "openrouter", "m", _chat("openrouter", {"reasoning_details": [DETAIL]}), "sig-openrouter"
    ),
    "responses": Speaker("openai-responses", "openai_responses", "gpt-5", _responses(), "sig-responses"),
    "anthropic": Speaker("anthropic", "anthropic", "claude-sonnet-4-5", _anthropic(), "sig-anthropic"),
    "gemini": Speaker("gemini", "gemini", "gemini-2.5-pro", _gemini(GEMINI_SIGNATURE), GEMINI_SIGNATURE),
}
READINGS = {name: speaker.reading() for name, speaker in SPEAKERS.items()}


def check(name: str, messages: list[PromptMessage]) -> None:
    """The model's next request is valid, and has its own reasoning only."""
    speaker = SPEAKERS[name]
    row, body = ROWS[speaker.row], speaker.body(messages)
    row.rules(row.accepts(body, speaker.provider), speaker.request(messages))
    has_spoken = any(
        isinstance(each, AssistantPrompt) and each.replay == READINGS[name].replay for each in messages
    )
    for other, of_other in SPEAKERS.items():
        if of_other.signature:
            assert (of_other.signature.encode() in body) == (other == name and has_spoken), other


@pytest.mark.parametrize("first", SPEAKERS)
def test_conversation_crosses_five_dialects_in_every_order(first: str) -> None:
    for order in (order for order in permutations(SPEAKERS) if order[0] == first):
        messages: list[PromptMessage] = [SystemPrompt(text="Be brief."), UserPrompt(text="Add.")]
        for name in order:
            reading = READINGS[name]
            (call,) = reading.calls
            messages += [
                AssistantPrompt(
                    text=reading.text,
                    thinking=reading.thinking,
                    tool_calls=[ToolCall(call_id=call["id"], name=call["name"], arguments=call["arguments"])],
                    replay=reading.replay,
                ),
                ToolPrompt(call_id=call["id"], name="add", content='{"success": true, "data": 2}'),
            ]
            check(name, messages)
            messages += [AssistantPrompt(text=f"{name} has added."), UserPrompt(text="And you?")]
        for name in SPEAKERS:
            check(name, messages)
