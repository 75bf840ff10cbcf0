"""Estimates the tokens of a completion whose provider reports no usage, and bounds those of a prompt. Pure.

A provider also bills a completion that a user cancels before its usage is reported; without an estimate,
such a completion would not count towards any limit. The estimate is close to the real count. The bound,
which reserves use, is above it.
"""

import string
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

import msgspec

from luxx.wire.delta import Usage
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.step import Step, StepType
from luxx.wire.tool import ToolSpec

BYTES_PER_TOKEN = 4
"""UTF-8 bytes: current tokenizers need a token per about four English letters or per Chinese character."""

IMAGE_TOKENS = 1_000
"""Vendors count about 250 to 1,600 tokens for an image of usual size."""

MAX_IMAGE_TOKENS = 5_000
"""More than vendors count for an image of any size, except for their cheapest models."""

REQUEST_TOKENS = 64
TOOLS_TOKENS = 1_000
"""The tokens that vendors add per request, and for its tools: the published figures are up to about 800."""

MESSAGE_TOKENS = 10
"""The delimiters around each message and each tool: four to eight tokens in current templates."""

COMMON_BYTES = bytes(
    [*string.ascii_letters.encode(), *string.whitespace.encode(), *range(0x80, 0xE0), *range(0xE3, 0xF0)]
)
"""In usual text, a token has at least two of these bytes: letters, whitespace, common scripts. Digits and
punctuation may be one token each, and so may the first bytes of rarer scripts and emoji."""


def estimated_usage(
    reported: Usage,
    messages: Iterable[PromptMessage],
    tools: Iterable[ToolSpec],
    steps: Iterable[Step],
    *,
    max_tokens: int | None = None,
) -> Usage:
    """`reported`, with missing counts estimated: the prompt from the request, the completion from `steps`.

    A completion count that was reported before the end (some dialects start with one) may be too low, so the
    larger of reported and estimated count is used. `max_tokens`: the limit that was sent to the provider.
    """
    estimate = _tokens(sum(_step_bytes(step) for step in steps))
    completion = max(
        reported.completion_tokens, estimate if max_tokens is None else min(estimate, max_tokens)
    )
    prompt = reported.prompt_tokens
    if not prompt:
        sent_bytes = sum(_message_bytes(message) for message in messages)
        prompt = _tokens(sent_bytes + sum(len(msgspec.json.encode(tool)) for tool in tools))
    return msgspec.structs.replace(
        reported, prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


class PromptSize(msgspec.Struct, frozen=True):
    """The tokens of a prompt before it is sent: an estimate, and an upper bound for usual text."""

    estimate: int
    bound: int


def prompt_size(
    messages: Sequence[PromptMessage], tools: Sequence[ToolSpec], schema: object = None
) -> PromptSize:
    """How many tokens a provider will count for a prompt.

    A token has at least one byte. Text of only digits or of a rare script comes close to that. The bound
    overestimates English by a factor of about two, Chinese by a third.
    """
    size = bound = images = 0
    for part in _parts(messages, tools, schema):
        size += len(part)
        rare_bytes = len(part.translate(None, COMMON_BYTES))
        bound += rare_bytes + (len(part) - rare_bytes + 1) // 2
    for message in messages:
        images += len(message.images) if isinstance(message, UserPrompt) else 0
    overhead = REQUEST_TOKENS + MESSAGE_TOKENS * (len(messages) + len(tools)) + (TOOLS_TOKENS if tools else 0)
    return PromptSize(
        estimate=_tokens(size) + images * IMAGE_TOKENS, bound=bound + overhead + images * MAX_IMAGE_TOKENS
    )


def _parts(messages: Iterable[PromptMessage], tools: Iterable[ToolSpec], schema: object) -> Iterator[bytes]:
    """Everything that is sent as text, in UTF-8."""
    for message in messages:
        match message:
            case SystemPrompt(text=text) | UserPrompt(text=text) | ToolPrompt(content=text):
                yield _bytes(text)
            case AssistantPrompt(text=text, thinking=thinking, tool_calls=calls, replay=replay):
                yield _bytes(text)
                yield _bytes(thinking)
                yield from (_bytes(f"{call.call_id} {call.name} {call.arguments}") for call in calls)
                if replay:
                    yield msgspec.json.encode(replay)
            case _:
                assert_never(message)
    yield from (msgspec.json.encode(tool) for tool in tools)
    if schema is not None:
        yield msgspec.json.encode(schema)


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
    return len(_bytes(text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
