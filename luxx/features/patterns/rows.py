"""Patterns in the database: which ones fit a request, the words by which they are found, and what the use by
a run changes.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Connection, Engine, and_, bindparam, case, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.features.patterns.matching import (
    ARCHIVED_AFTER,
    OFFERED,
    MatchedPattern,
    SimilarityParts,
    best,
    rarity,
    status_after,
)
from luxx.features.patterns.models import (
    FAILED,
    SUCCEEDED,
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

MOST_RANKED = 500
"""Patterns of any status that share the rarest words, of which the candidates are chosen."""

MOST_ROWS, LEAST_LOOKED_UP = 3_000, 2
"""Rows of words that one look-up reads: words that most patterns have say little."""

MOST_WORDS = 50
"""Different words of a request that are looked up, and those of a pattern that are stored."""

MOST_PATTERNS = 10_000
"""Patterns of a user that are not archived; beyond, those that were not used for longest are archived."""

LEARNED_FROM = (PatternStatus.DRAFT, PatternStatus.ACTIVE, PatternStatus.UNTRUSTED)
"""Patterns that a similar run counts for."""

_patterns, _words = table_of(PatternRow), table_of(PatternWordRow)
_is_unarchived = _patterns.c.status != PatternStatus.ARCHIVED.value
_count_usable = (
    select(func.count())
    .select_from(_patterns)
    .where(
        or_(
            and_(_patterns.c.user_id == bindparam("user"), _is_unarchived),
            and_(_patterns.c.tenant_id == bindparam("tenant"), _patterns.c.is_shared),
        )
    )
)
"""The patterns of a user and those shared in a tenant; null: in none."""

_encode = msgspec.json.Encoder().encode


class SimilarPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern that fits a request. `similarity`: 0 to 100."""

    id: str
    parts: SimilarityParts

    @property
    def similarity(self) -> float:
        return self.parts.total


def find_similar(
    connection: Connection,
    request: PatternSignature,
    user_id: int,
    tenant_id: int | None,
    statuses: Collection[PatternStatus],
    now: datetime,
) -> list[SimilarPattern]:
    """The patterns of the user and, if one is given, those shared in the tenant that fit the request, the
    best first."""
    words = request.words[:MOST_WORDS]
    if not words:
        return []
    owners, known = _owners(user_id, tenant_id), WORD_COUNTS.of(connection, user_id, tenant_id)
    rarities = {word: rarity(known.counts.get(word, 0), known.total) for word in words}
    weight = func.sum(case(rarities, value=_words.c.word))
    nearest = (
        select(_words.c.pattern_id, weight.label("weight"))
        .where(_words.c.owner.in_(owners), _words.c.word.in_(_looked_up(words, known)))
        .group_by(_words.c.pattern_id)
        .order_by(weight.desc(), _words.c.pattern_id)
        .limit(MOST_RANKED)
        .subquery()
    )
    rows = connection.execute(
        select(_patterns.c.id, _patterns.c.signature, _patterns.c.success_rate, _patterns.c.used_at)
        .join(nearest, nearest.c.pattern_id == _patterns.c.id)
        .where(_patterns.c.status.in_([*statuses]))
        .order_by(nearest.c.weight.desc(), _patterns.c.id)
        .limit(MOST_CANDIDATES)
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
    rarities |= {word: rarity(known.counts.get(word, 0), known.total) for word in others}
    return [SimilarPattern(id=found, parts=parts) for found, parts in best(request, matched, rarities, now)]


def own_of_kind(connection: Connection, request: PatternSignature, user_id: int, now: datetime) -> str | None:
    """The pattern of the user for requests of this kind, of any status but archived."""
    similar = find_similar(connection, request, user_id, None, LEARNED_FROM, now)
    return similar[0].id if similar and similar[0].similarity >= OFFERED else None


def _owners(user_id: int, tenant_id: int | None) -> list[str]:
    return [f"u{user_id}", *([] if tenant_id is None else [f"t{tenant_id}"])]


def _looked_up(words: Sequence[str], known: "_KnownWords") -> list[str]:
    """The rarest of these words: as many as bring `MOST_ROWS` rows, and at least `LEAST_LOOKED_UP`."""
    chosen, rows = list[str](), 0
    for word in sorted(words, key=lambda one: (known.counts.get(one, 0), one)):
        rows += known.counts.get(word, 0)
        if rows > MOST_ROWS and len(chosen) >= LEAST_LOOKED_UP:
            break
        chosen.append(word)
    return chosen


class _KnownWords(msgspec.Struct, frozen=True, kw_only=True):
    """How many of `total` patterns have each word, at a time of `time.monotonic`."""

    counts: Mapping[str, int]
    total: int
    read_at: float


class _WordCounts:
    """The counts of words of owners, which are read anew after a change by this process or `SECONDS`. They
    only weigh words, so those of a minute ago do."""

    SECONDS, MOST = 60.0, 1_000

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Engine, dict[tuple[int, int | None], _KnownWords]] = (
            WeakKeyDictionary()
        )

    def of(self, connection: Connection, user_id: int, tenant_id: int | None) -> _KnownWords:
        known = self._known.setdefault(connection.engine, {})
        now, key = time.monotonic(), (user_id, tenant_id)
        found = known.get(key)
        if found is None or found.read_at < now - self.SECONDS:
            found = self._read(connection, user_id, tenant_id, now)
            if len(known) >= self.MOST:
                known.clear()
            known[key] = found
        return found

    def forget(self, connection: Connection, user_id: int, tenant_id: int) -> None:
        """Forgets what a pattern of this user counts for, which they may share in the tenant."""
        known = self._known.get(connection.engine, {})
        for key in [one for one in list(known) if one[0] == user_id or one[1] == tenant_id]:
            known.pop(key, None)

    def _read(self, connection: Connection, user_id: int, tenant_id: int | None, now: float) -> _KnownWords:
        counts = Counter[str]()
        # By owner and word, as the index has them, so that the database sorts nothing.
        by_word = select(_words.c.owner, _words.c.word, func.count()).group_by(_words.c.owner, _words.c.word)
        for _, word, count in connection.execute(
            by_word.where(_words.c.owner.in_(_owners(user_id, tenant_id)))
        ):
            counts[word] += count
        total = connection.scalar(_count_usable, {"user": user_id, "tenant": tenant_id})
        return _KnownWords(counts=counts, total=total or 1, read_at=now)


WORD_COUNTS = _WordCounts()
"""For this process."""


def index_words(session: Session, row: PatternRow) -> None:
    """Makes the words of a pattern those of its signature; none of an archived one."""
    connection = session.connection()
    WORD_COUNTS.forget(connection, row.user_id, row.tenant_id)
    connection.execute(delete(_words).where(_words.c.pattern_id == row.id))
    words = read_signature(row.signature).words[:MOST_WORDS]
    if words and row.status != PatternStatus.ARCHIVED.value:
        owner = f"t{row.tenant_id}" if row.is_shared else f"u{row.user_id}"
        values = [{"pattern_id": row.id, "word": word[:WORD_LENGTH], "owner": owner} for word in words]
        connection.execute(insert(_words), values)


def record_use(
    session: Session, pattern_id: str, run_id: str, kind: UseKind, *, is_success: bool,
    now: datetime, duration_ms: int | None = None, similarity: float | None = None,
) -> bool:  # fmt: skip
    """Counts a run that used a pattern or that it is learned from, or an opinion, once; another opinion of
    the same user takes the place of the one before. False: nothing changed."""
    row = session.get(PatternRow, pattern_id, with_for_update=True)
    if row is None:
        return False
    outcome = SUCCEEDED if is_success else FAILED
    values = {
        "pattern_id": pattern_id, "run_id": run_id, "kind": kind.value, "similarity": similarity,
        "outcome": outcome, "used_at": now,
    }  # fmt: skip
    # The locked row of the pattern keeps another process from counting the run at the same time.
    known = session.get(PatternUseRow, (pattern_id, run_id))
    if known is not None and (kind != UseKind.OPINION or known.outcome == outcome):
        return False
    if known is None:
        session.add(PatternUseRow(**values))
        row.usage_count += 1
    else:
        _take_back(row, known)
        known.outcome, known.used_at = outcome, now
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
    apply_rules(session, row, now)
    return True


def _take_back(row: PatternRow, use: PatternUseRow) -> None:
    """Makes the counts those without this use."""
    if use.outcome == SUCCEEDED:
        row.success_count -= 1
    else:
        row.failure_count -= 1
        row.failures_in_row = max(0, row.failures_in_row - 1)


def learn_from(
    session: Session, user_id: int, signature: PatternSignature, run_id: str, duration_ms: int, now: datetime
) -> str | None:
    """Counts a successful run for the pattern of its user that is similar enough. Returns its id, or None."""
    pattern_id = own_of_kind(session.connection(), signature, user_id, now)
    if pattern_id is not None:
        record_use(
            session, pattern_id, run_id, UseKind.LEARNED, is_success=True, duration_ms=duration_ms, now=now
        )
    return pattern_id


def apply_rules(session: Session, row: PatternRow, now: datetime) -> None:
    """Gives the pattern the status that its counts and the time since its last use ask for."""
    status = status_after(
        PatternStatus(row.status),
        success_count=row.success_count,
        failure_count=row.failure_count,
        failures_in_row=row.failures_in_row,
        unused=now - row.used_at,
    )
    set_status(session, row, status, now)


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


def archive_unused(session: Session, now: datetime) -> None:
    """Archives patterns that nothing used for ARCHIVED_AFTER, some of them at a time."""
    aged = PatternRow.status.in_([PatternStatus.DRAFT.value, PatternStatus.ACTIVE.value])
    old = select(PatternRow).where(PatternRow.used_at <= now - ARCHIVED_AFTER, aged)
    for row in session.scalars(old.order_by(PatternRow.used_at).limit(500)).all():
        apply_rules(session, row, now)


def make_room(session: Session, user_id: int, now: datetime) -> None:
    """Archives the pattern of a user that was not used for longest, if there are as many as possible."""
    own = PatternRow.user_id == user_id, _is_unarchived
    count = session.scalar(select(func.count()).select_from(PatternRow).where(*own)) or 0
    if count < MOST_PATTERNS:
        return
    oldest = select(PatternRow).where(*own).order_by(PatternRow.used_at).limit(count - MOST_PATTERNS + 1)
    for row in session.scalars(oldest):
        set_status(session, row, PatternStatus.ARCHIVED, now)
