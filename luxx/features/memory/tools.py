"""The tools of memory for models: searching, storing and forgetting facts, and reading past messages.

Each reads and writes only the scopes that the place of its run has; where memory is off it says so. What a
model stores asks a person where memory is set to `ask`, and where the run has read untrusted content: a web
page may say "remember that".
"""

from collections.abc import Awaitable
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, TypeVar, assert_never

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.conversations.access import user_content
from luxx.domain.conversations.models import MessageRow
from luxx.errors import LuxxError, ToolFailed
from luxx.features.memory.entities import NewEntity
from luxx.features.memory.facts import Author, FactWriter, NewSource, delete_facts
from luxx.features.memory.lexical import find_facts
from luxx.features.memory.models import NAME_LENGTH, TYPE_LENGTH, FactRow
from luxx.features.memory.places import (
    ASKS,
    FORGETS,
    OFF,
    RunPlace,
    brought_untrusted,
    paid_by_run,
    place_of,
    root_of,
)
from luxx.features.memory.retrieval import RecallQuery, recall
from luxx.features.memory.scopes import Place, Scope, Scopes, parse_scope, stored_scope, visible_scopes
from luxx.features.memory.service import find_fact
from luxx.features.memory.vectors.arm import Askable, Asked, NotAsked, VectorArm, note_of
from luxx.features.memory.vectors.source import PaidBy
from luxx.features.memory.views import MAX_NAMED, NewFact, read_facts, was_known, was_true
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import strictest, table_of
from luxx.infra.strict_json import IN_NAME
from luxx.runs.turn.state import ChatRequest
from luxx.tools.core import ApprovalReason, CommandPermission, Risk, ToolContext
from luxx.tools.factory import ToolFunction, tool
from luxx.wire.memory import FactCategory, FactOrigin, SourceKind
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import InConversation, RunKind

T = TypeVar("T")

MAX_QUOTE = 300
SEARCHED_LENGTH = 300
MAX_FOUND = 50

Query = Annotated[str, Meta(min_length=1, max_length=2_000, description="What to look for, in words")]
Content = Annotated[
    str,
    Meta(min_length=1, max_length=2_000, description="One fact as a sentence that stands for itself"),
]
Category = Annotated[FactCategory, Meta(description="preference, knowledge or history")] | None
Limit = Annotated[int, Meta(ge=1, le=MAX_FOUND, description="How many at most")]


class SearchType(StrEnum):
    """How facts are found."""

    SEMANTIC = "semantic"
    KEYWORD = "keyword"
    HYBRID = "hybrid"


ScopeName = Annotated[str, Meta(max_length=50, description="user, tenant, project:ID or room:ID")] | None
Time = Annotated[datetime, Meta(tz=True, description="With a time zone, like 2026-03-01T00:00:00Z")] | None

_messages, _facts = table_of(MessageRow), table_of(FactRow)
_newest_of_room = (
    select(_messages.c.id)
    .where(_messages.c.room_id == bindparam("room"))
    .order_by(_messages.c.id.desc())
    .limit(1)
)
_content = select(_messages.c.id, _messages.c.role, _messages.c.content).where(
    _messages.c.id == bindparam("id")
)
_request = msgspec.json.Decoder(ChatRequest)


class ToolEntity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who or what a fact names. Without the patterns of `NewEntity`, which the check of arguments (RE2) does
    not know."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)]
    type: Annotated[str, Meta(min_length=1, max_length=TYPE_LENGTH, description="person, place …")] | None = (
        None
    )


class Because(msgspec.Struct, frozen=True, kw_only=True):
    """Why a person is asked; no rule spares them the question."""

    because: str
    usual: str | None = None


class MemoryTools:
    """Makes the tools. One per process."""

    def __init__(self, store: Store, writer: FactWriter, config: MemoryConfig, vectors: VectorArm) -> None:
        self._store = store
        self._writer = writer
        self._config = config
        self._vectors = vectors

    def all(self) -> list[ToolFunction]:
        return [self._search_tool(), self._create_tool(), self._forget_tool()]

    def _search_tool(self) -> ToolFunction:
        @tool(name="memory_search", category="memory")
        async def memory_search(
            context: ToolContext,
            query: Query,
            search_type: SearchType = SearchType.HYBRID,
            limit: Limit = 10,
            category: Category = None,
            scope: ScopeName = None,
            as_of: Time = None,
            known_at: Time = None,
        ) -> dict[str, Any]:
            """Search remembered facts about the person and their work. as_of: what was true then; known_at:
            what was known then."""
            asked = await self._asked(context, query, search_type, scope)

            def work(connection: Connection) -> list[dict[str, Any]]:
                scopes = _searched(connection, context, scope)
                wanted = RecallQuery(
                    text=query, now=utc_now(), as_of=as_of, known_at=known_at, category=category, limit=limit
                )
                more = self._vectors.ranked(connection, scopes, wanted, asked)
                config = _weighted(self._config, search_type, has_vectors=bool(more))
                found = recall(connection, scopes, wanted, config, more)
                ids = [one.row_id for one in found]
                context.metadata.is_untrusted = not all(one.is_trusted for one in found)
                return [_shown(fact) for fact in read_facts(connection, scopes, ids)]

            facts = await answer_for_model(self._store.read_rows(work))
            return {"facts": facts} | _note(asked, search_type)

        return memory_search

    async def _asked(
        self, context: ToolContext, query: str, search_type: SearchType, scope: str | None
    ) -> Asked | NotAsked:
        """The vector of a query, where vectors are to be searched."""
        if not self._vectors.is_on or search_type is SearchType.KEYWORD:
            return NotAsked()

        def work(session: Session) -> tuple[Askable | NotAsked, PaidBy]:
            connection, caller = session.connection(), context.caller
            scopes = _searched(connection, context, scope)
            askable = self._vectors.askable(session, caller.user_id, scopes.ids)
            return askable, paid_by_run(connection, caller.run_id)

        askable, paid_by = await answer_for_model(self._store.read(work))
        return await self._vectors.ask(askable, query, paid_by)

    def _create_tool(self) -> ToolFunction:
        @tool(name="memory_create", category="memory", required_permission=CommandPermission.WRITE)
        async def memory_create(
            context: ToolContext,
            content: Content,
            category: Category = None,
            entities: Annotated[list[ToolEntity], Meta(max_length=MAX_NAMED)] | None = None,
            valid_at: Time = None,
        ) -> dict[str, Any]:
            """Remember one fact for later conversations, where the person wants that or it will matter.
            entities: the people and things that it is about. valid_at: since when it is true."""
            where, _ = await answer_for_model(
                self._store.read_rows(lambda connection: used_scopes(connection, context))
            )
            is_asked = where.memory == MemoryMode.ASK or context.permissions.tainted_by is not None
            if is_asked:
                await _ask(memory_create, context, {"content": content}, _why(context))

            new = NewFact(
                text=content, category=category or FactCategory.KNOWLEDGE, entities=_named(entities or []),
                valid_at=valid_at,
            )  # fmt: skip
            work = partial(self._add, context, new)
            return await answer_for_model(self._store.write_rows(work))

        return memory_create

    def _add(self, context: ToolContext, new: NewFact, connection: Connection) -> dict[str, Any]:
        where, scopes = used_scopes(connection, context)
        name = where.place.own_scope
        if name is None:
            raise ToolFailed("this task has members and no project, so nothing is stored for it")
        scope = stored_scope(connection, scopes, name)
        author, now = _author(connection, context), utc_now()
        fact_id = _known(connection, scope, new, author, now)
        if fact_id is None:
            fact_id = self._writer.add(connection, scope, new, author, now)
        [fact] = read_facts(connection, scopes.with_scope(scope), [fact_id])
        return _shown(fact)

    def _forget_tool(self) -> ToolFunction:
        @tool(
            name="memory_forget",
            category="memory",
            required_permission=CommandPermission.WRITE,
            risk=Risk.HIGH,
        )
        async def memory_forget(
            context: ToolContext,
            id: Annotated[str, Meta(min_length=1, max_length=36, description="The id of the fact")],
        ) -> dict[str, Any]:
            """Delete a remembered fact for good. The person is always asked first."""

            def read(connection: Connection) -> str:
                _, scopes = used_scopes(connection, context)
                return find_fact(connection, scopes, id).text

            text = await answer_for_model(self._store.read_rows(read))
            why = Because(because=f"{FORGETS}: {text[:MAX_QUOTE]!r}")
            await _ask(memory_forget, context, {"id": id}, why)

            def work(connection: Connection) -> dict[str, Any]:
                _, scopes = used_scopes(connection, context)
                row = find_fact(connection, scopes, id, is_locked=True)
                scopes.writable(scopes.by_id[row.scope_id].name)
                delete_facts(connection, [row.id])
                return {"forgotten": id}

            return await answer_for_model(self._store.write_rows(work))

        return memory_forget


def _known(connection: Connection, scope: Scope, new: NewFact, author: Author, now: datetime) -> int | None:
    """A fact in the same words that is known, and true now or when the new one begins later; for a trusted
    author a trusted one."""
    assert scope.id is not None
    since = now if new.valid_at is None else max(new.valid_at, now)
    conditions = [_facts.c.text == new.text.strip(), was_known(None), was_true(since)]
    if author.is_trusted:
        conditions.append(_facts.c.trusted)
    # The words of the beginning find it, whole words only.
    start = new.text if len(new.text) <= SEARCHED_LENGTH else new.text[:SEARCHED_LENGTH].rpartition(" ")[0]
    return connection.scalar(find_facts(connection, [scope.id], start, *conditions).limit(1))


def _named(entities: list[ToolEntity]) -> list[NewEntity]:
    try:
        return msgspec.convert(entities, list[NewEntity], from_attributes=True)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"wrong arguments: entities need {IN_NAME}") from error


def _searched(connection: Connection, context: ToolContext, scope: str | None) -> Scopes:
    """The scopes that a search reads. Raises ToolFailed, and InvalidInput or NotFound for a wrong scope."""
    _, scopes = used_scopes(connection, context)
    return scopes if scope is None else scopes.only(parse_scope(scope))


def _weighted(config: MemoryConfig, search_type: SearchType, *, has_vectors: bool) -> MemoryConfig:
    """The weights of a kind of search: by meaning only where there are vectors."""
    match search_type:
        case SearchType.HYBRID:
            return config
        case SearchType.KEYWORD:
            return msgspec.structs.replace(config, graph_weight=0.0)
        case SearchType.SEMANTIC:
            weight = 0.0 if has_vectors else config.keyword_weight
            return msgspec.structs.replace(config, keyword_weight=weight, graph_weight=0.0)
        case _:
            assert_never(search_type)


def _note(asked: Asked | NotAsked, search_type: SearchType) -> dict[str, str]:
    """Why a search was not by meaning, if it should have been."""
    if isinstance(asked, Asked) or search_type is SearchType.KEYWORD:
        return {}
    if note := note_of(asked):
        return note
    is_meant = search_type is SearchType.SEMANTIC
    return {"note": "searched by words: nothing here can be searched by meaning"} if is_meant else {}


async def answer_for_model(work: Awaitable[T]) -> T:
    """The result, or the error as one that a model can read."""
    try:
        return await work
    except ToolFailed:
        raise
    except LuxxError as error:
        raise ToolFailed(error.message) from error


def used_scopes(connection: Connection, context: ToolContext) -> tuple[RunPlace, Scopes]:
    """The place of the call with the scopes that it may use. A call by a person has all that they may see.
    Raises ToolFailed where memory is off."""
    caller = user_as_caller(connection, context.caller.user_id)
    if context.caller.run_id is None:
        return RunPlace(place=Place()), visible_scopes(connection, caller)
    root = root_of(connection, context.caller.run_id)
    if root is None:
        raise ToolFailed("the run of this call was deleted")
    where = place_of(connection, RunKind(root.kind), root.subject_id)
    where = msgspec.structs.replace(where, memory=strictest(where.memory, context.caller.memory))
    if where.memory == MemoryMode.OFF:
        raise ToolFailed(OFF)
    return where, visible_scopes(connection, caller, where.place)


async def _ask(
    function: ToolFunction, context: ToolContext, arguments: dict[str, Any], why: ApprovalReason
) -> None:
    """Asks a person, unless they have answered; the tool then runs again from its beginning."""
    if context.permissions.earlier_approval is None:
        await context.permissions.approve(function.definition, arguments, why)


def _why(context: ToolContext) -> Because:
    tainted_by = context.permissions.tainted_by
    if tainted_by is not None:
        return Because(because=brought_untrusted(tainted_by))
    return Because(because=ASKS)


def _author(connection: Connection, context: ToolContext) -> Author:
    """A model is the author, for the user of the run; the source is the message that it answers."""
    user_id, run_id = context.caller.user_id, context.caller.run_id
    if run_id is None:
        return Author(user_id=user_id)
    return Author(
        user_id=user_id,
        run_id=run_id,
        origin=FactOrigin.MODEL,
        is_trusted=context.permissions.tainted_by is None,
        sources=[_source(connection, root_of(connection, run_id), user_id)],
    )


def _source(connection: Connection, root: Any, user_id: int) -> NewSource:
    """The message of a person that a run answers; the person themselves where there is none."""
    message_id: str | None = None
    if root is not None and root.kind == RunKind.ROOM:
        message_id = connection.scalar(_newest_of_room, {"room": root.subject_id})
    elif root is not None and root.kind == RunKind.CHAT:
        origin = _request.decode(root.request).origin
        message_id = origin.message_id if isinstance(origin, InConversation) else None
    row = None if message_id is None else connection.execute(_content, {"id": message_id}).one_or_none()
    if row is None:
        return NewSource(kind=SourceKind.PERSON, user_id=user_id)
    quote = user_content(row.content).text[:MAX_QUOTE] if row.role == "user" else None
    return NewSource(kind=SourceKind.MESSAGE, message_id=row.id, quote=quote)


def _shown(fact: Any) -> dict[str, Any]:
    names = ("id", "text", "category", "scope", "valid_at", "invalid_at", "trusted")
    return {name: value for name in names if (value := getattr(fact, name)) is not None}
