"""Resolution: what a run's answer about an episode changes in the store.

Entities with one name or alias are the same; another name of a known one becomes an alias only if the model
says so. A fact that is known gets one more source. A fact that is no longer so is ended, and keeps its
history. Nothing is merged or ended because it is similar; two known entities are merged if the model says
that they are the same.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from subprocess import SubprocessError
from typing import Any, NamedTuple

import msgspec
import structlog
from sqlalchemy import Connection, Row, and_, bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn, user_as_caller
from luxx.domain.accounts.models import UserSettings
from luxx.domain.agents.models import AgentRow
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.errors import LuxxError, NotAllowed
from luxx.features.memory.entities import EntityFinder, NewEntity
from luxx.features.memory.extraction.answers import (
    FoundFact,
    FoundFacts,
    SaidBatch,
)
from luxx.features.memory.extraction.candidates import with_candidates
from luxx.features.memory.extraction.communities import (
    WeightedGraph,
    community_name,
    community_summary,
    find_communities,
)
from luxx.features.memory.extraction.episodes import end_episodes, read_said
from luxx.features.memory.facts import Author, FactWriter, NewSource
from luxx.features.memory.lexical import index_entities, memory_name
from luxx.features.memory.merging import merge
from luxx.features.memory.models import (
    NAME_LENGTH,
    CommunityRow,
    EntityRow,
    EpisodeRow,
    FactRow,
    FactSourceRow,
    MemoryScopeRow,
    MentionRow,
)
from luxx.features.memory.scopes import Scope, Scopes, visible_scopes
from luxx.features.memory.views import FactChanges, NewFact
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.tables import table_of
from luxx.runs.orchestration.interface import Write
from luxx.runs.turn.run_rows import RunHead
from luxx.wire.memory import ChangeKind, EpisodeStatus, FactOrigin, SourceKind
from luxx.wire.model_settings import MemoryMode

_episodes, _entities, _facts = table_of(EpisodeRow), table_of(EntityRow), table_of(FactRow)
_mentions, _sources, _communities = table_of(MentionRow), table_of(FactSourceRow), table_of(CommunityRow)
_conversations, _projects, _agents = table_of(ConversationRow), table_of(ProjectRow), table_of(AgentRow)
_rooms, _settings = table_of(ChatRoomRow), table_of(UserSettings)
_scopes = table_of(MemoryScopeRow)
_subject, _object = _entities.alias("subjects"), _entities.alias("objects")
_inserts: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

_episode = select(*_episodes.c).where(
    _episodes.c.uid == bindparam("uid"), _episodes.c.scope_id == bindparam("scope")
)
_modes = (
    select(_conversations.c.memory, _projects.c.memory, _agents.c.memory, _rooms.c.memory, _settings.c.memory)
    .select_from(
        _episodes.outerjoin(_conversations, _conversations.c.id == _episodes.c.conversation_id)
        .outerjoin(_projects, _projects.c.id == _conversations.c.project_id)
        .outerjoin(_agents, _agents.c.id == _conversations.c.agent_id)
        .outerjoin(_rooms, _rooms.c.id == _episodes.c.room_id)
        .outerjoin(_settings, _settings.c.user_id == _episodes.c.user_id)
    )
    .where(_episodes.c.id == bindparam("episode"))
)
_edges = (
    select(
        func.coalesce(_subject.c.canonical_id, _subject.c.id).label("one"),
        func.coalesce(_object.c.canonical_id, _object.c.id).label("other"),
        _facts.c.weight,
        _facts.c.text,
    )
    .join(_subject, _subject.c.id == _facts.c.subject_id)
    .join(_object, _object.c.id == _facts.c.object_id)
    .where(_facts.c.scope_id == bindparam("scope"), _facts.c.expired_at.is_(None))
)
_locked_fact = (
    select(*_facts.c)
    .where(
        _facts.c.id == bindparam("id"), _facts.c.scope_id == bindparam("scope"), _facts.c.expired_at.is_(None)
    )
    .with_for_update()
)
IS_OFF = "memory is off here, or asks before it stores something"
NOT_WRITABLE = "you may no longer write to this memory"

logger = structlog.get_logger()
_names = msgspec.json.Decoder(list[str])
_encode = msgspec.json.Encoder().encode


class Regrouped(msgspec.Struct, frozen=True, kw_only=True):
    """How many communities a scope has now, and what stores them in place of those before; or why those
    before stay."""

    count: int
    write: Write | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """The rows of episodes, as the run of a scope reads and writes them. One per process."""

    writer: FactWriter
    config: MemoryConfig

    def read_batch(self, session: Session, head: RunHead, scope_id: int, uid: str) -> SaidBatch | str | None:
        """What a model is shown of an episode; a sentence why it is skipped; None if it was deleted or its
        facts were extracted already."""
        connection = session.connection()
        row = connection.execute(_episode, {"uid": uid, "scope": scope_id}).one_or_none()
        if row is None or row.status == EpisodeStatus.SYNCED.value:
            return None
        caller = caller_of_turn(session, head.user_id)
        scopes = visible_scopes(connection, caller)
        scope = scopes.by_id.get(scope_id)
        if scope is None or not scope.can_write:
            return NOT_WRITABLE
        if not _is_extracted(connection, row.id):
            return IS_OFF
        said = read_said(connection, row.id, caller.username)
        if not said:
            return "its messages have no words"
        return with_candidates(connection, scopes.only(scope.name), scope_id, said, utc_now(), self.config)

    def store(self, connection: Connection, run_id: str, scope_id: int, uid: str, found: FoundFacts) -> None:
        """Stores what an answer says, unless that may not be stored any more."""
        row = connection.execute(_episode.with_for_update(), {"uid": uid, "scope": scope_id}).one_or_none()
        if row is None or row.status == EpisodeStatus.SYNCED.value:
            return
        if not _is_extracted(connection, row.id):
            end_episodes([uid], EpisodeStatus.SKIPPED, IS_OFF, connection)
            return
        try:
            scopes = visible_scopes(connection, user_as_caller(connection, row.user_id))
            scope = scopes.writable(scopes.by_id[scope_id].name)
        except (KeyError, NotAllowed):
            end_episodes([uid], EpisodeStatus.SKIPPED, NOT_WRITABLE, connection)
            return
        try:
            Resolution(connection, self.writer, scopes, scope, row, run_id).store(found)
        except LuxxError as error:
            end_episodes([uid], EpisodeStatus.FAILED, error.message, connection)
            return
        end_episodes([uid], EpisodeStatus.SYNCED, None, connection)

    def regrouped(self, session: Session, scope_id: int) -> Regrouped:
        """The communities of a scope, made anew."""
        return regrouped(session.connection(), scope_id, self.config)


def _is_extracted(connection: Connection, episode_id: int) -> bool:
    """Whether memory is on wherever the messages of an episode are."""
    modes = connection.execute(_modes, {"episode": episode_id}).one()
    return all(mode is None or mode == MemoryMode.ON for mode in modes)


def _source_of(fact: FoundFact) -> NewSource:
    return NewSource(kind=SourceKind.MESSAGE, message_id=fact.source.message_id, quote=fact.quote or None)


class _Known(NamedTuple):
    """A stored fact, and when it is true."""

    id: int
    valid_at: datetime | None
    invalid_at: datetime | None

    def is_over(self, now: datetime) -> bool:
        return self.invalid_at is not None and self.invalid_at <= now

    def may_be(self, fact: FoundFact, now: datetime) -> bool:
        """Whether a fact in the same words may be this one: what was so once may be so again, at another
        time."""
        if fact.invalid_at is None and self.is_over(now):
            return False
        is_later = self.invalid_at and fact.valid_at and fact.valid_at >= self.invalid_at
        is_earlier = self.valid_at and fact.invalid_at and fact.invalid_at <= self.valid_at
        return not (is_later or is_earlier)


class Resolution:
    """Stores one answer about one episode, in one transaction."""

    def __init__(
        self,
        connection: Connection,
        writer: FactWriter,
        scopes: Scopes,
        scope: Scope,
        episode: Row[Any],
        run_id: str,
    ) -> None:
        self._connection, self._writer = connection, writer
        self._scopes, self._scope, self._episode = scopes, scope, episode
        self._run_id, self._now = run_id, utc_now()
        assert scope.id is not None
        self._scope_id: int = scope.id

    def store(self, found: FoundFacts) -> None:
        """Raises Conflict at a limit of the scope."""
        self._merge(found)
        types = self._store_entities(found)
        known = self._known_texts([fact.text for fact in found.facts])
        for fact in found.facts:
            folded = fact.text.casefold()
            if fact.equals is None:
                known_id = next((each.id for each in known[folded] if each.may_be(fact, self._now)), None)
            else:
                known_id = fact.equals.id
            if known_id is None or not self._add_source(known_id, _source_of(fact)):
                known[folded].append(_Known(self._store_fact(fact, types), fact.valid_at, fact.invalid_at))

    def _merge(self, found: FoundFacts) -> None:
        """Merges known entities that are the same, unless one was deleted or merged meanwhile."""
        for one, into in found.same:
            with suppress(LuxxError):
                merge(self._connection, self._scopes, one.uid, into.uid, self._by_run(), self._now)

    def _by_run(self, **more: Any) -> Author:
        user_id, run_id = self._episode.user_id, self._run_id
        return Author(user_id=user_id, run_id=run_id, origin=FactOrigin.MODEL, **more)

    def _store_entities(self, found: FoundFacts) -> dict[str, str]:
        """Stores the entities and that the episode mentions them; returns their types by their names."""
        finder = EntityFinder(self._connection, self._scope_id, self._now, self._writer.entities)
        new = [NewEntity(name=each.name, type=each.type) for each in found.entities if each.known is None]
        ids = finder.ids_of(new)
        merged = {memory_name(one.name) for one, _ in found.same}
        for each in found.entities:
            # A merged entity keeps its name for itself, so that it can be split off.
            name = None if memory_name(each.name) in merged else each.name
            if each.known is not None and self._name_known(each.known.id, name):
                ids.append(each.known.id)
        if ids:
            rows = [
                {"scope_id": self._scope_id, "episode_id": self._episode.id, "entity_id": entity_id}
                for entity_id in dict.fromkeys(ids)
            ]
            statement = _inserts[self._connection.dialect.name](_mentions).on_conflict_do_nothing()
            self._connection.execute(statement, rows)
        return {
            memory_name(each.name): each.type if each.known is None else each.known.type
            for each in found.entities
        }

    def _name_known(self, entity_id: int, name: str | None) -> bool:
        """Gives a known entity another name as an alias, if there is one; False if it was deleted
        meanwhile."""
        row = self._connection.execute(
            select(_entities.c.name, _entities.c.aliases).where(
                _entities.c.id == entity_id, _entities.c.scope_id == self._scope_id
            )
        ).one_or_none()
        if row is None:
            return False
        aliases = _names.decode(row.aliases)
        if name is not None and memory_name(name) not in map(memory_name, [row.name, *aliases]):
            values = {"aliases": _encode([*aliases, name]).decode(), "updated_at": self._now}
            self._connection.execute(update(_entities).where(_entities.c.id == entity_id).values(**values))
            index_entities(self._connection, [entity_id])
        return True

    def _known_texts(self, texts: Sequence[str]) -> defaultdict[str, list[_Known]]:
        """The known facts with one of these texts, by the folded text, those that are true now first; in one
        pass over the facts of the scope, because texts have no index."""
        query = select(_facts.c.id, _facts.c.text, _facts.c.valid_at, _facts.c.invalid_at).where(
            _facts.c.scope_id == self._scope_id,
            _facts.c.expired_at.is_(None),
            func.lower(_facts.c.text).in_([func.lower(text) for text in texts]),
        )
        known: defaultdict[str, list[_Known]] = defaultdict(list)
        for row in self._connection.execute(query.order_by(_facts.c.id.desc())):
            known[row.text.casefold()].append(_Known(row.id, row.valid_at, row.invalid_at))
        for facts in known.values():
            facts.sort(key=lambda each: each.is_over(self._now))
        return known

    def _store_fact(self, fact: FoundFact, types: dict[str, str]) -> int:
        author = self._by_run(is_trusted=fact.source.trusted, sources=[_source_of(fact)])
        names = [name for name in (fact.subject, fact.object) if name is not None]
        new = NewFact(
            text=fact.text,
            category=fact.category,
            subject=fact.subject,
            predicate=fact.predicate if fact.subject is not None else None,
            object=fact.object,
            entities=[NewEntity(name=name, type=types.get(memory_name(name))) for name in names],
            valid_at=fact.valid_at,
            invalid_at=fact.invalid_at,
        )
        fact_id = self._writer.add(self._connection, self._scope, new, author, self._now)
        if (old := fact.retires()) is not None:
            self._retire(old.id, fact, author)
        return fact_id

    def _add_source(self, fact_id: int, source: NewSource) -> bool:
        """Gives a known fact one more source; False if it was deleted or retired meanwhile."""
        row = self._connection.execute(_locked_fact, {"id": fact_id, "scope": self._scope_id}).one_or_none()
        if row is None:
            return False
        values = {"fact_id": fact_id, "kind": source.kind.value, "message_id": source.message_id}
        has_source = select(_sources.c.id).where(
            and_(_sources.c.fact_id == fact_id, _sources.c.message_id == source.message_id)
        )
        if self._connection.execute(has_source.limit(1)).first() is None:
            self._connection.execute(insert(_sources).values(**values, quote=source.quote))
            weight = {"weight": _facts.c.weight + 1}
            self._connection.execute(update(_facts).where(_facts.c.id == fact_id).values(**weight))
        return True

    def _retire(self, fact_id: int, by: FoundFact, author: Author) -> None:
        """Ends a fact that is no longer so: it was true until the other one is. It can be undone."""
        row = self._connection.execute(_locked_fact, {"id": fact_id, "scope": self._scope_id}).one_or_none()
        if row is None or row.pinned:
            return
        until = by.valid_at or by.source.sent_at
        if row.valid_at is not None and until <= row.valid_at:
            until = self._now
        ended = FactChanges(invalid_at=until)
        self._writer.change(
            self._connection, self._scopes, row, ended, author, self._now, kind=ChangeKind.RETIRE
        )


def regrouped(connection: Connection, scope_id: int, config: MemoryConfig) -> Regrouped:
    """The communities of a scope, made anew from its facts; those before stay if that fails."""
    rows = connection.execute(_edges, {"scope": scope_id}).all()
    graph = WeightedGraph(
        edges=[(row.one, row.other, row.weight) for row in rows],
        resolution=config.community_resolution,
        min_size=config.community_min_size,
    )
    try:
        groups = find_communities(graph)
    except (OSError, SubprocessError) as error:
        logger.warning("communities_not_made", scope_id=scope_id, error=str(error))
        counted = select(func.count()).select_from(_communities).where(_communities.c.scope_id == scope_id)
        problem = (
            "The groups of entities could not be made anew; those before stay until the next extraction."
        )
        return Regrouped(count=connection.scalar(counted) or 0, problem=problem)
    degrees: dict[int, float] = {}
    for row in rows:
        for entity in (row.one, row.other):
            degrees[entity] = degrees.get(entity, 0.0) + row.weight
    members = [entity for group in groups for entity in group]
    named = select(_entities.c.id, _entities.c.name).where(_entities.c.id.in_(members))
    names = {row.id: row.name for row in connection.execute(named)}
    made: list[tuple[list[int], str, str]] = []
    for group in groups:
        inside = set(group)
        texts = [(row.weight, row.text) for row in rows if row.one in inside and row.other in inside]
        made.append((group, community_name(group, degrees, names), community_summary(texts)))
    return Regrouped(count=len(made), write=partial(_store_communities, scope_id, made))


def _store_communities(
    scope_id: int, made: Sequence[tuple[list[int], str, str]], connection: Connection
) -> None:
    """Stores groups of entities, each with its name and summary, in place of those before."""
    now = utc_now()
    connection.execute(_communities.delete().where(_communities.c.scope_id == scope_id))
    for group, name, summary in made:
        values = {
            "uid": new_id(), "scope_id": scope_id, "created_at": now, "updated_at": now,
            "name": name[:NAME_LENGTH], "summary": summary,
        }  # fmt: skip
        key = connection.execute(insert(_communities), values).inserted_primary_key
        assert key is not None
        connection.execute(
            update(_entities)
            .where(_entities.c.id.in_(group), _entities.c.scope_id == scope_id)
            .values(community_id=int(key[0]))
        )
