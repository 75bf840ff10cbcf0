"""Which of a user's conversations to show, in which order, a page at a time."""

from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, cast, exists, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.conversations.lists import conversation_page
from luxx.conversations.models import ConversationRow
from luxx.conversations.views import ConversationView
from luxx.store.engine import CASELESS


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
    session: Session, caller: Caller, wanted: ConversationFilter, *, page: int, page_size: int
) -> tuple[list[ConversationView], int]:
    """The caller's conversations that match, and how many do in all."""
    connection = session.connection()
    where = _conditions(connection.dialect.name, wanted)
    if wanted.sort == ConversationSort.NEWEST:
        return conversation_page(connection, caller, page=page, page_size=page_size, where=where)
    order = (ConversationRow.updated_at.desc(), ConversationRow.id.desc())
    return conversation_page(connection, caller, page=page, page_size=page_size, where=where, order=order)


def _conditions(dialect: str, wanted: ConversationFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.pinned is not None:
        conditions.append(ConversationRow.pinned == wanted.pinned)
    if wanted.archived is not None:
        conditions.append(ConversationRow.archived == wanted.archived)
    if wanted.project_id is not None:
        conditions.append(ConversationRow.project_id == wanted.project_id)
    if wanted.tag is not None:
        conditions.append(_has_tag(dialect, wanted.tag))
    if wanted.q:
        conditions.append(_has_in_title(dialect, wanted.q))
    return conditions


def _has_in_title(dialect: str, part: str) -> ColumnElement[bool]:
    if dialect == "postgresql":
        return ConversationRow.title.icontains(part, autoescape=True)
    return func.instr(getattr(func, CASELESS)(ConversationRow.title), part.casefold()) > 0


def _has_tag(dialect: str, tag: str) -> ColumnElement[bool]:
    """Tags are a JSON list in a text column; each database takes it apart in its own way."""
    tags: Any = (
        func.jsonb_array_elements_text(cast(ConversationRow.tags, JSONB))
        if dialect == "postgresql"
        else func.json_each(ConversationRow.tags)
    )
    each = tags.table_valued("value")
    return exists(select(literal(1)).select_from(each).where(each.c.value == tag))
