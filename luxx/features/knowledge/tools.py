"""The tool with which models search knowledge bases, and which of them a run may use.

A run uses those that its conversation, its agent or its room names, and those of its project. Where a person
works alone and nothing is named, it uses all that they may read. Their rights are checked at every query.
"""

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.knowledge_bases import KNOWLEDGE_SEARCH, KnowledgeBaseRow, named_in
from luxx.errors import ToolFailed
from luxx.features.knowledge.search import ChunkSearch, FoundChunk
from luxx.features.memory.places import place_of, root_of
from luxx.features.memory.scopes import Scope, Scopes, visible_scopes
from luxx.features.memory.vectors.arm import note_of
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.store.tables import table_of
from luxx.tools.core import ToolContext
from luxx.tools.factory import ToolFunction, tool
from luxx.wire.memory import ScopeKind
from luxx.wire.run import RunKind
from luxx.wire.source import Source

MAX_FOUND = 30

Query = Annotated[str, Meta(min_length=1, max_length=2_000, description="What to look for, in words")]
BaseIds = (
    Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=36)]],
        Meta(max_length=20, description="Ids of knowledge bases; without it all that may be used here"),
    ]
    | None
)
Limit = Annotated[int, Meta(ge=1, le=MAX_FOUND, description="How many passages at most")]

_bases, _rooms = table_of(KnowledgeBaseRow), table_of(ChatRoomRow)


class KnowledgeTools:
    """Makes the tool. One per process."""

    def __init__(self, searches: ChunkSearch) -> None:
        self._searches = searches

    def all(self) -> list[ToolFunction]:
        return [self._search_tool()]

    def _search_tool(self) -> ToolFunction:
        @tool(name=KNOWLEDGE_SEARCH, category="memory")
        async def knowledge_search(
            context: ToolContext, query: Query, base_ids: BaseIds = None, limit: Limit = 8
        ) -> dict[str, Any]:
            """Search the documents of knowledge bases. Each passage has its document and its page, slide or
            row; cite passages that you use by their number, like [1]."""

            def scopes_of(session: Session) -> list[int]:
                scopes = _usable(session.connection(), context, base_ids)
                return [scope.id for scope in scopes if scope.id is not None]

            caller = context.caller
            found = await self._searches.find(
                scopes_of, query, user_id=caller.user_id, limit=limit, run_id=caller.run_id
            )
            # Somebody else may have written into a document what a model should do.
            context.metadata.is_untrusted = not found.added_by <= {context.caller.user_id}
            return {
                "passages": [_passage(item, number) for number, item in enumerate(found.items, 1)],
                "sources": msgspec.to_builtins([_source(item) for item in found.items]),
                **note_of(found.asked),
            }

        return knowledge_search


def _usable(
    connection: Connection, context: ToolContext, base_ids: Collection[str] | None
) -> Collection[Scope]:
    """The scopes of the bases that the call searches. Raises ToolFailed for one that it may not use."""
    usable = usable_bases(connection, context)
    for base_id in base_ids or ():
        if base_id not in usable:
            raise ToolFailed(f"no knowledge base with the id {base_id} can be used here")
    if not usable:
        raise ToolFailed("there is no knowledge base that can be used here")
    return [scope for base_id, scope in usable.items() if base_ids is None or base_id in base_ids]


def usable_bases(connection: Connection, context: ToolContext) -> dict[str, Scope]:
    """The bases that may be used where a call is made, with their scopes, by their ids."""
    caller = user_as_caller(connection, context.caller.user_id)
    return _used_here(connection, context, _bases_of(visible_scopes(connection, caller)))


def _bases_of(scopes: Scopes) -> dict[str, Scope]:
    return {scope.name.target: scope for scope in scopes if scope.name.kind == ScopeKind.BASE}


def _used_here(connection: Connection, context: ToolContext, visible: dict[str, Scope]) -> dict[str, Scope]:
    """Those of the visible bases that may be used where the call is made."""
    if context.caller.run_id is None:
        return visible
    root = root_of(connection, context.caller.run_id)
    if root is None:
        raise ToolFailed("the run of this call was deleted")
    place = place_of(connection, RunKind(root.kind), root.subject_id).place
    named = set(context.caller.knowledge)
    if place.room_id is not None:
        of_room = select(_rooms.c.knowledge).where(_rooms.c.id == place.room_id)
        named.update(named_in(connection.scalar(of_room) or "[]"))
    if place.project_id is not None:
        of_project = select(_bases.c.id).where(_bases.c.project_id == place.project_id)
        named.update(connection.scalars(of_project))
    is_alone = place.room_id is None and not place.is_shared
    chosen = {base_id: scope for base_id, scope in visible.items() if base_id in named}
    return visible if is_alone and not chosen else chosen


def _passage(item: FoundChunk, number: int) -> dict[str, Any]:
    names = ("document_id", "title", "page", "slide", "row", "heading", "text")
    fields: dict[str, Any] = msgspec.to_builtins(item)
    return {"number": number, **{name: fields[name] for name in names if fields.get(name)}}


def _source(item: FoundChunk) -> Source:
    return Source(
        base_id=item.base_id,
        document_id=item.document_id,
        title=item.title,
        quote=item.quote,
        page=item.page,
        slide=item.slide,
        row=item.row,
    )
