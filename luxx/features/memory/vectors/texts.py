"""Which texts have vectors: a value for each kind, with who pays for their vectors. Facts are here; what is
above memory makes values for its own texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
)

from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.conversations.models import ProjectRow
from luxx.domain.knowledge_bases import KnowledgeBaseRow
from luxx.features.memory.models import FactRow, MemoryScopeRow
from luxx.features.memory.vectors.models import EmbeddingRow
from luxx.features.memory.vectors.source import VectorServer
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.store.tables import table_of
from luxx.wire.memory import ScopeKind
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import RunKind

TEXTS_AT_ONCE = 64
MOST_CHARACTERS = 4_000
"""Of a text, which stand for it; the rest is not sent."""

_vectors, _users, _settings = table_of(EmbeddingRow), table_of(User), table_of(UserSettings)


class TextToEmbed(NamedTuple):
    """The id of a row and its text."""

    id: int
    text: str


@dataclass(slots=True, repr=False)
class EmbeddedTexts:
    """Texts of one table, which has `id` and `scope_id`.

    `subject` is the column of `embeddings` that names a row, `columns` are those that its text is made of.
    `source` is the table with whatever `payer` reads, the id of the user who pays; texts of users without the
    `conditions` are not sent. `newest` finds a row that another one takes the place of when texts are added.
    `kind`: the kind of runs that the ledger names.
    """

    subject: str
    table: Table
    columns: Sequence[str]
    source: FromClause
    payer: ColumnElement[Any]
    newest: Select[*tuple[Any, ...]]
    kind: RunKind
    conditions: Sequence[ColumnElement[bool]] = ()
    _next: Select[*tuple[Any, ...]] = field(init=False)
    _unchanged: Select[*tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        read = select(self.table.c.id, *(self.table.c[name] for name in self.columns))
        after, scope = self.table.c.id > bindparam("after"), self.table.c.scope_id == bindparam("scope")
        next_texts = (
            read.select_from(self.source)
            .where(scope, after, self.payer == bindparam("payer"), ~self._has_vector(bindparam("model")))
            .order_by(self.table.c.id)
            .limit(TEXTS_AT_ONCE)
        )
        self._next = next_texts
        chosen = self.table.c.id.in_(bindparam("ids", expanding=True))
        self._unchanged = read.where(scope, chosen).with_for_update()

    def _has_vector(self, model_id: Any) -> ColumnElement[bool]:
        of_row = _vectors.c[self.subject] == self.table.c.id
        has_vector = select(_vectors.c.id).where(of_row, _vectors.c.model_id == model_id)
        return has_vector.correlate(self.table).exists()

    def waiting(self, model_id: int, provider: VectorServer) -> Select[int, int]:
        """The scopes with texts that have no vector of the model and that the provider may read, with the
        users who pay for these."""
        may_use = _users.c.id == provider.user_id
        if provider.is_shared:
            may_use = or_(may_use, _users.c.tenant_id == provider.tenant_id)
        return (
            select(self.table.c.scope_id, _users.c.id.label("payer"))
            .select_from(self.source.join(_users, _users.c.id == self.payer))
            .outerjoin(_settings, _settings.c.user_id == _users.c.id)
            .where(~self._has_vector(model_id), _users.c.is_active, may_use, *self.conditions)
            .distinct()
            .order_by(self.table.c.scope_id, _users.c.id)
        )

    def next_texts(self, values: Mapping[str, int], connection: Connection) -> list[TextToEmbed]:
        """The next texts of a scope without a vector. `values`: `model`, `scope`, `payer`, the id `after`
        which it looks, and what the payer depends on."""
        return [_text(row) for row in connection.execute(self._next, values)]

    def unchanged_texts(self, connection: Connection, ids: Sequence[int], scope_id: int) -> dict[int, str]:
        """The texts of these rows as they are now, by their ids, locked until the transaction ends."""
        rows = connection.execute(self._unchanged, {"ids": ids, "scope": scope_id})
        return {row.id: _text(row).text for row in rows}


def _text(row: Row[Any]) -> TextToEmbed:
    return TextToEmbed(row[0], "\n".join(filter(None, row[1:]))[:MOST_CHARACTERS])


def has_memory() -> ColumnElement[bool]:
    """The condition that the user who pays has not turned memory off."""
    return or_(_settings.c.memory.is_(None), _settings.c.memory != MemoryMode.OFF.value)


def _facts() -> EmbeddedTexts:
    facts, scopes = table_of(FactRow), table_of(MemoryScopeRow)
    projects, rooms, bases = table_of(ProjectRow), table_of(ChatRoomRow), table_of(KnowledgeBaseRow)
    is_of_tenant = and_(
        scopes.c.kind == ScopeKind.TENANT.value,
        scopes.c.tenant_id == bindparam("provider_tenant", type_=Integer),
    )
    owners = (scopes.c.user_id, projects.c.user_id, rooms.c.user_id, bases.c.user_id)
    return EmbeddedTexts(
        subject="fact_id",
        table=facts,
        columns=("text",),
        source=facts.join(scopes, scopes.c.id == facts.c.scope_id)
        .outerjoin(projects, projects.c.id == scopes.c.project_id)
        .outerjoin(rooms, rooms.c.id == scopes.c.room_id)
        .outerjoin(bases, bases.c.id == scopes.c.base_id),
        # Of a tenant's facts: the owner of the provider.
        payer=func.coalesce(*owners, case((is_of_tenant, bindparam("provider_owner", type_=Integer)))),
        newest=select(func.max(facts.c.id)),
        kind=RunKind.MEMORY,
        conditions=(has_memory(),),
    )


FACTS = _facts()
