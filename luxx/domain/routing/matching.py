"""Matches the text of a request with skills and agents: BM25 over their names, descriptions and triggers, a
threshold, and a guard for questions that only ask what a word means. Pure.

Of 65 requests with a target in `tests/routing/queries.json` the threshold finds 37, and none of the other 36
activates anything. Requests that only imply a skill stay the model's decision.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from luxx.infra.store.search_words import (
    FUNCTION_WORDS,
    UNSPACED_PATTERN,
    composed,
    fold,
    stems_of,
    words_of,
)

MAX_TRIGGERS, MAX_PATTERN = 50, 200
LEAST_WEIGHT, MAX_WEIGHT = 0.1, 10
MOST_RANKED = 10
"""Items of a kind that are named although the text does not ask for them."""

K1, B = 1.2, 0.75
"""The usual parameters of BM25: how soon repeated words stop counting, and how much a long text is damped."""

THRESHOLD = 2.1
"""In units of the score of a word that only one item has: two such words are needed. Measured for 6 to 20
items: none of the unrelated requests passes."""

MATCHED_AT_EACH_END = 500
"""Characters of a longer text that are matched, at its beginning and at its end. Pasted documents contain
words of many items."""

_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；\n])")
_AND = re.compile(r"\band\b|\balso\b|另外|还有", re.IGNORECASE)
_DEFINITION = re.compile(
    r"\bwhat(?:['’]s| is| are) an? |^\W*what(?:['’]s| is| are) (?:the )?[^\s?]+ ?\?*\s*$"
    r"|\bstands? for\b|\bdifference\b|什么是|是什么",
    re.IGNORECASE,
)
_EXCLUDED = re.compile(
    r"(?:(?:(?<![^\n.,;:!?])|\b(?:please|but|and)\b)\s*(?:do not|don['’]t|never)\b"
    r"(?! (?:forget|hesitate|worry|mind|you)\b)"
    r"|\b(?:no need to|instead of|rather than)\b"
    r"|(?:不要|不用|不必|不需要|请勿|切勿|(?<![^\s，。；：！？请])别)(?![忘的人名]))"
    r"[^,.;:!?\n，。；：！？]*?(?=\b(?:but|only|just)\b|但|只|$|[,.;:!?\n，。；：！？])",
    re.IGNORECASE,
)
"""What a request excludes, up to the end of the clause: "Do not deploy, only review"."""


class TriggerType(StrEnum):
    """`keyword`: only where a whole trigger phrase occurs; `semantic`: by name and description;
    `hybrid`: by all of them."""

    KEYWORD = "keyword"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Words that ask for an item. `weight` multiplies how often they count."""

    pattern: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)]
    weight: Annotated[float, Meta(ge=LEAST_WEIGHT, le=MAX_WEIGHT)] = 1.0


TriggerPatterns = Annotated[list[Trigger], Meta(max_length=MAX_TRIGGERS)]


class RoutedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A skill or an agent as requests are matched with it. `id`: for the caller only. `uses`: of an agent, by
    the caller's tenant."""

    kind: Literal["skill", "agent"]
    name: str
    description: str
    id: str | None = None
    scope: str = "system"
    trigger_type: TriggerType = TriggerType.HYBRID
    triggers: tuple[Trigger, ...] = ()
    uses: int = 0


class RoutingMatch(msgspec.Struct, frozen=True, kw_only=True):
    """An item that shares words with a text. `reasons`: the trigger phrases that occur in the text, and the
    words that it shares with the item, as sentences."""

    item: RoutedItem
    score: float
    reasons: tuple[str, ...]


class RoutingMatches(msgspec.Struct, frozen=True, kw_only=True):
    """Items that share words with a text, the best first: all that reach `threshold`, so are asked for, and
    of each kind at least the best MOST_RANKED. `is_definition`: the text asks what a word means, so none is.
    """

    ranked: tuple[RoutingMatch, ...]
    threshold: float
    is_definition: bool = False

    @property
    def above(self) -> tuple[RoutingMatch, ...]:
        return tuple(match for match in self.ranked if match.score >= self.threshold)


class Router:
    """The index of the items that one caller may use. Immutable, so threads share it."""

    def __init__(self, items: Sequence[RoutedItem]) -> None:
        self._items = tuple(items)
        self._phrases = [_phrases(item) for item in items]
        self._stems = counts = [_counts(item) for item in items]
        lengths = [sum(each.values()) for each in counts]
        average = sum(lengths) / max(1, len(lengths)) or 1.0
        postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for position, words in enumerate(counts):
            damping = K1 * (1 - B + B * lengths[position] / average)
            for word, count in words.items():
                postings[word].append((position, count * (K1 + 1) / (count + damping)))
        total = len(items)
        self._postings = {
            word: (math.log(1 + (total - len(having) + 0.5) / (len(having) + 0.5)), having)
            for word, having in postings.items()
        }
        self.threshold = THRESHOLD * math.log(1 + (total - 0.5) / 1.5) if total else math.inf

    def match(self, text: str) -> RoutingMatches:
        """What `text` asks for. Takes at most a millisecond with 1,000 items, however long the text is."""
        asked = _without_definitions(_bounded(text))
        is_definition, asked = not asked.strip(), _EXCLUDED.sub(" ", asked)
        words, threshold = _words(asked), round(self.threshold, 3)
        scores = self._scores(words)
        found = [position for position, score in enumerate(scores) if score]
        found.sort(key=scores.__getitem__, reverse=True)
        folded = f" {' '.join(fold(composed(asked)).split())} "
        ranked: list[RoutingMatch] = []
        left = {"skill": MOST_RANKED, "agent": MOST_RANKED}
        for position in found:
            item, score = self._items[position], round(scores[position], 3)
            if score < threshold and left[item.kind] <= 0:
                continue
            phrases = [phrase for plain, phrase in self._phrases[position] if _occurs(plain, folded)]
            if item.trigger_type is TriggerType.KEYWORD and not phrases:
                continue
            shared = [word for stem, word in words.items() if stem in self._stems[position]]
            reasons = (*(f"trigger: {phrase}" for phrase in phrases), f"words: {', '.join(shared)}")
            ranked.append(RoutingMatch(item=item, score=score, reasons=reasons))
            left[item.kind] -= 1
        return RoutingMatches(ranked=tuple(ranked), threshold=threshold, is_definition=is_definition)

    def nearest(self, text: str, most: int) -> list[RoutedItem]:
        """The items that share the most with a text, the best first, however little that is."""
        scores = self._scores(_words(_bounded(text)))
        found = sorted((at for at, score in enumerate(scores) if score), key=scores.__getitem__, reverse=True)
        return [self._items[at] for at in found[:most]]

    def _scores(self, words: Iterable[str]) -> list[float]:
        """The score of each item for these stems."""
        scores = [0.0] * len(self._items)
        for stem in words:
            weight, having = self._postings.get(stem, (0.0, ()))
            for position, share in having:
                scores[position] += weight * share
        return scores


def clauses_of(text: str) -> list[str]:
    """The parts of a request that may each ask for something: its sentences, split at "and" and "also"."""
    parts = (part for sentence in _SENTENCE_END.split(_bounded(text)) for part in _AND.split(sentence))
    return [part.strip() for part in parts if part.strip()]


def _bounded(text: str) -> str:
    if len(text) <= 2 * MATCHED_AT_EACH_END:
        return text
    return f"{text[:MATCHED_AT_EACH_END]}\n{text[-MATCHED_AT_EACH_END:]}"


def _without_definitions(text: str) -> str:
    return "\n".join(each for each in _SENTENCE_END.split(text) if _DEFINITION.search(each) is None)


def _words(text: str) -> dict[str, str]:
    """Each stem of a text and the first word that has it, without words that say nothing of a subject."""
    words = _content_words(text)
    first: dict[str, str] = {}
    for stem, word in zip(stems_of(words), words, strict=True):
        first.setdefault(stem, word)
    return first


def _content_words(text: str) -> list[str]:
    """The words without function words and single characters; a run of Han ends with one, which its last pair
    contains."""
    return [word for word in words_of(text) if len(word) > 1 and word not in FUNCTION_WORDS]


def _counts(item: RoutedItem) -> dict[str, float]:
    counts: defaultdict[str, float] = defaultdict(float)
    texts: Iterable[tuple[str, float]] = [(f"{item.name} {item.description}", 1.0)]
    if item.trigger_type is not TriggerType.SEMANTIC:
        texts = [*texts, *((trigger.pattern, trigger.weight) for trigger in item.triggers)]
    for text, weight in texts:
        for stem in stems_of(_content_words(text)):
            counts[stem] += weight
    return counts


def _phrases(item: RoutedItem) -> list[tuple[str, str]]:
    """The folded trigger phrases with their texts."""
    if item.trigger_type is TriggerType.SEMANTIC:
        return []
    folded = (
        (" ".join(fold(composed(trigger.pattern)).split()), trigger.pattern) for trigger in item.triggers
    )
    return [(plain, pattern) for plain, pattern in folded if plain]


def _occurs(phrase: str, folded: str) -> bool:
    """Whether whole words of the text are the phrase; words of scripts without spaces begin anywhere."""
    start, end = (UNSPACED_PATTERN.match(phrase[at]) is not None for at in (0, -1))
    return f"{'' if start else ' '}{phrase}{'' if end else ' '}" in folded
