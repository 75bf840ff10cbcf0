"""The times of a task: which may be given, and which task is to be started now.

`start_at` starts a task once (`schedule.py`). `due_at` and `snoozed_until` only order and hide tasks.
"""

from datetime import UTC, datetime, timedelta

from msgspec import UNSET, UnsetType
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from luxx.features.tasks.models import NewTask, TaskChanges, TaskRow
from luxx.infra.clock import utc_now
from luxx.infra.field_errors import FieldErrors

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
LATE = timedelta(seconds=60)
"""How late a time to come may arrive: the way of a request, and clocks that differ."""

MAX_STARTS = 20
"""Tasks that one look starts at most."""

PAST = {
    "start_at": "is in the past; name a time to come, or leave it out and execute the task",
    "snoozed_until": "is in the past; name a time to come, or null to end the snooze",
}


def check_times(given: NewTask | TaskChanges, row: TaskRow | None, errors: FieldErrors) -> None:
    """Adds what is wrong with the given times; those that the task has already are not checked again."""
    times: dict[str, datetime | None] = {}
    changed: set[str] = set()
    for name in ("start_at", "due_at", "snoozed_until"):
        value: datetime | UnsetType | None = getattr(given, name)
        stored = None if row is None else getattr(row, name)
        times[name] = stored if value is UNSET else value
        if isinstance(value, datetime) and value != stored:
            changed.add(name)
            _check_time(name, value, errors)
    start_at, due_at = times["start_at"], times["due_at"]
    if start_at is not None and due_at is not None and due_at < start_at and changed & {"start_at", "due_at"}:
        errors.add("$.due_at" if "due_at" in changed else "$.start_at", "the task is due before it starts")


def _check_time(name: str, value: datetime, errors: FieldErrors) -> None:
    if not EARLIEST <= value < LATEST:
        errors.add(f"$.{name}", f"must be a time between the years {EARLIEST.year} and {LATEST.year}")
    elif name in PAST and value < utc_now() - LATE:
        errors.add(f"$.{name}", PAST[name])


def tasks_to_start(session: Session) -> list[tuple[str, int]]:
    """The ids and owners of the tasks whose time to start has come, the earliest first."""
    query = (
        select(TaskRow.id, TaskRow.user_id)
        .where(TaskRow.is_start_due, TaskRow.start_at <= utc_now())
        .order_by(TaskRow.start_at)
        .limit(MAX_STARTS)
    )
    return [(row.id, row.user_id) for row in session.execute(query)]


def take_start(session: Session, task_id: str) -> bool:
    """Whether the task was to be started now; it is not any more. Of several transactions one gets True."""
    taken = session.connection().execute(
        update(TaskRow)
        .where(TaskRow.id == task_id, TaskRow.is_start_due, TaskRow.start_at <= utc_now())
        .values(is_start_due=False)
    )
    return taken.rowcount == 1


def forget_start(task: TaskRow) -> None:
    """A task that a person executes before its time is not started again at it."""
    if task.is_start_due:
        task.is_start_due, task.start_at = False, None
