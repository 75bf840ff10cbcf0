"""The table of compositions and its frequent statements. `service` checks who may see a row."""

from datetime import datetime

import msgspec
from sqlalchemy import Connection, ForeignKey, String, Text, UniqueConstraint, bindparam, select, update
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.clock import new_id
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.wire.composition import Composition, CompositionKind, Member, Parameter

MAX_COMPOSITIONS = 50
"""Per user."""


class CompositionRow(Base):
    """`document` is a CompositionBody as JSON."""

    __tablename__ = "tool_compositions"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(64))
    description: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(String(20))
    document: Mapped[str] = mapped_column(Text)
    timeout_seconds: Mapped[int] = mapped_column()
    success_count: Mapped[int] = mapped_column()
    failure_count: Mapped[int] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CompositionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters and members of a composition."""

    parameters: list[Parameter]
    members: list[Member]


class StoredComposition(msgspec.Struct, frozen=True, kw_only=True):
    """A composition as a run needs it; `document` is decoded on use."""

    id: str
    tenant_id: int
    name: str
    description: str
    kind: str
    document: str
    timeout_seconds: int


_compositions = table_of(CompositionRow)
_fields = tuple(_compositions.c[name] for name in StoredComposition.__struct_fields__)
_select_own = (
    select(*_fields).where(_compositions.c.user_id == bindparam("user_id")).order_by(_compositions.c.id)
)
_by_id = _compositions.c.id == bindparam("composition_id")
_succeeded = update(_compositions).where(_by_id).values(success_count=_compositions.c.success_count + 1)
_failed = update(_compositions).where(_by_id).values(failure_count=_compositions.c.failure_count + 1)
_decode = msgspec.json.Decoder(CompositionBody).decode


def composition_of(row: StoredComposition | CompositionRow) -> Composition:
    """The composition as its owner wrote it."""
    body = _decode(row.document)
    return Composition(
        name=row.name,
        description=row.description,
        kind=CompositionKind(row.kind),
        parameters=body.parameters,
        members=body.members,
        timeout_seconds=row.timeout_seconds,
    )


def document_of(composition: Composition) -> str:
    """The content of the column `document`."""
    body = CompositionBody(parameters=composition.parameters, members=composition.members)
    return msgspec.json.encode(body).decode()


def new_row(tenant_id: int, user_id: int, composition: Composition, now: datetime) -> CompositionRow:
    """A new row with counters at zero."""
    row = CompositionRow(
        id=new_id(), tenant_id=tenant_id, user_id=user_id, success_count=0, failure_count=0, created_at=now
    )
    update_row(row, composition, now)
    return row


def update_row(row: CompositionRow, composition: Composition, now: datetime) -> None:
    """Write the composition into the row and keep the counters."""
    row.name = composition.name
    row.description = composition.description
    row.kind = composition.kind.value
    row.document = document_of(composition)
    row.timeout_seconds = composition.timeout_seconds
    row.updated_at = now


def read_own(connection: Connection, user_id: int) -> list[StoredComposition]:
    """All compositions of a user, oldest first."""
    rows = connection.execute(_select_own, {"user_id": user_id}).mappings()
    return [msgspec.convert(dict(row), StoredComposition) for row in rows]


def count_call(connection: Connection, composition_id: str, *, is_success: bool) -> None:
    """Add one to the success or failure counter, atomically."""
    connection.execute(_succeeded if is_success else _failed, {"composition_id": composition_id})
