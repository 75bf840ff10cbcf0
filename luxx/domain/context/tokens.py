"""How many tokens texts, messages and prompts have, estimated by classes of bytes, before a provider counts
them.

No library has the tokenizers of all vendors. The estimate of a prompt is corrected by what the provider
counted of the prompt before it; the bound, which reserves of spending limits use, is above the
count.
"""

import string
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

import msgspec

from luxx.wire.message import (
    AssistantPrompt,
    ContextRecord,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.tool import ToolSpec
from luxx.wire.turn import Step, StepType, Usage

ESTIMATOR = 1
"""The number of the way in which tokens are estimated here; records of another are not used to correct it."""

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Of the counted to the estimated tokens of a prompt."""

_CLASSES = (
    (26, string.ascii_lowercase.encode()),
    (6, b" \t"),
    (0, bytes(range(0x80, 0xC0))),
    (75, bytes(range(0xE3, 0xF0))),
    (99, string.digits.encode()),
    (72, string.ascii_uppercase.encode()),
    (11, b"\n\r"),
    (30, bytes(range(0xC0, 0xE0))),
    (66, bytes([*range(0xE0, 0xE3), *range(0xF0, 0x100)])),
)
"""Bytes of UTF-8 with the same weight in hundredths of a token, in the order of how frequent they are: a
first byte stands for its character, the bytes after it weigh nothing. Fitted to the counts of current
tokenizers for English, Chinese, code and JSON."""

_PUNCTUATION_WEIGHT = 41
"""The weight of all other bytes: punctuation and control characters."""

IMAGE_TOKENS = 1_000
"""Vendors count about 250 to 1,600 tokens for an image of usual size."""

MAX_IMAGE_TOKENS = 5_000
"""More than vendors count for an image of any size, except for their cheapest models."""

REQUEST_TOKENS = 64
TOOLS_TOKENS = 1_000
"""The tokens that vendors add per request, and for its tools: the published figures are up to about 800."""

MESSAGE_TOKENS = 10
"""At most the delimiters around each message and each tool: four to eight tokens in current templates."""

DELIMITER_TOKENS = 4
"""The usual delimiters around a message and around a call."""

COMMON_BYTES = bytes(
    [*string.ascii_letters.encode(), *string.whitespace.encode(), *range(0x80, 0xE0), *range(0xE3, 0xF0)]
)
"""In usual text, a token has at least two of these bytes: letters, whitespace, common scripts. Digits and
punctuation may be one token each, and so may the first bytes of rarer scripts and emoji."""


def text_tokens(text: str | bytes) -> int:
    """The tokens of a text, rounded up."""
    rest = text if isinstance(text, bytes) else _bytes(text)
    hundredths = 0
    for weight, members in _CLASSES:
        if not rest:
            break
        others = rest.translate(None, members)
        hundredths += weight * (len(rest) - len(others))
        rest = others
    return -(-(hundredths + _PUNCTUATION_WEIGHT * len(rest)) // 100)


def message_tokens(message: PromptMessage) -> int:
    """The tokens of one message of a prompt."""
    match message:
        case SystemPrompt(text=text):
            return DELIMITER_TOKENS + text_tokens(text)
        case UserPrompt(text=text, images=images) | ToolPrompt(content=text, images=images):
            return DELIMITER_TOKENS + text_tokens(text) + len(images) * IMAGE_TOKENS
        case AssistantPrompt(text=text, thinking=thinking, tool_calls=calls):
            said = DELIMITER_TOKENS + text_tokens(text) + (text_tokens(thinking) if thinking else 0)
            return said + sum(
                DELIMITER_TOKENS + text_tokens(call.name) + text_tokens(call.arguments) for call in calls
            )
        case _:
            assert_never(message)


def estimated_tokens(
    messages: Iterable[PromptMessage], tools: Iterable[ToolSpec] = (), schema: object = None
) -> int:
    """The tokens of a prompt."""
    tokens = sum(map(message_tokens, messages))
    tokens += sum(text_tokens(msgspec.json.encode(tool)) for tool in tools)
    return tokens + (0 if schema is None else text_tokens(msgspec.json.encode(schema)))


def estimated_usage(
    reported: Usage,
    messages: Iterable[PromptMessage],
    tools: Iterable[ToolSpec],
    steps: Iterable[Step],
    *,
    max_tokens: int | None = None,
) -> Usage:
    """`reported`, with missing counts estimated: the prompt from the request, the completion from `steps`.

    A provider also bills a completion that a user cancels before its usage is reported; without an estimate,
    such a completion would not count towards any limit. A completion count that was reported before the end
    (some dialects start with one) may be too low, so the larger of reported and estimated count is used.
    `max_tokens`: the limit that was sent to the provider.
    """
    estimate = sum(map(_step_tokens, steps))
    completion = max(
        reported.completion_tokens, estimate if max_tokens is None else min(estimate, max_tokens)
    )
    prompt = reported.prompt_tokens or estimated_tokens(messages, tools)
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
    estimate = bound = images = 0
    for part in _parts(messages, tools, schema):
        estimate += text_tokens(part)
        rare_bytes = len(part.translate(None, COMMON_BYTES))
        bound += rare_bytes + (len(part) - rare_bytes + 1) // 2
    for message in messages:
        images += len(message.images) if isinstance(message, UserPrompt | ToolPrompt) else 0
    overhead = REQUEST_TOKENS + MESSAGE_TOKENS * (len(messages) + len(tools)) + (TOOLS_TOKENS if tools else 0)
    return PromptSize(
        estimate=estimate + images * IMAGE_TOKENS, bound=bound + overhead + images * MAX_IMAGE_TOKENS
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


def _step_tokens(step: Step) -> int:
    match step.type:
        case StepType.TEXT | StepType.THINKING:
            return text_tokens(step.content)
        case StepType.TOOL_CALL:
            return text_tokens(step.name or "") + text_tokens(step.arguments or "")
        case StepType.TOOL_RESULT | StepType.USER:
            return 0
        case _:
            assert_never(step.type)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def correction(record: ContextRecord) -> float:
    """The tokens that the provider counts for an estimated one, as it counted the prompt before."""
    if record.estimator != ESTIMATOR or not record.counted or not record.estimated:
        return 1.0
    return min(max(record.counted / record.estimated, MIN_FACTOR), MAX_FACTOR)


def beginning(text: str, budget: int) -> str:
    """As much of the beginning of a text as this many tokens hold."""
    while text:
        tokens = text_tokens(text)
        if tokens <= budget:
            break
        text = text[: min(len(text) - 1, len(text) * budget // tokens)]
    return text
