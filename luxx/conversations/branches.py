"""Branches: a message edited into a sibling, the tree shown, a path copied into a new conversation.

Answering again is `runs/service.py`'s; selecting a leaf is a change of the conversation (`service.py`).
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Connection, String, bindparam, insert, select, update
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.clock import new_id, utc_now
from luxx.conversations.access import check_idle, locked_message, message_in, own_conversation
from luxx.conversations.images import Images, copied, store_images, with_images
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.conversations.search_index import index_message, index_messages, index_title
from luxx.conversations.stored import assistant_steps, read_path_ids, user_content, user_text_of
from luxx.conversations.views import ConversationView, MessageView, conversation_view, message_view
from luxx.errors import InvalidInput
from luxx.store.engine import Store
from luxx.store.tables import table_of
from luxx.wire.message import Attachment
from luxx.wire.step import steps_text

PREVIEW_LENGTH = 120
READ_AT_ONCE = 200
"""Messages held whole in memory while a tree is read; each may carry files."""

_encode = msgspec.json.Encoder().encode
_messages = table_of(MessageRow)
_given = {
    "id": bindparam("b_id", type_=String),
    "conversation_id": bindparam("b_conversation", type_=String),
    "parent_id": bindparam("b_parent", type_=String),
    "run_id": bindparam("b_run", type_=String),
}
_copy_message = insert(_messages).from_select(
    [column.name for column in _messages.c],
    select(*(_given.get(column.name, column) for column in _messages.c)).where(
        _messages.c.id == bindparam("b_source")
    ),
)
"""Inside the database: a path may carry more files than memory should hold."""


_content = select(_messages.c.content).where(_messages.c.id == bindparam("b_id"))
_stored = (
    select(_messages.c.id, _messages.c.user_id, _messages.c.conversation_id, _messages.c.content)
    .where(_messages.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(_messages.c.id)
)
_set_content = (
    update(_messages).where(_messages.c.id == bindparam("b_id")).values(content=bindparam("b_content"))
)


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A message in short. `children` are the ids of what follows it, oldest first."""

    id: str
    parent_id: str | None
    role: str
    preview: str
    status: str
    created_at: datetime
    children: list[str]


class ConversationTree(msgspec.Struct, frozen=True, kw_only=True):
    """All messages, oldest first. `selected_path` are the ids from the first message to the selected leaf."""

    nodes: list[TreeNode]
    selected_leaf_id: str | None
    selected_path: list[str]


class BranchService:
    """One per process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def edit(
        self,
        caller: Caller,
        message_id: str,
        text: str,
        attachments: list[Attachment] | UnsetType = UNSET,
        images: Images | None = None,
    ) -> MessageView:
        """A user's message said anew: a sibling of the old one, which stays, and the selected leaf.

        Its attachments are the old one's unless given, with the images that they name.
        Raises Conflict while an answer is being written.
        """

        def work(session: Session) -> MessageView:
            conversation, old = locked_message(session, caller, message_id)
            if old.role != "user":
                raise InvalidInput(
                    "only what a person said can be edited; to have it answered again, "
                    "POST /messages/{id}/regenerate",
                    kind="not_editable",
                )
            check_idle(conversation)
            content = msgspec.structs.replace(user_content(old.content), text=text)
            connection = session.connection()
            if attachments is UNSET:
                content, carried = copied(connection, old.id, content)
            else:
                content = msgspec.structs.replace(content, attachments=attachments)
                carried = images or {}
            new = MessageRow(
                id=new_id(), user_id=caller.user_id, conversation_id=conversation.id,
                parent_id=old.parent_id, role="user", content=_encode(content).decode(), token_count=0,
                status="complete", sender_name=old.sender_name, sender_color=old.sender_color,
                created_at=utc_now(),
            )  # fmt: skip
            session.add(new)
            session.flush()
            store_images(connection, new.id, carried)
            index_message(connection, _as_indexed(new))
            conversation.selected_leaf_id = new.id
            conversation.updated_at = new.created_at
            return message_view(new)

        return await self._store.write(work)

    async def tree(self, caller: Caller, conversation_id: str) -> ConversationTree:
        """All branches of a conversation."""

        def work(session: Session) -> ConversationTree:
            conversation = own_conversation(session, caller, conversation_id)
            nodes = _nodes(session, conversation_id)
            leaf_id = conversation.selected_leaf_id
            return ConversationTree(
                nodes=nodes, selected_leaf_id=leaf_id, selected_path=_path_to(leaf_id, nodes)
            )

        return await self._store.read(work)

    async def fork(self, caller: Caller, conversation_id: str, message_id: str | None) -> ConversationView:
        """A new conversation with a copy of the path to a message, the selected leaf where none is named."""

        def work(session: Session) -> ConversationView:
            source = own_conversation(session, caller, conversation_id, is_locked=True)
            if message_id is not None:
                message_in(session, source, message_id)
            copy = _copy_of(source)
            session.add(copy)
            session.flush()
            index_title(session.connection(), user_id=copy.user_id, conversation_id=copy.id, title=copy.title)
            leaf_id = message_id or source.selected_leaf_id
            if leaf_id is not None:
                copy.selected_leaf_id = _copy_path(session, leaf_id, copy.id)
                session.flush()
            return conversation_view(copy)

        return await self._store.write(work)


def _nodes(session: Session, conversation_id: str) -> list[TreeNode]:
    rows = session.connection().execute(
        select(
            _messages.c.id,
            _messages.c.parent_id,
            _messages.c.role,
            _messages.c.content,
            _messages.c.status,
            _messages.c.created_at,
        )
        .where(_messages.c.conversation_id == conversation_id)
        .order_by(_messages.c.id)
        .execution_options(yield_per=READ_AT_ONCE)
    )
    children: dict[str | None, list[str]] = {}
    nodes: list[TreeNode] = []
    for row in rows:
        children.setdefault(row.parent_id, []).append(row.id)
        nodes.append(
            TreeNode(
                id=row.id,
                parent_id=row.parent_id,
                role=row.role,
                preview=_preview(row.role, row.content),
                status=row.status,
                created_at=row.created_at,
                children=children.setdefault(row.id, []),
            )
        )
    return nodes


def _preview(role: str, content: str) -> str:
    text = user_text_of(content) if role == "user" else steps_text(assistant_steps(content))
    # A little more than is shown: blanks are joined, and an endless text is not walked for its beginning.
    line = " ".join(text[: PREVIEW_LENGTH * 4].split())
    return line if len(line) <= PREVIEW_LENGTH else f"{line[: PREVIEW_LENGTH - 1]}…"


def _path_to(leaf_id: str | None, nodes: list[TreeNode]) -> list[str]:
    parents = {node.id: node.parent_id for node in nodes}
    path: list[str] = []
    while leaf_id is not None:
        path.append(leaf_id)
        leaf_id = parents.get(leaf_id)
    return path[::-1]


def _copy_of(source: ConversationRow) -> ConversationRow:
    now = utc_now()
    return ConversationRow(
        id=new_id(), user_id=source.user_id, provider_id=source.provider_id, project_id=source.project_id,
        agent_id=source.agent_id, title=source.title, model=source.model,
        system_prompt=source.system_prompt, temperature=source.temperature, max_tokens=source.max_tokens,
        thinking_enabled=source.thinking_enabled, pinned=False, archived=False, tags=source.tags,
        created_at=now, updated_at=now,
    )  # fmt: skip


def _copy_path(session: Session, leaf_id: str, conversation_id: str) -> str:
    """Copies what leads to `leaf_id`; the new leaf's id. The runs stay with the original."""
    connection = session.connection()
    sources = read_path_ids(connection, leaf_id)
    ids = [new_id() for _ in sources]
    connection.execute(
        _copy_message,
        [
            {
                "b_source": source,
                "b_id": id_,
                "b_parent": parent,
                "b_conversation": conversation_id,
                "b_run": None,
            }
            for source, id_, parent in zip(sources, ids, [None, *ids], strict=False)
        ],
    )
    _index(connection, ids)
    _copy_images(connection, dict(zip(sources, ids, strict=True)))
    return ids[-1]


def _index(connection: Connection, ids: list[str]) -> None:
    """A few at a time: a path may carry more files than memory should hold."""
    for at in range(0, len(ids), READ_AT_ONCE):
        rows = connection.execute(_stored, {"ids": ids[at : at + READ_AT_ONCE]})
        index_messages(connection, [dict(row) for row in rows.mappings()])


def _as_indexed(row: MessageRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("id", "user_id", "conversation_id", "content")}


def _copy_images(connection: Connection, copies: dict[str, str]) -> None:
    """Gives the copies of messages that carry images images of their own."""
    for source in with_images(connection, copies):
        content, images = copied(connection, source, user_content(_content_of(connection, source)))
        copy = copies[source]
        connection.execute(_set_content, {"b_id": copy, "b_content": _encode(content).decode()})
        store_images(connection, copy, images)


def _content_of(connection: Connection, message_id: str) -> str:
    return connection.execute(_content, {"b_id": message_id}).scalar_one()
