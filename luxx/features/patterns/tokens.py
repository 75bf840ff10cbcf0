"""Splits a text into tokens, each of which is an allowed word or a slot. A token is judged by itself here;
`slots.py` has the rules that look at several.
"""

import re
import unicodedata
from collections.abc import Collection
from enum import IntEnum

import msgspec

from luxx.features.patterns.chinese import HAN, segments
from luxx.features.patterns.vocabulary import SlotKind, Vocabulary

_BREAKS = (
    "\u3000-\u3003\u3008-\u3020\u2010-\u2015\u2018\u201a-\u201f\u2026\u00b7\u30fb\ufe30-\ufe4f"
    "\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\uff3b\uff3d"
)
"""Punctuation at which a text is split although no blank is beside it."""

PLACEHOLDER = re.compile(f"{{({'|'.join(SlotKind)})}}")
_PIECE = re.compile(
    "(?P<data>```.*?(?:```|\\Z)|-----BEGIN.*?(?:-----END[^\n]*|\\Z)|《[^》\n]{1,100}》)"
    f"|{PLACEHOLDER.pattern.replace('(', '(?P<slot>', 1)}"
    f"|(?P<gap>[\\s{_BREAKS}]+)"
    f"|(?P<chunk>(?:(?!{PLACEHOLDER.pattern.replace('(', '(?:', 1)}|```|-----BEGIN)[^\\s{_BREAKS}])+)"
    "|(?P<other>.)",
    re.DOTALL,
)
_PARTS = re.compile(
    f"(?P<date>\\d{{1,4}}年(?:\\d{{1,2}}月(?:\\d{{1,2}}[日号])?)?|\\d{{1,2}}月(?:\\d{{1,2}}[日号])?)|(?P<han>[{HAN}]+)|(?P<rest>[^{HAN}]+?(?=\\d{{1,4}}[年月]|[{HAN}]|\\Z))"
)
_RADICALS = re.compile("[\u2e80-\u2fdf\u3200-\u33ff]")
_ANY_HAN = re.compile(f"[{HAN}]")
_JOINTS = frozenset("_-./\\@#=&~|$^+")
"""Characters that make one identifier of what is on both sides of them."""

_OPENING = "([{<\"'*`"
_CLOSING = ")]}>\"'*`,.;:!?"
_BULLET = re.compile(r"\d{1,3}[.)]")
_CHINESE_BULLET = re.compile(f"\\d{{1,2}}[.)](?=[{HAN}])")
_SENTENCE = ",.;:!?"
_SIGNS = {"=": ":", ":=": ":", "=>": ":", "->": ":"}
_MARKS = {"，": ",", "；": ";", "：": ":", "？": "?", "！": "!", "。": "。", "、": "、", "…": "."}

_LONGEST = 300
"""A longer token is not looked at in detail."""

_URL = re.compile(
    r"[a-z+]{2,10}://.*|www\..*|[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|cn|de|eu|uk|dev|ai|app|gov|edu|info|co)(?:[/:?#].*)?",
    re.I | re.S,
)
_FILE = re.compile(r".*[/\\].*|.*\.[A-Za-z][A-Za-z0-9]{0,4}", re.S)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}(?:[-/.]\d{1,2})?(?:T[\d:.+Z-]*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|(?:19|20)\d\d"
    r"|\d{1,2}:\d\d(?::\d\d)?(?:[ap]m)?|\d{1,2}[ap]m|(?:Q[1-4]|H[12]|FY|KW|W)[-/]?\d{0,4}|\d{4}[-/]?[QHW]\d{1,2}",
    re.I,
)
_CALENDAR = re.compile(
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    "|Nov(?:ember)?|Dec(?:ember)?|Mon(?:day)?|Tue(?:sday)?|Wed(?:nesday)?|Thu(?:rsday)?|Fri(?:day)?"
    "|Sat(?:urday)?|Sun(?:day)?)s?"
)
_NUMBER = re.compile(r"[#+(]*\W{0,2}\d[\d\W_]*[A-Za-z%°]{0,3}")
_NUMBERS = re.compile(
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    "|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand"
    "|million|billion|dozen"
)
_PLAIN_NUMBER = re.compile(r"[\W\d]+(?:[kKmMbBxhs%]|[kKMGT]B|[kcm]?m|k?g|px|pt|min|th|st|nd|rd)?")


class Oddness(IntEnum):
    """Whether a slot looks like a number or like a piece of a key."""

    NONE = 0
    NUMBER = 1
    KEY = 2


class Token(msgspec.Struct, kw_only=True, gc=False):
    """An allowed word (`kind` is None) with its term, or a slot, as the text has it. `before`: whether
    anything was between it and the token before it; a newline, a blank or nothing. `mark`: the punctuation
    after it. `ends`: a sentence ends after it."""

    text: str
    kind: SlotKind | None = None
    term: str = ""
    before: str = ""
    mark: str = ""
    ends: bool = False
    oddness: Oddness = Oddness.NONE
    is_capital: bool = False
    is_placeholder: bool = False

    def become(self, kind: SlotKind) -> None:
        """Makes a slot of it."""
        if self.kind is None:
            self.kind = kind


class _TokenReader:
    """Collects the tokens of a text."""

    def __init__(self, tools: Collection[str], vocabulary: Vocabulary):
        self.tokens: list[Token] = []
        self._tools = frozenset(tools)
        self._vocabulary = vocabulary
        self._before = "\n"
        self._kinds: dict[str, SlotKind] = {}

    def gap(self, text: str) -> None:
        """Notes what is between two tokens."""
        self._before = "\n" if "\n" in text or self._before == "\n" else " "
        for character in text:
            if mark := _MARKS.get(character):
                self.mark(mark)
        if "\n" in text and self.tokens:
            self.tokens[-1].ends = True

    def mark(self, mark: str) -> None:
        """Notes punctuation after the last token."""
        if not self.tokens:
            return
        last = self.tokens[-1]
        is_short_name = last.is_capital and len(last.text) <= 4
        if mark == "." and is_short_name:  # Mr. Price
            return
        if mark in ".!?。" and not last.ends:
            last.mark, last.ends = mark, True
        last.mark = last.mark or mark

    def add(self, token: Token) -> None:
        """Adds a token."""
        token.before, self._before = self._before, ""
        self.tokens.append(token)

    def chunk(self, chunk: str) -> None:
        """Adds the tokens of text without blanks."""
        if chunk in self._vocabulary.forms and chunk not in self._tools:
            self.add(Token(text=chunk, term=self._vocabulary.forms[chunk]))
            return
        if not (chunk[0].isalnum() or any(map(_is_letter, chunk))):
            self.gap(" ")
            for mark in _SIGNS.get(chunk, chunk):
                if mark in _SENTENCE:
                    self.mark(mark)
            return
        if self._before == "\n":
            if _BULLET.fullmatch(chunk):
                return
            chunk = _CHINESE_BULLET.sub("", chunk)
        core = chunk.lstrip(_OPENING)
        if len(core) < len(chunk):
            self._before = self._before or " "
        stripped = core.rstrip(_CLOSING)
        self._core(stripped)
        for character in core[len(stripped) :]:
            if character in _SENTENCE:
                self.mark(character)
        if len(stripped) < len(core):
            self._before = self._before or " "

    def _core(self, core: str) -> None:
        if core in self._tools:
            self.add(Token(text=core, term=core))
        elif core.isascii() or _ANY_HAN.search(core) is None:
            self.add(self._latin(core))
        else:
            self._mixed(core)

    def _latin(self, core: str) -> Token:
        """The token of text without Chinese characters."""
        word = core.replace("’", "'")
        known = self._vocabulary
        if (term := known.spelled.get(word)) is not None:
            return Token(text=word, term=term)
        if word.islower() and word.isascii() and (term := known.term(word)) is not None:
            return Token(text=word, term=term)
        kind = self._kind(core)
        is_capital = word[0].isupper() and (word[1:].islower() or len(word) == 1)
        return Token(text=core, kind=kind, oddness=_oddness(core, kind), is_capital=is_capital)

    def _kind(self, core: str) -> SlotKind:
        if (kind := self._kinds.get(core)) is None:
            kind = self._kinds[core] = _kind_of(core)
        return kind

    def _mixed(self, core: str) -> None:
        """Adds the tokens of text with Chinese characters and others."""
        parts = list(_PARTS.finditer(core))
        texts = ["" if match["date"] else match[0] for match in parts]
        for at, match in enumerate(parts):
            if match["date"]:
                self.add(Token(text=match[0], kind=SlotKind.DATE))
            elif match["rest"]:
                is_after = at > 0 and match[0][0] in _JOINTS
                if is_after or (at + 1 < len(parts) and match[0][-1] in _JOINTS):
                    self.add(Token(text=match[0], kind=self._kind(match[0]), oddness=Oddness.KEY))
                else:
                    self._rest(match[0])
            else:
                before = texts[at - 1] if at else ""
                after = texts[at + 1] if at + 1 < len(texts) else ""
                self._han(match[0], before, after)

    def _rest(self, text: str) -> None:
        core = text.lstrip(_OPENING + _CLOSING)
        for character in text[: len(text) - len(core)]:
            if character in _SENTENCE:
                self.mark(character)
        if len(core) < len(text):
            self._before = self._before or " "
        if core:
            self.chunk(core)

    def _han(self, run: str, before: str, after: str) -> None:
        """Adds the words of a run of Chinese characters between two other texts."""
        if _is_foreign(before[-1:]) or _is_foreign(after[:1]):
            self.add(Token(text=run, kind=SlotKind.TEXT))
            return
        if before[-1:] in _JOINTS and before:
            self.add(Token(text=run, kind=SlotKind.FILE))
            return
        is_joined = bool(after) and after[0] in _JOINTS
        for segment in segments(run, self._vocabulary):
            if is_joined and (segment.kind is not None or segment.term):
                # The rest of the run belongs to an identifier: 请打开销售报告.xlsx
                self.add(Token(text=run, kind=SlotKind.FILE))
                return
            self.add(Token(text=segment.text, kind=segment.kind, term=segment.term))


def tokens_of(text: str, tools: Collection[str], vocabulary: Vocabulary) -> list[Token]:
    """The tokens of a text in order. Takes time linear in its length."""
    reader = _TokenReader(tools, vocabulary)
    glued = False
    for piece in _PIECE.finditer(text):
        if slot := piece["slot"]:
            reader.add(Token(text=piece[0], kind=SlotKind(slot), is_placeholder=True))
        elif piece["data"]:
            reader.gap("\n")
            reader.add(Token(text="", kind=SlotKind.NAME if piece[0][0] == "《" else SlotKind.TEXT))
            reader.gap(" ")
        elif chunk := piece["chunk"]:
            count = len(reader.tokens)
            reader.chunk(chunk)
            if glued and count < len(reader.tokens) and chunk[0].isascii():
                reader.tokens[count].become(SlotKind.TEXT)
        else:
            reader.gap(piece[0])
        glued = bool(piece["slot"])
    return reader.tokens


def _kind_of(core: str) -> SlotKind:
    """What a token that is no allowed word is."""
    if len(core) > _LONGEST:
        return SlotKind.TEXT
    user, _, domain = core.partition("@")
    if user and "." in domain and "://" not in core:
        return SlotKind.EMAIL
    if _CALENDAR.fullmatch(core) or _DATE.fullmatch(core):
        return SlotKind.DATE
    if _URL.fullmatch(core):
        return SlotKind.URL
    if _NUMBERS.fullmatch(core.lower()) or _NUMBER.fullmatch(core):
        return SlotKind.NUMBER
    if _FILE.fullmatch(core):
        return SlotKind.FILE
    if core[0].isupper() and core.replace("-", "").replace("'", "").isalpha() and not core[1:].isupper():
        return SlotKind.NAME
    return SlotKind.NAME if core[0] == "@" else SlotKind.TEXT


def _is_foreign(character: str) -> bool:
    """Whether a character is a letter, mark or invisible character that is not ASCII, or looks like one."""
    if not character or character.isascii():
        return False
    return unicodedata.category(character)[0] in "LMCN" or _RADICALS.match(character) is not None


def _is_letter(character: str) -> bool:
    return character.isalnum() or _is_foreign(character)


def _oddness(core: str, kind: SlotKind) -> Oddness:
    """How odd a token is that is no allowed word."""
    if kind is SlotKind.NUMBER:
        is_plain = core.isalpha() or _PLAIN_NUMBER.fullmatch(core)
        return Oddness.NUMBER if is_plain else Oddness.KEY
    is_name = kind is SlotKind.NAME and len(core) > 2
    is_word = kind is SlotKind.TEXT and core.isalpha() and core.islower() and len(core) > 4
    return (
        Oddness.KEY if kind in (SlotKind.TEXT, SlotKind.NAME) and not (is_name or is_word) else Oddness.NONE
    )
