"""Slots: how many turns may work at once. `engine/queue.py` says which waiting run gets the next one.

A running run has one slot, and takes another for each further turn that works at once: seats, steps,
subagents; the first subagent of a turn uses that of the turn. A run that only waits for subagents which wait
for persons frees its slot; the first of these subagents that continues needs one again. A free slot goes to
the user with the fewest used slots, then to the oldest run; runs that wait come before further turns.
Admission, the queue and turns count slots under one lock, so that no slot is used twice.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, case, func, select, update

from luxx.errors import TooMany
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Lock, lock_until_commit, table_of
from luxx.runs.models import RunRow, ToolCallRow, is_unended
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.wire.run import SIDE_KINDS, RunStatus
from luxx.wire.turn import StepStatus

RETRY_SECONDS = 5
"""The Retry-After value if all slots and the queue are full."""

SLOT_POLL_SECONDS = 1.0
"""How often a run that has fewer slots than it could use asks for more."""

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
    .where(
        _runs.c.subject_id == bindparam("subject"),
        _runs.c.parent_run_id.is_not(None),
        _runs.c.kind.not_in(SIDE_KINDS),
        is_unended,
    )
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


def find_slot(connection: Connection, user_id: int, limits: LimitsConfig) -> RunStatus:
    """Whether a new run of the user starts at once or waits: RUNNING or QUEUED. Raises TooMany.

    No other transaction can use the slot before this one ends.
    """
    counts = count_slots(connection)
    if counts.queued or not _has_free_slot(counts, user_id, limits):
        counts = subtract_idle(find_idle(connection), counts)
    has_slot = not counts.queued and _has_free_slot(counts, user_id, limits)
    if has_slot or _may_overtake(counts, user_id, limits):
        return RunStatus.RUNNING
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
    counts = count_slots(connection)
    if counts.queued or _free_for(counts, user_id, limits) < wanted:
        counts = subtract_idle(find_idle(connection), counts)
    if counts.queued and not _may_overtake(counts, user_id, limits):
        return 0
    granted = int(max(0, min(wanted, _free_for(counts, user_id, limits))))
    if granted:
        connection.execute(_add_slots, {"b_id": run_id, "b_fence": fence, "more": granted})
    return granted


def return_slots(connection: Connection, run_id: str, fence: int, number: int) -> None:
    """Returns slots that the run got from `take_slots`; with a negative number, takes them in any case."""
    connection.execute(_add_slots, {"b_id": run_id, "b_fence": fence, "more": -number})


def count_slots(connection: Connection) -> SlotCounts:
    """The slots in use and the queue. No other transaction counts them before this one ends."""
    lock_until_commit(connection, Lock.ADMISSION)
    running: dict[int, int] = {}
    queued: dict[int, int] = {}
    for row in connection.execute(_counts):
        of_status = queued if row.status == RunStatus.QUEUED.value else running
        of_status[row.user_id] = int(row.slots)
    return SlotCounts(running=running, queued=queued)


def subtract_idle(idle: IdleRuns, counts: SlotCounts) -> SlotCounts:
    """The counts without idle runs, and with the queued subagents that need their slots."""
    running = {user: runs - idle.roots.get(user, 0) for user, runs in counts.running.items()}
    queued = dict(counts.queued)
    for user in idle.resuming.values():
        queued[user] = queued.get(user, 0) + 1
    return SlotCounts(running=running, queued=queued)


def free_slots(counts: SlotCounts, limits: LimitsConfig) -> int:
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
        waiting = f", and {own_queued} of your runs wait" if own_queued else ""
        raise TooMany(
            f"your runs work on as many turns at once as this server allows ({running}){waiting}; "
            "wait for a run or cancel one",
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


class TurnSlots:
    """The slots of one run; the first is there from the start.

    `held` is their number; `is_short`: the last `take` got fewer than it asked for. `on_return` is called
    when slots became free.
    """

    def __init__(
        self,
        store: Store,
        limits: LimitsConfig,
        run_id: str,
        fence: int,
        user_id: int,
        on_return: Callable[[], None],
    ) -> None:
        self._store = store
        self._limits = limits
        self._run_id = run_id
        self._fence = fence
        self._user_id = user_id
        self._on_return = on_return
        self._lock = asyncio.Lock()
        self.held = 1
        self.is_short = False
        self._may_ask_at = 0.0

    async def take(self, wanted: int) -> int:
        """Takes slots so that `wanted` turns can work at once; returns how many can, at least 1.

        Where there are too few, it asks again after SLOT_POLL_SECONDS, or when slots were returned.
        """
        async with self._lock:
            more = wanted - self.held
            if more > 0 and time.monotonic() >= self._may_ask_at:
                self.held += await self._store.write_rows(
                    lambda connection: take_slots(
                        connection, self._run_id, self._fence, self._user_id, more, self._limits
                    )
                )
                self._may_ask_at = time.monotonic() + SLOT_POLL_SECONDS if self.held < wanted else 0.0
            self.is_short = self.held < wanted
            return min(wanted, self.held)

    async def keep(self, working: int) -> None:
        """Returns the slots beyond those of `working` turns."""
        async with self._lock:
            excess = self.held - max(1, working)
            if excess <= 0:
                return
            await self._store.write_rows(
                lambda connection: return_slots(connection, self._run_id, self._fence, excess)
            )
            self.held -= excess
            self._may_ask_at = 0.0
        self._on_return()


class SubagentSlots:
    """Which subagents of a turn work, by their calls and tasks. One of them uses the slot of the turn."""

    def __init__(self, slots: TurnSlots) -> None:
        self._slots = slots
        self._working: set[tuple[str, int]] = set()
        self._returned = asyncio.Condition()

    async def begin(self, task: tuple[str, int], *, must_have_slot: bool) -> None:
        """Counts a subagent that begins to work or goes on; `must_have_slot` waits for a slot for it."""
        async with self._returned:
            while await self._slots.take(len(self._working) + 1) <= len(self._working) and must_have_slot:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SLOT_POLL_SECONDS):
                        await self._returned.wait()
            self._working.add(task)

    async def end(self, task: tuple[str, int]) -> None:
        """Counts a subagent that has ended or waits for a person."""
        async with self._returned:
            self._working.discard(task)
            await self._slots.keep(len(self._working))
            self._returned.notify()
