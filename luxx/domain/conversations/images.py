"""The images of messages: their bytes, stored apart from the messages and deleted with them.

A message's content names an image by `blob_id`; only that message can open it by this name. This module also
computes the size of stored messages for the user's quota.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    BindParameter,
    Connection,
    ForeignKey,
    LargeBinary,
    String,
    bindparam,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.conversations.models import MessageRow
from luxx.errors import TooLarge
from luxx.infra.clock import new_id
from luxx.infra.store.tables import Base, table_of
from luxx.wire.message import Attachment, PromptImage, UserContent

_QUERY_BATCH_SIZE = 500

Images = Mapping[str, PromptImage]
"""Images by their `blob_id`."""


class MessageBlobRow(Base):
    """The database deletes it with its message."""

    __tablename__ = "message_blobs"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    message_id: Mapped[str] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"), index=True)
    media_type: Mapped[str] = mapped_column(String(40))
    data: Mapped[bytes] = mapped_column(LargeBinary)


_blobs = table_of(MessageBlobRow)
_insert = insert(_blobs)
_columns = select(_blobs.c.id, _blobs.c.media_type, _blobs.c.data)
_of_message = _columns.where(
    _blobs.c.message_id == bindparam("message_id"), _blobs.c.id.in_(bindparam("ids", expanding=True))
)
_carriers = select(_blobs.c.message_id).where(_blobs.c.message_id.in_(bindparam("ids", expanding=True)))


def store_images(connection: Connection, message_id: str, images: Images) -> None:
    """Stores images in the transaction that stores the message, after it."""
    for blob_id, image in images.items():
        row = {
            "id": blob_id, "message_id": message_id, "media_type": image.media_type, "data": image.data,
        }  # fmt: skip
        connection.execute(_insert, row)


def read_images(connection: Connection, message_id: str, blob_ids: Collection[str]) -> dict[str, PromptImage]:
    """The named images of the message; names that it does not have are left out."""
    matches = connection.execute(_of_message, {"message_id": message_id, "ids": list(blob_ids)})
    return {row.id: PromptImage(media_type=row.media_type, data=row.data) for row in matches}


def with_images(connection: Connection, message_ids: Iterable[str]) -> list[str]:
    """The ids of those messages that carry images."""
    matches: set[str] = set()
    requested_ids = list(message_ids)
    for at in range(0, len(requested_ids), _QUERY_BATCH_SIZE):
        matches.update(connection.scalars(_carriers, {"ids": requested_ids[at : at + _QUERY_BATCH_SIZE]}))
    return sorted(matches)


def copy_content(
    connection: Connection, message_id: str, content: UserContent
) -> tuple[UserContent, dict[str, PromptImage]]:
    """The content for a copy of a message, with copies of its images under new ids, to be stored with it."""
    named_ids = image_ids(content)
    if not named_ids:
        return content, {}
    images = read_images(connection, message_id, named_ids)
    names = {blob_id: new_id() for blob_id in images}
    attachments = [
        replace(file, blob_id=names.get(file.blob_id, file.blob_id))
        if isinstance(file.blob_id, str)
        else file
        for file in content.attachments
    ]
    return replace(content, attachments=attachments), {names[old]: image for old, image in images.items()}


def image_ids(content: UserContent) -> list[str]:
    """The ids of the images that a message's content names, in order."""
    return [file.blob_id for file in content.attachments if isinstance(file.blob_id, str)]


class AttachedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment as a file."""

    name: str
    media_type: str
    data: bytes


def read_attachment(connection: Connection, message_id: str, file: Attachment) -> AttachedBytes | None:
    """The image itself or the text as UTF-8; None if the image is not this message's."""
    if not isinstance(file.blob_id, str):
        return AttachedBytes(name=file.name, media_type="text/plain", data=file.content.encode())
    image = read_images(connection, message_id, [file.blob_id]).get(file.blob_id)
    return image and AttachedBytes(name=file.name, media_type=image.media_type, data=image.data)


MIB = 1024 * 1024

_messages = table_of(MessageRow)
_message_size = func.length(_messages.c.content) + func.coalesce(func.length(_messages.c.replay), 0)
"""The size of one message without its images."""

_image_size = func.length(_blobs.c.data)
_ids: BindParameter[list[str]] = bindparam("ids", expanding=True)
_sizes = select(_messages.c.id, _message_size.label("size")).where(_messages.c.id.in_(_ids))
_image_sizes = select(_blobs.c.message_id, _image_size.label("size")).where(_blobs.c.message_id.in_(_ids))


def stored_size(session: Session, user_id: int) -> int:
    """The size of the user's messages: characters of text and replay data, and bytes of images."""
    is_own = _messages.c.user_id == user_id
    text = session.scalar(select(func.sum(_message_size)).where(is_own)) or 0
    images = select(func.sum(_image_size)).join(_messages, _messages.c.id == _blobs.c.message_id)
    return int(text) + int(session.scalar(images.where(is_own)) or 0)


def check_message_quota(session: Session, user_id: int, size: int, quota_mb: float, *, what: str) -> None:
    """Raises TooLarge if `size` more would exceed the user's quota."""
    if stored_size(session, user_id) + size > quota_mb * MIB:
        raise TooLarge(
            f"with {what} your conversations would take up more than {quota_mb:g} MiB, "
            "the limit of this server for each user (files.quota_mb)",
            kind="quota_exceeded",
        )


def message_sizes(session: Session, message_ids: list[str]) -> dict[str, int]:
    """The size of each message with its images."""
    connection = session.connection()
    sizes: dict[str, int] = {}
    for at in range(0, len(message_ids), _QUERY_BATCH_SIZE):
        parameters = {"ids": message_ids[at : at + _QUERY_BATCH_SIZE]}
        for row in connection.execute(_sizes, parameters):
            sizes[row.id] = row.size
        for row in connection.execute(_image_sizes, parameters):
            sizes[row.message_id] = sizes.get(row.message_id, 0) + row.size
    return sizes
