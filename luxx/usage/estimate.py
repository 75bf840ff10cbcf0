"""How many tokens a completion took where its provider did not say. Pure; near enough for limits.

A provider bills what it has read and written, also of a completion that a person cancels before its usage
is told; without an estimate, cancelling in time would be free of every limit.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.step import Step, StepType
from luxx.wire.tool import ToolSpec
from luxx.wire.usage import Usage

BYTES_PER_TOKEN = 4
"""Of UTF-8: today's tokenizers take about four letters of English, and most of a Chinese character."""

IMAGE_TOKENS = 1_000
"""What vendors count for a picture of usual size lies between some 250 and 1,600."""


def estimated_usage(
    told: Usage, messages: Iterable[PromptMessage], tools: Iterable[ToolSpec], said: Iterable[Step]
) -> Usage:
    """`told`, with what the provider left out: the prompt from what was sent, the answer from what came.

    A count of the answer that was told before its end (some dialects begin with one) may be too low, so the
    greater of the two counts.
    """
    answer = _tokens(sum(_step_bytes(step) for step in said))
    completion = max(told.completion_tokens, answer)
    prompt = told.prompt_tokens
    if not prompt:
        sent = sum(_message_bytes(message) for message in messages)
        prompt = _tokens(sent + sum(len(msgspec.json.encode(tool)) for tool in tools))
    return msgspec.structs.replace(
        told, prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _step_bytes(step: Step) -> int:
    match step.type:
        case StepType.TEXT | StepType.THINKING:
            return _size(step.content)
        case StepType.TOOL_CALL:
            return _size(step.name or "") + _size(step.arguments or "")
        case StepType.TOOL_RESULT:
            return 0
        case _:
            assert_never(step.type)


def _message_bytes(message: PromptMessage) -> int:
    match message:
        case SystemPrompt(text=text):
            return _size(text)
        case UserPrompt(text=text, images=images):
            return _size(text) + len(images) * IMAGE_TOKENS * BYTES_PER_TOKEN
        case AssistantPrompt(text=text, thinking=thinking, tool_calls=calls):
            return (
                _size(text)
                + _size(thinking)
                + sum(_size(call.name) + _size(call.arguments) for call in calls)
            )
        case ToolPrompt(content=content):
            return _size(content)
        case _:
            assert_never(message)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
