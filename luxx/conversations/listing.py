"""Which of a user's conversations to show, in which order, a page at a time."""

from enum import StrEnum
from typing import Any, assert_never

import msgspec
from sqlalchemy import ColumnElement, Select, cast, exists, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.conversations.models import ConversationRow
from luxx.conversations.views import ConversationView, conversation_view


class ConversationSort(StrEnum):
    """`newest` by when they were made, `updated` by when something last happened in them."""

    NEWEST = "newest"
    UPDATED = "updated"


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """None does not filter. `tag` is a whole tag; `q` a part of the title, in capitals or not."""

    pinned: bool | None = None
    archived: bool | None = None
    tag: str | None = None
    project_id: str | None = None
    q: str | None = None
    sort: ConversationSort = ConversationSort.NEWEST


def page_of_conversations(
    session: Session, caller: Caller, wanted: ConversationFilter, *, offset: int, limit: int
) -> tuple[list[ConversationView], int]:
    """The caller's conversations that match, and how many do in all."""
    conditions = _conditions(session, caller, wanted)
    total = session.scalar(select(func.count()).select_from(ConversationRow).where(*conditions)) or 0
    query = _sorted(select(ConversationRow).where(*conditions), wanted.sort)
    return [conversation_view(row) for row in session.scalars(query.limit(limit).offset(offset))], total


def _conditions(session: Session, caller: Caller, wanted: ConversationFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        ConversationRow.user_id == caller.user_id,
        ConversationRow.import_id.is_(None),
    ]
    if wanted.pinned is not None:
        conditions.append(ConversationRow.pinned == wanted.pinned)
    if wanted.archived is not None:
        conditions.append(ConversationRow.archived == wanted.archived)
    if wanted.project_id is not None:
        conditions.append(ConversationRow.project_id == wanted.project_id)
    if wanted.tag is not None:
        conditions.append(_has_tag(session, wanted.tag))
    if wanted.q:
        conditions.append(ConversationRow.title.icontains(wanted.q, autoescape=True))
    return conditions


def _has_tag(session: Session, tag: str) -> ColumnElement[bool]:
    """Tags are a JSON list in a text column; each database takes it apart in its own way."""
    tags: Any = (
        func.jsonb_array_elements_text(cast(ConversationRow.tags, JSONB))
        if session.get_bind().dialect.name == "postgresql"
        else func.json_each(ConversationRow.tags)
    )
    each = tags.table_valued("value")
    return exists(select(literal(1)).select_from(each).where(each.c.value == tag))


def _sorted(query: Select[ConversationRow], sort: ConversationSort) -> Select[ConversationRow]:
    match sort:
        case ConversationSort.NEWEST:
            return query.order_by(ConversationRow.id.desc())
        case ConversationSort.UPDATED:
            return query.order_by(ConversationRow.updated_at.desc(), ConversationRow.id.desc())
        case _:
            assert_never(sort)
