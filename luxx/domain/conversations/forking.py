"""Copies a path into a new conversation, inside the database and in small transactions.

A long path is copied into a hidden conversation (`access.py`), which is revealed when it is complete.
`branches.py` checks who may ask for it.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec
from sqlalchemy import Connection, String, bindparam, insert, null, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import (
    DeleteRuns,
    delete_hidden,
    message_in,
    own_conversation,
    read_path_ids,
    user_content,
)
from luxx.domain.conversations.images import (
    check_message_quota,
    copy_content,
    message_sizes,
    store_images,
    with_images,
)
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import INDEXED_FIELDS, index_messages, index_title
from luxx.domain.conversations.views import ConversationView, conversation_view
from luxx.errors import Conflict, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import first_given, table_of

COPY_ROWS = 200
COPY_SIZE = 1024 * 1024
"""Messages of one transaction, and their size: other writers wait for some tens of milliseconds."""

PathParts = list[list[str]]
"""The ids of a path's messages, oldest first, in parts of one transaction each."""

_encode = msgspec.json.Encoder().encode
_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_copied_columns = {
    "id": bindparam("b_id", type_=String),
    "conversation_id": bindparam("b_conversation", type_=String),
    "parent_id": bindparam("b_parent", type_=String),
    "run_id": null(),
}
_copy_message = insert(_messages).from_select(
    [column.name for column in _messages.c],
    select(*(_copied_columns.get(column.name, column) for column in _messages.c)).where(
        _messages.c.id == bindparam("b_source"), _messages.c.conversation_id == bindparam("b_origin")
    ),
)
"""Copies inside the database: a path may carry more files than fit in memory."""

_content = select(_messages.c.content).where(_messages.c.id == bindparam("b_id"))
_copied_rows = (
    select(*(_messages.c[name] for name in INDEXED_FIELDS))
    .where(_messages.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(_messages.c.id)
)
_set_content = (
    update(_messages).where(_messages.c.id == bindparam("b_id")).values(content=bindparam("b_content"))
)
_hidden_copy = (
    select(ConversationRow)
    .where(ConversationRow.id == bindparam("b_id"), ConversationRow.import_id.is_not(None))
    .with_for_update()
)


@dataclass(frozen=True, slots=True)
class Fork:
    """One fork of one conversation. The runs stay with the original."""

    store: Store
    caller: Caller
    source_id: str
    quota_mb: float
    delete_runs: DeleteRuns

    def read_path(self, session: Session, message_id: str | None) -> PathParts:
        """The path to copy, with at least one part. Raises TooLarge if it exceeds the user's quota."""
        source = own_conversation(session, self.caller, self.source_id)
        if message_id is not None:
            message_in(session, source, message_id)
        leaf_id = message_id or source.selected_leaf_id
        ids = [] if leaf_id is None else read_path_ids(session.connection(), leaf_id)
        sizes = message_sizes(session, ids)
        check_message_quota(
            session, self.caller.user_id, sum(sizes.values()), self.quota_mb, what="this fork"
        )
        return list(_parts(ids, sizes)) or [[]]

    def copy_at_once(self, session: Session, part: list[str]) -> ConversationView:
        """Copies a short path in the session's transaction."""
        copy = self._create_copy(session, import_id=None)
        copy.selected_leaf_id = self._copy_part(session.connection(), copy.id, part, None)
        session.flush()
        return conversation_view(copy)

    def copy(self, path: PathParts) -> ConversationView:
        """Copies a long path, hidden until its last message is copied. Blocks: call it in a thread."""
        store = self.store
        copy_id = store.write_now(lambda session: self._create_copy(session, import_id=new_id()).id)
        try:
            leaf_id: str | None = None
            for part in path:
                leaf_id = store.write_now(
                    partial(self._copy_next_part, copy_id=copy_id, part=part, parent_id=leaf_id)
                )
            return store.write_now(lambda session: self._reveal(session, copy_id, leaf_id))
        except BaseException:
            # If this fails too (the store is closed, the disk is full), the next start deletes the copy.
            with suppress(Exception):
                delete_hidden(store, self.delete_runs, [copy_id])
            raise

    def _copy_next_part(
        self, session: Session, *, copy_id: str, part: list[str], parent_id: str | None
    ) -> str | None:
        """Copies one more part of a long path; returns the id of its last message."""
        if session.scalar(_hidden_copy, {"b_id": copy_id}) is None:
            raise _changed_error()
        return self._copy_part(session.connection(), copy_id, part, parent_id)

    def _create_copy(self, session: Session, *, import_id: str | None) -> ConversationRow:
        source = own_conversation(session, self.caller, self.source_id, is_locked=True)
        copy = _copy_of(source)
        copy.import_id = import_id
        session.add(copy)
        session.flush()
        index_title(session.connection(), user_id=copy.user_id, conversation_id=copy.id, title=copy.title)
        return copy

    def _reveal(self, session: Session, copy_id: str, leaf_id: str | None) -> ConversationView:
        copy = session.scalar(_hidden_copy, {"b_id": copy_id})
        try:
            own_conversation(session, self.caller, self.source_id, is_locked=True)
        except NotFound as error:
            raise _changed_error() from error
        if copy is None:
            raise _changed_error()
        copy.selected_leaf_id = leaf_id
        copy.import_id = None
        session.flush()
        return conversation_view(copy)

    def _copy_part(
        self, connection: Connection, copy_id: str, part: list[str], parent_id: str | None
    ) -> str | None:
        if not part:
            return parent_id
        ids = [new_id() for _ in part]
        connection.execute(
            _copy_message,
            [
                {
                    "b_source": source,
                    "b_origin": self.source_id,
                    "b_id": id_,
                    "b_parent": parent,
                    "b_conversation": copy_id,
                }
                for source, id_, parent in zip(part, ids, [parent_id, *ids], strict=False)
            ],
        )
        rows = [dict(row) for row in connection.execute(_copied_rows, {"ids": ids}).mappings()]
        if len(rows) != len(part):
            # Deleting a message deletes all below it, so no copy lacks its parent.
            raise _changed_error()
        index_messages(connection, rows)
        _copy_images(connection, dict(zip(part, ids, strict=True)))
        return ids[-1]


def _parts(ids: Iterable[str], sizes: dict[str, int]) -> Iterable[list[str]]:
    part: list[str] = []
    size = 0
    for id_ in ids:
        if part and (len(part) >= COPY_ROWS or size + sizes.get(id_, 0) > COPY_SIZE):
            yield part
            part, size = [], 0
        part.append(id_)
        size += sizes.get(id_, 0)
    if part:
        yield part


def _copy_of(source: ConversationRow) -> ConversationRow:
    now = utc_now()
    return ConversationRow(
        id=new_id(), user_id=source.user_id, provider_id=source.provider_id, project_id=source.project_id,
        agent_id=source.agent_id, title=source.title, model=source.model,
        system_prompt=source.system_prompt, planning=source.planning, routing=source.routing,
        sliding_window=source.sliding_window, memory=source.memory, knowledge=source.knowledge,
        record=source.record, temporary_minutes=source.temporary_minutes, pinned=False, archived=False,
        tags=source.tags,
        lost_provider=source.lost_provider, lost_agent=source.lost_agent, lost_project=source.lost_project,
        created_at=now, updated_at=now, **first_given(source),
    )  # fmt: skip


def _copy_images(connection: Connection, copies: dict[str, str]) -> None:
    """Copies the images of copied messages, each under a new id."""
    for source in with_images(connection, copies):
        stored = connection.execute(_content, {"b_id": source}).scalar_one()
        content, images = copy_content(connection, source, user_content(stored))
        copy = copies[source]
        connection.execute(_set_content, {"b_id": copy, "b_content": _encode(content).decode()})
        store_images(connection, copy, images)


def _changed_error() -> Conflict:
    return Conflict(
        "some of these messages were deleted while they were copied; nothing was forked",
        kind="changed_meanwhile",
    )
