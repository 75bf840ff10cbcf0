"""Lists of conversations and of their messages, as cheap as the database and msgspec allow.

Core statements made once, read straight into what the API shows. JSON that is shown as it rests stays
JSON: `tags`, `steps` and `usage` of these views are `msgspec.Raw`, for encoding and not for looking into.
One of them at a time, and changing them, is `service.py`'s.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, UnaryExpression, and_, bindparam, func, select

from luxx.accounts.caller import Caller
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.conversations.stored import user_content
from luxx.conversations.views import ConversationView, MessageView
from luxx.errors import NotFound
from luxx.store.tables import table_of
from luxx.wire.message import Attachment
from luxx.wire.step import StepStatus

AnyRow = Row[*tuple[Any, ...]]
AnySelect = Select[*tuple[Any, ...]]
Conditions = Sequence[ColumnElement[bool]]
Order = Sequence[UnaryExpression[Any]]

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_mine = and_(_conversations.c.user_id == bindparam("user_id"), _conversations.c.import_id.is_(None))
_newest_first = (_conversations.c.id.desc(),)
_inside = _messages.c.conversation_id == bindparam("conversation_id")


def _conversation_page(where: Conditions, order: Order) -> AnySelect:
    """Each row says how many there are in all: one statement costs less than two."""
    total = select(func.count()).select_from(_conversations).where(_mine, *where)
    columns = [_conversations.c[name] for name in ConversationView.__struct_fields__]
    return (
        select(*columns, total.scalar_subquery().label("total"))
        .where(_mine, *where)
        .order_by(*order)
        .limit(bindparam("many"))
        .offset(bindparam("start"))
    )


_all_conversations = _conversation_page((), _newest_first)
_message_columns = [name for name in MessageView.__struct_fields__ if name in _messages.c]
_message_total = select(func.count()).select_from(_messages).where(_inside)
_is_mine = select(_conversations.c.id).where(_conversations.c.id == bindparam("conversation_id"), _mine)
_message_page = (
    select(
        *(_messages.c[name] for name in _message_columns),
        _message_total.scalar_subquery().label("total"),
    )
    .where(_inside, _is_mine.exists())
    .order_by(_messages.c.id.desc())
    .limit(bindparam("many"))
)
_by_page = _message_page.offset(bindparam("start"))
_by_cursor = _message_page.where(_messages.c.id < bindparam("before"))


class _TextStep(msgspec.Struct, tag="text", tag_field="type"):
    content: str = ""
    status: str = StepStatus.DONE


class _Thinking(msgspec.Struct, tag="thinking", tag_field="type"):
    pass


class _ToolCall(msgspec.Struct, tag="tool_call", tag_field="type"):
    pass


class _ToolResult(msgspec.Struct, tag="tool_result", tag_field="type"):
    pass


class _Steps(msgspec.Struct):
    steps: msgspec.Raw


class _Said(msgspec.Struct):
    """Of an assistant's message what is its text; the rest is passed over without being made."""

    steps: list[_TextStep | _Thinking | _ToolCall | _ToolResult]


_steps = msgspec.json.Decoder(_Steps)
_said = msgspec.json.Decoder(_Said)


def conversation_page(
    connection: Connection,
    caller: Caller,
    *,
    page: int,
    page_size: int,
    where: Conditions = (),
    order: Order = _newest_first,
) -> tuple[list[ConversationView], int]:
    """The caller's conversations for which all of `where` holds, and how many there are."""
    is_plain = not where and order is _newest_first
    statement = _all_conversations if is_plain else _conversation_page(where, order)
    given = {"user_id": caller.user_id, "many": page_size}
    rows = connection.execute(statement, {**given, "start": (page - 1) * page_size}).all()
    if not rows and page > 1:
        first = connection.execute(statement, {**given, "start": 0}).first()
        return [], 0 if first is None else first.total
    return [_conversation(row) for row in rows], rows[0].total if rows else 0


def message_page(
    connection: Connection,
    caller: Caller,
    conversation_id: str,
    *,
    page: int,
    page_size: int,
    before: str | None = None,
) -> tuple[list[MessageView], int]:
    """A conversation's messages, newest first, and how many there are. Raises NotFound.

    One page, or those before a message's id.
    """
    given = {"conversation_id": conversation_id, "user_id": caller.user_id}
    if before is None:
        place = {"many": page_size, "start": (page - 1) * page_size}
        rows = connection.execute(_by_page, given | place).all()
    else:
        rows = connection.execute(_by_cursor, given | {"many": page_size, "before": before}).all()
    if rows:
        return [_message(row) for row in rows], rows[0].total
    if connection.execute(_is_mine, given).first() is None:
        raise NotFound("no conversation with this id", kind="conversation_not_found")
    total: int = connection.execute(_message_total, given).scalar_one()
    return [], total


def _conversation(row: AnyRow) -> ConversationView:
    fields = dict(zip(ConversationView.__struct_fields__, row, strict=False))
    fields["tags"] = msgspec.Raw(fields["tags"])
    return ConversationView(**fields)


def _message(row: AnyRow) -> MessageView:
    fields: dict[str, Any] = dict(zip(_message_columns, row, strict=False))
    stored = fields["content"]
    attachments: list[Attachment] = []
    steps: Any = []
    if row.role == "user":
        content = user_content(stored)
        text, attachments = content.text, content.attachments
    else:
        steps = _steps.decode(stored).steps
        text = _text(stored)
    fields["content"] = text
    fields["usage"] = None if row.usage is None else msgspec.Raw(row.usage)
    return MessageView(**fields, steps=steps, text=text, attachments=attachments, citations=[])


def _text(stored: str) -> str:
    """As `steps_text` has it."""
    return "".join(
        step.content
        for step in _said.decode(stored).steps
        if type(step) is _TextStep and step.status != StepStatus.INTERRUPTED
    )
