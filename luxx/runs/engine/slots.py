"""Places: how many runs may be in progress, who waits for a place, and who gets the next one.

A place is a running run with its subagents, which need none: they would wait for the run that waits for
them. While all that it does is wait for subagents that wait for persons, it holds none either, and the first
subagent that goes on needs one again. The next one goes to the user with the fewest of them, then to who
waits longest.
Admissions and the queue count under one lock, so that no place is given twice.
"""

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import assert_never

import msgspec
from sqlalchemy import Connection, bindparam, func, select, text

from luxx.errors import TooMany
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import table_of
from luxx.runs.engine.processes import ProcessKind, Taken, begin, has_workers
from luxx.runs.models import RunRow
from luxx.runs.subagents import Idle, find_idle
from luxx.wire.run import RunKind, RunStatus

ADMISSION_LOCK = 7_402_118
"""The PostgreSQL advisory lock that admissions take in turn."""

RETRY_SECONDS = 5
"""When to try again after a full house: some run will have ended."""

FOR_WORKERS = frozenset({RunKind.ROOM, RunKind.TASK})
"""What workers drive where there are any; a chat begins where it arrives."""

_runs = table_of(RunRow)
_has_own_place = _runs.c.parent_run_id.is_(None)
_one_at_a_time = text("SELECT pg_advisory_xact_lock(:lock)")
_counts = (
    select(_runs.c.user_id, _runs.c.status, func.count().label("runs"))
    .where(_runs.c.status.in_([RunStatus.QUEUED.value, RunStatus.RUNNING.value]), _has_own_place)
    .group_by(_runs.c.user_id, _runs.c.status)
)
_queued = _runs.c.status == RunStatus.QUEUED.value
_in_turn = func.row_number().over(partition_by=_runs.c.user_id, order_by=_runs.c.id).label("turn")
_line = (
    select(_runs.c.user_id, _runs.c.id, _in_turn)
    .where(_queued, _has_own_place, _runs.c.kind.in_(bindparam("kinds", expanding=True)))
    .subquery()
)
_subagents = select(_runs.c.id).where(
    _queued, _runs.c.parent_run_id.is_not(None), _runs.c.kind.in_(bindparam("kinds", expanding=True))
)
_first = select(_line.c.user_id, _line.c.id).where(_line.c.turn <= bindparam("most")).order_by(_line.c.id)
_queued_kinds = select(_runs.c.kind).where(_queued).distinct()


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs each user has in progress and in the queue."""

    running: Mapping[int, int]
    queued: Mapping[int, int]


class Queued(msgspec.Struct, frozen=True):
    """A run that waits for a place."""

    user_id: int
    run_id: str


def kinds_of(process: ProcessKind, *, are_workers_up: bool) -> frozenset[RunKind]:
    """What such a process takes from the queue, and of what dead processes left."""
    match process:
        case ProcessKind.WORKER:
            return frozenset(RunKind)
        case ProcessKind.SERVE:
            return frozenset(RunKind) - FOR_WORKERS if are_workers_up else frozenset(RunKind)
        case _:
            assert_never(process)


def find_place(connection: Connection, user_id: int, kind: RunKind, limits: LimitsConfig) -> RunStatus:
    """Whether a new run of the user begins at once or waits: RUNNING or QUEUED. Raises TooMany.

    Nobody else can take the place before this transaction ends.
    """
    counts = _count(connection)
    if counts.queued or not _has_place(counts, user_id, limits):
        counts = _without(find_idle(connection), counts)
    is_free = not counts.queued and _has_place(counts, user_id, limits)
    if is_free or _may_overtake(counts, user_id, limits):
        is_theirs = kind in FOR_WORKERS and has_workers(connection)
        return RunStatus.QUEUED if is_theirs else RunStatus.RUNNING
    _check_queue(counts, user_id, limits)
    return RunStatus.QUEUED


def take_queued(
    connection: Connection, owner: str, kinds: Collection[RunKind], limits: LimitsConfig
) -> list[Taken]:
    """Gives what places there are to those who wait for them, in their order."""
    counts = _count(connection)
    idle = find_idle(connection)
    counts = _without(idle, counts)
    found = list(connection.scalars(_subagents, {"kinds": [kind.value for kind in kinds]}))
    free_of = [run_id for run_id in found if run_id not in idle.resuming]
    subagents = [taken for run_id in free_of for taken in begin(connection, owner, run_id)]
    free = _free(counts, limits)
    if free <= 0:
        return subagents
    rows = connection.execute(_first, {"kinds": [kind.value for kind in kinds], "most": free})
    line = [Queued(row.user_id, row.id) for row in rows]
    line += [Queued(idle.resuming[run_id], run_id) for run_id in found if run_id in idle.resuming]
    line.sort(key=lambda queued: queued.run_id)
    chosen = next_in_line(line, counts.running, free, limits.concurrent_runs_per_user)
    return [*subagents, *(taken for run_id in chosen for taken in begin(connection, owner, run_id))]


def queued_kinds(connection: Connection) -> set[RunKind]:
    """The kinds of the runs that wait for a place."""
    return {RunKind(kind) for kind in connection.scalars(_queued_kinds)}


def next_in_line(line: Sequence[Queued], running: Mapping[int, int], free: int, per_user: int) -> list[str]:
    """Who of the line, oldest first, gets the free places. `per_user` 0 is no limit."""
    waiting: dict[int, deque[tuple[int, str]]] = {}
    for place, queued in enumerate(line):
        waiting.setdefault(queued.user_id, deque()).append((place, queued.run_id))
    turns = [(running.get(user, 0), theirs[0][0], user) for user, theirs in waiting.items()]
    heapq.heapify(turns)
    chosen: list[str] = []
    while turns and len(chosen) < free and (not per_user or turns[0][0] < per_user):
        has, _, user = heapq.heappop(turns)
        theirs = waiting[user]
        chosen.append(theirs.popleft()[1])
        if theirs:
            heapq.heappush(turns, (has + 1, theirs[0][0], user))
    return chosen


def _count(connection: Connection) -> Counts:
    if connection.dialect.name == "postgresql":
        # One at a time among all processes; on SQLite one thread writes anyway.
        connection.execute(_one_at_a_time, {"lock": ADMISSION_LOCK})
    running: dict[int, int] = {}
    queued: dict[int, int] = {}
    for row in connection.execute(_counts):
        of_status = queued if row.status == RunStatus.QUEUED.value else running
        of_status[row.user_id] = row.runs
    return Counts(running=running, queued=queued)


def _without(idle: Idle, counts: Counts) -> Counts:
    """With subagents in the queue that need a place again, instead of the runs that wait for them."""
    running = {user: runs - idle.roots.get(user, 0) for user, runs in counts.running.items()}
    queued = dict(counts.queued)
    for user in idle.resuming.values():
        queued[user] = queued.get(user, 0) + 1
    return Counts(running=running, queued=queued)


def _free(counts: Counts, limits: LimitsConfig) -> int:
    """Places that are free on the whole server; without a limit as many as there are runs to take."""
    if not limits.concurrent_runs:
        return sum(counts.queued.values())
    return limits.concurrent_runs - sum(counts.running.values())


def _has_place(counts: Counts, user_id: int, limits: LimitsConfig) -> bool:
    most = limits.concurrent_runs_per_user
    if most and counts.running.get(user_id, 0) >= most:
        return False
    return not limits.concurrent_runs or sum(counts.running.values()) < limits.concurrent_runs


def _may_overtake(counts: Counts, user_id: int, limits: LimitsConfig) -> bool:
    """Whether those who wait could not have the place anyway: each of them has as many as a user may."""
    most = limits.concurrent_runs_per_user
    if not most or user_id in counts.queued or not _has_place(counts, user_id, limits):
        return False
    return all(counts.running.get(other, 0) >= most for other in counts.queued)


def _check_queue(counts: Counts, user_id: int, limits: LimitsConfig) -> None:
    own, running = counts.queued.get(user_id, 0), counts.running.get(user_id, 0)
    most = limits.concurrent_runs_per_user
    if own >= limits.queued_runs_per_user and (own or (most and running >= most)):
        waiting = f" and {own} that wait" if own else ""
        raise TooMany(
            f"you have {running} runs in progress{waiting}, as many as this server allows; "
            "wait for one or cancel one",
            retry_after=RETRY_SECONDS,
            kind="too_many_runs",
        )
    if own >= limits.queued_runs_per_user or sum(counts.queued.values()) >= limits.queued_runs:
        raise TooMany(
            "the server is busy with as many runs as it allows; try again in a moment",
            retry_after=RETRY_SECONDS,
            kind="server_busy",
        )
