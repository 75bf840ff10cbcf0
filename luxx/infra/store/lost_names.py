"""What a row had chosen and lost: the name of a deleted row stays beside the foreign key that pointed to it.

The database sets a foreign key `X_id` to null when its target is deleted. A table with a column `lost_X`
beside it keeps the name of the target there, so that "nothing was chosen" differs from "the choice is gone".
The name is also kept while the target still exists but the row's user may no longer use it.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from sqlalchemy import Column, ColumnElement, Connection, Table, func, select, update

from luxx.errors import Conflict
from luxx.infra.store.tables import Base, table_of

_USES = {"room_agents": "seats", "task_steps": "steps", "user_settings": "defaults"}
"""The fields of `Uses` whose names differ from those of the tables."""


class Uses(Struct, frozen=True, kw_only=True):
    """How much has chosen a provider, an agent or a project, of all users: it stops when that is deleted.

    `defaults`: the users whose default the provider is.
    """

    conversations: int = 0
    agents: int = 0
    seats: int = 0
    tasks: int = 0
    steps: int = 0
    defaults: int = 0


def keep_name(
    connection: Connection, target: type[Base], row_id: int | str, name: str, *, owner_id: int | None = None
) -> None:
    """Keeps the name of a row in all rows that refer to it: it will be deleted, or can be used no more.

    `owner_id`: the user who still can use it, in whose rows nothing changes.
    """
    for key, lost in _references(table_of(target)):
        condition = key == row_id
        if owner_id is not None:
            condition &= _is_of_others(key.table, owner_id)
        connection.execute(update(key.table).where(condition).values({lost.name: name}))


def forget_name(connection: Connection, target: type[Base], row_id: int | str) -> None:
    """Removes the kept name from all rows that refer to a row that can be used again."""
    for key, lost in _references(table_of(target)):
        connection.execute(
            update(key.table).where(key == row_id, lost.is_not(None)).values({lost.name: None})
        )


def lost_error(what: Literal["agent", "provider"], name: str | None, chosen_by: str) -> Conflict:
    """The error for what somebody chose for something (`chosen_by`) and cannot use any more."""
    named = f"the {what} '{name}'" if name else f"the {what}"
    problem = (
        f"{named} of {chosen_by} was deleted or is no longer shared with you; choose another provider for "
        "it, or for the request (provider_id), or go back to the default one (null)"
    )
    if what == "agent":
        problem = (
            f"{named} of {chosen_by} was deleted or is no longer shared with you; choose another agent for "
            "it (agent_id), or none (null)"
        )
    return Conflict(
        problem,
        kind=f"{what}_not_found",
        detail={"lost": {what: name}} if name else None,
    )


def uses_of(connection: Connection, target: type[Base], row_id: int | str) -> Uses:
    """What has chosen this row."""
    counts: dict[str, int] = {}
    for key, _ in _references(table_of(target)):
        query = select(func.count()).select_from(key.table).where(key == row_id)
        counts[_USES.get(key.table.name, key.table.name)] = connection.scalar(query) or 0
    return Uses(**counts)


def _references(target: Table) -> Iterator[tuple[Column[object], Column[object]]]:
    """Each foreign key to the table that has a column for the name beside it, with that column."""
    for table in Base.metadata.sorted_tables:
        for key in table.columns:
            lost = table.columns.get(f"lost_{key.name.removesuffix('_id')}")
            if lost is not None and any(each.references(target) for each in key.foreign_keys):
                yield key, lost


def _is_of_others(table: Table, owner_id: int) -> ColumnElement[bool]:
    """Whether a row, or the row that it is a part of, belongs to another user."""
    if "user_id" in table.columns:
        return table.c.user_id.is_distinct_from(owner_id)
    for column in table.columns:
        for key in column.foreign_keys:
            parent = key.column.table
            if key.ondelete == "CASCADE" and "user_id" in parent.columns:
                return column.in_(select(key.column).where(parent.c.user_id != owner_id))
    raise TypeError(f"rows of {table.name} belong to no user")
