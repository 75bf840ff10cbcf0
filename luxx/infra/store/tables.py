"""What every table shares: the declarative base with its naming convention, column types, the clock that all
processes share (the database's on PostgreSQL, the process's own on SQLite), the locks of transactions, and
the names of lost choices; and the fields that rows and structs have in common.

The tables are in the `models.py` of their features.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Literal, TypeVar, cast

import structlog
from msgspec import Struct
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Enum,
    MetaData,
    Select,
    Table,
    Text,
    extract,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, Session, mapped_column
from sqlalchemy.sql.base import ExecutableOption
from sqlalchemy.types import DateTime, Double, TypeDecorator

from luxx.errors import Conflict
from luxx.infra.clock import utc_now
from luxx.wire.model_settings import (
    MODEL_SETTINGS,
    Extraction,
    MemoryMode,
    PlanningMode,
    ReasoningEffort,
    RoutingMode,
)

T = TypeVar("T")

NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


TEXT_LENGTH = len("2026-01-31 12:30:59.123456")
"""Length of a time on SQLite, which stores it as text without a zone."""


class Base(DeclarativeBase):
    """Base of all rows. Foreign keys are named by string; no `relationship()` across features."""

    metadata = MetaData(naming_convention=NAMING)


def table_of(row: type[Base]) -> Table:
    """The table of a row's class, for statements on hot paths, which bypass the ORM."""
    return cast("Table", row.__table__)


def _choice(choices: type[StrEnum]) -> MappedColumn[Any]:
    return mapped_column(Enum(choices, native_enum=False, length=10, values_callable=list))


class ModelSettingsColumns:
    """The columns of a row with settings of model calls (`wire/model_settings.py`)."""

    temperature: Mapped[float | None] = mapped_column()
    max_tokens: Mapped[int | None] = mapped_column()
    thinking_enabled: Mapped[bool | None] = mapped_column()
    reasoning_effort: Mapped[ReasoningEffort | None] = _choice(ReasoningEffort)


class RequestColumns:
    """The columns of a row that may choose how messages are planned and routed; null leaves it to the next
    source."""

    planning: Mapped[PlanningMode | None] = _choice(PlanningMode)
    routing: Mapped[RoutingMode | None] = _choice(RoutingMode)


class MemoryColumn:
    """The column of a row that may restrict how runs use memory; the strictest of several counts, null
    restricts nothing."""

    memory: Mapped[MemoryMode | None] = _choice(MemoryMode)


class KnowledgeColumn:
    """The column of a row that names knowledge bases: a JSON list of their ids."""

    knowledge: Mapped[str] = mapped_column(Text, default="[]", server_default="[]")


_STRICTEST = (MemoryMode.OFF, MemoryMode.ASK)


def strictest(*modes: MemoryMode | None) -> MemoryMode:
    """The strictest of these modes; None restricts nothing."""
    return next((mode for mode in _STRICTEST if mode in modes), MemoryMode.ON)


class ExtractionType(TypeDecorator[Extraction]):
    """Stored as a truth value."""

    impl = Boolean
    cache_ok = True

    def process_bind_param(self, value: Extraction | bool | None, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)

    def process_result_value(self, value: bool | None, dialect: Dialect) -> Extraction | None:
        return None if value is None else Extraction.ON if value else Extraction.OFF


class SlidingWindowColumn:
    """The column of a row that may choose how many messages a model reads; null leaves it to the next source,
    0 is all."""

    sliding_window: Mapped[int | None] = mapped_column()


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC datetime, stored without zone so that SQLite and PostgreSQL agree."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return _in_utc(value).replace(tzinfo=None)

    def bind_processor(self, dialect: Dialect) -> Any:
        """SQLite: SQLAlchemy's own conversion to text takes ten times as long."""
        return _text_of if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        return _time_of if dialect.name == "sqlite" else super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _text_of(value: datetime | None) -> str | None:
    if value is None:
        return None
    if value.tzinfo is not UTC:
        value = _in_utc(value)
    return value.isoformat(" ", "microseconds")[:TEXT_LENGTH]


def _time_of(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value).replace(tzinfo=UTC)


def _in_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time must have a time zone")
    return value.astimezone(UTC)


MAX_CLOCK_SKEW = timedelta(hours=1)
"""The largest difference between the two clocks at which cleanup still deletes old rows."""

DATABASE_NOW = func.timezone("utc", func.clock_timestamp())
"""SQL, PostgreSQL only: the current time of the database, without zone as the columns store it."""

logger = structlog.get_logger()


def database_time(connection: Connection) -> ColumnElement[float]:
    """Unix seconds, as SQL. PostgreSQL uses its own clock, so a process whose clock jumps does no harm."""
    if connection.dialect.name == "postgresql":
        return extract("epoch", func.statement_timestamp()).cast(Double)
    return literal(time.time())


def database_now(connection: Connection) -> datetime:
    """The current time that all processes of the database share."""
    if connection.dialect.name == "postgresql":
        database_value: datetime = connection.execute(select(DATABASE_NOW)).scalar_one()
        return database_value.replace(tzinfo=UTC)
    return utc_now()


def deletion_time(session: Session) -> datetime | None:
    """The current time for deleting old rows. None if the two clocks differ by more than MAX_CLOCK_SKEW: one
    of them is wrong, and a deletion cannot be undone."""
    local_now, database_value = utc_now(), database_now(session.connection())
    if abs(database_value - local_now) > MAX_CLOCK_SKEW:
        logger.warning(
            "cleanup_skipped", reason="clocks disagree", local=str(local_now), database=str(database_value)
        )
        return None
    return database_value


def read_once(session: Session, key: tuple[object, ...], read: Callable[[], T]) -> T:
    """The value of `read`, which only the first call with this key in the session makes.

    For what several turns read in one transaction, and what nobody changes in it.
    """
    values: dict[tuple[object, ...], T] = session.info.setdefault("read_once", {})
    if key not in values:
        values[key] = read()
    return values[key]


def read_page(
    session: Session, query: Select[T], *, page: int, page_size: int, options: Sequence[ExecutableOption] = ()
) -> tuple[list[T], int]:
    """A page of an ordered query of rows, and how many rows it has. `options`: those of the page's query."""
    counted = query.with_only_columns(func.count(), maintain_column_froms=True).order_by(None)
    rows = session.scalars(query.options(*options).limit(page_size).offset((page - 1) * page_size))
    return list(rows), session.scalar(counted) or 0


class Lock(IntEnum):
    """The numbers of all advisory locks of PostgreSQL. Some exist once for each tenant or user."""

    MIGRATION = 7_402_117
    """Of several starting processes, one migrates. A restore that replaces the tables takes it too."""

    ADMISSION = 7_402_118
    """Counting slots before a run takes one."""

    USER_RESERVES = 7_402_119
    """Adding a reserve to what a user has spent and reserved."""

    RESTORE = 7_402_120
    """One restore at a time."""

    SHIPPED_AGENTS = 7_402_121
    """Of several starting processes, one stores the agents that ship with Luxx."""

    SECRET_CHECK = 7_402_122
    """Of several starting processes, one stores the value that checks the secret key."""

    DEMO_PROVIDER = 7_402_123
    """Of several starting processes, one stores the demo provider."""

    TENANT_RULES = 7_402_133
    """Changing permission rules. A transaction takes it before any other lock."""

    USER_NAMES = 7_402_134
    """Adding and renaming what a user owns with unique names, which are checked before the write."""

    MEMORY_NAMES = 7_402_135
    """Finding or making entities by name in a scope of memory."""

    MEMORY_ERASURE = 7_402_136
    """Of several processes, one erases what was deleted from memory."""
    DOCUMENTS_QUOTA = 7_402_137
    """Comparing the documents in all knowledge bases of a user with the quota, before one is added."""
    TENANT_SKILLS = 7_402_138
    """Adding and changing skills of a tenant and its projects, whose names are unique in a layer."""
    MCP_SERVERS = 7_402_139
    """Adding and renaming MCP servers of a tenant and its users."""


_lock = text("SELECT pg_advisory_xact_lock(:lock)")
_lock_of_owner = text("SELECT pg_advisory_xact_lock(:lock, :owner_id)")


def lock_until_commit(connection: Connection, lock: Lock, owner_id: int | None = None) -> None:
    """Waits for the lock and holds it until the transaction ends. On SQLite one thread makes all writes, so
    there it does nothing.

    `owner_id`: the tenant or user of the lock, if there is one for each.
    """
    if connection.dialect.name != "postgresql":
        return
    if owner_id is None:
        connection.execute(_lock, {"lock": lock.value})
    else:
        connection.execute(_lock_of_owner, {"lock": lock.value, "owner_id": owner_id})


# The database sets a foreign key `X_id` to null when its target is deleted. A table with a column `lost_X`
# beside it keeps the name of the target there, so that "nothing was chosen" differs from "the choice is
# gone". The name is also kept while the target still exists but the row's user may no longer use it.
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


def first_given(*sources: Any, names: Iterable[str] = MODEL_SETTINGS) -> dict[str, Any]:
    """Each of these fields from the first source that has it, as arguments of a struct; None: none has it.

    Sources are rows and structs; one without the attribute has no such field.
    """
    # Plain loops: a room's turn comes here a dozen times, and generators would be a tenth of its reads.
    found: dict[str, Any] = {}
    for name in names:
        value = None
        for source in sources:
            value = getattr(source, name, None)
            if value is not None:
                break
        found[name] = value
    return found
