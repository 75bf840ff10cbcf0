"""What of a message is searched, how it becomes words, and how a search is read. Pure: no database here.

What was said and what is looked for go through the same `fold`, so they can only meet. Scripts that
write without spaces are cut into pairs of characters: 机器学习 is 机器, 器学, 学习 and 习, and every
part of it is found, whichever database searches.
"""

import re
import unicodedata
from collections.abc import Iterator
from enum import StrEnum
from operator import add

import msgspec

from luxx.wire.step import StepStatus, StepType

MAX_WORDS = 16_000
"""Of a longer text the beginning is searched. PostgreSQL counts no positions past this."""

WORD_LENGTH = 64
MAX_BYTES = 500_000
"""PostgreSQL takes a megabyte, with what it adds to each word."""

MOST_PIECES = 16
"""Words (or characters, where no spaces are) that must follow one another; more of them are two terms."""

MOST_TERMS = 40
MOST_TRIES = 500
"""Times that a term's beginning is looked at in one text."""

MAX_MATCH_LENGTH = 400
"""Characters past a part's end that are looked at, so that what begins in it is seen whole."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai to Khmer, kana, Han, Hangul: ranges of a regular expression's class."""

_PIECE = re.compile(f"[{UNSPACED}]+|[^\\s{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_INSIDE = f"[^\\s{UNSPACED}]"
_LATIN_MARKS = range(0x300, 0x370)


class SearchKind(StrEnum):
    """What a hit is in: a conversation's title, or a message."""

    CONVERSATION = "conversation"
    MESSAGE = "message"


class _SearchedFile(msgspec.Struct):
    name: str = ""


class _Step(msgspec.Struct):
    type: str
    content: str = ""
    status: str = StepStatus.DONE


class _StoredMessage(msgspec.Struct):
    """What is read of a stored message of either role; all else is passed over unread."""

    text: str = ""
    attachments: list[_SearchedFile] = []
    steps: list[_Step] = []


_stored = msgspec.json.Decoder(_StoredMessage)


def searched_text(content: str) -> str:
    """What is searched of a message's stored JSON: its text and its files' names.

    Of an answer that is its text steps, without what a crash cut and another completion said again.
    """
    stored = _stored.decode(content)
    text_steps = [
        step.content
        for step in stored.steps
        if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    ]
    return "\n".join([stored.text, *text_steps, *(file.name for file in stored.attachments)]).strip("\n")


class _Fold(dict[int, str]):
    """Each character's place in a search: its letter without case and accent, or a blank. Filled as met."""

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


def composed(text: str) -> str:
    """The text with every accent in its letter where there is one character for both."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def fold(text: str) -> str:
    """Letters and digits without case and accents, all else blank. As long as `text`, place by place."""
    return text.translate(_fold_table)


def words_of(text: str) -> list[str]:
    """The words of a text in their order, as the index holds them."""
    folded = fold(composed(text))
    if folded.isascii():
        words = folded.split(maxsplit=MAX_WORDS)[:MAX_WORDS]
        words = [word[:WORD_LENGTH] for word in words]
    else:
        words: list[str] = []
        for piece in _PIECE.finditer(folded):
            words += _words_of_piece(piece[0])
            if len(words) >= MAX_WORDS:
                break
        del words[MAX_WORDS:]
    while len(words) * WORD_LENGTH * 4 > MAX_BYTES and len(" ".join(words).encode()) > MAX_BYTES:
        del words[len(words) // 2 :]
    return words


def _words_of_piece(piece: str) -> list[str]:
    """A spaced word as it is; of an unspaced run its pairs, and its last character alone."""
    if _UNSPACED.match(piece) is None:
        return [piece[:WORD_LENGTH]]
    return [*map(add, piece, piece[1:]), piece[-1]]


def indexed(dialect: str, kind: SearchKind, user_id: int, conversation_id: str, text: str) -> str:
    """The words of a text as the index's column takes them, after the words that say whose and where it is.

    PostgreSQL is given a tsvector: its own parser would cut the words once more, by rules of its own.
    """
    words = [owner_word(kind, user_id), conversation_word(conversation_id), *words_of(text)]
    if dialect == "postgresql":
        return " ".join(f"'{word}':{position}" for position, word in enumerate(words, 1))
    return " ".join(words)


def owner_word(kind: SearchKind, user_id: int) -> str:
    """The word that all of a user's texts of a kind have in the index. No text has a `=` in its words."""
    return f"{kind.value}={user_id}"


def conversation_word(conversation_id: str) -> str:
    """The word that all texts of a conversation have in the index."""
    return f"in={conversation_id.replace('-', '')}"


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """Words that must follow one another; the last of a prefix may go on. `pieces` are what was asked."""

    words: tuple[str, ...]
    pieces: tuple[str, ...]
    is_prefix: bool = False

    def pattern(self) -> str:
        """A regular expression that finds the term in folded text."""
        *before, last = self.pieces
        parts = [_pattern(piece) for piece in before]
        parts.append(_pattern(last, is_prefix=self.is_prefix))
        return r"\s*".join(parts)


def _pattern(piece: str, *, is_prefix: bool = False) -> str:
    escaped = re.escape(piece)
    if _UNSPACED.match(piece) is not None:
        return escaped
    return f"(?<!{_INSIDE}){escaped}" + (f"{_INSIDE}*" if is_prefix else f"(?!{_INSIDE})")


def terms_of(query: str) -> list[Term]:
    """What is asked for, all of which must be there: words, "phrases" in quotes, beginnings with a star*.

    Anything else in the query is no more than a blank; a query of nothing but signs has no terms. A phrase
    of more than `MOST_PIECES` is several, and past `MOST_TERMS` nothing more is asked for.
    """
    terms: dict[Term, None] = {}
    for quoted, star, bare in _TERM.findall(composed(query)):
        groups = list(_groups(_PIECE.findall(fold(bare or quoted))))
        for place, pieces_group in enumerate(groups, 1):
            is_last = place == len(groups)
            terms[_term(pieces_group, is_prefix=is_last and (bool(star) or bare.endswith("*")))] = None
    return list(terms)[:MOST_TERMS]


def _groups(pieces: list[str]) -> Iterator[tuple[str, ...]]:
    """The pieces of a phrase, so many together as a term may have; a long unspaced run is cut as well."""
    pieces_group: list[str] = []
    weight = 0
    for piece in pieces:
        is_run = _UNSPACED.match(piece) is not None
        for start in range(0, len(piece) if is_run else 1, MOST_PIECES):
            part = piece[start : start + MOST_PIECES] if is_run else piece
            more = len(part) if is_run else 1
            if weight + more > MOST_PIECES:
                yield tuple(pieces_group)
                pieces_group, weight = [], 0
            pieces_group.append(part)
            weight += more
    if pieces_group:
        yield tuple(pieces_group)


def _term(pieces: tuple[str, ...], *, is_prefix: bool) -> Term:
    last = pieces[-1]
    words = [word for piece in pieces[:-1] for word in _words_of_piece(piece)]
    ending = _words_of_piece(last)
    if _UNSPACED.match(last) is not None:
        # In a text the run may go on: what stands alone at its end there is the first of a pair here.
        is_prefix = len(ending) == 1
        ending = ending[:-1] or ending
    return Term(words=(*words, *ending), pieces=pieces, is_prefix=is_prefix)


class TermMatcher:
    """Finds where terms stand in folded texts, at a price that no text and no term makes grow."""

    def __init__(self, terms: list[Term]) -> None:
        self._terms = [(term.pieces[0], re.compile(term.pattern())) for term in terms]
        self._any = re.compile("|".join(f"(?:{term.pattern()})" for term in terms))

    def first(self, folded: str) -> int | None:
        """Where the first of the terms begins; None also where each begins like too many other words."""
        end = len(folded)
        for piece, pattern in self._terms:
            at = folded.find(piece, 0, end)
            for _ in range(MOST_TRIES):
                if at < 0:
                    break
                if pattern.match(folded, at):
                    end = at
                    break
                at = folded.find(piece, at + 1, end)
        return end if end < len(folded) else None

    def between(self, folded: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where terms begin in a part of it: start and end of each place, in order, apart."""
        for span in self._any.finditer(folded, start, end + MAX_MATCH_LENGTH):
            if span.start() >= end:
                return
            yield span.span()
