"""Lists of conversations and of their messages, optimized for speed.

Core statements, built once, whose rows become the API's views directly. JSON that is shown as stored is not
decoded: `tags`, `steps` and `usage` of these views are `msgspec.Raw`, only for encoding. `service.py` reads
and changes single conversations.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    UnaryExpression,
    bindparam,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import conversation_not_found, own_conversations, user_content
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.views import (
    Citation,
    ConversationView,
    MessageView,
    SkippedCall,
    SkippedResult,
    SkippedThinking,
    SkippedUser,
    citations_in,
)
from luxx.errors import TooLarge
from luxx.infra.store.engine import contains_text
from luxx.infra.store.tables import table_of
from luxx.wire.message import Attachment, with_files
from luxx.wire.turn import StepStatus

MAX_PAGE_MIB = 32
"""Maximum size of the stored messages in one page; the page takes several times as much memory."""

_MAX_PAGE_BYTES = MAX_PAGE_MIB * 1024 * 1024

AnyRow = Row[*tuple[Any, ...]]
AnySelect = Select[*tuple[Any, ...]]
Conditions = Sequence[ColumnElement[bool]]
OrderBy = Sequence[UnaryExpression[Any]]

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_newest_first = (_conversations.c.id.desc(),)
_in_conversation = _messages.c.conversation_id == bindparam("conversation_id")


def _conversation_page(where: Conditions, order: OrderBy) -> AnySelect:
    """Each row carries the total: one statement costs less than two."""
    listed = own_conversations, _conversations.c.temporary_minutes.is_(None)
    total = select(func.count()).select_from(_conversations).where(*listed, *where)
    columns = [_conversations.c[name] for name in ConversationView.__struct_fields__]
    return (
        select(*columns, total.scalar_subquery().label("total"))
        .where(*listed, *where)
        .order_by(*order)
        .limit(bindparam("many"))
        .offset(bindparam("start"))
    )


_all_conversations = _conversation_page((), _newest_first)
# Messages of conversations answer the one that they follow, and no other.
_message_columns = [
    name for name in MessageView.__struct_fields__ if name in _messages.c and name != "reply_to"
]
_message_total = select(func.count()).select_from(_messages).where(_in_conversation)
_own_conversation = select(_conversations.c.id).where(
    _conversations.c.id == bindparam("conversation_id"), own_conversations
)
_message_page = (
    select(*(_messages.c[name] for name in _message_columns), _message_total.scalar_subquery().label("total"))
    .where(_in_conversation, _own_conversation.exists())
    .order_by(_messages.c.id.desc())
    .limit(bindparam("many"))
)
_by_page = _message_page.offset(bindparam("start"))
_by_cursor = _message_page.where(_messages.c.id < bindparam("before"))


def _within_bytes(page: AnySelect) -> AnySelect:
    """The statement without the rows past MAX_PAGE_MIB; `row_count` in each row counts the rows before the
    cut.

    For PostgreSQL, whose driver fetches the whole result at once; rows of SQLite are read one by one.
    """
    all_ = page.subquery()
    so_far = func.sum(func.octet_length(all_.c.content)).over(order_by=all_.c.id.desc())
    position = func.row_number().over(order_by=all_.c.id.desc())
    measured = select(
        all_, so_far.label("so_far"), position.label("position"), func.count().over().label("row_count")
    ).subquery()
    return (
        select(measured)
        .where(or_(measured.c.so_far <= _MAX_PAGE_BYTES, measured.c.position == 1))
        .order_by(measured.c.id.desc())
    )


_bounded_by_page = _within_bytes(_by_page)
_bounded_by_cursor = _within_bytes(_by_cursor)
_bounded_newest = _within_bytes(_message_page)


class _TextStep(msgspec.Struct, tag="text", tag_field="type"):
    content: str = ""
    status: str = StepStatus.DONE
    superseded: bool = False


class _Steps(msgspec.Struct):
    steps: msgspec.Raw


class _StoredText(msgspec.Struct):
    """The text steps of an assistant's message, joined as in `steps_text`; the decoder skips the others."""

    steps: list[_TextStep | SkippedThinking | SkippedCall | SkippedResult | SkippedUser]
    plan_run_id: str | None = None
    verdicts: msgspec.Raw | UnsetType = UNSET
    memories_used: list[str] = []


_steps = msgspec.json.Decoder(_Steps)
_stored_text = msgspec.json.Decoder(_StoredText)


def conversation_page(
    connection: Connection,
    caller: Caller,
    *,
    page: int,
    page_size: int,
    where: Conditions = (),
    order: OrderBy = _newest_first,
) -> tuple[list[ConversationView], int]:
    """The caller's conversations that match all of `where`, and their number."""
    is_plain = not where and order is _newest_first
    statement = _all_conversations if is_plain else _conversation_page(where, order)
    parameters = {"user_id": caller.user_id, "many": page_size}
    rows = connection.execute(statement, {**parameters, "start": (page - 1) * page_size}).all()
    if not rows and page > 1:
        first = connection.execute(statement, {**parameters, "start": 0}).first()
        return [], 0 if first is None else first.total
    return [_conversation(row) for row in rows], rows[0].total if rows else 0


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages of a conversation, newest first; `has_more`: older ones follow. `total` counts all."""

    items: list[MessageView]
    total: int
    has_more: bool


def message_page(
    connection: Connection, caller: Caller, conversation_id: str, *, page: int, page_size: int
) -> Messages:
    """One page of messages. Raises NotFound, or TooLarge if they exceed MAX_PAGE_MIB."""
    start = (page - 1) * page_size
    parameters = _parameters(caller, conversation_id) | {"many": page_size, "start": start}
    rows, is_cut = _read(connection, parameters, _by_page, _bounded_by_page)
    if is_cut:
        raise TooLarge(
            f"the messages of this page have more than {MAX_PAGE_MIB} MiB; request fewer with page_size, "
            "or with limit and before, which return as many as fit",
            kind="page_too_large",
        )
    total = _total(connection, parameters, rows)
    return Messages(
        items=[_message(row) for row in rows], total=total, has_more=bool(rows) and start + len(rows) < total
    )


def messages_before(
    connection: Connection, caller: Caller, conversation_id: str, *, limit: int, before: str | None = None
) -> Messages:
    """The newest messages, or those before a message's id: `limit`, or as many as fit. Raises NotFound."""
    # One row more than `limit` shows whether older messages follow.
    parameters = _parameters(caller, conversation_id) | {"many": limit + 1}
    if before is None:
        rows, is_cut = _read(connection, parameters, _message_page, _bounded_newest)
    else:
        parameters["before"] = before
        rows, is_cut = _read(connection, parameters, _by_cursor, _bounded_by_cursor)
    return Messages(
        items=[_message(row) for row in rows[:limit]],
        total=_total(connection, parameters, rows),
        has_more=is_cut or len(rows) > limit,
    )


def _parameters(caller: Caller, conversation_id: str) -> dict[str, Any]:
    return {"conversation_id": conversation_id, "user_id": caller.user_id}


def _read(
    connection: Connection, parameters: dict[str, Any], statement: AnySelect, bounded: AnySelect
) -> tuple[list[AnyRow], bool]:
    """As many rows as fit (at least one, if there is any), and whether rows were left out."""
    if connection.dialect.name == "postgresql":
        bounded_rows = list(connection.execute(bounded, parameters))
        return bounded_rows, bool(bounded_rows) and bounded_rows[0].row_count > len(bounded_rows)
    rows: list[AnyRow] = []
    size = 0
    with connection.execute(statement, parameters) as cursor:
        for row in cursor:
            size += len(row.content)
            if rows and size > _MAX_PAGE_BYTES:
                return rows, True
            rows.append(row)
    return rows, False


def _total(connection: Connection, parameters: dict[str, Any], rows: list[AnyRow]) -> int:
    if rows:
        total: int = rows[0].total
        return total
    if connection.execute(_own_conversation, parameters).first() is None:
        raise conversation_not_found()
    return connection.execute(_message_total, parameters).scalar_one()


def _conversation(row: AnyRow) -> ConversationView:
    fields = dict(zip(ConversationView.__struct_fields__, row, strict=False))
    for name in ("tags", "knowledge"):
        fields[name] = msgspec.Raw(fields[name])
    fields["follow_ups"] = None if row.follow_ups is None else msgspec.Raw(row.follow_ups)
    return ConversationView(**fields)


def _message(row: AnyRow) -> MessageView:
    fields: dict[str, Any] = dict(zip(_message_columns, row, strict=False))
    stored = fields["content"]
    attachments: list[Attachment] = []
    citations: list[Citation] = []
    steps: Any = []
    if row.role == "user":
        content = user_content(stored)
        text, attachments = content.text, content.attachments
    else:
        steps = _steps.decode(with_files(stored)).steps
        stored_text = _stored_text.decode(stored)
        for name in ("plan_run_id", "verdicts", "memories_used"):
            fields[name] = getattr(stored_text, name)
        text_steps = (step for step in stored_text.steps if type(step) is _TextStep)
        shown = (each for each in text_steps if each.status != StepStatus.INTERRUPTED)
        text = "".join(step.content for step in shown if not step.superseded)
        citations = citations_in(stored)
    fields["content"] = text
    fields["usage"] = None if row.usage is None else msgspec.Raw(row.usage)
    return MessageView(**fields, steps=steps, text=text, attachments=attachments, citations=citations)


class ConversationSort(StrEnum):
    """`newest`: by creation; `updated`: by last change."""

    NEWEST = "newest"
    UPDATED = "updated"


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """None does not filter. `tag` is a whole tag; `q` a part of the title, ignoring case."""

    pinned: bool | None = None
    archived: bool | None = None
    tag: str | None = None
    project_id: str | None = None
    q: str | None = None
    sort: ConversationSort = ConversationSort.NEWEST


def page_of_conversations(
    session: Session, caller: Caller, filters: ConversationFilter, *, page: int, page_size: int
) -> tuple[list[ConversationView], int]:
    """The caller's matching conversations, and the number of matches."""
    connection = session.connection()
    where, order = _conditions(connection.dialect.name, filters), _newest_first
    if filters.sort == ConversationSort.UPDATED:
        order = (ConversationRow.updated_at.desc(), ConversationRow.id.desc())
    return conversation_page(connection, caller, page=page, page_size=page_size, where=where, order=order)


def _conditions(dialect: str, filters: ConversationFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    for name in ("pinned", "archived", "project_id"):
        value = getattr(filters, name)
        if value is not None:
            conditions.append(getattr(ConversationRow, name) == value)
    if filters.tag is not None:
        conditions.append(_has_tag(dialect, filters.tag))
    if filters.q:
        conditions.append(contains_text(dialect, ConversationRow.title, filters.q))
    return conditions


def _has_tag(dialect: str, tag: str) -> ColumnElement[bool]:
    """Tags are a JSON list in a text column; each database expands it with its own function."""
    tags: Any = (
        func.jsonb_array_elements_text(cast(ConversationRow.tags, JSONB))
        if dialect == "postgresql"
        else func.json_each(ConversationRow.tags)
    )
    each = tags.table_valued("value")
    return exists(select(literal(1)).select_from(each).where(each.c.value == tag))
