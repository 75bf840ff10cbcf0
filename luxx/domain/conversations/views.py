"""Conversations and messages as the API shows them, decoded from stored JSON, with an answer's sources.

A tool reports its sources as a list `sources` in its data, of `{url, title?, domain?, snippet?}` or, of
documents, `{document_id, title, page | slide | row, quote}`; see `wire/turn.py`.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.domain.conversations.access import assistant_content, user_content
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.knowledge_bases import KnowledgeIds
from luxx.wire.check import Verdict
from luxx.wire.message import Attachment, FollowUps, Quotation
from luxx.wire.model_settings import (
    MemoryMode,
    ModelSettings,
    ModelSettingsChange,
    PlanningMode,
    RoutingMode,
    SlidingWindow,
)
from luxx.wire.source import MAX_URL, Source, domain_of, normalized
from luxx.wire.turn import Step, Usage, steps_text

_usage = msgspec.json.Decoder(Usage)
_tags = msgspec.json.Decoder(list[str])
_follow_ups = msgspec.json.Decoder(FollowUps)


MAX_CITATIONS = 100


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a message; `index` counts from 1. A web page has `url`, `domain` and `snippet`, a document
    of a knowledge base `base_id`, `document_id`, its place (`page`, `slide` or `row`) and `quote`."""

    index: int
    url: str | UnsetType = UNSET
    title: str
    domain: str | UnsetType = UNSET
    snippet: str | UnsetType = UNSET
    base_id: str | UnsetType = UNSET
    document_id: str | UnsetType = UNSET
    page: int | UnsetType = UNSET
    slide: int | UnsetType = UNSET
    row: int | UnsetType = UNSET
    quote: str | UnsetType = UNSET


class ConversationView(ModelSettings, frozen=True, kw_only=True):
    """`run_id` is the run in progress, if any; nulls fall back to the user's settings.

    `lost_provider`, `lost_agent`, `lost_project` (one with permission rules): the name of one that was chosen
    and then deleted, or that is no longer shared. The conversation answers after another is chosen, or null.
    `temporary_minutes`: the minutes without use after which this temporary chat is deleted; null: it is kept.
    `comparing_id`: the message that two models answer, until one of the answers is kept; null: none.
    `follow_ups`: messages that a model proposes after the newest answer; null: none.
    """

    id: str
    user_id: int
    provider_id: int | None
    project_id: str | None
    agent_id: int | None
    lost_provider: str | None
    lost_agent: str | None
    lost_project: str | None
    title: str
    model: str | None
    system_prompt: str | None
    planning: PlanningMode | None
    routing: RoutingMode | None
    sliding_window: int | None
    memory: MemoryMode | None
    knowledge: list[str]
    record: bool | None
    pinned: bool
    archived: bool
    tags: list[str]
    selected_leaf_id: str | None
    run_id: str | None
    temporary_minutes: int | None
    comparing_id: str | None
    follow_ups: FollowUps | None = None
    created_at: datetime
    updated_at: datetime


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """`text` and `content` are the same computed string; `token_count`: tokens that the model produced.
    `plan_run_id`: the run whose log has the plan of an answer that was made by one. `verdicts`: those of the
    checks of its agent, in the order in which they were made. `memories_used`: the remembered facts that a
    model was given for it; `GET /messages/{id}/recalled` has their texts. `reply_to`, `quoted`: the message
    that a person's message in a room answers; null where that was deleted.

    Provider, model and `finish` are null for a person's message and where they are not known.
    """

    id: str
    conversation_id: str | None
    room_id: str | None
    parent_id: str | None
    role: str
    steps: list[Step]
    text: str
    content: str
    attachments: list[Attachment]
    citations: list[Citation]
    token_count: int
    usage: Usage | None
    status: str
    finish: str | None
    provider_id: int | None
    provider_name: str | None
    model: str | None
    sender_name: str | None
    sender_color: str | None
    round_number: int | None
    plan_run_id: str | None = None
    verdicts: list[Verdict] | UnsetType = UNSET
    memories_used: list[str] = []
    reply_to: str | UnsetType = UNSET
    quoted: Quotation | UnsetType | None = UNSET
    created_at: datetime


class ConversationChange(ModelSettingsChange, frozen=True, kw_only=True):
    """The fields to set: UNSET leaves a field unchanged, None clears it."""

    title: str | UnsetType = UNSET
    provider_id: int | UnsetType | None = UNSET
    project_id: str | UnsetType | None = UNSET
    agent_id: int | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    system_prompt: str | UnsetType | None = UNSET
    planning: PlanningMode | UnsetType | None = UNSET
    routing: RoutingMode | UnsetType | None = UNSET
    sliding_window: SlidingWindow | UnsetType | None = UNSET
    memory: MemoryMode | UnsetType | None = UNSET
    knowledge: KnowledgeIds | UnsetType = UNSET
    record: bool | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    is_temporary: bool | UnsetType = UNSET
    selected_leaf_id: str | UnsetType = UNSET


_COMPUTED_FIELDS = frozenset(
    {
        "steps",
        "text",
        "content",
        "attachments",
        "citations",
        "usage",
        "plan_run_id",
        "verdicts",
        "memories_used",
        "reply_to",
        "quoted",
    }
)
_COPIED_FIELDS = [name for name in MessageView.__struct_fields__ if name not in _COMPUTED_FIELDS]


def conversation_view(row: ConversationRow) -> ConversationView:
    """A conversation's row as a value."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in ConversationView.__struct_fields__}
    fields["tags"] = _tags.decode(row.tags)
    fields["knowledge"] = _tags.decode(row.knowledge)
    fields["follow_ups"] = None if row.follow_ups is None else _follow_ups.decode(row.follow_ups)
    return ConversationView(**fields)


def message_view(row: MessageRow) -> MessageView:
    """A message's row as a value, with its text computed from its steps."""
    steps: list[Step] = []
    attachments: list[Attachment] = []
    citations: list[Citation] = []
    plan_run_id: str | None = None
    verdicts: list[Verdict] | UnsetType = UNSET
    memories_used: list[str] = []
    if row.role == "user":
        content = user_content(row.content)
        text, attachments = content.text, content.attachments
    else:
        stored = assistant_content(row.content)
        steps, plan_run_id = stored.steps, stored.plan_run_id or None
        verdicts = stored.verdicts
        memories_used = stored.memories_used or []
        text = steps_text(steps)
        citations = citations_in(row.content)
    fields = {name: getattr(row, name) for name in _COPIED_FIELDS}
    return MessageView(
        **fields,
        steps=steps,
        text=text,
        content=text,
        attachments=attachments,
        citations=citations,
        plan_run_id=plan_run_id,
        verdicts=verdicts,
        memories_used=memories_used,
        reply_to=row.reply_to or UNSET,
        usage=_usage.decode(row.usage) if row.usage else None,
    )


# Sources of answers

_MARK = '"sources":[{'
_ESCAPED_MARK = '\\"sources\\":[{'


class _Data(msgspec.Struct):
    sources: list[Source] = []


class _Result(msgspec.Struct):
    data: _Data


class _ResultStep(msgspec.Struct, tag="tool_result", tag_field="type"):
    content: str = ""


class _SourcedText(msgspec.Struct, tag="text", tag_field="type"):
    sources: list[Source] = []


class SkippedThinking(msgspec.Struct, tag="thinking", tag_field="type"):
    pass


class SkippedCall(msgspec.Struct, tag="tool_call", tag_field="type"):
    pass


class SkippedResult(msgspec.Struct, tag="tool_result", tag_field="type"):
    pass


class SkippedUser(msgspec.Struct, tag="user", tag_field="type"):
    pass


class _StoredAnswer(msgspec.Struct):
    steps: list[_ResultStep | _SourcedText | SkippedThinking | SkippedCall | SkippedUser]


_result = msgspec.json.Decoder(_Result)
_stored = msgspec.json.Decoder(_StoredAnswer)


def citations_in(stored: str) -> list[Citation]:
    """The sources of a stored answer in order of first use, each address and each passage once.

    Most answers have none and are not decoded.
    """
    if _ESCAPED_MARK not in stored and _MARK not in stored:
        return []
    citations: dict[object, Citation] = {}
    for step in _stored.decode(stored).steps:
        for source in _sources(step):
            is_document = isinstance(source.document_id, str)
            key = _passage_key(source) if is_document else source.url
            if key in citations or not (is_document or _is_web_address(source.url)):
                continue
            if len(citations) == MAX_CITATIONS:
                return list(citations.values())
            citations[key] = _citation(len(citations) + 1, source)
    return list(citations.values())


def _passage_key(source: Source) -> object:
    return source.document_id, source.page, source.slide, source.row, source.quote


def _is_web_address(url: str) -> bool:
    return len(url) <= MAX_URL and bool(domain_of(url))


def _citation(index: int, source: Source) -> Citation:
    shown = normalized(source)
    if isinstance(source.document_id, str):
        names = ("title", "base_id", "document_id", "page", "slide", "row", "quote")
        return Citation(index=index, **{name: getattr(shown, name) for name in names})
    title = shown.title or shown.domain
    return Citation(index=index, url=shown.url, title=title, domain=shown.domain, snippet=shown.snippet)


def _sources(step: _ResultStep | _SourcedText | SkippedThinking | SkippedCall | SkippedUser) -> list[Source]:
    if isinstance(step, _SourcedText):
        return step.sources
    if not isinstance(step, _ResultStep) or _MARK not in step.content:
        return []
    try:
        return _result.decode(step.content).data.sources
    except (msgspec.DecodeError, UnicodeEncodeError):
        # The tool uses the name `sources` for other data.
        return []


class _UserText(msgspec.Struct):
    """A user's content without its files."""

    text: str


_user_text = msgspec.json.Decoder(_UserText)


def user_text_of(content: str) -> str:
    """The text of a user's stored message; its files are not decoded."""
    return _user_text.decode(content).text
