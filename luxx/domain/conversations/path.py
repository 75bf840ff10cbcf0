"""The stored messages of a conversation from its root to a leaf, as a prompt is made of them."""

from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Row, bindparam, literal, select

from luxx.domain.conversations.images import MessageBlobRow, newest_images
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.prompt import PastMessage
from luxx.infra.store.tables import table_of
from luxx.wire.message import AssistantContent, ContextRecord, PromptImage, UserContent
from luxx.wire.turn import Step

_user = msgspec.json.Decoder(UserContent)
_assistant = msgspec.json.Decoder(AssistantContent)


def user_content(content: str) -> UserContent:
    """Decodes the stored JSON of a user's message."""
    return _user.decode(content)


def assistant_steps(content: str) -> list[Step]:
    """The steps in the stored JSON of an assistant's message."""
    return _assistant.decode(content).steps


_replay = msgspec.json.Decoder(list[dict[str, Any]])
_context = msgspec.json.Decoder(ContextRecord)

_messages = table_of(MessageRow)
_leaf = (
    select(_messages.c.id, _messages.c.parent_id, literal(0).label("height"))
    .where(_messages.c.id == bindparam("leaf_id"))
    .cte("path", recursive=True)
)
_parents = _messages.alias("parents")
_ids = _leaf.union_all(
    select(_parents.c.id, _parents.c.parent_id, _leaf.c.height + 1).join(
        _leaf, _parents.c.id == _leaf.c.parent_id
    )
)
_path = (
    select(_messages.c.role, _messages.c.content, _messages.c.replay, _messages.c.context)
    .join(_ids, _ids.c.id == _messages.c.id)
    .order_by(_ids.c.height.desc())
)
"""Built once: building it costs ten times what running it does."""

_path_ids = select(_ids.c.id).order_by(_ids.c.height.desc())
_blobs = table_of(MessageBlobRow)
_images = (
    select(_blobs.c.id, _blobs.c.media_type, _blobs.c.data)
    .join(_ids, _ids.c.id == _blobs.c.message_id)
    .where(_blobs.c.id.in_(bindparam("ids", expanding=True)))
)


def read_path(connection: Connection, leaf_id: str, *, with_images: bool = False) -> list[PastMessage]:
    """The messages from the root to `leaf_id`, oldest first; `with_images` adds the newest of their
    images."""
    past_messages = [_past_message(row) for row in connection.execute(_path, {"leaf_id": leaf_id})]
    if not with_images:
        return past_messages
    with_files = [message.user for message in past_messages if message.user and message.user.attachments]
    blob_ids = newest_images(with_files) if with_files else []
    if not blob_ids:
        return past_messages
    image_rows = connection.execute(_images, {"leaf_id": leaf_id, "ids": blob_ids})
    images = {row.id: PromptImage(media_type=row.media_type, data=row.data) for row in image_rows}
    return [
        replace(message, images=images) if message.user is not None else message for message in past_messages
    ]


def read_path_ids(connection: Connection, leaf_id: str) -> list[str]:
    """The ids of the messages from the root to `leaf_id`, oldest first."""
    return list(connection.scalars(_path_ids, {"leaf_id": leaf_id}))


def _past_message(row: Row[Any, Any, Any, Any]) -> PastMessage:
    if row.role == "user":
        return PastMessage(user=user_content(row.content))
    return PastMessage(
        steps=tuple(assistant_steps(row.content)),
        replay=tuple(_replay.decode(row.replay)) if row.replay else (),
        context=_context.decode(row.context) if row.context else None,
    )
