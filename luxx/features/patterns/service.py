"""Patterns as people see and change them; see `models.py`.

A user sees their own patterns and those shared in the tenant. Only an ADMIN shares. Not here: how they are
learned (`learning.py`) and which one a run uses (`reuse.py`).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.owned import Shared, SharedService, given_fields, view_of
from luxx.errors import Conflict, InvalidInput
from luxx.features.patterns.matching import SimilarityParts
from luxx.features.patterns.models import (
    NAME_LENGTH,
    SUCCEEDED,
    PatternChangeRow,
    PatternRow,
    PatternUseRow,
    UseKind,
)
from luxx.features.patterns.rows import (
    find_similar,
    index_words,
    make_room,
    note_change,
    record_use,
)
from luxx.features.patterns.slots import signature_of, signature_text
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.strict_json import IN_LINE, LINE
from luxx.runs.models import RunRow
from luxx.wire.patterns import PatternScope, PatternStatus

MAX_STEPS, MAX_STEP_BYTES = 20, 4 * 1024
MAX_TEXT = 1_000
"""Characters of a step's text."""

MAX_POINTS, MAX_CHAINS = 10, 10
"""Decision points of a step, and orders of tools of a pattern."""

MAX_GOAL = 20_000
"""Characters of a request that are read, from its beginning."""

MOST_SOURCES, MOST_CHANGES = 100, 100

PatternName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH, pattern=LINE, description=IN_LINE)]
Description = Annotated[str, Meta(max_length=2_000)]
StepText = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
ToolName = Annotated[str, Meta(min_length=1, max_length=200)]
ToolChain = Annotated[list[ToolName], Meta(min_length=1, max_length=MAX_STEPS)]
Goal = Annotated[str, Meta(min_length=1, max_length=MAX_GOAL)]


class PatternStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of a pattern. `decision_points`: what a person decided in it."""

    description: StepText
    tools: Annotated[list[ToolName], Meta(max_length=MAX_STEPS)] = []
    expected_output: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    decision_points: Annotated[list[StepText], Meta(max_length=MAX_POINTS)] = []


PatternSteps = Annotated[list[PatternStep], Meta(min_length=1, max_length=MAX_STEPS)]
ToolChains = Annotated[list[ToolChain], Meta(max_length=MAX_CHAINS)]


class NewPattern(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`goal`: a request that the pattern is for. Only its general words and the kinds of its names, numbers
    and files are stored, as the signature."""

    name: PatternName
    description: Description = ""
    goal: Goal
    steps: PatternSteps
    tool_chains: ToolChains = []
    is_shared: bool = False


class PatternChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change. `status`: a person can turn a pattern on (`active`) or off (`draft`,
    `archived`)."""

    name: PatternName | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    goal: Goal | UnsetType = UNSET
    steps: PatternSteps | UnsetType = UNSET
    tool_chains: ToolChains | UnsetType = UNSET
    status: PatternStatus | UnsetType = UNSET
    is_shared: bool | UnsetType = UNSET


class PatternView(Struct, frozen=True, kw_only=True):
    """A pattern as the API shows it. `success_rate` is from 0 to 1. `sources`: the runs of its owner that it
    was learned from, the newest first, for the owner only. `useful`: what the caller said of it; null:
    nothing. Lists have neither of these two."""

    id: str
    user_id: int
    name: str
    description: str
    signature: str
    status: PatternStatus
    scope: PatternScope
    steps: list[PatternStep]
    tool_chains: list[list[str]]
    success_rate: float
    usage_count: int
    success_count: int
    failure_count: int
    avg_execution_time_ms: int
    sources: list[str] = []
    useful: bool | None = None
    is_own: bool
    is_shared: bool
    used_at: datetime
    created_at: datetime
    updated_at: datetime


class PatternChange(Struct, frozen=True, kw_only=True):
    """A line of the history. `by`: who changed it; null: a rule. `before`: the fields that changed, as they
    were."""

    at: datetime
    by: str | None
    before: dict[str, Any]


class PatternMatch(Struct, frozen=True, kw_only=True):
    """A pattern that fits a text. `similarity`: 0 to 100."""

    id: str
    name: str
    similarity: float
    parts: SimilarityParts


class PatternMatches(Struct, frozen=True, kw_only=True):
    """The best first."""

    matches: list[PatternMatch]


steps_of = msgspec.json.Decoder(list[PatternStep]).decode
chains_of = msgspec.json.Decoder(list[list[str]]).decode
_before = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


def check_steps(steps: Sequence[PatternStep]) -> None:
    """Raises InvalidInput for a step that is too large."""
    for number, step in enumerate(steps):
        if len(_encode(step)) > MAX_STEP_BYTES:
            problem = f"may have at most {MAX_STEP_BYTES // 1024} KB; shorten its texts"
            raise InvalidInput(problem, field=f"$.steps[{number}]")


def _check(values: NewPattern | PatternChanges) -> None:
    if values.steps is not UNSET:
        check_steps(values.steps)
    if values.goal is not UNSET and not signature_of(values.goal).words:
        raise InvalidInput(
            "has no general word by which a request could be found; describe the kind of task, such as "
            "“write a report of the sales”",
            field="$.goal",
        )
    if isinstance(values, PatternChanges) and values.status == PatternStatus.UNTRUSTED:
        raise InvalidInput("only failures make a pattern untrusted", field="$.status")


def _columns(values: NewPattern | PatternChanges) -> dict[str, Any]:
    columns = given_fields(values)
    goal = columns.pop("goal", None)
    if goal is not None:
        columns["signature"] = signature_text(signature_of(goal))
    for name in ("steps", "tool_chains"):
        if name in columns:
            columns[name] = _encode(columns[name]).decode()
    if "status" in columns:
        columns["status"] = columns["status"].value
    return columns


def _before_transfer(session: Session, row: PatternRow, successor_id: int | None) -> None:
    """A pattern that is shared no more is found by its owner only."""
    if successor_id is None:
        row.is_shared = False
        index_words(session, row)


PATTERNS = Shared(
    row=PatternRow,
    before_transfer=_before_transfer,
    noun="pattern",
    new=NewPattern,
    check=_check,
    columns=_columns,
    searched=(PatternRow.name, PatternRow.description),
)


class PatternService(SharedService[PatternRow, PatternView]):
    """One per process."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, PATTERNS, _view)

    async def list_by_status(
        self, caller: Caller, *, part: str | None, status: PatternStatus | None, page: int, page_size: int
    ) -> tuple[list[PatternView], int]:
        """The caller's patterns and those shared in the tenant, newest first, and their number."""

        def work(session: Session) -> tuple[list[PatternView], int]:
            conditions = [PATTERNS.has(session, part)] if part else []
            if status is not None:
                conditions.append(PatternRow.status == status.value)
            rows, total = PATTERNS.page(session, caller, *conditions, page=page, page_size=page_size)
            return [_view(row, caller) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, row_id: str) -> PatternView:
        """The pattern with its sources. Raises NotFound."""

        def work(session: Session) -> PatternView:
            row = PATTERNS.visible(session, caller, row_id)
            return _whole_view(session, row, caller)

        return await self._store.read(work)

    async def create(self, caller: Caller, new: NewPattern) -> PatternView:
        """An active pattern that a person wrote. Raises InvalidInput, and NotAllowed for a user who may not
        share."""
        PATTERNS.check(new)

        def work(session: Session) -> PatternView:
            PATTERNS.check_sharing(session, caller, new.is_shared)
            row = add_pattern(session, caller, new, utc_now(), status=PatternStatus.ACTIVE.value)
            return _view(row, caller)

        return await self._store.write(work)

    async def update(self, caller: Caller, row_id: str, changes: PatternChanges) -> PatternView:
        """Sets the given fields. Raises InvalidInput, NotFound, and NotAllowed for a pattern of somebody
        else, of which an ADMIN may only end the sharing."""
        PATTERNS.check(changes)

        def work(session: Session) -> PatternView:
            row = PATTERNS.to_change(session, caller, row_id, changes)
            columns = _columns(changes)
            before = {name: getattr(row, name) for name, new in columns.items() if getattr(row, name) != new}
            if before:
                note_change(session, row, _readable(before), caller, utc_now())
                PATTERNS.set(session, row, changes)
            if "status" in before:
                row.failures_in_row = 0
                row.used_at = utc_now()
            session.flush()
            index_words(session, row)
            return _whole_view(session, row, caller)

        return await self._store.write(work)

    async def share(self, caller: Caller, pattern_id: str) -> PatternView:
        """Gives a pattern of the caller, an ADMIN, to everybody in the tenant. Raises NotFound, NotAllowed,
        and Conflict for one that is not active."""

        def work(session: Session) -> None:
            row = PATTERNS.visible(session, caller, pattern_id)
            if row.status != PatternStatus.ACTIVE.value:
                raise Conflict(
                    f"only an active pattern can be shared; this one is {row.status}", kind="pattern_inactive"
                )

        await self._store.read(work)
        return await self.update(caller, pattern_id, PatternChanges(is_shared=True))

    async def history(self, caller: Caller, pattern_id: str) -> list[PatternChange]:
        """The newest MOST_CHANGES changes, the newest first. Raises NotFound."""

        def work(session: Session) -> list[PatternChange]:
            row = PATTERNS.visible(session, caller, pattern_id)
            newest = (
                select(PatternChangeRow)
                .where(PatternChangeRow.pattern_id == row.id)
                .order_by(PatternChangeRow.id.desc())
                .limit(MOST_CHANGES)
            )
            return [
                PatternChange(at=one.changed_at, by=one.user_name, before=_before.decode(one.before))
                for one in session.scalars(newest)
            ]

        return await self._store.read(work)

    async def feedback(self, caller: Caller, pattern_id: str, *, is_useful: bool) -> None:
        """What the caller thinks of a pattern, in place of what they said before. A useless one of their own
        is deleted; one that another shares counts a failure. Raises NotFound."""

        def work(session: Session) -> None:
            row = PATTERNS.visible(session, caller, pattern_id, is_locked=True)
            now = utc_now()
            if not is_useful and row.user_id == caller.user_id:
                session.delete(row)
                return
            record_use(session, row.id, _opinion_of(caller), UseKind.OPINION, is_success=is_useful, now=now)

        await self._store.write(work)

    async def match(self, caller: Caller, text: str) -> PatternMatches:
        """The active patterns that fit a text, as a run is given them."""
        request = signature_of(text)

        def work(session: Session) -> PatternMatches:
            found = find_similar(
                session.connection(), request, caller.user_id, caller.tenant_id,
                [PatternStatus.ACTIVE], utc_now(),
            )  # fmt: skip
            names = select(PatternRow.id, PatternRow.name).where(PatternRow.id.in_([one.id for one in found]))
            by_id = {row.id: row.name for row in session.execute(names)}
            matches = [
                PatternMatch(
                    id=one.id,
                    name=by_id[one.id],
                    similarity=round(one.similarity, 1),
                    parts=one.parts.rounded(),
                )
                for one in found
            ]
            return PatternMatches(matches=matches)

        return await self._store.read(work)


def add_pattern(
    session: Session, caller: Caller, new: NewPattern, now: datetime, **columns: Any
) -> PatternRow:
    """Adds a pattern of the caller; of a user that has as many as possible, the one that was not used for
    longest is archived."""
    make_room(session, caller.user_id, now)
    row = PATTERNS.add(session, caller, new, id=new_id(), used_at=now, **columns)
    index_words(session, row)
    return row


def _readable(before: dict[str, Any]) -> dict[str, Any]:
    """Columns as the API shows them."""
    kept = {**before}
    for name, decoder in (("steps", steps_of), ("tool_chains", chains_of)):
        if name in kept:
            kept[name] = decoder(kept[name])
    return kept


def _sources(session: Session, row: PatternRow, caller: Caller) -> list[str]:
    if row.user_id != caller.user_id:
        return []
    newest = (
        select(PatternUseRow.run_id)
        .join(RunRow, RunRow.id == PatternUseRow.run_id)  # Not those that were deleted with their subject.
        .where(
            PatternUseRow.pattern_id == row.id,
            PatternUseRow.kind == UseKind.LEARNED.value,
        )
        .order_by(PatternUseRow.used_at.desc())
        .limit(MOST_SOURCES)
    )
    return list(session.scalars(newest))


def _opinion_of(caller: Caller) -> str:
    """The `run_id` of the row with the caller's opinion."""
    return f"user-{caller.user_id}"


def _whole_view(session: Session, row: PatternRow, caller: Caller) -> PatternView:
    opinion = session.get(PatternUseRow, (row.id, _opinion_of(caller)))
    useful = None if opinion is None else opinion.outcome == SUCCEEDED
    return msgspec.structs.replace(_view(row, caller), sources=_sources(session, row, caller), useful=useful)


def _view(row: PatternRow, caller: Caller) -> PatternView:
    return view_of(
        PatternView,
        row,
        caller,
        status=PatternStatus(row.status),
        scope=PatternScope.TENANT if row.is_shared else PatternScope.USER,
        steps=steps_of(row.steps),
        tool_chains=chains_of(row.tool_chains),
        sources=[],
    )
