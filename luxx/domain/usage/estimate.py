"""How many tokens a completion took where its provider did not say, and how many one can take. Pure.

A provider bills what it has read and written, also of a completion that a person cancels before its usage
is told; without an estimate, cancelling in time would be free of every limit. The estimate is near; the
bound, for what is set aside before a call, is above.
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
"""Of UTF-8: today's tokenizers take about four letters of English, and most of a Chinese character."""

IMAGE_TOKENS = 1_000
"""What vendors count for a picture of usual size lies between some 250 and 1,600."""


MAX_IMAGE_TOKENS = 5_000
"""More than vendors count for a picture of any size, but for the cheapest models, which count them dearer."""

REQUEST_TOKENS = 64
TOOLS_TOKENS = 1_000
"""What a vendor's own words around a request take, and around its tools: up to some 800 are published."""

MESSAGE_TOKENS = 10
"""The marks around each message and each tool: four to eight in today's templates."""

COMMON_BYTES = bytes(
    [*string.ascii_letters.encode(), *string.whitespace.encode(), *range(0x80, 0xE0), *range(0xE3, 0xF0)]
)
"""Two of these make at most a token in usual text: letters, spaces, scripts that models know well. Digits and
marks may be a token each, and so may the first bytes of rarer scripts and emoji."""


def estimated_usage(
    reported: Usage,
    messages: Iterable[PromptMessage],
    tools: Iterable[ToolSpec],
    steps: Iterable[Step],
    *,
    max_tokens: int | None = None,
) -> Usage:
    """`told`, with what the provider left out: the prompt from what was sent, the answer from what came.

    A count of the answer that was told before its end (some dialects begin with one) may be too low, so the
    greater of the two counts. `most`: how long the provider was told to let the answer become.
    """
    answer = _tokens(sum(_step_bytes(step) for step in steps))
    completion = max(reported.completion_tokens, answer if max_tokens is None else min(answer, max_tokens))
    prompt = reported.prompt_tokens
    if not prompt:
        sent_bytes = sum(_message_bytes(message) for message in messages)
        prompt = _tokens(sent_bytes + sum(len(msgspec.json.encode(tool)) for tool in tools))
    return msgspec.structs.replace(
        reported, prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


class PromptSize(msgspec.Struct, frozen=True):
    """Tokens of a prompt before it is sent: near, and at most for usual text."""

    estimate: int
    bound: int


def prompt_size(
    messages: Sequence[PromptMessage], tools: Sequence[ToolSpec], schema: object = None
) -> PromptSize:
    """How many tokens a provider will count for a prompt.

    A token is a byte at least. Text of nothing but digits or of a script that few models were taught comes
    near that; English is overestimated by about two, Chinese by a third.
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
    """All that is sent as text, in UTF-8."""
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
