"""How similar a request is to a learned pattern, and which status a pattern has after a use. No database
access and no clock: callers give counts and times.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from math import log

import msgspec
from msgspec.structs import asdict

from luxx.features.patterns.slots import PatternSignature
from luxx.wire.patterns import PatternStatus

OFFERED = 80
"""From this similarity on, a question offers the pattern."""

REFERENCED = 50
"""From this similarity on, the prompt contains the pattern as a reference."""

SIGNATURE, SLOTS, RECENCY, SUCCESS = 50, 20, 15, 15
"""The most points of each part of a similarity."""

LEAST_SHARE = 0.3
"""A smaller share of rare words is no match: without a common subject, being recent gives no points."""

HALF_LIFE = timedelta(days=30)
"""Monthly work is the longest that is common, and keeps half of the points between two uses. So an equal
request after a month still has more than 90 points."""

UNRARE = 0.25
"""The rarity of a word that all patterns have. It is not zero, because all patterns of one person may be
about one subject."""

_UNSEEN = 20
"""So many further patterns without the word are assumed, because a few patterns say little of its rarity."""

STALE = timedelta(days=90)
STALE_FACTOR = 0.8
ARCHIVED_AFTER = timedelta(days=180)
ACTIVE_SUCCESSES = 3
ACTIVE_RATE = 0.6
DRAFT_RATE = 0.4
MOST_FAILURES = 5
"""More failures than that in a row make a pattern untrusted."""


class MatchedPattern(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared of a pattern. `success_rate`: 0 to 1. `used_at`: the last use, with a time zone."""

    id: str
    signature: PatternSignature
    success_rate: float
    used_at: datetime


class SimilarityParts(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a similarity: of the words at most 50, of the kinds of slots 20, of the age and of the
    success 15 each."""

    signature: float
    slots: float
    recency: float
    success: float

    @property
    def total(self) -> float:
        """The similarity: 0 to 100."""
        return self.signature + self.slots + self.recency + self.success

    def rounded(self) -> "SimilarityParts":
        """The same with one decimal place, for people."""
        return SimilarityParts(**{name: round(points, 1) for name, points in asdict(self).items()})


def rarity(count: int, total: int) -> float:
    """The weight of a word that `count` of `total` patterns have: from 1 (none has it) down to `UNRARE`."""
    return max(UNRARE, 1 - log(1 + count) / log(2 + total + _UNSEEN))


def similarity(
    request: PatternSignature, pattern: MatchedPattern, rarities: Mapping[str, float], now: datetime
) -> SimilarityParts | None:
    """The points of a pattern for a request; None: they have too little in common.

    `rarities` has the `rarity` of words of the caller's patterns; words that are not in it count as 1, as
    those that no pattern has.
    """
    share = _share(request.words, pattern.signature.words, rarities)
    if share < LEAST_SHARE:
        return None
    age = max(now - pattern.used_at, timedelta())
    success = pattern.success_rate * (STALE_FACTOR if age >= STALE else 1)
    return SimilarityParts(
        signature=SIGNATURE * share,
        slots=SLOTS * _share_of_kinds(request.slots, pattern.signature.slots),
        recency=RECENCY * 0.5 ** (age / HALF_LIFE),
        success=SUCCESS * min(max(success, 0), 1),
    )


def best(
    request: PatternSignature,
    patterns: Iterable[MatchedPattern],
    rarities: Mapping[str, float],
    now: datetime,
) -> list[tuple[str, SimilarityParts]]:
    """The ids of patterns that have enough in common with a request, the most similar first, then by id."""
    parts = ((pattern.id, similarity(request, pattern, rarities, now)) for pattern in patterns)
    matches = [(id_, found) for id_, found in parts if found is not None]
    return sorted(matches, key=lambda match: (-match[1].total, match[0]))


def status_after(
    status: PatternStatus,
    *,
    success_count: int,
    failure_count: int,
    failures_in_row: int,
    unused: timedelta = timedelta(),
) -> PatternStatus:
    """The status of a pattern with these counts that was not used for some time.

    Too many failures in a row come first, then the archive, then the share of successes. An untrusted pattern
    becomes active only, and only by successes; an archived one that is used again is judged by its counts.
    """
    if failures_in_row > MOST_FAILURES:
        return PatternStatus.UNTRUSTED
    if unused >= ARCHIVED_AFTER and status is not PatternStatus.UNTRUSTED:
        return PatternStatus.ARCHIVED
    uses = success_count + failure_count
    rate = success_count / uses if uses else 0.0
    if success_count >= ACTIVE_SUCCESSES and rate >= ACTIVE_RATE:
        return PatternStatus.ACTIVE
    if status is PatternStatus.UNTRUSTED:
        return status
    if status is PatternStatus.ACTIVE and rate >= DRAFT_RATE:
        return status
    return PatternStatus.DRAFT


def _share(request: Collection[str], pattern: Collection[str], rarities: Mapping[str, float]) -> float:
    """The rarity of the words of both among that of the words of either.

    Words that only one of them has count too. Otherwise a pattern of one word would fit every request with
    that word, and a long request every pattern.
    """
    words, others = set(request), set(pattern)
    either = sum(rarities.get(word, 1.0) for word in sorted(words | others))
    return sum(rarities.get(word, 1.0) for word in sorted(words & others)) / either if either else 0.0


def _share_of_kinds(request: Collection[str], pattern: Collection[str]) -> float:
    """The kinds of slots of both among those of either; 1 if neither has any."""
    kinds, others = set(request), set(pattern)
    return len(kinds & others) / len(kinds | others) if kinds or others else 1.0
