"""Patterns in the database: which ones fit a request, the words by which they are found, and what the use by
a run changes.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, case, delete, func, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.features.patterns.matching import (
    ARCHIVED_AFTER,
    MatchedPattern,
    SimilarityParts,
    best,
    rarity,
    status_after,
)
from luxx.features.patterns.models import (
    OWNER_LENGTH,
    WORD_LENGTH,
    PatternChangeRow,
    PatternRow,
    PatternUseRow,
    PatternWordRow,
    UseKind,
)
from luxx.features.patterns.slots import PatternSignature, read_signature
from luxx.infra.store.tables import table_of
from luxx.wire.patterns import PatternStatus

MOST_CANDIDATES = 50
"""Patterns with the rarest words of a request that are scored."""

MOST_WORDS = 50
"""Different words of a request that are looked up, and those of a pattern that are stored."""

MOST_PATTERNS = 10_000
"""Patterns of a user that are not archived; beyond, those that were not used for longest are archived."""

_patterns, _words = table_of(PatternRow), table_of(PatternWordRow)
_encode = msgspec.json.Encoder().encode

assert len(f"u{2**63}") - 1 <= OWNER_LENGTH


class SimilarPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern that fits a request. `similarity`: 0 to 100."""

    id: str
    parts: SimilarityParts

    @property
    def similarity(self) -> float:
        return self.parts.total


def owners_of(caller: Caller, *, is_shared_too: bool = True) -> list[str]:
    """Whose patterns the caller is given."""
    return [f"u{caller.user_id}", *([f"t{caller.tenant_id}"] if is_shared_too else [])]


def find_similar(
    connection: Connection,
    owners: Sequence[str],
    request: PatternSignature,
    statuses: Collection[PatternStatus],
    now: datetime,
) -> list[SimilarPattern]:
    """The patterns of these owners that fit the request, the best first."""
    words = request.words[:MOST_WORDS]
    if not words:
        return []
    of_owner = _words.c.owner.in_(owners)
    counts = _counts(connection, owners, words)
    if not counts:
        return []
    total = connection.scalar(select(func.count()).select_from(_patterns).where(_owned_by(owners))) or 1
    rarities = {word: rarity(counts.get(word, 0), total) for word in words}
    weight = func.sum(case({word: rarities[word] for word in counts}, value=_words.c.word))
    candidates = (
        select(_words.c.pattern_id)
        .join(_patterns, _patterns.c.id == _words.c.pattern_id)
        .where(of_owner, _words.c.word.in_(list(counts)), _patterns.c.status.in_([*statuses]))
        .group_by(_words.c.pattern_id)
        .order_by(weight.desc(), _words.c.pattern_id)
        .limit(MOST_CANDIDATES)
        .subquery()
    )
    rows = connection.execute(
        select(_patterns.c.id, _patterns.c.signature, _patterns.c.success_rate, _patterns.c.used_at).where(
            _patterns.c.id.in_(select(candidates.c.pattern_id))
        )
    ).all()
    matched = [
        MatchedPattern(
            id=row.id,
            signature=read_signature(row.signature),
            success_rate=row.success_rate,
            used_at=row.used_at,
        )
        for row in rows
    ]
    others = {word for one in matched for word in one.signature.words} - set(rarities)
    more = _counts(connection, owners, others)
    rarities |= {word: rarity(more.get(word, 0), total) for word in others}
    return [SimilarPattern(id=found, parts=parts) for found, parts in best(request, matched, rarities, now)]


def _counts(connection: Connection, owners: Sequence[str], words: Collection[str]) -> dict[str, int]:
    """How many patterns of these owners have each of these words, without those that none has."""
    if not words:
        return {}
    counted = (
        select(_words.c.word, func.count())
        .where(_words.c.owner.in_(owners), _words.c.word.in_(words))
        .group_by(_words.c.word)
    )
    return {word: count for word, count in connection.execute(counted)}  # noqa: C416


def _owned_by(owners: Sequence[str]) -> Any:
    users = [int(owner[1:]) for owner in owners if owner[0] == "u"]
    tenants = [int(owner[1:]) for owner in owners if owner[0] == "t"]
    own = and_(_patterns.c.user_id.in_(users), _patterns.c.status != PatternStatus.ARCHIVED.value)
    if not tenants:
        return own
    shared = and_(_patterns.c.tenant_id.in_(tenants), _patterns.c.is_shared)
    return own | shared


def index_words(session: Session, row: PatternRow) -> None:
    """Makes the words of a pattern those of its signature; none of an archived one."""
    connection = session.connection()
    connection.execute(delete(_words).where(_words.c.pattern_id == row.id))
    words = read_signature(row.signature).words[:MOST_WORDS]
    if words and row.status != PatternStatus.ARCHIVED.value:
        owner = f"t{row.tenant_id}" if row.is_shared else f"u{row.user_id}"
        values = [{"pattern_id": row.id, "word": word[:WORD_LENGTH], "owner": owner} for word in words]
        connection.execute(insert(_words), values)


def record_use(
    session: Session, pattern_id: str, run_id: str, kind: UseKind, *, is_success: bool,
    now: datetime, duration_ms: int | None = None, similarity: float | None = None,
) -> None:  # fmt: skip
    """Counts a run that used a pattern or that it is learned from, or an opinion, once."""
    row = session.get(PatternRow, pattern_id, with_for_update=True)
    if row is None:
        return
    outcome = "success" if is_success else "failure"
    values = {
        "pattern_id": pattern_id, "run_id": run_id, "kind": kind.value, "similarity": similarity,
        "outcome": outcome, "used_at": now,
    }  # fmt: skip
    # The locked row of the pattern keeps another process from counting the run at the same time.
    if session.get(PatternUseRow, (pattern_id, run_id)) is not None:
        return
    session.add(PatternUseRow(**values))
    row.usage_count += 1
    if is_success:
        row.success_count += 1
        if duration_ms is not None:
            row.avg_execution_time_ms += round((duration_ms - row.avg_execution_time_ms) / row.success_count)
        row.failures_in_row = 0
    else:
        row.failure_count += 1
        row.failures_in_row += 1
    row.success_rate = row.success_count / row.usage_count
    row.used_at = row.updated_at = now
    session.flush()
    set_status(session, row, _next_status(row), now)


def _next_status(row: PatternRow) -> PatternStatus:
    return status_after(
        PatternStatus(row.status),
        success_count=row.success_count,
        failure_count=row.failure_count,
        failures_in_row=row.failures_in_row,
    )


def set_status(session: Session, row: PatternRow, status: PatternStatus, now: datetime) -> None:
    """Sets the status by a rule, with a line of the history."""
    if row.status == status.value:
        return
    note_change(session, row, {"status": row.status}, None, now)
    was_archived, row.status = row.status == PatternStatus.ARCHIVED.value, status.value
    session.flush()
    if was_archived or status == PatternStatus.ARCHIVED:
        index_words(session, row)


def note_change(
    session: Session, row: PatternRow, before: dict[str, Any], caller: Caller | None, now: datetime
) -> None:
    """A line of the history of a pattern."""
    session.add(
        PatternChangeRow(
            pattern_id=row.id,
            user_id=None if caller is None else caller.user_id,
            user_name=None if caller is None else caller.username,
            before=_encode(before).decode(),
            changed_at=now,
        )
    )


def archive_unused(session: Session, now: datetime) -> int:
    """Archives patterns that nothing used for ARCHIVED_AFTER, and those of a user that are too many. Returns
    how many."""
    old = select(PatternRow).where(
        PatternRow.used_at < now - ARCHIVED_AFTER, PatternRow.status != PatternStatus.ARCHIVED.value
    )
    rows = session.scalars(old.order_by(PatternRow.used_at).limit(500)).all()
    for row in rows:
        set_status(session, row, PatternStatus.ARCHIVED, now)
    return len(rows)


def make_room(session: Session, user_id: int, now: datetime) -> None:
    """Archives the pattern of a user that was not used for longest, if there are as many as possible."""
    own = PatternRow.user_id == user_id, PatternRow.status != PatternStatus.ARCHIVED.value
    count = session.scalar(select(func.count()).select_from(PatternRow).where(*own)) or 0
    if count < MOST_PATTERNS:
        return
    oldest = select(PatternRow).where(*own).order_by(PatternRow.used_at).limit(count - MOST_PATTERNS + 1)
    for row in session.scalars(oldest):
        set_status(session, row, PatternStatus.ARCHIVED, now)
