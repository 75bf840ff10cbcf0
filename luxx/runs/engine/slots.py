"""Slots: how many turns may work at once, which runs wait for a slot, and which run gets the next one.

A running run has one slot, and takes another for each further turn that works at once: seats, steps,
subagents; the first subagent of a turn uses that of the turn. A run that only waits for subagents which wait
for persons frees its slot; the first of these subagents that continues needs one again. A free slot goes to
the user with the fewest used slots, then to the oldest run; runs that wait come before further turns.
Admission, the queue and turns count slots under one lock, so that no slot is used twice.
"""

import heapq
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from sqlalchemy import Connection, Row, bindparam, case, func, select, update

from luxx.errors import TooMany
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.locks import Lock, lock_until_commit
from luxx.infra.store.tables import table_of
from luxx.runs.engine.processes import ClaimedRun, ProcessKind, claim_undriven, has_workers
from luxx.runs.models import RunRow, ToolCallRow, is_unended
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.wire.run import RunKind, RunStatus
from luxx.wire.turn import StepStatus

RETRY_SECONDS = 5
"""The Retry-After value if all slots and the queue are full."""

WORKER_KINDS = frozenset({RunKind.ROOM, RunKind.TASK})
"""The kinds that only workers claim if there are any; a chat starts in the process that admits it."""

_runs = table_of(RunRow)
_needs_slot = _runs.c.parent_run_id.is_(None)
_queued = _runs.c.status == RunStatus.QUEUED.value
_slots = case((_queued, case((_needs_slot, 1), else_=0)), else_=_runs.c.slots)
_counts = (
    select(_runs.c.user_id, _runs.c.status, func.sum(_slots).label("slots"))
    .where(_runs.c.status.in_([RunStatus.QUEUED.value, RunStatus.RUNNING.value]))
    .group_by(_runs.c.user_id, _runs.c.status)
    .having(func.sum(_slots) > 0)
)
_add_slots = (
    update(_runs)
    .where(_runs.c.id == bindparam("b_id"), _runs.c.fence == bindparam("b_fence"))
    .values(slots=_runs.c.slots + bindparam("more"))
)
_position_of_user = (
    func.row_number().over(partition_by=_runs.c.user_id, order_by=_runs.c.id).label("user_position")
)
_queue = (
    select(_runs.c.user_id, _runs.c.id, _position_of_user)
    .where(_queued, _needs_slot, _runs.c.kind.in_(bindparam("kinds", expanding=True)))
    .subquery()
)
_subagents = select(_runs.c.id).where(
    _queued, _runs.c.parent_run_id.is_not(None), _runs.c.kind.in_(bindparam("kinds", expanding=True))
)
_queue_heads = (
    select(_queue.c.user_id, _queue.c.id)
    .where(_queue.c.user_position <= bindparam("max_heads"))
    .order_by(_queue.c.id)
)
_queued_kinds = select(_runs.c.kind).where(_queued).distinct()

MAX_IDLE_PER_USER = 100
"""How many idle runs of a user need no slot. Further ones keep theirs: each is a drive in memory."""

_parents = _runs.alias("parents")
_unended_subagents = select(_runs.c.id, _runs.c.parent_run_id, _runs.c.user_id, _runs.c.status).where(
    is_unended
)
_children_of_roots = _unended_subagents.join(_parents, _parents.c.id == _runs.c.parent_run_id).where(
    _parents.c.parent_run_id.is_(None), _parents.c.status == RunStatus.RUNNING.value
)
_unended_children = _unended_subagents.where(_runs.c.parent_run_id.in_(bindparam("ids", expanding=True)))
_runs_of_subject = (
    select(_runs.c.id)
    .where(_runs.c.subject_id == bindparam("subject"), _runs.c.parent_run_id.is_not(None), is_unended)
    .limit(1)
)
_calls = table_of(ToolCallRow)
_acting = select(_calls.c.run_id).where(
    _calls.c.run_id.in_(bindparam("ids", expanding=True)),
    _calls.c.status == StepStatus.RUNNING.value,
    _calls.c.tool != DELEGATE_TOOL,
)


class UnendedSubagent(msgspec.Struct, frozen=True):
    """A subagent that has not ended, with its parent and user."""

    run_id: str
    parent_id: str
    user_id: int
    status: RunStatus


class IdleRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that only wait for subagents which wait for a person.

    `roots`: their number per user id. `resuming`: the user id of each queued subagent below them; it got its
    answer and needs a slot.
    """

    roots: Mapping[int, int]
    resuming: Mapping[str, int]


class SlotCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots each user id uses, and how many runs it has in the queue."""

    running: Mapping[int, int]
    queued: Mapping[int, int]


class QueuedRun(msgspec.Struct, frozen=True):
    """A run that waits for a slot."""

    user_id: int
    run_id: str


def kinds_of(process: ProcessKind, *, are_workers_up: bool) -> frozenset[RunKind]:
    """The kinds of runs that such a process claims from the queue and from dead processes."""
    match process:
        case ProcessKind.WORKER:
            return frozenset(RunKind)
        case ProcessKind.SERVE:
            return frozenset(RunKind) - WORKER_KINDS if are_workers_up else frozenset(RunKind)
        case _:
            assert_never(process)


def find_slot(connection: Connection, user_id: int, kind: RunKind, limits: LimitsConfig) -> RunStatus:
    """Whether a new run of the user starts at once or waits: RUNNING or QUEUED. Raises TooMany.

    No other transaction can use the slot before this one ends.
    """
    counts = _count(connection)
    if counts.queued or not _has_free_slot(counts, user_id, limits):
        counts = _subtract_idle(find_idle(connection), counts)
    has_slot = not counts.queued and _has_free_slot(counts, user_id, limits)
    if has_slot or _may_overtake(counts, user_id, limits):
        is_for_workers = kind in WORKER_KINDS and has_workers(connection)
        return RunStatus.QUEUED if is_for_workers else RunStatus.RUNNING
    _check_queue(counts, user_id, limits)
    return RunStatus.QUEUED


def first_slots(parent_run_id: str | None) -> int:
    """The slots of a new run: none of a subagent."""
    return 1 if parent_run_id is None else 0


def take_slots(
    connection: Connection, run_id: str, fence: int, user_id: int, wanted: int, limits: LimitsConfig
) -> int:
    """Gives a running run up to `wanted` more slots, those that are free; returns how many it got.

    None while a run that could use them waits.
    """
    if not (limits.concurrent_runs or limits.concurrent_runs_per_user):
        return wanted
    counts = _count(connection)
    if counts.queued or _free_for(counts, user_id, limits) < wanted:
        counts = _subtract_idle(find_idle(connection), counts)
    if counts.queued and not _may_overtake(counts, user_id, limits):
        return 0
    granted = int(max(0, min(wanted, _free_for(counts, user_id, limits))))
    if granted:
        connection.execute(_add_slots, {"b_id": run_id, "b_fence": fence, "more": granted})
    return granted


def return_slots(connection: Connection, run_id: str, fence: int, number: int) -> None:
    """Returns slots that the run got from `take_slots`; with a negative number, takes them in any case."""
    connection.execute(_add_slots, {"b_id": run_id, "b_fence": fence, "more": -number})


def claim_queued(
    connection: Connection, owner: str, kinds: Collection[RunKind], limits: LimitsConfig
) -> list[ClaimedRun]:
    """Claims queued runs for the free slots, in their order, and queued subagents that need no slot."""
    counts = _count(connection)
    idle = find_idle(connection)
    counts = _subtract_idle(idle, counts)
    subagent_ids = list(connection.scalars(_subagents, {"kinds": [kind.value for kind in kinds]}))
    unblocked_ids = [run_id for run_id in subagent_ids if run_id not in idle.resuming]
    subagents = [claimed for run_id in unblocked_ids for claimed in claim_undriven(connection, owner, run_id)]
    free = _free_slots(counts, limits)
    if free <= 0:
        return subagents
    rows = connection.execute(_queue_heads, {"kinds": [kind.value for kind in kinds], "max_heads": free})
    queue = [QueuedRun(row.user_id, row.id) for row in rows]
    queue += [QueuedRun(idle.resuming[run_id], run_id) for run_id in subagent_ids if run_id in idle.resuming]
    queue.sort(key=lambda queued: queued.run_id)
    chosen = choose_next(queue, counts.running, free, limits.concurrent_runs_per_user)
    return [
        *subagents,
        *(claimed for run_id in chosen for claimed in claim_undriven(connection, owner, run_id)),
    ]


def queued_kinds(connection: Connection) -> set[RunKind]:
    """The kinds of the queued runs."""
    return {RunKind(kind) for kind in connection.scalars(_queued_kinds)}


def choose_next(
    queue: Sequence[QueuedRun], running: Mapping[int, int], free: int, per_user: int
) -> list[str]:
    """The ids of the queued runs (given oldest first) that get the free slots. `per_user` 0: no limit."""
    waiting: dict[int, deque[tuple[int, str]]] = {}
    for position, queued in enumerate(queue):
        waiting.setdefault(queued.user_id, deque()).append((position, queued.run_id))
    candidates = [(running.get(user, 0), user_queue[0][0], user) for user, user_queue in waiting.items()]
    heapq.heapify(candidates)
    chosen: list[str] = []
    while candidates and len(chosen) < free and (not per_user or candidates[0][0] < per_user):
        running_count, _, user = heapq.heappop(candidates)
        user_queue = waiting[user]
        chosen.append(user_queue.popleft()[1])
        if user_queue:
            heapq.heappush(candidates, (running_count + 1, user_queue[0][0], user))
    return chosen


def _count(connection: Connection) -> SlotCounts:
    lock_until_commit(connection, Lock.ADMISSION)
    running: dict[int, int] = {}
    queued: dict[int, int] = {}
    for row in connection.execute(_counts):
        of_status = queued if row.status == RunStatus.QUEUED.value else running
        of_status[row.user_id] = int(row.slots)
    return SlotCounts(running=running, queued=queued)


def _subtract_idle(idle: IdleRuns, counts: SlotCounts) -> SlotCounts:
    """The counts without idle runs, and with the queued subagents that need their slots."""
    running = {user: runs - idle.roots.get(user, 0) for user, runs in counts.running.items()}
    queued = dict(counts.queued)
    for user in idle.resuming.values():
        queued[user] = queued.get(user, 0) + 1
    return SlotCounts(running=running, queued=queued)


def _free_slots(counts: SlotCounts, limits: LimitsConfig) -> int:
    """The free slots of the whole server; without a limit, as many as queued runs."""
    if not limits.concurrent_runs:
        return sum(counts.queued.values())
    return limits.concurrent_runs - sum(counts.running.values())


def _free_for(counts: SlotCounts, user_id: int, limits: LimitsConfig) -> float:
    """The slots that the user may still use, without regard to the queue; infinite without limits."""
    of_user = limits.concurrent_runs_per_user - counts.running.get(user_id, 0)
    of_all = limits.concurrent_runs - sum(counts.running.values())
    return min(
        of_user if limits.concurrent_runs_per_user else math.inf,
        of_all if limits.concurrent_runs else math.inf,
    )


def _has_free_slot(counts: SlotCounts, user_id: int, limits: LimitsConfig) -> bool:
    return _free_for(counts, user_id, limits) > 0


def _may_overtake(counts: SlotCounts, user_id: int, limits: LimitsConfig) -> bool:
    """Whether no queued run can use the slot, because each user in the queue is at the limit per user."""
    per_user = limits.concurrent_runs_per_user
    if not per_user or user_id in counts.queued or not _has_free_slot(counts, user_id, limits):
        return False
    return all(counts.running.get(other, 0) >= per_user for other in counts.queued)


def _check_queue(counts: SlotCounts, user_id: int, limits: LimitsConfig) -> None:
    own_queued, running = counts.queued.get(user_id, 0), counts.running.get(user_id, 0)
    per_user = limits.concurrent_runs_per_user
    if own_queued >= limits.queued_runs_per_user and (own_queued or (per_user and running >= per_user)):
        waiting = f" and {own_queued} that wait" if own_queued else ""
        raise TooMany(
            f"you have {running} runs in progress{waiting}, as many as this server allows; "
            "wait for one or cancel one",
            retry_after=RETRY_SECONDS,
            kind="too_many_runs",
        )
    if own_queued >= limits.queued_runs_per_user or sum(counts.queued.values()) >= limits.queued_runs:
        raise TooMany(
            "the server is busy with as many runs as it allows; try again in a moment",
            retry_after=RETRY_SECONDS,
            kind="server_busy",
        )


def find_idle(connection: Connection) -> IdleRuns:
    """The idle runs among those in progress."""
    tree: dict[str, list[UnendedSubagent]] = {}
    level = [_read(row) for row in connection.execute(_children_of_roots)]
    roots = {subagent.parent_id: subagent.user_id for subagent in level}
    while level:
        for subagent in level:
            tree.setdefault(subagent.parent_id, []).append(subagent)
        running_ids = [subagent.run_id for subagent in level if subagent.status == RunStatus.RUNNING]
        level = _read_children(connection, running_ids)
    if all(subagent.status == RunStatus.RUNNING for children in tree.values() for subagent in children):
        return IdleRuns(roots={}, resuming={})
    acting = set(connection.scalars(_acting, {"ids": list(tree)}))
    counts: dict[int, int] = {}
    resuming: dict[str, int] = {}
    for root, user_id in sorted(roots.items()):
        if _is_busy(root, tree, acting) or counts.get(user_id, 0) >= MAX_IDLE_PER_USER:
            continue
        counts[user_id] = counts.get(user_id, 0) + 1
        resuming |= dict.fromkeys(_resuming(root, tree), user_id)
    return IdleRuns(roots=counts, resuming=resuming)


def find_waiting_subagent(connection: Connection, run_id: str) -> str | None:
    """The id of a subagent of the run, at any depth, that waits for a person."""
    ids = [run_id]
    while children := _read_children(connection, ids):
        for child in children:
            if child.status == RunStatus.WAITING:
                return child.run_id
        ids = [child.run_id for child in children]
    return None


def has_subagents(connection: Connection, subject_id: str) -> bool:
    """Whether the subject has a subagent that has not ended."""
    return connection.scalar(_runs_of_subject, {"subject": subject_id}) is not None


def _read_children(connection: Connection, ids: Sequence[str]) -> list[UnendedSubagent]:
    return [_read(row) for row in connection.execute(_unended_children, {"ids": list(ids)})] if ids else []


def _read(row: Row[*tuple[Any, ...]]) -> UnendedSubagent:
    return UnendedSubagent(row.id, row.parent_run_id, row.user_id, RunStatus(row.status))


def _is_busy(run_id: str, tree: Mapping[str, Sequence[UnendedSubagent]], acting: set[str]) -> bool:
    children = tree.get(run_id, ())
    if not children or run_id in acting:
        return True
    return any(one.status == RunStatus.RUNNING and _is_busy(one.run_id, tree, acting) for one in children)


def _resuming(run_id: str, tree: Mapping[str, Sequence[UnendedSubagent]]) -> list[str]:
    run_ids: list[str] = []
    for child in tree.get(run_id, ()):
        if child.status == RunStatus.QUEUED:
            run_ids.append(child.run_id)
        run_ids += _resuming(child.run_id, tree)
    return run_ids
