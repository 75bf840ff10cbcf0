"""The ledger: the tokens and cost of each completion, written once and summed; and estimates of tokens.

A provider also bills a completion that a user cancels before its usage is reported; without an estimate, such
a completion would not count towards any limit. The estimate is close to the real count. The bound of a
prompt, which reserves use, is above it.
"""

import string
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import assert_never

import msgspec
from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Select,
    String,
    Table,
    func,
    insert,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.run import RunKind
from luxx.wire.tool import ToolSpec
from luxx.wire.turn import Step, StepType, Usage


class UsageRow(Base):
    """`cost` is in US dollars, null if the price of the model is unknown.

    A row stays after its conversation, provider, user or tenant is deleted, without their names. `kind` is
    the type of `subject_id`, or PROVIDER_TEST without a run and a subject. `is_estimated`: the provider
    reported no usage, or the completion was cut off before it did.
    """

    __tablename__ = "usage_records"
    __table_args__ = (
        Index("ix_usage_records_user_id_created_at", "user_id", "created_at"),
        Index("ix_usage_records_tenant_id_created_at", "tenant_id", "created_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id", ondelete="SET NULL"))
    run_id: Mapped[str] = mapped_column(String(36), index=True)
    kind: Mapped[str] = mapped_column(String(10), default="chat")
    subject_id: Mapped[str] = mapped_column(String(36), index=True)
    provider_id: Mapped[int | None] = mapped_column()
    model: Mapped[str] = mapped_column(String(200))
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    completion_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    cache_write_tokens: Mapped[int] = mapped_column(default=0)
    reasoning_tokens: Mapped[int] = mapped_column(default=0)
    cost: Mapped[float | None] = mapped_column()
    is_estimated: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


PROVIDER_TEST = "test"
"""The `kind` of the calls that test a provider."""

_insert = insert(table_of(UsageRow))


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, for the ledger. `is_estimated`: Luxx estimated the counts."""

    user_id: int
    tenant_id: int
    run_id: str
    subject_id: str
    provider_id: int | None
    model: str
    usage: Usage
    cost: float | None
    kind: RunKind | str = RunKind.CHAT
    is_estimated: bool = False


class SpentAmount(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over the ledger; `cost` includes only completions of known price."""

    tokens: int
    cost: float


def record(connection: Connection, entry: UsageEntry) -> None:
    """Adds a completion to the ledger, in the transaction that records its end."""
    row = asdict(entry) | asdict(entry.usage) | {"kind": str(entry.kind), "created_at": utc_now()}
    del row["usage"], row["total_tokens"]
    connection.execute(_insert, row)


def sums_of(rows: Table) -> tuple[ColumnElement[int], ColumnElement[float]]:
    """The columns that sum the tokens and the cost of a table's rows."""
    tokens = func.coalesce(func.sum(rows.c.prompt_tokens + rows.c.completion_tokens), 0)
    return tokens.label("tokens"), func.coalesce(func.sum(rows.c.cost), 0.0).label("cost")


def sum_rows(connection: Connection, sums: Select[int, float]) -> SpentAmount:
    """The result of a query with the columns of `sums_of`."""
    row = connection.execute(sums).one()
    return SpentAmount(tokens=int(row.tokens), cost=float(row.cost))


# Estimates

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
    prompt = reported.prompt_tokens or estimated_tokens(messages, tools)
    return msgspec.structs.replace(
        reported, prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


MAX_TOKENS = 100_000_000
"""More than any context window; larger counts of a provider are reduced to this."""


def clamped(usage: Usage) -> Usage:
    """The usage with counts that a database column can hold: the provider may send any number."""
    counts = {name: min(max(getattr(usage, name), 0), MAX_TOKENS) for name in usage.__struct_fields__}
    return Usage(**counts)


def estimated_tokens(
    messages: Iterable[PromptMessage], tools: Iterable[ToolSpec] = (), schema: object = None
) -> int:
    """The tokens of a prompt, by its bytes."""
    size = sum(_message_bytes(message) for message in messages)
    size += sum(len(msgspec.json.encode(tool)) for tool in tools)
    return _tokens(size + (0 if schema is None else len(msgspec.json.encode(schema))))


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
        images += len(message.images) if isinstance(message, UserPrompt | ToolPrompt) else 0
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
        case UserPrompt(text=text, images=images) | ToolPrompt(content=text, images=images):
            return _size(text) + len(images) * IMAGE_TOKENS * BYTES_PER_TOKEN
        case AssistantPrompt(text=text, thinking=thinking, tool_calls=calls):
            return (
                _size(text)
                + _size(thinking)
                + sum(_size(call.name) + _size(call.arguments) for call in calls)
            )
        case _:
            assert_never(message)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(_bytes(text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
