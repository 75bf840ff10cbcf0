"""Imported rows into the database: all of a file or nothing of it, and nobody waits for long.

One transaction would be simplest, and on SQLite nobody else could write while it lasts: seconds for a
hundred megabytes, in which no answer of any run is stored. So rows are written in small transactions under
conversations that carry the import's id and are not there yet for anybody, and one statement at the end
reveals them all. What a crash leaves behind is deleted before the next start serves.
"""

from collections.abc import Iterator
from typing import IO, Any

import msgspec
from sqlalchemy import insert
from sqlalchemy.orm import Session

from luxx.conversations.images import store_images
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.conversations.search_index import index_messages, index_title
from luxx.store.engine import Store
from luxx.store.tables import table_of
from luxx.transfer.ready import ReadyConversation, ReadyImage, ReadyMessage, ReadyRow
from luxx.wire.message import PromptImage

BATCH_BYTES = 256 * 1024
BATCH_ROWS = 200
"""A transaction stays under some ten milliseconds, which is how long another writer may wait."""

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_insert_conversation = insert(_conversations)
_insert_message = insert(_messages)
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


class _Insert:
    def __init__(self, user_id: int, import_id: str, batch: list[ReadyRow]) -> None:
        self._given = (user_id, import_id, batch)

    def __call__(self, session: Session) -> None:
        insert_imported(session, *self._given)


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
