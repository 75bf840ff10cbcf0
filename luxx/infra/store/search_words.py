"""What search indexes store of a text, its words and their stems, and how a query is parsed. No database
access; `ranked_search.py` searches, `search_marks.py` finds matches in a text.

Indexed text and queries go through the same `fold`, so that they match. Text of scripts without spaces is
split into pairs of characters: 机器学习 becomes 机器, 器学, 学习 and 习. So a search finds every
part of it, on either database.
"""

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import date
from enum import StrEnum
from functools import cache, lru_cache
from operator import add

import msgspec
from Stemmer import Stemmer

MAX_WORDS = 16_000
"""Only the first words of a longer text are indexed. PostgreSQL stores no positions beyond this number."""

WORD_LENGTH = 64
MAX_BYTES = 500_000
"""PostgreSQL takes at most a megabyte, including what it adds to each word."""

FOLDED_AT_ONCE = 100_000

MAX_CONTEXT = 200
"""Words of a context that are indexed."""

STEM_BYTES = 200_000
"""Of a text with more stems than that, the first are indexed: PostgreSQL takes at most a megabyte."""

AFTER_CONTEXT = " | "
"""Ends the context in an index value on SQLite. The tokenizer skips it."""

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
"""Not those of `calendar`, which are in the language of the process."""

MOST_PIECES = 16
"""Maximum adjacent words (characters, in scripts without spaces) of one term; a longer phrase becomes several
terms.
"""

MAX_TERMS = 40
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai to Khmer, kana, Han, Hangul: ranges for the character class of a regular expression."""

_PIECE = re.compile(f"[{UNSPACED}]+|[^\\s{UNSPACED}]+")
UNSPACED_PATTERN = re.compile(f"[{UNSPACED}]")
_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
INSIDE = f"[^\\s{UNSPACED}]"
"""A character of a word in a script with spaces, as a regular expression."""

_LATIN_MARKS = range(0x300, 0x370)


class SearchKind(StrEnum):
    """What a search hit is: a conversation's title, a room, a task, or a message."""

    CONVERSATION = "conversation"
    ROOM = "room"
    TASK = "task"
    MESSAGE = "message"


class _Fold(dict[int, str]):
    """Maps each character to its letter without case and accent, or to a blank. Filled on demand."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = _fold_character(chr(code))
        return folded


def _fold_character(character: str) -> str:
    if not (character.isalnum() or unicodedata.category(character)[0] == "M"):
        return " "
    for form in ("NFKD", "NFKC"):
        letters = unicodedata.normalize(form, character.casefold())
        plain = "".join(letter for letter in letters if ord(letter) not in _LATIN_MARKS)
        if len(plain) == 1 and plain.isalnum():
            return plain
    return character


_fold_table = _Fold()


def fold(text: str) -> str:
    """Keeps letters and digits without case and accents; all else becomes blank. Positions are those of
    `text`."""
    # In pieces, because `translate` holds the interpreter's lock.
    pieces = [text[start : start + FOLDED_AT_ONCE] for start in range(0, len(text), FOLDED_AT_ONCE)]
    return "".join(piece.translate(_fold_table) for piece in pieces)


def words_of(text: str) -> list[str]:
    """The words of a text in order, as the index stores them."""
    folded = fold(composed(text))
    if folded.isascii():
        words = folded.split(maxsplit=MAX_WORDS)[:MAX_WORDS]
        words = [word[:WORD_LENGTH] for word in words]
    else:
        words: list[str] = []
        for piece in _PIECE.finditer(folded):
            words += _words_of_piece(piece[0][: MAX_WORDS + 1])
            if len(words) >= MAX_WORDS:
                break
        del words[MAX_WORDS:]
    while len(words) * WORD_LENGTH * 4 > MAX_BYTES and len(" ".join(words).encode()) > MAX_BYTES:
        del words[len(words) // 2 :]
    return words


def _words_of_piece(piece: str) -> list[str]:
    """A word of a spaced script as it is; of an unspaced run its pairs, and its last character alone."""
    if UNSPACED_PATTERN.match(piece) is None:
        return [piece[:WORD_LENGTH]]
    return [*map(add, piece, piece[1:]), piece[-1]]


FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an and are as at be but by can could did do does for from had has have he her his how
        i if in into is it its many me much my no not of on or our please she should so such
        than that the their them then there these they this those to us was we were what when
        where which who whom whose why will with would you your""",
    )
)
"""English words that say nothing of a subject. Where a few texts are compared they may be rare, and would
count as much as a name; a ranking of many texts needs no list. `about` is not one: without it a labelled
request misses its skill."""

STEMMED_LENGTHS = range(3, 31)
"""So many letters have the words that are stemmed."""

_stemmers = threading.local()


def stems_of(words: list[str]) -> list[str]:
    """The English stem of each word: running becomes run. Words with other characters than a to z stay.

    Words of other languages in Latin script get the same treatment, because neither a word nor a short query
    says its language, and several stems of a word would join unrelated words. Since texts and queries are
    treated alike, an equal word is always found.
    """
    stemmer = getattr(_stemmers, "english", None)
    if stemmer is None:  # One for each thread: a stemmer has one buffer.
        stemmer = _stemmers.english = Stemmer("english")
    stem = stemmer.stemWord
    return [
        stem(word) if word.isascii() and word.isalpha() and len(word) in STEMMED_LENGTHS else word
        for word in words
    ]


def index_value(dialect: str, scopes: Iterable[str], text: str, *, context: str = "") -> str:
    """The value of `words` for a text in these scopes; each scope must contain a `=`, and besides it only
    digits and small letters from a to z.

    Queries also find the text by the first words of its context, which may be the message before it and its
    date. Phrases and prefixes are searched in the text only.
    """
    own = words_of(text)
    around = list(dict.fromkeys(stems_of(words_of(context)[:MAX_CONTEXT]))) if context else []
    stems = list(_stems(own))
    if dialect == "postgresql":
        # A finished tsvector: the parser of PostgreSQL would split the words again, by other rules.
        positioned = [f"'{word}':{position}" for position, word in enumerate([*scopes, *own], 1)]
        positioned += [f"'={stem}':{position}A" for position, stem in enumerate(stems, 1)]
        positioned += [f"'={word}':{position}" for position, word in enumerate(around, len(stems) + 1)]
        return " ".join(positioned)
    before = "".join(f" ={word}" for word in around)
    after = "".join(f" ={stem}" for stem in stems)
    return f"{' '.join(scopes)}{before}{AFTER_CONTEXT}{' '.join(own)}{after}"


@lru_cache(maxsize=1000)
def date_words(day: date) -> str:
    """A context by which a date is found: 2026-11-27 November 11月."""
    return f"{day.isoformat()} {_MONTHS[day.month - 1]} {day.month}月"


def _stems(words: list[str]) -> Iterator[str]:
    """The stems of words that are not their own stem."""
    size = 0
    for word, stem in zip(words, stems_of(words), strict=True):
        if stem != word:
            size += len(stem)
            if size > STEM_BYTES:
                return
            yield stem


def owner_word(kind: SearchKind, user_id: int) -> str:
    """The index word that all texts of a user and kind share. Words of texts never contain a `=`."""
    return f"{kind.value}={user_id}"


def subject_word(subject_id: str) -> str:
    """The index word that all texts of a conversation, room or task share."""
    return f"in={subject_id.replace('-', '')}"


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """Words that must be adjacent. `is_prefix`: the last word may continue. `pieces`: words of the query."""

    words: tuple[str, ...]
    pieces: tuple[str, ...]
    is_prefix: bool = False

    def pattern(self) -> str:
        """A regular expression that matches the term in folded text."""
        *before, last = self.pieces
        parts = [_pattern(piece) for piece in before]
        parts.append(_pattern(last, is_prefix=self.is_prefix))
        return r"\s*".join(parts)


def _pattern(piece: str, *, is_prefix: bool = False) -> str:
    escaped = re.escape(piece)
    if UNSPACED_PATTERN.match(piece) is not None:
        return escaped
    return f"(?<!{INSIDE}){escaped}" + (f"{INSIDE}*" if is_prefix else f"(?!{INSIDE})")


def terms_of(query: str) -> list[Term]:
    """The terms of a query, all of which must match: words, "phrases" in quotes, prefixes with a star*.

    All other characters count as blanks, so a query without letters and digits has no terms. A phrase of more
    than `MOST_PIECES` words becomes several terms; terms past `MAX_TERMS` are ignored.
    """
    terms: dict[Term, None] = {}
    for quoted, star, bare in _TERM.findall(composed(query)):
        groups = list(_groups(_PIECE.findall(fold(bare or quoted))))
        for position, pieces_group in enumerate(groups, 1):
            is_last = position == len(groups)
            terms[_term(pieces_group, is_prefix=is_last and (bool(star) or bare.endswith("*")))] = None
    return list(terms)[:MAX_TERMS]


class RankedWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word of a query that texts need not have. `text` is its stem, or a pair of characters; a single
    character of a script without spaces is the beginning of pairs."""

    text: str
    is_prefix: bool = False


class WordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed query: terms that a text must have, and words that rank it, of which it must have one if there
    are no terms."""

    required: tuple[Term, ...]
    words: tuple[RankedWord, ...]

    def __bool__(self) -> bool:
        return bool(self.required or self.words)


def query_of(text: str) -> WordQuery:
    """Parses a query. "Phrases" in quotes and prefixes with a star* are required, other words are not.

    All other characters count as blanks, so a query without letters and digits is empty, and every text is
    valid. A phrase of more than `MOST_PIECES` words becomes several terms; terms and words past `MAX_TERMS`
    of each are ignored.
    """
    required: dict[Term, None] = {}
    words: dict[RankedWord, None] = {}
    for quoted, star, bare in _TERM.findall(composed(text)):
        pieces = _PIECE.findall(fold(bare or quoted))
        is_prefix = bool(star) or bare.endswith("*")
        if bare and not is_prefix:
            words.update((word, None) for piece in pieces for word in _ranked(piece))
            continue
        groups = list(_groups(pieces))
        for position, group in enumerate(groups, 1):
            required[_term(group, is_prefix=is_prefix and position == len(groups))] = None
    return WordQuery(required=tuple(required)[:MAX_TERMS], words=tuple(words)[:MAX_TERMS])


def _ranked(piece: str) -> Iterator[RankedWord]:
    if UNSPACED_PATTERN.match(piece) is None:
        yield RankedWord(text=stems_of([piece[:WORD_LENGTH]])[0])
    elif len(piece) == 1:
        yield RankedWord(text=piece, is_prefix=True)
    else:
        yield from (RankedWord(text=pair) for pair in map(add, piece, piece[1:]))


def _groups(pieces: list[str]) -> Iterator[tuple[str, ...]]:
    """Splits the pieces of a phrase into groups of at most MOST_PIECES; also splits long unspaced runs."""
    pieces_group: list[str] = []
    weight = 0
    for piece in pieces:
        is_run = UNSPACED_PATTERN.match(piece) is not None
        for start in range(0, len(piece) if is_run else 1, MOST_PIECES):
            part = piece[start : start + MOST_PIECES] if is_run else piece
            part_weight = len(part) if is_run else 1
            if weight + part_weight > MOST_PIECES:
                yield tuple(pieces_group)
                pieces_group, weight = [], 0
            pieces_group.append(part)
            weight += part_weight
    if pieces_group:
        yield tuple(pieces_group)


def _term(pieces: tuple[str, ...], *, is_prefix: bool) -> Term:
    last = pieces[-1]
    words = [word for piece in pieces[:-1] for word in _words_of_piece(piece)]
    ending = _words_of_piece(last)
    if UNSPACED_PATTERN.match(last) is not None:
        # The run may continue in the text: the single last character is there the first of a pair.
        is_prefix = len(ending) == 1
        ending = ending[:-1] or ending
    return Term(words=(*words, *ending), pieces=pieces, is_prefix=is_prefix)


MAX_MARKS = 30
"""How many combining marks may follow a letter: the bound of Unicode's stream-safe form (UAX #15). Sorting a
run of them takes quadratic time, and holds the interpreter's lock meanwhile."""

PIECE = 50_000
"""So many characters are searched for marks at once, so that other threads get the interpreter's lock."""

_MARKS_IN = range(0x300, 0x20000)
"""Where Unicode has combining marks."""


def composed(text: str) -> str:
    """The text with letter and accent combined into one character where Unicode has one. Of a run of marks
    that have to be sorted, most of those past MAX_MARKS are left out."""
    if unicodedata.is_normalized("NFC", text):
        return text
    # A run that spans two pieces keeps up to MAX_MARKS in each.
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    cut = "".join(_long_run().sub(lambda run: run[0][:MAX_MARKS], piece) for piece in pieces)
    return unicodedata.normalize("NFC", cut)


@cache
def _long_run() -> re.Pattern[str]:
    """Matches more than MAX_MARKS characters in a row that are marks, or begin with one when decomposed."""
    codes = {code for code in _MARKS_IN if _is_mark(chr(code))}
    starts = sorted(code for code in codes if code - 1 not in codes)
    ends = sorted(code for code in codes if code + 1 not in codes)
    marks = "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))
    return re.compile(f"[{marks}]{{{MAX_MARKS + 1},}}")


def _is_mark(char: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0]) != 0
