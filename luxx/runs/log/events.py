"""The event log: append under the fence, read, page; the rows of tool calls and full outputs, and of endings.

An event is published only after it is on disk, so the last event id of a client is always in the log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    Connection,
    Row,
    Update,
    bindparam,
    case,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from luxx.infra.clock import timestamp, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.channel import Channel, event_frame
from luxx.runs.log.endings import INSERT_ENDED, NOTICES
from luxx.runs.models import TOOL_LENGTH, RunEventRow, RunResultRow, RunRow, ToolCallRow
from luxx.wire.event import ErrorEvent, Event, LoggedEvent, Note, ProcessStep, decode_note
from luxx.wire.message import with_files
from luxx.wire.run import ENDED
from luxx.wire.turn import Step, StepStatus, StepType, turn_of

_calls, _results = table_of(ToolCallRow), table_of(RunResultRow)


def tool_call_rows(run_id: str, logged: Sequence[LoggedEvent]) -> list[dict[str, Any]]:
    """The rows of tool calls that these events of one append insert or update.

    A result is logged directly after the last entry of its call.
    """
    calls: dict[tuple[str, int], dict[str, Any]] = {}
    last_call: dict[str, Any] = {}
    for item in logged:
        if not isinstance(item.event, ProcessStep):
            continue
        step = item.event.step
        if step.type == StepType.TOOL_CALL:
            turn = turn_of(item.event).key
            last_call = calls.setdefault((turn, step.index), _new_row(run_id, turn, item.seq, step))
            _set_status(last_call, step, utc_now())
        elif step.type == StepType.TOOL_RESULT and last_call:
            last_call["result_seq"] = item.seq
    return list(calls.values())


def store_output(connection: Connection, row: dict[str, str]) -> None:
    """Stores the full output of a shortened result; replaces an earlier one of the same call."""
    connection.execute(_replace_outputs[connection.dialect.name], row)


def _new_row(run_id: str, turn: str, seq: int, step: Step) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "turn": turn,
        "step_index": step.index,
        "tool": (step.name or "")[:TOOL_LENGTH].replace("\0", "\ufffd"),
        "seq": seq,
        "result_seq": None,
        "status": step.status.value,
        "started_at": None,
        "completed_at": None,
        "duration_ms": None,
    }


def _set_status(call: dict[str, Any], step: Step, now: datetime) -> None:
    call["status"] = step.status.value
    if step.status == StepStatus.RUNNING:
        call["started_at"] = now
    elif step.status != StepStatus.PENDING:
        call["completed_at"] = now
        call["duration_ms"] = step.duration_ms if isinstance(step.duration_ms, int) else None


def _upsert(dialect_insert: Any) -> Any:
    statement = dialect_insert(_calls)
    changed = {
        name: func.coalesce(statement.excluded[name], _calls.c[name])
        for name in ("result_seq", "started_at", "completed_at", "duration_ms")
    }
    return statement.on_conflict_do_update(
        index_elements=["run_id", "turn", "step_index"], set_={"status": statement.excluded.status, **changed}
    )


_upserts = {"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)}
"""Built once, because every tool call uses it twice. None keeps the stored value."""


def _replace_output(dialect_insert: Any) -> Any:
    statement = dialect_insert(_results)
    return statement.on_conflict_do_update(
        index_elements=["run_id", "call_id"], set_={"output": statement.excluded.output}
    )


_replace_outputs = {
    "sqlite": _replace_output(sqlite.insert),
    "postgresql": _replace_output(postgresql.insert),
}


def record_ending(
    connection: Connection, run_id: str, fence: int, status: str, reader: str = NOTICES
) -> None:
    """Inserts the rows of an ending, before the update of the run takes its owner away."""
    values = {"b_id": run_id, "b_fence": fence, "b_status": status, "b_now": utc_now()}
    connection.execute(INSERT_ENDED[reader], values)


PAGE_EVENTS = 500
"""Events per page."""

PAGE_BYTES = 512 * 1024
"""A page ends with the event that passes this many bytes; it bounds the memory for a client that is slow."""

SMALL_EVENT_BYTES = 1024
"""Events up to this size are read with their length; larger ones only if they fit into the page."""


@lru_cache(maxsize=64)
def _fenced_update(columns: tuple[str, ...]) -> Update:
    """The UPDATE that sets these columns of a run and adds to its size, if its fence is unchanged."""
    runs = table_of(RunRow)
    owned = runs.update().where(runs.c.id == bindparam("b_id"), runs.c.fence == bindparam("b_fence"))
    values: dict[str, Any] = {column: bindparam(column) for column in columns}
    return owned.values({**values, "stored_bytes": runs.c.stored_bytes + bindparam("b_stored")})


E = TypeVar("E", bound=Event)
LogEntry = Event | tuple[Event, Note]

_encode = msgspec.json.Encoder().encode
_events = msgspec.json.Decoder(Event)
_insert = insert(table_of(RunEventRow))
_columns = table_of(RunEventRow).c
_in_range = (
    _columns.run_id == bindparam("run_id"),
    _columns.seq > bindparam("after"),
    _columns.seq <= bindparam("until"),
)
_size = func.length(_columns.data)
_page = (
    select(_columns.seq, _columns.type, _size, case((_size <= SMALL_EVENT_BYTES, _columns.data)))
    .where(*_in_range)
    .order_by(_columns.seq)
    .limit(bindparam("limit"))
)
_large = select(_columns.seq, _columns.data).where(*_in_range, _size > SMALL_EVENT_BYTES)


class LostRun(Exception):
    """Another process claimed the run, or it was deleted. The drive must stop without writing."""


class StoredEvent(msgspec.Struct, frozen=True):
    """An event of the log with its JSON as stored."""

    seq: int
    type: str
    data: bytes


class RunLog:
    """The log of one run, for the process that drives it. `on_status` is called after a changed status is
    written.

    `stored_total` counts the bytes written through it.
    """

    used_call_ids: set[str] | None = None

    def __init__(
        self,
        store: Store,
        channel: Channel,
        signal: CancelSignal,
        *,
        run_id: str,
        fence: int,
        seq: int,
        on_status: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_status = on_status
        self._store = store
        self._channel = channel
        self._signal = signal
        self._fence = fence
        self.run_id = run_id
        self.seq = seq
        self.stored_total = 0

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        changes: Mapping[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> list[LoggedEvent]:
        """Writes events, `changes` of the run's row and `extra_write` in one transaction, then publishes.

        `extra_bytes`: the bytes that `extra_write` adds to the size of the run.
        Raises LostRun, with nothing written, if the run was claimed by another process or deleted.
        """
        logged, rows = self._stamp(entries)
        calls = tool_call_rows(self.run_id, logged)
        values = {**(changes or {}), "last_seq": self.seq + len(rows)}
        ended_as = changes["status"] if changes is not None and changes.get("status") in ENDED else None
        size = extra_bytes + sum(len(row["data"]) + len(row["internal"] or b"") for row in rows)

        def write_entries(connection: Connection) -> None:
            key = {"b_id": self.run_id, "b_fence": self._fence, "b_stored": size}
            if ended_as is not None:
                record_ending(connection, self.run_id, self._fence, ended_as)
            if connection.execute(_fenced_update(tuple(values)), key | values).rowcount != 1:
                raise LostRun(self.run_id)
            if rows:
                connection.execute(_insert, rows)
            if calls:
                connection.execute(_upserts[connection.dialect.name], calls)
            if extra_write is not None:
                extra_write(connection)

        await self._signal.shield(self._store.write_rows(write_entries))
        self.seq = values["last_seq"]
        self.stored_total += size
        self._publish(logged, rows)
        if "status" in values:
            self._on_status()
        return logged

    def calls_of_other_turns(self) -> int:
        """None: a chat's run has one turn."""
        return 0

    def preview(self, entries: Sequence[LogEntry]) -> list[LoggedEvent]:
        """The entries as they would be logged next, for decisions before the write."""
        return [_logged(self.seq + offset, entry) for offset, entry in enumerate(entries, 1)]

    def _stamp(self, entries: Sequence[LogEntry]) -> tuple[list[LoggedEvent], list[dict[str, Any]]]:
        logged: list[LoggedEvent] = []
        rows: list[dict[str, Any]] = []
        for item in self.preview(entries):
            event = stamped(item.event, self.run_id)
            logged.append(LoggedEvent(seq=item.seq, event=event, note=item.note))
            rows.append(event_row(item.seq, event, item.note))
        return logged, rows

    def _publish(self, logged: list[LoggedEvent], rows: list[dict[str, Any]]) -> None:
        channel = self._channel
        for item in logged:
            if isinstance(item.event, ProcessStep):
                channel.close_step((turn_of(item.event).key, item.event.step.index))
        channel.logged = self.seq
        channel.publish_events(*(event_frame(row["seq"], row["type"], row["data"]) for row in rows))


def stamped(event: E, run_id: str) -> E:
    """The event with its run and the current time, as it is stored."""
    return msgspec.structs.replace(event, run_id=run_id, timestamp=timestamp())


def event_row(seq: int, event: Event, note: Note | None = None) -> dict[str, Any]:
    """The row of a stamped event."""
    return {
        "run_id": event.run_id,
        "seq": seq,
        "type": event.__struct_config__.tag,
        "data": _encode(event),
        "internal": None if note is None else _encode(note),
    }


def _logged(seq: int, entry: LogEntry) -> LoggedEvent:
    if isinstance(entry, tuple):
        return LoggedEvent(seq=seq, event=entry[0], note=entry[1])
    return LoggedEvent(seq=seq, event=entry)


def read_page(
    session: Session, run_id: str, after: int, until: int | None = None, limit: int = PAGE_EVENTS
) -> list[StoredEvent]:
    """Events after `after` up to `until`, oldest first, with their stored JSON.

    At most `limit`; of large events only those that begin within PAGE_BYTES.
    """
    connection = session.connection()
    values = {"run_id": run_id, "after": after, "until": 2**31 - 1 if until is None else until}
    rows = connection.execute(_page, values | {"limit": limit}).all()
    rows = rows[: count_within_bytes(size for _, _, size, _ in rows)]
    large: dict[int, bytes] = {}
    if any(data is None for _, _, _, data in rows):
        large_rows = connection.execute(_large, values | {"until": rows[-1][0]})
        large = {row.seq: row.data for row in large_rows}
    complete_rows = ((seq, type_, large.get(seq) if data is None else data) for seq, type_, _, data in rows)
    # A missing event was deleted with its run between the two statements.
    return [
        StoredEvent(seq, type_, with_files(bytes(data)))
        for seq, type_, data in complete_rows
        if data is not None
    ]


def count_within_bytes(sizes: Iterable[int]) -> int:
    """How many of these events begin within PAGE_BYTES."""
    count = total = 0
    for size in sizes:
        if total >= PAGE_BYTES:
            break
        total += size
        count += 1
    return count


def read_log(connection: Connection, run_id: str) -> list[LoggedEvent]:
    """The whole log of a run, decoded."""
    rows = connection.execute(
        select(RunEventRow.seq, RunEventRow.data, RunEventRow.internal)
        .where(RunEventRow.run_id == run_id)
        .order_by(RunEventRow.seq)
    )
    return [LoggedEvent(seq=seq, event=event, note=note) for seq, event, note in map(_decoded, rows)]


def _decoded(row: Row[int, bytes, bytes | None]) -> tuple[int, Event, Note | None]:
    seq, data, note = row
    event = _events.decode(with_files(bytes(data)))
    if note is None:
        return seq, event, None
    return seq, event, decode_note(event, note)


def read_last_error(connection: Connection, run_id: str) -> ErrorEvent | None:
    """The newest `error` event of a run's log, or None."""
    data = connection.execute(
        select(RunEventRow.data)
        .where(RunEventRow.run_id == run_id, RunEventRow.type == "error")
        .order_by(RunEventRow.seq.desc())
        .limit(1)
    ).scalar()
    event = None if data is None else _events.decode(data)
    return event if isinstance(event, ErrorEvent) else None
