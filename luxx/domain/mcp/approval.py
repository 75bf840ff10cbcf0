"""Decides which tools of MCP servers may be offered: those with an unchanged or approved definition.

A tool's description and schema are instructions to every model that gets them. So Luxx records them when a
server first lists the tool. If they change, the tool is withheld until an ADMIN of the tenant, or the owner
of the server, approves exactly the new definition. Not here: when this is checked (`service`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    ForeignKey,
    Row,
    String,
    Text,
    UniqueConstraint,
    bindparam,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.domain.mcp.models import McpServerRow
from luxx.errors import Conflict, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, UtcDateTime, read_page, table_of
from luxx.tools.core import Risk, ToolDefinition


class McpToolRow(Base):
    """A tool of a server; `tool` is its name without the server's prefix. `pending` is a changed definition
    that waits for approval, else null. `server_id` is null for a server of the configuration; `server` is the
    name of a tenant's server, and `u{user_id}_{name}` of a user's."""

    __tablename__ = "mcp_tools"
    __table_args__ = (UniqueConstraint("tenant_id", "server", "tool"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    server: Mapped[str] = mapped_column(String(64))
    server_id: Mapped[str | None] = mapped_column(
        ForeignKey("mcp_servers.id", ondelete="CASCADE"), index=True
    )
    tool: Mapped[str] = mapped_column(String(64))
    approved: Mapped[str] = mapped_column(Text)
    approved_hash: Mapped[str] = mapped_column(String(64))
    pending: Mapped[str | None] = mapped_column(Text)
    pending_hash: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    changed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class McpDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says about its tool to models and to the permission rules."""

    description: str
    parameters: dict[str, Any]
    is_read_only: bool


_tools = table_of(McpToolRow)
_of_server = select(_tools.c.tool, _tools.c.id, _tools.c.approved_hash, _tools.c.pending_hash).where(
    _tools.c.tenant_id == bindparam("tenant_id"), _tools.c.server == bindparam("server")
)
StoredTool = Row[str, str, str, str | None]
"""The columns of `_of_server`: `tool`, `id`, `approved_hash` and `pending_hash`."""

_UNIQUE = ["tenant_id", "server", "tool"]
_add = {
    "sqlite": sqlite.insert(_tools).on_conflict_do_nothing(index_elements=_UNIQUE),
    "postgresql": postgresql.insert(_tools).on_conflict_do_nothing(index_elements=_UNIQUE),
}


def _encoded(tool: ToolDefinition) -> str:
    """The stored definition: JSON with sorted keys, so that the server's key order does not matter."""
    definition = McpDefinition(
        description=tool.description, parameters=tool.parameters, is_read_only=tool.risk == Risk.LOW
    )
    return msgspec.json.encode(definition, order="deterministic").decode()


def definition_hash(tool: ToolDefinition) -> str:
    """What `mcp_tools` has as `approved_hash` if this definition is approved."""
    return _hash_of(_encoded(tool))


def _hash_of(encoded: str) -> str:
    return sha256(encoded.encode("utf-8", "surrogatepass")).hexdigest()


def read_server(connection: Connection, tenant_id: int, server: str) -> dict[str, StoredTool]:
    """Id and hashes of all tools that this server has ever listed, by their names."""
    rows = connection.execute(_of_server, {"tenant_id": tenant_id, "server": server})
    return {row.tool: row for row in rows}


def _insert_tools(
    connection: Connection,
    tenant_id: int,
    server: str,
    server_id: str | None,
    encoded_by_name: dict[str, str],
) -> None:
    """Records new tools as approved. A row that another process has added meanwhile stays unchanged."""
    now = utc_now()
    rows = [
        {
            "id": new_id(),
            "tenant_id": tenant_id,
            "server": server,
            "server_id": server_id,
            "tool": tool,
            "approved": encoded,
            "approved_hash": _hash_of(encoded),
            "created_at": now,
        }
        for tool, encoded in encoded_by_name.items()
    ]
    connection.execute(_add[connection.dialect.name], rows)


def _set_pending(connection: Connection, row_id: str, encoded: str | None) -> None:
    """Sets the definition that waits for approval; None: none waits."""
    values: dict[str, Any] = {"pending": encoded, "pending_hash": None, "changed_at": None}
    if encoded is not None:
        values |= {"pending_hash": _hash_of(encoded), "changed_at": utc_now()}
    connection.execute(update(_tools).where(_tools.c.id == row_id).values(values))


MOST_KNOWN = 500
"""How many tools of one server are recorded; more are withheld, because each takes a row."""

_definition = msgspec.json.Decoder(McpDefinition).decode


class Withheld(StrEnum):
    """Why a tool is not offered, as a predicate that follows its name."""

    CHANGED = "has changed since it was approved; an ADMIN must approve the change (GET /mcp/changes)"
    TOO_MANY = f"is new, and this server has already listed {MOST_KNOWN} different tools"


class McpChange(msgspec.Struct, frozen=True, kw_only=True):
    """A withheld tool. An approval names the `hash` of the new definition. Lines of `diff` start with `-` if
    they are old, with `+` if they are new."""

    id: str
    server: str
    tool: str
    old: McpDefinition
    new: McpDefinition
    diff: str
    hash: str
    seen_at: datetime


class _Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between listed and stored tools: `new` definitions by name to insert, `pending` ones by
    row id to set."""

    new: dict[str, str]
    pending: dict[str, str | None]
    withheld: dict[str, Withheld]


class McpDefinitions:
    """One per process. `is_read_only`: records nothing (for `luxx doctor`)."""

    def __init__(self, store: Store, *, is_read_only: bool = False) -> None:
        self._store = store
        self._is_read_only = is_read_only

    async def compare_and_record(
        self,
        tenant_id: int,
        server: str,
        tools: Mapping[str, ToolDefinition],
        server_id: str | None = None,
    ) -> dict[str, Withheld]:
        """The tools that may not be offered, and why, by name without the server's prefix.

        `server_id`: of a server with a row.

        Records new tools and changed definitions.
        """
        listed = {name: _encoded(tool) for name, tool in tools.items()}

        def compare(connection: Connection) -> _Comparison:
            return _compare(read_server(connection, tenant_id, server), listed)

        def write_changes(connection: Connection) -> _Comparison:
            if new := compare(connection).new:
                _insert_tools(connection, tenant_id, server, server_id, new)
            # Compared again: another process may have added a tool of the same name first.
            comparison = compare(connection)
            for row_id, encoded in comparison.pending.items():
                _set_pending(connection, row_id, encoded)
            return comparison

        comparison = await self._store.read_rows(compare)
        if (comparison.new or comparison.pending) and not self._is_read_only:
            comparison = await self._store.write_rows(write_changes)
        return comparison.withheld

    async def changes(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[McpChange], int]:
        """A page of the pending changes that the caller may approve, by server and name, and their number."""

        def work(session: Session) -> tuple[list[McpChange], int]:
            pending = select(McpToolRow).where(*_pending_of(caller))
            ordered = pending.order_by(McpToolRow.server, McpToolRow.tool)
            rows, total = read_page(session, ordered, page=page, page_size=page_size)
            return [_change(row) for row in rows], total

        return await self._store.read(work)

    async def approve(self, caller: Caller, change_id: str, new_hash: str) -> None:
        """Approves the pending definition if it has this hash. Raises NotFound, or Conflict if the definition
        has changed again."""

        def work(session: Session) -> None:
            statement = select(McpToolRow).where(*_pending_of(caller), McpToolRow.id == change_id)
            row = session.scalar(statement.with_for_update())
            if row is None or row.pending is None or row.pending_hash is None:
                raise NotFound("no changed tool has this id", kind="mcp_change_not_found")
            if row.pending_hash != new_hash:
                raise Conflict(
                    f"{row.tool} of {row.server} has changed again since you have seen it; read "
                    "GET /mcp/changes, and approve with the hash that it returns now",
                    kind="mcp_change_outdated",
                )
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
            row.approved, row.approved_hash = row.pending, row.pending_hash
            row.pending = row.pending_hash = row.changed_at = None

        await self._store.write(work)


def _compare(stored_by_name: Mapping[str, StoredTool], listed: Mapping[str, str]) -> _Comparison:
    new: dict[str, str] = {}
    pending: dict[str, str | None] = {}
    withheld: dict[str, Withheld] = {}
    for tool, encoded in listed.items():
        stored = stored_by_name.get(tool)
        if stored is None:
            if len(stored_by_name) + len(new) < MOST_KNOWN:
                new[tool] = encoded
            else:
                withheld[tool] = Withheld.TOO_MANY
        elif (hashed := _hash_of(encoded)) != stored.approved_hash:
            withheld[tool] = Withheld.CHANGED
            if hashed != stored.pending_hash:
                pending[stored.id] = encoded
        elif stored.pending_hash is not None:
            pending[stored.id] = None
    return _Comparison(new=new, pending=pending, withheld=withheld)


def _pending_of(caller: Caller) -> tuple[ColumnElement[bool], ...]:
    """The rows with a pending definition that the caller may approve: those of the caller's own servers, and
    for an ADMIN those of the tenant's."""
    of_user = select(McpServerRow.id).where(McpServerRow.user_id.is_not(None))
    own = McpToolRow.server_id.in_(of_user.where(McpServerRow.user_id == caller.user_id))
    of_tenant = or_(McpToolRow.server_id.is_(None), McpToolRow.server_id.not_in(of_user))
    is_own = or_(own, of_tenant) if caller.is_admin else own
    return McpToolRow.tenant_id == caller.tenant_id, McpToolRow.pending_hash.is_not(None), is_own


def _change(row: McpToolRow) -> McpChange:
    assert row.pending is not None
    assert row.pending_hash is not None
    assert row.changed_at is not None
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
    """The old and the new lines from the first to the last one that differ. Linear in time, because a server
    chooses the lines and could make a better diff slow."""
    shorter = min(len(old), len(new))
    head = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    rest = shorter - head
    tail = next((index for index in range(rest) if old[-1 - index] != new[-1 - index]), rest)
    removed = [f"-{line}" for line in old[head : len(old) - tail]]
    added = [f"+{line}" for line in new[head : len(new) - tail]]
    return "\n".join([*removed, *added])


def _lines(definition: McpDefinition) -> list[str]:
    return msgspec.json.format(msgspec.json.encode(definition), indent=2).decode().splitlines()
