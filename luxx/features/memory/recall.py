"""Recalled facts: what a turn is given of memory, with the rows that say why, and what of it a person sees.

The engine asks for it by `Recall` (`luxx/runs/turn/context.py`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import (
    BindParameter,
    Connection,
    Select,
    and_,
    bindparam,
    exists,
    insert,
    literal,
    not_,
    or_,
    select,
)
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.context.recalled import fitting
from luxx.domain.conversations.access import own_message
from luxx.domain.conversations.models import ConversationRow, MessageRow, ProjectRow
from luxx.errors import NotFound
from luxx.features.memory.models import FactRow, MemoryScopeRow, RecalledRow
from luxx.features.memory.places import place_of
from luxx.features.memory.retrieval import RecalledItem, RecallQuery, recall
from luxx.features.memory.scopes import Scopes, visible_scopes
from luxx.features.memory.vectors.arm import Askable, Asked, NotAsked, VectorArm
from luxx.features.memory.vectors.source import PaidBy
from luxx.features.rooms.models import ChatRoomRow
from luxx.features.rooms.queries import find_room
from luxx.features.tasks.models import TaskRow
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.turn.context import Recalled
from luxx.runs.turn.state import RunSpec
from luxx.wire.memory import RecalledFact
from luxx.wire.model_settings import MemoryMode

_scopes, _facts, _recalled = table_of(MemoryScopeRow), table_of(FactRow), table_of(RecalledRow)
_conversations, _projects = table_of(ConversationRow), table_of(ProjectRow)
_rooms, _tasks = table_of(ChatRoomRow), table_of(TaskRow)
_encode = msgspec.json.Encoder().encode
_names = msgspec.json.Decoder(list[str])


def _may_find() -> Select[int]:
    """Each part reads one index, so a user of whom nothing is remembered costs some microseconds."""
    user: BindParameter[int] = bindparam("user")
    tenant: BindParameter[int] = bindparam("tenant")
    subject: BindParameter[str] = bindparam("subject")
    projects = [
        select(table.c.project_id).where(table.c.id == subject).scalar_subquery()
        for table in (_conversations, _tasks)
    ]
    found = [
        exists().where(_scopes.c.user_id == user),
        exists().where(
            _scopes.c.tenant_id == tenant, _scopes.c.kind == literal("tenant", literal_execute=True)
        ),
        exists().where(_scopes.c.room_id == subject),
        *(exists().where(_scopes.c.project_id == project) for project in projects),
    ]
    off = [
        exists().where(_rooms.c.id == subject, _rooms.c.memory == MemoryMode.OFF),
        *(
            exists().where(_projects.c.id == project, _projects.c.memory == MemoryMode.OFF)
            for project in projects
        ),
    ]
    return select(literal(1)).where(and_(or_(*found), not_(or_(*off))))


_row = insert(_recalled).from_select(
    ["run_id", "turn", "position", "fact_id", "score", "arms", "reason"],
    select(
        *(bindparam(f"b_{name}", type_=_recalled.c[name].type) for name in ("run_id", "turn", "position")),
        _facts.c.id,
        *(bindparam(f"b_{name}", type_=_recalled.c[name].type) for name in ("score", "arms", "reason")),
    ).where(_facts.c.id == bindparam("b_fact")),
)
"""A fact that was deleted since is not among the rows."""

_use = (
    _facts.update()
    .where(_facts.c.id.in_(bindparam("b_ids", expanding=True)))
    .values(last_used_at=bindparam("now"))
)
_of_turn = (
    select(_facts.c.uid, _facts.c.text, _recalled.c.score, _recalled.c.arms, _recalled.c.reason)
    .join(_facts, _facts.c.id == _recalled.c.fact_id)
    .where(
        _recalled.c.run_id == bindparam("run"),
        _recalled.c.turn == bindparam("turn"),
        _facts.c.scope_id.in_(bindparam("scopes", expanding=True)),
    )
    .order_by(_recalled.c.position)
)


class RecalledView(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that a model was given. `arms`: the kinds of search that found it; `reason`: a sentence."""

    id: str
    text: str
    score: float
    arms: list[str]
    reason: str


class MemoryRecall:
    """Memory as turns read it, and as people read what turns were given."""

    def __init__(self, store: Store, config: MemoryConfig, vectors: VectorArm) -> None:
        self._store = store
        self._config = config
        self._vectors = vectors
        self.may_find = _may_find()

    async def find(self, spec: RunSpec, query: str) -> Recalled:
        """What fits the query, of what may be read where the run is."""
        asked: Asked | NotAsked = NotAsked()
        if self._vectors.is_on:
            askable = await self._store.read(partial(self._askable, spec))
            paid_by = PaidBy(run_id=spec.run_id, subject_id=spec.subject_id, kind=spec.kind)
            asked = await self._vectors.ask(askable, query, paid_by)
        return await self._store.read_rows(partial(self._find, spec, query, asked))

    def _askable(self, spec: RunSpec, session: Session) -> Askable | NotAsked:
        scopes = _scopes_of(session.connection(), spec)
        return NotAsked() if scopes is None else self._vectors.askable(session, spec.user_id, scopes.ids)

    def _find(self, spec: RunSpec, query: str, asked: Asked | NotAsked, connection: Connection) -> Recalled:
        scopes = _scopes_of(connection, spec)
        found: Sequence[RecalledItem] = ()
        if scopes is not None:
            wanted = RecallQuery(text=query, now=utc_now())
            more = self._vectors.ranked(connection, scopes, wanted, asked)
            found = recall(connection, scopes, wanted, self._config, more)
        by_id = {each.id: each for each in found}
        facts = fitting(
            RecalledFact(id=each.id, text=each.text, is_trusted=each.is_trusted) for each in found
        )
        rows = [
            {
                "b_run_id": spec.run_id, "b_turn": spec.turn.key, "b_position": position,
                "b_fact": by_id[fact.id].row_id, "b_score": by_id[fact.id].score,
                "b_arms": _encode(by_id[fact.id].arms).decode(), "b_reason": by_id[fact.id].reason,
            }
            for position, fact in enumerate(facts)
        ]  # fmt: skip

        def write(connection: Connection) -> None:
            connection.execute(_row, rows)
            connection.execute(_use, {"b_ids": [row["b_fact"] for row in rows], "now": utc_now()})

        return Recalled(facts=tuple(facts), write=write)

    async def recalled(self, caller: Caller, message_id: str) -> list[RecalledView]:
        """The facts that a model was given for a message, without those that are deleted or that the caller
        may not read. Raises NotFound."""

        def work(session: Session) -> list[RecalledView]:
            message = _message(session, caller, message_id)
            scopes = visible_scopes(session.connection(), caller)
            turn = message.id if message.room_id is not None else ""
            values: dict[str, Any] = {"run": message.run_id, "turn": turn, "scopes": scopes.ids}
            return [
                RecalledView(
                    id=row.uid,
                    text=row.text,
                    score=row.score,
                    arms=_names.decode(row.arms),
                    reason=row.reason,
                )
                for row in session.connection().execute(_of_turn, values)
            ]

        return await self._store.read(work)


def _scopes_of(connection: Connection, spec: RunSpec) -> Scopes | None:
    """The scopes that a run may read; None where memory is off."""
    where = place_of(connection, spec.kind, spec.subject_id)
    if where.memory == MemoryMode.OFF:
        return None
    return visible_scopes(connection, user_as_caller(connection, spec.user_id), where.place)


def _message(session: Session, caller: Caller, message_id: str) -> MessageRow:
    """A message of the caller, or of a room that the caller may watch. Raises NotFound."""
    row = session.get(MessageRow, message_id)
    if row is None or row.room_id is None:
        return own_message(session, caller, message_id)
    try:
        find_room(session, caller, row.room_id)
    except NotFound as error:
        raise NotFound("no message with this id", kind="message_not_found") from error
    return row
