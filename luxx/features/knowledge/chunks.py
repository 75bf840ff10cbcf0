"""Divides documents into chunks, which are what a search finds and what embeddings stand for. Pure.

A chunk stays within one part of a document: a page, a slide, the text below a heading or rows of a table. It
ends where a paragraph or a sentence ends. Where that is follows from the text around it and not from the
position in the document, so a change leaves all chunks equal except for those around it.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

import msgspec

from luxx.domain.context.tokens import text_tokens
from luxx.infra.documents.parts import Part

TARGET_TOKENS = 250
MOST_TOKENS = 290
"""Tokens that the text of a chunk has at most, or a tenth more where that saves a chunk."""

SECTION_TOKENS = 175
"""A longer text is first cut where an end is better than all others so near."""

_BALANCED_CHUNKS = 3
"""A part with up to so many chunks, such as a page, is divided evenly."""

_LONGEST_UNIT = 240
"""Characters of a unit without an end of sentence. A character has less than one token."""

_SHORTEST_UNIT = 4
"""Characters between two ends; of those that are nearer, as in a row of dots, the later ones do not count."""

_HASH_BYTES = 20


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """`position` is counted from 0. `page`, `slide` and `rows` are those of Part.

    `hash` stands for the headings, the columns and the text, not for the place: a chunk with the same hash
    has the same embedding.
    """

    position: int
    text: str
    hash: str
    tokens: int
    page: int | None = None
    slide: int | None = None
    rows: tuple[int, int] | None = None
    headings: tuple[str, ...] = ()
    columns: str = ""

    @property
    def indexed_text(self) -> str:
        """What is searched and embedded: the text below its headings and the columns of its rows."""
        return "\n".join(filter(None, (" > ".join(self.headings), self.columns, self.text)))


class _Unit(NamedTuple):
    """A piece of text that is not divided. `level` says how well a chunk ends after it; `line` is its row."""

    text: str
    tokens: int
    level: int
    line: int = 0


_Rank = tuple[int, bytes]
_PARAGRAPH_END = 3
_SENTENCE_END = 2
_LINE_END = 1
_WORD_END = 0
# Each alternative is bounded, so that a search is linear in the text.
_ENDS = re.compile(
    r"(?P<paragraph>\n[ \t]{0,100}\n\s{0,100})"
    r"|(?P<sentence>(?<=[.!?…])[\"'”’)\]]{0,3}\s{1,100}|(?<=[。！？；])[”’）」』】]{0,3}\s{0,100})"
    r"|(?P<line>\n)"
)
_LEVELS = {"paragraph": _PARAGRAPH_END, "sentence": _SENTENCE_END, "line": _LINE_END}
_LONGEST_END = 250
"""Characters of a match of `_ENDS`, at most."""

_SEARCHED_AT_ONCE = 100_000
"""Characters: the search keeps other threads waiting, a second for ten million without an end."""

_WORD_BREAKS = (" ", ",", "，", "、", "\t")


def chunks_of(parts: Iterable[Part]) -> Iterator[Chunk]:
    """The chunks of a document in its order, one at a time: the caller stops at its limit."""
    position = 0
    for part in parts:
        for text, rows in _divided(part):
            yield _chunk(position, text, rows, part)
            position += 1


def _chunk(position: int, text: str, rows: tuple[int, int] | None, part: Part) -> Chunk:
    content = "\x1e".join(("\x1f".join(part.headings), part.columns, text))
    chunk = Chunk(
        position=position,
        text=text,
        hash=blake2b(content.encode("utf-8", "replace"), digest_size=_HASH_BYTES).hexdigest(),
        tokens=0,
        page=part.page,
        slide=part.slide,
        rows=rows,
        headings=part.headings,
        columns=part.columns,
    )
    return msgspec.structs.replace(chunk, tokens=text_tokens(chunk.indexed_text))


def _divided(part: Part) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """The texts of the chunks of a part, with the rows that they hold."""
    if part.rows is None:
        for units in _groups(list(_units(part.text))):
            text = "".join(unit.text for unit in units).strip()
            if text:
                yield text, None
        if not part.text.strip() and part.headings:
            yield "", None
        return
    first = part.rows[0]
    room = MOST_TOKENS - min(text_tokens(part.columns), MOST_TOKENS // 2)
    for units in _groups(list(_row_units(part.text)), room):
        lines = "".join(unit.text for unit in units).strip("\n")
        yield lines, (first + units[0].line, first + units[-1].line)


def _units(text: str) -> Iterator[_Unit]:
    """The sentences and lines of a text, which together are the text."""
    start = last_end = 0
    for end in _ends(text):
        is_near, last_end = end.end() - last_end < _SHORTEST_UNIT, end.end()
        if is_near:
            continue
        yield from _pieces(text[start : end.end()], _LEVELS[end.lastgroup or "line"])
        start = end.end()
    if start < len(text):
        yield from _pieces(text[start:], _PARAGRAPH_END)


def _ends(text: str) -> Iterator[re.Match[str]]:
    """The matches of `_ENDS`, which are searched in some of the text at a time."""
    start = 0
    while start <= len(text):
        stop = start + _SEARCHED_AT_ONCE
        for end in _ENDS.finditer(text, start, stop + _LONGEST_END):
            if end.start() >= stop:
                break
            yield end
            start = end.end()
        start = max(start, stop)


def _row_units(text: str) -> Iterator[_Unit]:
    for line, row in enumerate(text.split("\n")):
        for piece in _pieces(row + "\n", _LINE_END):
            yield piece._replace(line=line)


def _pieces(text: str, level: int) -> Iterator[_Unit]:
    """A sentence or line as a unit; one with too many tokens for a chunk as several."""
    tokens = text_tokens(text)
    if tokens <= TARGET_TOKENS:
        yield _Unit(text, tokens, level)
        return
    start = 0
    while len(text) - start > _LONGEST_UNIT:
        end = _word_end(text, start)
        yield _Unit(text[start:end], text_tokens(text[start:end]), _WORD_END)
        start = end
    yield _Unit(text[start:], text_tokens(text[start:]), level)


def _word_end(text: str, start: int) -> int:
    """Where the longest piece from `start` ends: after a blank or comma in its second half, if it has one."""
    limit = start + _LONGEST_UNIT
    half = start + _LONGEST_UNIT // 2
    return max(max(text.rfind(mark, half, limit) for mark in _WORD_BREAKS) + 1, 0) or limit


def _groups(units: list[_Unit], most: int = MOST_TOKENS) -> Iterator[list[_Unit]]:
    """The units of each chunk. A short text, such as a page, is divided evenly."""
    total = sum(unit.tokens for unit in units)
    sections = [units] if total <= _BALANCED_CHUNKS * most else _sections(units, total)
    for section in sections:
        remaining = sum(unit.tokens for unit in section)
        start = 0
        while start < len(section):
            is_last = remaining <= most
            end = len(section) if is_last else _end_of_group(section, start, remaining, most)
            yield section[start:end]
            remaining -= sum(unit.tokens for unit in section[start:end])
            start = end


def _end_of_group(units: list[_Unit], start: int, remaining: int, most: int) -> int:
    """Where a chunk from `start` ends: at the best end near an even share of what remains."""
    count = -(-remaining // most)
    target = remaining / count
    # The rest must fit into one chunk less.
    least, largest = max(target * 0.8, remaining - (count - 1) * most), min(target * 1.15, most * 1.1)
    best, best_rank = start + 1, (-1, b"")
    tokens = 0
    for index in range(start, len(units)):
        tokens += units[index].tokens
        if tokens > largest and index > start:
            break
        if tokens >= least:
            rank = _rank(units[index])
            best, best_rank = max((best, best_rank), (index + 1, rank), key=lambda one: one[1])
        elif best_rank[0] < 0:
            best = index + 1
    return best


def _sections(units: list[_Unit], total: int) -> Iterator[list[_Unit]]:
    """The units between ends that are better than all others within SECTION_TOKENS on both sides. Whether an
    end is one follows from the text around it, so a change moves no other end."""
    ranks = [_rank(unit) for unit in units]
    ends = list(accumulate(unit.tokens for unit in units))
    before = _best_before(ranks, ends)
    after = _best_before(ranks[::-1], [total - end for end in reversed(ends)])[::-1]
    start = 0
    for index, (rank, end) in enumerate(zip(ranks, ends, strict=True)):
        is_inside = SECTION_TOKENS <= end <= total - SECTION_TOKENS
        if is_inside and rank > before[index] and rank >= after[index]:
            yield units[start : index + 1]
            start = index + 1
    yield units[start:]


def _best_before(ranks: list[_Rank], ends: list[int]) -> list[_Rank]:
    """For each end the best rank of those before it within SECTION_TOKENS."""
    best: list[_Rank] = []
    falling: deque[int] = deque()
    for index, (rank, end) in enumerate(zip(ranks, ends, strict=True)):
        while falling and ends[falling[0]] < end - SECTION_TOKENS:
            falling.popleft()
        best.append(ranks[falling[0]] if falling else (-1, b""))
        while falling and ranks[falling[-1]] <= rank:
            falling.pop()
        falling.append(index)
    return best


def _rank(unit: _Unit) -> _Rank:
    """How well a chunk ends after the unit. Among equal ends the content decides, and not the position."""
    return unit.level, blake2b(unit.text.encode("utf-8", "replace"), digest_size=8).digest()
