"""Runs that do nothing but wait for subagents that wait for persons: which these are, and who goes on there.

Such a run is driven, so that it goes on at once; but it holds no place that others could use (places).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, select

from luxx.runs.models import RunRow, ToolCallRow
from luxx.store.tables import table_of
from luxx.tools.builtin.delegate import DELEGATE_TOOL
from luxx.wire.run import ENDED, RunStatus
from luxx.wire.step import StepStatus

MOST_PER_USER = 100
"""Idle runs that hold no place; what more of them a user has hold theirs, for each is a drive in memory."""

_runs, _calls = table_of(RunRow), table_of(ToolCallRow)
_parents = _runs.alias("parents")
_unended = _runs.c.status.not_in([status.value for status in ENDED])
_below_some = select(_runs.c.id, _runs.c.parent_run_id, _runs.c.user_id, _runs.c.status).where(_unended)
_below_roots = _below_some.join(_parents, _parents.c.id == _runs.c.parent_run_id).where(
    _parents.c.parent_run_id.is_(None), _parents.c.status == RunStatus.RUNNING.value
)
_below = _below_some.where(_runs.c.parent_run_id.in_(bindparam("ids", expanding=True)))
_of_subject = (
    select(_runs.c.id)
    .where(_runs.c.subject_id == bindparam("subject"), _runs.c.parent_run_id.is_not(None), _unended)
    .limit(1)
)
_acting = select(_calls.c.run_id).where(
    _calls.c.run_id.in_(bindparam("ids", expanding=True)),
    _calls.c.status == StepStatus.RUNNING.value,
    _calls.c.tool != DELEGATE_TOOL,
)


class Below(msgspec.Struct, frozen=True):
    """An unended subagent, and whose."""

    run_id: str
    parent_id: str
    user_id: int
    status: RunStatus


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """`roots` are runs without a parent, by user; `resuming` the subagents below them that got their answer,
    and whose is the place that they need."""

    roots: Mapping[int, int]
    resuming: Mapping[str, int]


def find_idle(connection: Connection) -> Idle:
    """Among the runs that are in progress."""
    tree: dict[str, list[Below]] = {}
    level = [_read(row) for row in connection.execute(_below_roots)]
    roots = {one.parent_id: one.user_id for one in level}
    while level:
        for one in level:
            tree.setdefault(one.parent_id, []).append(one)
        going = [one.run_id for one in level if one.status == RunStatus.RUNNING]
        level = _level(connection, going)
    if all(one.status == RunStatus.RUNNING for below in tree.values() for one in below):
        return Idle(roots={}, resuming={})
    acting = set(connection.scalars(_acting, {"ids": list(tree)}))
    counts: dict[int, int] = {}
    resuming: dict[str, int] = {}
    for root, user_id in sorted(roots.items()):
        if _is_busy(root, tree, acting) or counts.get(user_id, 0) >= MOST_PER_USER:
            continue
        counts[user_id] = counts.get(user_id, 0) + 1
        resuming |= dict.fromkeys(_resuming(root, tree), user_id)
    return Idle(roots=counts, resuming=resuming)


def waits_below(connection: Connection, run_id: str) -> str | None:
    """A subagent of the run, however deep, that waits for a person."""
    ids = [run_id]
    while found := _level(connection, ids):
        for one in found:
            if one.status == RunStatus.WAITING:
                return one.run_id
        ids = [one.run_id for one in found]
    return None


def has_subagents(connection: Connection, subject_id: str) -> bool:
    """Whether any in the subject has not ended."""
    return connection.scalar(_of_subject, {"subject": subject_id}) is not None


def _level(connection: Connection, ids: Sequence[str]) -> list[Below]:
    return [_read(row) for row in connection.execute(_below, {"ids": list(ids)})] if ids else []


def _read(row: Row[*tuple[Any, ...]]) -> Below:
    return Below(row.id, row.parent_run_id, row.user_id, RunStatus(row.status))


def _is_busy(run_id: str, tree: Mapping[str, Sequence[Below]], acting: set[str]) -> bool:
    below = tree.get(run_id, ())
    if not below or run_id in acting:
        return True
    return any(one.status == RunStatus.RUNNING and _is_busy(one.run_id, tree, acting) for one in below)


def _resuming(run_id: str, tree: Mapping[str, Sequence[Below]]) -> list[str]:
    found: list[str] = []
    for one in tree.get(run_id, ()):
        if one.status == RunStatus.QUEUED:
            found.append(one.run_id)
        found += _resuming(one.run_id, tree)
    return found
