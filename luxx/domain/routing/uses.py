"""How often a tenant has used its skills and agents, so that a list without room keeps what is used most.

A use is a skill that became active, or an agent to which a model delegated. A drive that is repeated after a
crash may count its use again.
"""

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import Connection, ForeignKey, String, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.infra.store.tables import Base, table_of

Kind = Literal["skill", "agent"]


class RoutedUseRow(Base):
    """The uses of a skill or agent by a tenant. `name`: of a skill in the form in which names are compared,
    because skills of directories have no row; of an agent its id."""

    __tablename__ = "routed_uses"

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    uses: Mapped[int] = mapped_column()


_uses = table_of(RoutedUseRow)
_read = select(_uses.c.name, _uses.c.uses).where(
    _uses.c.tenant_id == bindparam("tenant"), _uses.c.kind == bindparam("kind")
)


def _counted(dialect_insert: Any) -> Any:
    return dialect_insert(_uses).on_conflict_do_update(
        index_elements=["tenant_id", "kind", "name"], set_={"uses": _uses.c.uses + 1}
    )


_count = {"sqlite": _counted(sqlite.insert), "postgresql": _counted(postgresql.insert)}


def count_use(connection: Connection, tenant_id: int, kind: Kind, name: str) -> None:
    """Counts one use."""
    row = {"tenant_id": tenant_id, "kind": kind, "name": name, "uses": 1}
    connection.execute(_count[connection.dialect.name], row)


def forget_uses(connection: Connection, tenant_id: int, kind: Kind, name: str) -> None:
    """Deletes the count of what no longer exists."""
    of_name = (_uses.c.tenant_id == tenant_id, _uses.c.kind == kind, _uses.c.name == name)
    connection.execute(delete(_uses).where(*of_name))


def read_uses(session: Session, tenant_id: int, kind: Kind) -> Mapping[str, int]:
    """The uses of a tenant by name."""
    rows = session.connection().execute(_read, {"tenant": tenant_id, "kind": kind})
    return {row.name: row.uses for row in rows}
