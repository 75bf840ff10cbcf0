"""Which facts fit a text best, by the words that they share: the rarer a word is among the facts that may be
read, the more it counts.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import log1p
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from luxx.features.memory.lexical import find_facts
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.views import facts, was_known, was_true
from luxx.infra.clock import utc_now
from luxx.infra.store.search_words import words_of

MAX_WORDS = 16
"""Words of a text that are searched; the longest are the rarest."""

MOST_OF_WORD = 200
SHORTEST_WORD = 3
"""Characters of a word in Latin script."""

LEAST_SHARE = 0.34
"""Of the best score, what a fact needs: others share only common words with the text."""

PINNED, UNTRUSTED = 1.1, 0.9
KEYWORD = "keyword"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that fits. `arms`: the kinds of search that found it; `reason`: a sentence for people."""

    id: int
    uid: str
    text: str
    category: str
    trusted: bool
    score: float
    arms: list[str]
    reason: str


def best_facts(
    connection: Connection, scopes: Scopes, text: str, limit: int, *conditions: ColumnElement[bool]
) -> list[Found]:
    """The facts in these scopes that fit a text, best first. Without `conditions`: of what is known and true
    now."""
    ids = scopes.ids
    if not ids:
        return []
    conditions = conditions or (was_known(None), was_true(utc_now()))
    total = connection.scalar(select(func.count()).select_from(facts).where(facts.c.scope_id.in_(ids))) or 0
    scores: defaultdict[int, float] = defaultdict(float)
    shared: defaultdict[int, list[str]] = defaultdict(list)
    for word in _words(text):
        query = find_facts(connection, ids, word, *conditions).order_by(facts.c.id.desc()).limit(MOST_OF_WORD)
        found = connection.scalars(query).all()
        for id_ in found:
            scores[id_] += log1p(total / len(found))
            shared[id_].append(word)
    return _read(connection, scores, shared, limit)


def _words(text: str) -> list[str]:
    words = dict.fromkeys(words_of(text))
    long = [word for word in words if len(word) >= SHORTEST_WORD or not word.isascii()]
    return sorted(long, key=len, reverse=True)[:MAX_WORDS]


def _read(
    connection: Connection, scores: dict[int, float], shared: dict[int, list[str]], limit: int
) -> list[Found]:
    best = sorted(scores, key=lambda id_: (scores[id_], id_), reverse=True)[: 2 * limit]
    rows: Sequence[Any] = connection.execute(select(*facts.c).where(facts.c.id.in_(best))).all()
    found = [
        Found(
            id=row.id,
            uid=row.uid,
            text=row.text,
            category=row.category,
            trusted=row.trusted,
            score=round(
                scores[row.id] * (PINNED if row.pinned else 1) * (1 if row.trusted else UNTRUSTED), 4
            ),
            arms=[KEYWORD],
            reason=f"It shares words with the message: {', '.join(shared[row.id][:5])}.",
        )
        for row in rows
    ]
    found.sort(key=lambda one: (one.score, one.id), reverse=True)
    return [one for one in found if one.score >= LEAST_SHARE * found[0].score][:limit]
