"""Imported rows into the database: all of a file or nothing of it, and nobody waits for long.

One transaction would be simplest, and on SQLite nobody else could write while it lasts: seconds for a
hundred megabytes, in which no answer of any run is stored. So rows are written in small transactions under
conversations that carry the import's id and are not there yet for anybody, and one statement at the end
reveals them all. What a crash leaves behind is deleted before the next start serves.
"""

from collections.abc import Iterator
from typing import IO, Any

import msgspec
from sqlalchemy import bindparam, delete, func, insert, null, select, update
from sqlalchemy.orm import Session

from luxx.conversations.images import MessageBlobRow, store_images
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.conversations.search_index import index_messages, index_title
from luxx.store.engine import Store
from luxx.store.tables import table_of
from luxx.transfer.ready import ReadyConversation, ReadyImage, ReadyMessage, ReadyRow
from luxx.wire.message import PromptImage

BATCH_BYTES = 256 * 1024
BATCH_ROWS = 200
DELETE_ROWS = 2000
"""A transaction stays under some ten milliseconds, which is how long another writer may wait."""

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_blobs = table_of(MessageBlobRow)
_insert_conversation = insert(_conversations)
_insert_message = insert(_messages)
_reveal = (
    update(_conversations).where(_conversations.c.import_id == bindparam("b_import")).values(import_id=null())
)
_decoder = msgspec.json.Decoder(ReadyRow)


def insert_imported(session: Session, user_id: int, import_id: str, batch: list[ReadyRow]) -> None:
    """The one place where imported rows are stored; what is to know of new messages is told here."""
    conversations = [row for row in batch if isinstance(row, ReadyConversation)]
    messages = [row for row in batch if isinstance(row, ReadyMessage)]
    connection = session.connection()
    if conversations:
        rows = [_columns(row) | {"user_id": user_id, "import_id": import_id} for row in conversations]
        connection.execute(_insert_conversation, rows)
        for row in conversations:
            index_title(connection, user_id=user_id, conversation_id=row.id, title=row.title)
    if messages:
        said = [_columns(row) | {"user_id": user_id} for row in messages]
        connection.execute(_insert_message, said)
        index_messages(connection, said)
    for row in batch:
        if isinstance(row, ReadyImage):
            image = PromptImage(media_type=row.media_type, data=row.data)
            store_images(connection, row.message_id, {row.id: image})


def write_hidden(store: Store, user_id: int, import_id: str, rows: IO[bytes]) -> None:
    """Stores all rows under the import's id. Blocks: for a thread."""
    for batch in _batches(rows):
        store.write_now(_Insert(user_id, import_id, batch))


def reveal(session: Session, import_id: str) -> None:
    """Makes the conversations of an import be there, all at once."""
    session.connection().execute(_reveal, {"b_import": import_id})


def forget(store: Store, *, import_id: str | None = None, before: str | None = None) -> None:
    """Deletes what is still hidden of one import, of those with ids before one, or of all. Blocks."""
    hidden = select(_conversations.c.id).where(_conversations.c.import_id.is_not(None))
    if import_id is not None:
        hidden = hidden.where(_conversations.c.import_id == import_id)
    if before is not None:
        hidden = hidden.where(_conversations.c.import_id < before)
    # A message's id is past its parent's, so those from the end take nobody's parent away.
    some = (
        select(_messages.c.id)
        .where(_messages.c.conversation_id.in_(hidden))
        .order_by(_messages.c.id.desc())
        .limit(DELETE_ROWS)
    )
    while store.write_now(lambda session: _deleted(session, some)):
        pass
    store.write_now(
        lambda session: session.connection().execute(
            delete(_conversations).where(_conversations.c.id.in_(hidden))
        )
    )


def stored_size(session: Session, user_id: int) -> int:
    """Characters of all that the user's messages hold, and bytes of their images."""
    texts = select(func.coalesce(func.sum(func.length(_messages.c.content)), 0))
    images = select(func.coalesce(func.sum(func.length(_blobs.c.data)), 0)).join(
        _messages, _messages.c.id == _blobs.c.message_id
    )
    return sum(
        int(session.scalar(each.where(_messages.c.user_id == user_id)) or 0) for each in (texts, images)
    )


class _Insert:
    def __init__(self, user_id: int, import_id: str, batch: list[ReadyRow]) -> None:
        self._given = (user_id, import_id, batch)

    def __call__(self, session: Session) -> None:
        insert_imported(session, *self._given)


def _deleted(session: Session, ids: Any) -> int:
    found = list(session.scalars(ids))
    if found:
        session.connection().execute(delete(_messages).where(_messages.c.id.in_(found)))
    return len(found)


def _columns(row: ReadyRow) -> dict[str, Any]:
    return msgspec.structs.asdict(row)


def _batches(rows: IO[bytes]) -> Iterator[list[ReadyRow]]:
    batch: list[ReadyRow] = []
    size = 0
    for line in rows:
        batch.append(_decoder.decode(line))
        size += len(line)
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
