"""Rows of what tools of MCP servers say of themselves: the approved definition, and a later one that waits.

Not here: what becomes of a tool whose definition waits (approval).
"""

from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, ForeignKey, String, Text, UniqueConstraint, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, mapped_column

from luxx.clock import new_id, utc_now
from luxx.store.tables import Base, UtcDateTime, table_of
from luxx.tools.core import Risk, ToolDefinition


class McpToolRow(Base):
    """A tool of a server of a tenant, by its name without the server's prefix. `pending` is what it says of
    itself since it has changed; null where that is what was approved."""

    __tablename__ = "mcp_tools"
    __table_args__ = (UniqueConstraint("tenant_id", "server", "tool"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    server: Mapped[str] = mapped_column(String(64))
    tool: Mapped[str] = mapped_column(String(64))
    approved: Mapped[str] = mapped_column(Text)
    approved_hash: Mapped[str] = mapped_column(String(64))
    pending: Mapped[str | None] = mapped_column(Text)
    pending_hash: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    changed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class McpDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """All that a model, and whoever judges a call, is told of a tool by its server."""

    description: str
    parameters: dict[str, Any]
    is_read_only: bool

    def encoded(self) -> str:
        """As it is stored; the order in which a server says it makes no difference."""
        return msgspec.json.encode(self, order="deterministic").decode()


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    approved_hash: str
    pending_hash: str | None


class ChangedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row with a definition that waits."""

    id: str
    server: str
    tool: str
    approved: str
    approved_hash: str
    pending: str
    pending_hash: str
    changed_at: datetime


_tools = table_of(McpToolRow)
_of_server = select(_tools.c.tool, _tools.c.id, _tools.c.approved_hash, _tools.c.pending_hash).where(
    _tools.c.tenant_id == bindparam("tenant_id"), _tools.c.server == bindparam("server")
)
_set_pending = update(_tools).where(_tools.c.id == bindparam("row_id"))
_changed = select(*(_tools.c[name] for name in ChangedRow.__struct_fields__)).where(
    _tools.c.tenant_id == bindparam("tenant_id"), _tools.c.pending_hash.is_not(None)
)


def definition_of(tool: ToolDefinition) -> McpDefinition:
    return McpDefinition(
        description=tool.description, parameters=tool.parameters, is_read_only=tool.risk == Risk.LOW
    )


def hash_of(encoded: str) -> str:
    return sha256(encoded.encode("utf-8", "surrogatepass")).hexdigest()


def read_server(connection: Connection, tenant_id: int, server: str) -> dict[str, Stored]:
    """All tools that this server has ever had, by their names."""
    rows = connection.execute(_of_server, {"tenant_id": tenant_id, "server": server})
    return {
        row.tool: Stored(id=row.id, approved_hash=row.approved_hash, pending_hash=row.pending_hash)
        for row in rows
    }


def insert_tools(connection: Connection, tenant_id: int, server: str, found: dict[str, str]) -> None:
    """Approves tools that were never seen. One that another process has added meanwhile stays as it is."""
    now = utc_now()
    connection.execute(
        _add[connection.dialect.name],
        [
            {
                "id": new_id(),
                "tenant_id": tenant_id,
                "server": server,
                "tool": tool,
                "approved": encoded,
                "approved_hash": hash_of(encoded),
                "created_at": now,
            }
            for tool, encoded in found.items()
        ],
    )


def set_pending(connection: Connection, row_id: str, encoded: str | None) -> None:
    """Has this definition wait for an ADMIN in place of any other; None: none waits."""
    values: dict[str, Any] = {"pending": encoded, "pending_hash": None, "changed_at": None}
    if encoded is not None:
        values |= {"pending_hash": hash_of(encoded), "changed_at": utc_now()}
    connection.execute(_set_pending.values(values), {"row_id": row_id})


def page_of_changed(
    connection: Connection, tenant_id: int, *, offset: int, limit: int
) -> tuple[list[ChangedRow], int]:
    """Rows with a definition that waits, and how many there are."""
    values = {"tenant_id": tenant_id}
    found = _changed.order_by(_tools.c.server, _tools.c.tool).offset(offset).limit(limit)
    total = connection.scalar(select(func.count()).select_from(_changed.subquery()), values)
    return [ChangedRow(**row) for row in connection.execute(found, values).mappings()], int(total or 0)


def read_changed(connection: Connection, tenant_id: int, row_id: str) -> ChangedRow | None:
    """The row, locked; None where there is none, or none that waits."""
    found = _changed.where(_tools.c.id == bindparam("row_id")).with_for_update()
    row = connection.execute(found, {"tenant_id": tenant_id, "row_id": row_id}).mappings().one_or_none()
    return None if row is None else ChangedRow(**row)


def approve_pending(connection: Connection, row_id: str) -> None:
    """What waits is what is approved."""
    values: dict[str, Any] = {
        "approved": _tools.c.pending,
        "approved_hash": _tools.c.pending_hash,
        "pending": None,
        "pending_hash": None,
        "changed_at": None,
    }
    connection.execute(_set_pending.values(values), {"row_id": row_id})


_add = {
    "sqlite": sqlite.insert(_tools).on_conflict_do_nothing(index_elements=["tenant_id", "server", "tool"]),
    "postgresql": postgresql.insert(_tools).on_conflict_do_nothing(
        index_elements=["tenant_id", "server", "tool"]
    ),
}
