"""The queue of runs that wait for a slot (`runs/slots.py`): who claims which of them, in which order."""

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import assert_never

import msgspec
from sqlalchemy import Connection, bindparam, func, select

from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import table_of
from luxx.runs.engine.processes import ClaimedRun, ProcessKind, claim_undriven, has_workers
from luxx.runs.models import RunRow
from luxx.runs.slots import count_slots, find_idle, find_slot, free_slots, subtract_idle
from luxx.wire.run import RunKind, RunStatus

WORKER_KINDS = frozenset({RunKind.ROOM, RunKind.TASK, RunKind.MEMORY, RunKind.INDEX, RunKind.PATTERN})
"""The kinds that only workers claim if there are any; a chat starts in the process that admits it."""

_runs = table_of(RunRow)
_needs_slot = _runs.c.parent_run_id.is_(None)
_queued = _runs.c.status == RunStatus.QUEUED.value
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


def first_status(connection: Connection, user_id: int, kind: RunKind, limits: LimitsConfig) -> RunStatus:
    """The status with which a run begins or goes on: RUNNING in this process, or QUEUED. Raises TooMany."""
    status = find_slot(connection, user_id, limits)
    is_for_workers = status == RunStatus.RUNNING and kind in WORKER_KINDS and has_workers(connection)
    return RunStatus.QUEUED if is_for_workers else status


def claim_queued(
    connection: Connection, owner: str, kinds: Collection[RunKind], limits: LimitsConfig
) -> list[ClaimedRun]:
    """Claims queued runs for the free slots, in their order, and queued subagents that need no slot."""
    counts = count_slots(connection)
    idle = find_idle(connection)
    counts = subtract_idle(idle, counts)
    subagent_ids = list(connection.scalars(_subagents, {"kinds": [kind.value for kind in kinds]}))
    unblocked_ids = [run_id for run_id in subagent_ids if run_id not in idle.resuming]
    subagents = [claimed for run_id in unblocked_ids for claimed in claim_undriven(connection, owner, run_id)]
    free = free_slots(counts, limits)
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
