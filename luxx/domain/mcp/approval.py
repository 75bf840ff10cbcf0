"""Which tools of MCP servers may be offered: what they say of themselves was seen before, or approved since.

A tool's description and schema are instructions to every model that is offered it. So they are recorded when
the tool is first seen; one that says something else later is withheld until an ADMIN of the tenant approves
just that. Not here: who asks, and when (service).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, ForeignKey, String, Text, UniqueConstraint, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.audit.entries import Action, AuditEntry, Detail, record
from luxx.errors import Conflict, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.tools.core import CommandPermission, Risk, ToolDefinition


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


class StoredDefinition(msgspec.Struct, frozen=True, kw_only=True):
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


def read_server(connection: Connection, tenant_id: int, server: str) -> dict[str, StoredDefinition]:
    """All tools that this server has ever had, by their names."""
    rows = connection.execute(_of_server, {"tenant_id": tenant_id, "server": server})
    return {
        row.tool: StoredDefinition(id=row.id, approved_hash=row.approved_hash, pending_hash=row.pending_hash)
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


MOST_KNOWN = 500
"""Tools that one server may ever have had; more are withheld, for each leaves a row."""

_definition = msgspec.json.Decoder(McpDefinition).decode


class Withheld(StrEnum):
    """Why a tool is not offered, in words that follow its name."""

    CHANGED = "has changed since it was approved; an ADMIN approves it (GET /mcp/changes) or it stays out"
    TOO_MANY = f"is new, and this server has had {MOST_KNOWN} tools already"


class McpChange(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is withheld. `hash` is of the new definition, and an approval names it. `diff`: lines with
    `-` are of the old one, with `+` of the new."""

    id: str
    server: str
    tool: str
    old: McpDefinition
    new: McpDefinition
    diff: str
    hash: str
    seen_at: datetime


class _Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of tools means beside what is stored: `new` is to be added, `waiting` to be set by row."""

    new: dict[str, str]
    waiting: dict[str, str | None]
    withheld: dict[str, Withheld]


class Definitions:
    """One per process. `is_looking`: nothing is recorded, as for one who only looks."""

    def __init__(self, store: Store, *, is_read_only: bool = False) -> None:
        self._store = store
        self._is_read_only = is_read_only

    async def withheld(
        self, tenant_id: int, server: str, tools: Mapping[str, ToolDefinition]
    ) -> dict[str, Withheld]:
        """Those of the tools, by their names without the server's prefix, that may not be offered, and why.

        Records what is new of them.
        """
        found = {name: definition_of(tool).encoded() for name, tool in tools.items()}

        def look(connection: Connection) -> _Comparison:
            return _compare(read_server(connection, tenant_id, server), found)

        def write_changes(connection: Connection) -> _Comparison:
            if new := look(connection).new:
                insert_tools(connection, tenant_id, server, new)
            # Another process may have added one of the same name before.
            comparison = look(connection)
            for row_id, encoded in comparison.waiting.items():
                set_pending(connection, row_id, encoded)
            return comparison

        comparison = await self._store.read_rows(look)
        if (comparison.new or comparison.waiting) and not self._is_read_only:
            comparison = await self._store.write_rows(write_changes)
        return comparison.withheld

    async def changes(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[McpChange], int]:
        """The tools of the caller's tenant that wait for an ADMIN, by server and name, and how many."""
        caller.require(CommandPermission.ADMIN)

        def work(connection: Connection) -> tuple[list[McpChange], int]:
            offset = (page - 1) * page_size
            rows, total = page_of_changed(connection, caller.tenant_id, offset=offset, limit=page_size)
            return [_change(row) for row in rows], total

        return await self._store.read_rows(work)

    async def approve(self, caller: Caller, change_id: str, new_hash: str) -> None:
        """Approves just the definition with this hash. Raises NotAllowed, NotFound, or Conflict where the
        tool says something else again."""
        caller.require(CommandPermission.ADMIN)

        def work(session: Session) -> None:
            row = read_changed(session.connection(), caller.tenant_id, change_id)
            if row is None:
                raise NotFound("no changed tool has this id", kind="mcp_change_not_found")
            if row.pending_hash != new_hash:
                raise Conflict(
                    f"{row.tool} of {row.server} is not as you have seen it: it has changed again; look at "
                    "GET /mcp/changes, and approve with the hash that stands there now",
                    kind="mcp_change_outdated",
                )
            approve_pending(session.connection(), row.id)
            entry = AuditEntry(
                action=Action.MCP_TOOL_APPROVE,
                actor=caller.actor,
                target_type="mcp_tool",
                target_id=row.id,
                detail=Detail(
                    name=f"{row.server}/{row.tool}", added=[row.pending_hash], removed=[row.approved_hash]
                ),
            )
            record(session, entry)

        await self._store.write(work)


def _compare(known: Mapping[str, StoredDefinition], found: Mapping[str, str]) -> _Comparison:
    new: dict[str, str] = {}
    waiting: dict[str, str | None] = {}
    withheld: dict[str, Withheld] = {}
    for tool, encoded in found.items():
        stored = known.get(tool)
        if stored is None:
            if len(known) + len(new) < MOST_KNOWN:
                new[tool] = encoded
            else:
                withheld[tool] = Withheld.TOO_MANY
        elif (hashed := hash_of(encoded)) != stored.approved_hash:
            withheld[tool] = Withheld.CHANGED
            if hashed != stored.pending_hash:
                waiting[stored.id] = encoded
        elif stored.pending_hash is not None:
            waiting[stored.id] = None
    return _Comparison(new=new, waiting=waiting, withheld=withheld)


def _change(row: ChangedRow) -> McpChange:
    old, new = _definition(row.approved), _definition(row.pending)
    return McpChange(
        id=row.id,
        server=row.server,
        tool=row.tool,
        old=old,
        new=new,
        diff=difference(_lines(old), _lines(new)),
        hash=row.pending_hash,
        seen_at=row.changed_at,
    )


def difference(old: Sequence[str], new: Sequence[str]) -> str:
    """What stands between the first and the last line that differ, of both; in time that is linear, for a
    server chooses the lines."""
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - head) if old[-1 - at] != new[-1 - at]), most - head)
    removed = [f"-{line}" for line in old[head : len(old) - tail]]
    added = [f"+{line}" for line in new[head : len(new) - tail]]
    return "\n".join([*removed, *added])


def _lines(definition: McpDefinition) -> list[str]:
    return msgspec.json.format(msgspec.json.encode(definition), indent=2).decode().splitlines()
