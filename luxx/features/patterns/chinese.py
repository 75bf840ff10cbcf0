"""Splits Chinese text into words of the vocabulary and slots.

The longest word of the vocabulary is taken at each position. Names of people are found by their surname,
because their other characters may be words of the vocabulary: 高建设 is a name, 建设 a word.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from luxx.features.patterns.vocabulary import SlotKind, Vocabulary

HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Ranges for the character class of a regular expression."""

NUMERALS = "〇零一二三四五六七八九十百千万亿两壹贰叁肆伍陆柒捌玖拾佰仟幺廿卅"
_NUMERALS = re.compile(f"[{NUMERALS}]{{2,}}|[{NUMERALS}点]{{3,}}")
_NUMERAL = frozenset(NUMERALS)
_NUMERIC = frozenset(f"{NUMERALS}周星礼")
_DATE = re.compile(f"(?:周|星期|礼拜)[一二三四五六日天]|[{NUMERALS}]{{1,4}}(?:年|月份?|季度|[日号])")
_SPLIT_GIVEN = frozenset("明建平金志思立清天")
"""Second characters of given names that are taken although a word of the vocabulary begins with them."""


class Segment(NamedTuple):
    """A word of the vocabulary with its term, or a slot."""

    text: str
    kind: SlotKind | None
    term: str = ""


def segments(run: str, vocabulary: Vocabulary) -> list[Segment]:
    """Splits a run of Chinese characters. Takes time linear in its length."""
    if len(run) == 1:
        return [_segment(run, 0, vocabulary)]
    found: list[Segment] = []
    start = at = 0
    while at < len(run):
        segment = _segment(run, at, vocabulary)
        at += len(segment.text)
        last = found[-1].kind if found else None
        if segment.kind is SlotKind.TEXT and last in (SlotKind.TEXT, SlotKind.NAME):
            continue
        if found and found[-1].kind is not None:
            found[-1] = Segment(run[start : at - len(segment.text)], last)
        found.append(segment)
        start = at - len(segment.text)
    if found[-1].kind is not None:
        found[-1] = Segment(run[start:], found[-1].kind)
    return list(_with_names_of_words(found, vocabulary))


def _segment(run: str, start: int, vocabulary: Vocabulary) -> Segment:
    character = run[start]
    if character in _NUMERIC and (slot := _numeric(run, start)):
        return slot
    for size in range(min(vocabulary.longest.get(character, 0), len(run) - start), 1, -1):
        word = run[start : start + size]
        if (term := vocabulary.chinese.get(word)) is not None:
            return Segment(word, None, term)
        if word in vocabulary.chinese_names:
            return Segment(word, SlotKind.NAME)
    if len(compound := run[start : start + 2]) == 2 and compound in vocabulary.surnames:
        return Segment(run[start : _end_of_name(run, start + 2, vocabulary)], SlotKind.NAME)
    is_word = character in vocabulary.chinese
    if character in vocabulary.surnames and (not is_word or _is_given(run, start + 1, vocabulary)):
        return Segment(run[start : _end_of_name(run, start + 1, vocabulary)], SlotKind.NAME)
    if is_word:
        return Segment(character, None)
    return Segment(character, SlotKind.NUMBER if character in _NUMERAL else SlotKind.TEXT)


def _numeric(run: str, start: int) -> Segment | None:
    if date := _DATE.match(run, start):
        return Segment(date[0], SlotKind.DATE)
    number = _NUMERALS.match(run, start)
    return Segment(number[0], SlotKind.NUMBER) if number else None


def _word(run: str, start: int, vocabulary: Vocabulary) -> str:
    """The longest word of several characters of the vocabulary at a position, or an empty text."""
    if start >= len(run):
        return ""
    longest = vocabulary.longest.get(run[start], 0)
    for size in range(min(longest, len(run) - start), 1, -1):
        if run[start : start + size] in vocabulary.chinese:
            return run[start : start + size]
    return ""


def _is_given(run: str, start: int, vocabulary: Vocabulary) -> bool:
    """Whether a given name may follow a surname that is also a word, such as 高 or 于."""
    if run[start : start + 2] in vocabulary.given:
        return True
    return run[start : start + 1] in vocabulary.given and not _word(run, start, vocabulary)


def _end_of_name(run: str, start: int, vocabulary: Vocabulary) -> int:
    """Where the name ends whose given name begins at `start`."""
    if run[start : start + 2] in vocabulary.given and len(run) > start + 1:
        return start + 2
    if word := _word(run, start, vocabulary):
        return start if word in vocabulary.titles else start + 2
    second = start + 1
    if second >= len(run):
        return len(run)
    character = run[second]
    if _word(run, second, vocabulary):
        return second + 1 if character in _SPLIT_GIVEN else second
    if character in vocabulary.chinese and character not in vocabulary.given:
        return second
    return second + 1


def _with_names_of_words(found: list[Segment], vocabulary: Vocabulary) -> Iterator[Segment]:
    """Makes names of two characters that are a word, with one that is none: 方向明."""
    for segment, following in zip(found, [*found[1:], None], strict=True):
        is_name = (
            following is not None
            and (following.kind is SlotKind.NAME or (following.kind is not None and len(following.text) == 1))
            and following.text[0] in vocabulary.given
            and segment.kind is None
            and len(segment.text) == 2
            and segment.text[0] in vocabulary.surnames
        )
        yield Segment(segment.text, SlotKind.NAME) if is_name else segment
