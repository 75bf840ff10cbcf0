"""How much a user's messages take up, and whether there is room for more.

Counted from the rows each time: it reads all that the user has stored, so not where every message passes.
"""

from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.orm import Session

from luxx.conversations.images import MessageBlobRow
from luxx.conversations.models import MessageRow
from luxx.errors import TooLarge
from luxx.store.tables import table_of

MIB = 1024 * 1024

_messages = table_of(MessageRow)
_blobs = table_of(MessageBlobRow)
_message_size = func.length(_messages.c.content) + func.coalesce(func.length(_messages.c.replay), 0)
"""What one message takes up without its images."""

_image_size = func.length(_blobs.c.data)
_ASKED_AT_ONCE = 500
_ids: BindParameter[list[str]] = bindparam("ids", expanding=True)
_sizes = select(_messages.c.id, _message_size.label("size")).where(_messages.c.id.in_(_ids))
_image_sizes = select(_blobs.c.message_id, _image_size.label("size")).where(_blobs.c.message_id.in_(_ids))


def stored_size(session: Session, user_id: int) -> int:
    """What the user's messages hold: characters of text, of what models want back, and bytes of images."""
    mine = _messages.c.user_id == user_id
    text = session.scalar(select(func.sum(_message_size)).where(mine)) or 0
    images = select(func.sum(_image_size)).join(_messages, _messages.c.id == _blobs.c.message_id)
    return int(text) + int(session.scalar(images.where(mine)) or 0)


def check_room(session: Session, user_id: int, size: int, quota_mb: float, *, what: str) -> None:
    """Raises TooLarge where the user's messages would take up more than the quota with so much more."""
    if stored_size(session, user_id) + size > quota_mb * MIB:
        raise TooLarge(
            f"with {what} your conversations would take up more than {quota_mb:g} MiB, "
            "which is what this server gives a user (files.quota_mb)",
            kind="quota_exceeded",
        )


def sizes_of(session: Session, message_ids: list[str]) -> dict[str, int]:
    """What each of the messages takes up with its images."""
    connection = session.connection()
    found: dict[str, int] = {}
    for at in range(0, len(message_ids), _ASKED_AT_ONCE):
        asked = {"ids": message_ids[at : at + _ASKED_AT_ONCE]}
        for row in connection.execute(_sizes, asked):
            found[row.id] = row.size
        for row in connection.execute(_image_sizes, asked):
            found[row.message_id] = found.get(row.message_id, 0) + row.size
    return found
