"""The to-do list of a conversation in its rows: read and changed in the newest answer of a path."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.conversations.access import NEWEST_ANSWER, SET_CONTEXT
from luxx.domain.conversations.models import MessageRow
from luxx.infra.store.tables import table_of
from luxx.wire.message import ContextRecord
from luxx.wire.todos import TodoAuthor, TodoItem, TodoRecord

# Within a text of the JSON the quotation marks would be escaped.
_with_list = NEWEST_ANSWER.where(table_of(MessageRow).c.context.contains('"todos":', autoescape=True))
_decode = msgspec.json.Decoder(ContextRecord).decode
_encode = msgspec.json.Encoder().encode


def read_list(connection: Connection, leaf_id: str | None) -> list[TodoItem]:
    """The items of the list on the path to a message; it is that of the newest answer with one."""
    row = None if leaf_id is None else connection.execute(_with_list, {"leaf_id": leaf_id}).first()
    record = None if row is None else _decode(row.context).todos
    return [] if record is None else list(record.items)


def change_list(
    connection: Connection, leaf_id: str | None, change: Callable[[Sequence[TodoItem]], list[TodoItem]]
) -> list[TodoItem] | None:
    """Changes the list with the newest answer on the path, and returns it; None: there is no answer yet."""
    answer = None if leaf_id is None else connection.execute(NEWEST_ANSWER, {"leaf_id": leaf_id}).first()
    if answer is None:
        return None
    before = read_list(connection, leaf_id)
    items = change(before)
    if items != before:
        record = _decode(answer.context) if answer.context else ContextRecord()
        record = replace(record, todos=TodoRecord(items=tuple(items), by=TodoAuthor.PERSON))
        connection.execute(SET_CONTEXT, {"b_id": answer.id, "b_context": _encode(record).decode()})
    return items
