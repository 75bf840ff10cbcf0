"""Where a text matches a query, to show it. No database access."""

import re
from collections.abc import Iterator
from itertools import islice

from luxx.infra.store.search_words import (
    INSIDE,
    MAX_TERMS,
    UNSPACED_PATTERN,
    WORD_LENGTH,
    WordQuery,
    stems_of,
)

MAX_CANDIDATES = 500
"""How many candidate positions of one term, and matches of words, are tried in one text."""

MAX_MATCH_LENGTH = 400
"""How many characters past the end of a part are searched, so that a match that begins in the part is
complete.
"""


class QueryMatcher:
    """Finds what matches a query in folded texts, with a bounded number of tries whatever texts and query."""

    def __init__(self, query: WordQuery) -> None:
        self._terms = [(term.pieces[0], re.compile(term.pattern())) for term in query.required]
        words = [word.text for word in query.words]
        spaced = [word for word in words if UNSPACED_PATTERN.match(word) is None]
        self._stems = frozenset(spaced)
        patterns: list[str] = []
        if pairs := "|".join(re.escape(word) for word in words if len(word) > 1 and word not in self._stems):
            patterns.append(f"(?:(?=(?:{pairs})).)+.")  # Pairs that overlap are one match.
        patterns += [word for word in words if len(word) == 1 and word not in self._stems]
        if spaced:
            initials = "".join(sorted({re.escape(word[0]) for word in spaced}))
            patterns.append(f"(?P<word>(?<!{INSIDE})[{initials}]{INSIDE}*)")
        self._words = re.compile("|".join(patterns) or "(?!)")
        required = [f"(?:{term.pattern()})" for term in query.required]
        self._any = re.compile("|".join([*required, *patterns]) or "(?!)")

    def first(self, folded: str, within: int) -> int | None:
        """Where a part of a text begins that shows its match: the first term that is required, or the first
        of the words that are most of those in so many characters. None if nothing was found within the bounds
        of the search."""
        end = len(folded)
        for piece, pattern in self._terms:
            at = folded.find(piece, 0, end)
            for _ in range(MAX_CANDIDATES):
                if at < 0:
                    break
                if pattern.match(folded, at):
                    end = at
                    break
                at = folded.find(piece, at + 1, end)
        return end if end < len(folded) else self._densest(folded, within)

    def _densest(self, folded: str, within: int) -> int | None:
        """Longer words count more, because they are rarer."""
        matches = [*islice(self._accepted(self._words, folded, 0, len(folded)), MAX_CANDIDATES)]
        best, most = None, 0
        last = 0
        for number, (start, _, _) in enumerate(matches):
            while last < len(matches) and matches[last][1] <= start + within:
                last += 1
            weight = sum(map(len, {key for _, _, key in matches[number : min(last, number + MAX_TERMS)]}))
            if weight > most:
                best, most = start, weight
        return best

    def between(self, folded: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Start and end of each match that begins between `start` and `end`, in order, without overlap."""
        for begins, ends, _ in self._accepted(self._any, folded, start, end + MAX_MATCH_LENGTH):
            if begins >= end:
                return
            yield begins, ends

    def _accepted(
        self, pattern: re.Pattern[str], folded: str, start: int, end: int
    ) -> Iterator[tuple[int, int, str]]:
        """Matches with what they are matches of. Words match by their stem."""
        for match in pattern.finditer(folded, start, end):
            key = match[0]
            if self._stems and match["word"] is not None:
                (key,) = stems_of([key[:WORD_LENGTH]])
                if key not in self._stems:
                    continue
            yield *match.span(), key
