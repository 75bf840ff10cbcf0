"""Branches: edit a message into a sibling, show the tree, copy a path into a new conversation.

`runs/` regenerates answers; `service.py` selects a leaf.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, Select, exists, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import (
    DeleteRuns,
    assistant_content,
    assistant_steps,
    check_idle,
    locked_message,
    own_conversation,
    own_message,
    user_content,
)
from luxx.domain.conversations.comparing import end_comparison
from luxx.domain.conversations.forking import Fork
from luxx.domain.conversations.images import (
    Images,
    check_message_quota,
    copy_content,
    message_sizes,
    store_images,
)
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.search_index import INDEXED_FIELDS, index_message
from luxx.domain.conversations.views import ConversationView, MessageView, message_view, user_text_of
from luxx.errors import InvalidInput
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.wire.message import AssistantContent, Attachment
from luxx.wire.turn import steps_text, with_edited_text

PREVIEW_LENGTH = 120
NO_IMAGES: Images = {}
READ_BATCH_SIZE = 200
"""Messages in memory at once while a tree is read; each may carry files."""

_encode = msgspec.json.Encoder().encode
_messages = table_of(MessageRow)


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A message in short. `children` are the ids of the messages that answer it, oldest first. A brief tree
    has the ids only: those of 10,000 messages are read in a tenth of the time."""

    id: str
    parent_id: str | None
    role: str | UnsetType = UNSET
    preview: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    created_at: datetime | UnsetType = UNSET
    children: list[str] | UnsetType = UNSET


class ConversationTree(msgspec.Struct, frozen=True, kw_only=True):
    """All messages, oldest first. `selected_path`: the ids from the first message to the selected leaf."""

    nodes: list[TreeNode]
    selected_leaf_id: str | None
    selected_path: list[str]


@dataclass(frozen=True, slots=True)
class BranchService:
    """One per process."""

    store: Store
    quota_mb: float
    delete_runs: DeleteRuns

    async def edit(
        self,
        caller: Caller,
        message_id: str,
        text: str,
        attachments: list[Attachment] | UnsetType = UNSET,
        images: Images = NO_IMAGES,
    ) -> MessageView:
        """Adds an edited sibling of a message and selects it; the old message stays.

        That of a user's message takes over the old attachments, with the images that they name, unless new
        ones are given. That of an answer has the old calls of tools and their results, and is marked with the
        caller's name (`edited_by` of its text).

        Raises Conflict while an answer is being written, InvalidInput for attachments of an answer, TooLarge
        if it exceeds the user's quota.
        """
        await self.store.read(
            lambda session: self._check_quota(session, caller, message_id, text, attachments)
        )

        def work(session: Session) -> MessageView:
            conversation, old = locked_message(session, caller, message_id)
            check_idle(conversation)
            if old.role == "user":
                new, copied_images = _edited_question(session, old, text, attachments, images)
            elif attachments is not UNSET:
                raise InvalidInput(
                    "only messages of users have attachments", kind="not_editable", field="$.attachments"
                )
            else:
                new, copied_images = _edited_answer(old, text, caller.username), NO_IMAGES
            session.add(new)
            session.flush()
            connection = session.connection()
            store_images(connection, new.id, copied_images)
            index_message(connection, {name: getattr(new, name) for name in INDEXED_FIELDS})
            if conversation.comparing_id is not None:
                end_comparison(session, conversation, new.id)
            conversation.selected_leaf_id = new.id
            conversation.updated_at = new.created_at
            return message_view(new)

        return await self.store.write(work)

    def _check_quota(
        self,
        session: Session,
        caller: Caller,
        message_id: str,
        text: str,
        attachments: list[Attachment] | UnsetType,
    ) -> None:
        size = len(text)
        if attachments is UNSET:
            own_message(session, caller, message_id)
            size += sum(message_sizes(session, [message_id]).values())
        else:
            size += sum(
                file.size if isinstance(file.size, int) else len(file.content) for file in attachments
            )
        check_message_quota(session, caller.user_id, size, self.quota_mb, what="this message")

    async def tree(self, caller: Caller, conversation_id: str, *, is_brief: bool) -> ConversationTree:
        """The tree of all branches of a conversation."""

        def work(session: Session) -> ConversationTree:
            conversation = own_conversation(session, caller, conversation_id)
            nodes = (_brief_nodes if is_brief else _nodes)(session, conversation_id)
            leaf_id = conversation.selected_leaf_id
            return ConversationTree(
                nodes=nodes, selected_leaf_id=leaf_id, selected_path=_path_to(leaf_id, nodes)
            )

        return await self.store.read(work)

    async def fork(self, caller: Caller, conversation_id: str, message_id: str | None) -> ConversationView:
        """A new conversation with a copy of the path to a message, by default to the selected leaf.

        Raises TooLarge if it exceeds the user's quota, Conflict if a part of the path is deleted meanwhile.
        """
        fork = Fork(self.store, caller, conversation_id, self.quota_mb, self.delete_runs)
        path = await self.store.read(lambda session: fork.read_path(session, message_id))
        if len(path) == 1:
            return await self.store.write(lambda session: fork.copy_at_once(session, path[0]))
        # Continues if the client disconnects; if the server stops, the next start deletes the partial copy.
        return await asyncio.shield(asyncio.to_thread(fork.copy, path))


def _edited_question(
    session: Session, old: MessageRow, text: str, attachments: list[Attachment] | UnsetType, images: Images
) -> tuple[MessageRow, Images]:
    content = msgspec.structs.replace(user_content(old.content), text=text)
    if attachments is UNSET:
        content, images = copy_content(session.connection(), old.id, content)
    else:
        content = msgspec.structs.replace(content, attachments=attachments)
    row = _sibling(old, _encode(content).decode())
    row.sender_name, row.sender_color = old.sender_name, old.sender_color
    return row, images


def _edited_answer(old: MessageRow, text: str, name: str) -> MessageRow:
    """Without what a provider wants back, which has the old text, and without what checks said of it. How the
    prompt was made is kept: the next prompt continues the summary."""
    stored = assistant_content(old.content)
    steps = with_edited_text(stored.steps, text, name)
    content = AssistantContent(steps=steps, plan_run_id=stored.plan_run_id)
    row = _sibling(old, _encode(content).decode())
    row.context, row.model = old.context, old.model
    row.provider_id, row.provider_name = old.provider_id, old.provider_name
    return row


def _sibling(old: MessageRow, content: str) -> MessageRow:
    return MessageRow(
        id=new_id(), user_id=old.user_id, conversation_id=old.conversation_id, parent_id=old.parent_id,
        role=old.role, content=content, token_count=0, status="complete", created_at=utc_now(),
    )  # fmt: skip


def _brief_nodes(session: Session, conversation_id: str) -> list[TreeNode]:
    columns = select(_messages.c.id, _messages.c.parent_id)
    query = columns.where(_messages.c.conversation_id == conversation_id).order_by(_messages.c.id)
    return [TreeNode(id=id_, parent_id=parent_id) for id_, parent_id in session.connection().execute(query)]


def _nodes(session: Session, conversation_id: str) -> list[TreeNode]:
    rows = session.connection().execute(
        select(
            *(_messages.c[name] for name in ("id", "parent_id", "role", "content", "status", "created_at"))
        )
        .where(_messages.c.conversation_id == conversation_id)
        .order_by(_messages.c.id)
        .execution_options(yield_per=READ_BATCH_SIZE)
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
    # Some slack for blanks that are joined; a bound, so that a long text is not split as a whole.
    line = " ".join(text[: PREVIEW_LENGTH * 4].split())
    return line if len(line) <= PREVIEW_LENGTH else f"{line[: PREVIEW_LENGTH - 1]}…"


def _path_to(leaf_id: str | None, nodes: list[TreeNode]) -> list[str]:
    parents = {node.id: node.parent_id for node in nodes}
    path: list[str] = []
    while leaf_id is not None:
        path.append(leaf_id)
        leaf_id = parents.get(leaf_id)
    return path[::-1]


def subtree_ids(message_id: str) -> Select[str]:
    """Selects the ids of a message and of all messages below it."""
    start = select(MessageRow.id).where(MessageRow.id == message_id).cte("subtree", recursive=True)
    child = aliased(MessageRow)
    below = start.union_all(select(child.id).join(start, child.parent_id == start.c.id))
    return select(below.c.id)


def newest_leaf_under(session: Session, message_id: str) -> str:
    """The newest leaf below `message_id`, or that message itself."""
    below = subtree_ids(message_id).subquery()
    newest = select(below.c.id).where(~_has_children(below.c.id)).order_by(below.c.id.desc()).limit(1)
    return session.scalar(newest) or message_id


def newest_leaf_in(session: Session, conversation_id: str) -> str | None:
    """The newest leaf of a conversation; None if it has no messages."""
    in_conversation = MessageRow.conversation_id == conversation_id
    newest = select(MessageRow.id).where(in_conversation, ~_has_children(MessageRow.id))
    return session.scalar(newest.order_by(MessageRow.id.desc()).limit(1))


def _has_children(id_: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    child = aliased(MessageRow)
    return exists(select(child.id).where(child.parent_id == id_))
