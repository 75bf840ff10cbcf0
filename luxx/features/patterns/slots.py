"""What a learned pattern keeps of a text: tool names and words of the vocabulary. Everything else becomes a
typed slot, such as `{name}`, so that nothing private is stored.
"""

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import pairwise, zip_longest

import msgspec

from luxx.features.patterns.tokens import Oddness, Token, tokens_of
from luxx.features.patterns.vocabulary import SlotKind, Vocabulary, vocabulary

MAX_SIGNATURE = 64
"""The most words of a signature: the first ones of the text."""

_CUES = frozenset(
    re.findall(
        r"\w+",
        """password passwords passphrase passcode passwd pwd pin secret secrets token tokens credential
        credentials seed mnemonic passwort kennwort wachtwoord contraseña senha passe
        密码 口令 密钥 令牌 密碼 パスワード""",
    )
)
"""Words after which a secret follows, in the same sentence and after one of `_EQUALS` or a colon."""

_BARE_CUES = frozenset({"passwd", "pwd", "passcode"})
"""Cues that a secret may follow at once."""

_KEYS = frozenset({"api", "pass", "private", "secret", "access", "license", "encryption", "recovery", "ssh"})
_EQUALS = frozenset({"is", "was", "are", "be", "to", "as", "是", "为", "成"})
_BEFORE_NAMES = re.compile(
    "the|for|from|to|in|on|at|with|about|please|can|could|is|are|what|when|why|how|who|hi|hello|dear|if|and|or"
)
"""Words with which a sentence may begin before a name. Others may be a part of it: New Harvest Ltd."""

_DETERMINERS = re.compile("the|a|an|this|these|those|all|each|every|my|our|your|their|its|me|it|them")
_NAMED = frozenset({"named", "called"})
_DOTS = frozenset({"dot", "point", "punkt", "underscore", "dash"})

_FRAGMENT = 4
"""Words of up to so many letters are part of a key if pieces of keys are on both sides of them."""

_LONG_KEY = 16
_STOPS = (".", "!", "?", "。")


class PatternSignature(msgspec.Struct, frozen=True):
    """What a request is about: the stems of its English words and its Chinese words, and the kinds of its
    slots, both sorted and each once."""

    words: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()


def slotted(text: str, tools: Collection[str] = ()) -> str:
    """The text with slots for all words but those of the vocabulary and the names of tools.

    Words are in small letters, adjacent equal slots are one, and other characters than simple punctuation are
    left out.

    Slots in the text stay, so that the result for a result is the same. Takes time linear in the length of
    the text.
    """
    return without_checked_numbers(_written(_judged(text, tools)))


def slotted_line(text: str, tools: Collection[str], most: int) -> str:
    """The first `most` characters of a text as one line of slots and general words, no longer than that."""
    return " ".join(slotted(text[:most], tools).split())[:most]


def signature_of(text: str, tools: Collection[str] = ()) -> PatternSignature:
    """The signature of a text, which is that of its `slotted` form too."""
    tokens = _judged(text, tools)
    words = dict.fromkeys(token.term for token in tokens if token.kind is None and token.term)
    return PatternSignature(
        words=tuple(sorted(list(words)[:MAX_SIGNATURE])),
        slots=tuple(sorted({token.kind.value for token in tokens if token.kind is not None})),
    )


def signature_text(signature: PatternSignature) -> str:
    """A signature as one line: `chart report sales | file number`."""
    return f"{' '.join(signature.words)} | {' '.join(signature.slots)}".strip()


def read_signature(text: str) -> PatternSignature:
    """The signature of a line that `signature_text` wrote."""
    words, _, slots = text.partition("|")
    return PatternSignature(words=tuple(words.split()), slots=tuple(slots.split()))


def checked_signature(text: str) -> PatternSignature:
    """The signature of a line that another server or a person may have written: without words that no
    signature has."""
    found, kinds = read_signature(text), {kind.value for kind in SlotKind}
    words = tuple(sorted(_terms().intersection(found.words))[:MAX_SIGNATURE])
    return PatternSignature(words=words, slots=tuple(sorted(kinds.intersection(found.slots))))


@cache
def _terms() -> frozenset[str]:
    """All words that a signature may have."""
    known = vocabulary()
    tables = (known.forms, known.stems, known.spelled, known.chinese)
    return frozenset(term for table in tables for term in table.values())


def _judged(text: str, tools: Collection[str]) -> list[Token]:
    known = vocabulary()
    tokens = tokens_of(text, tools, known)
    _pass_capitals(tokens, known)
    _slot_languages(tokens, known)
    for rule in _RULES:
        rule(tokens)
    return tokens


def _pass_capitals(tokens: list[Token], known: Vocabulary) -> None:
    """Lets words pass that have a capital letter because a sentence begins with them."""
    for at, token in enumerate(tokens):
        is_first = at == 0 or tokens[at - 1].ends
        if not (is_first and token.is_capital and token.kind is SlotKind.NAME):
            continue
        word = token.text.replace("’", "'").lower()
        following = tokens[at + 1] if at + 1 < len(tokens) and not token.mark else None
        term = known.term(word)
        if term is None or (known.is_name(word) and not _is_command(word, following, known)):
            continue
        is_before_name = known.is_verb(word) or _BEFORE_NAMES.fullmatch(word)
        if following is None or not following.is_capital or is_before_name:
            token.text, token.term, token.kind = word, term, None
            token.is_capital, token.oddness = False, Oddness.NONE


def _slot_languages(tokens: list[Token], known: Vocabulary) -> None:
    """Makes slots of languages after a name: Jeanne English."""
    for before, token in pairwise(tokens):
        if before.kind is SlotKind.NAME and not before.mark and token.text in known.languages:
            token.become(SlotKind.NAME)


def _is_command(word: str, following: Token | None, known: Vocabulary) -> bool:
    """Whether a word that may be a name is a verb with an object: Mark the totals."""
    return (
        known.is_verb(word) and following is not None and _DETERMINERS.fullmatch(following.text) is not None
    )


def _slot_addresses(tokens: list[Token]) -> None:
    """Finds e-mail addresses in words: support at company dot com."""
    for at in range(1, len(tokens) - 1):
        if tokens[at].text.lower() != "at":
            continue
        domain = tokens[at + 1]
        last = at + 1
        while last + 2 < len(tokens) and tokens[last + 1].text.lower() in _DOTS:
            last += 2
        if last == at + 1 and (domain.kind is not SlotKind.URL or domain.is_placeholder):
            continue
        first = at - 1
        while first >= 2 and tokens[first - 1].text.lower() in _DOTS:
            first -= 2
        for token in tokens[first : last + 1]:
            token.kind = SlotKind.EMAIL


def _slot_secrets(tokens: list[Token]) -> None:
    """Makes slots of the rest of a sentence in which a password or key is given."""
    has_cue = is_secret = False
    before = ""
    for token, following in zip_longest(tokens, tokens[1:]):
        if is_secret:
            token.become(SlotKind.TEXT)
        word = token.text.lower()
        if word in _CUES:
            has_cue = True
            is_secret = is_secret or word in _BARE_CUES or _is_attached(following)
        elif word in ("key", "keys", "phrase") and before in _KEYS:
            has_cue = True
        is_secret = is_secret or (has_cue and (token.mark == ":" or word in _EQUALS))
        before = word
        if token.ends:
            has_cue = is_secret = False


def _is_attached(token: Token | None) -> bool:
    """Whether a token follows a Chinese word without a blank, and is none: 密码report."""
    return token is not None and not token.before and (token.kind is not None or token.text.isascii())


def _slot_named(tokens: list[Token]) -> None:
    """Makes slots of the words after `named`, up to a function word or the end of a sentence."""
    is_named = False
    for token in tokens:
        is_function = token.kind is None and not token.term
        if is_named and not is_function:
            token.become(SlotKind.NAME)
        is_named = token.text.lower() in _NAMED or (is_named and not is_function)
        is_named = is_named and not token.ends


def _slot_series(tokens: list[Token]) -> None:
    """Makes slots of words in a row of which many are unknown, such as those of a pass phrase."""
    for series in _runs(tokens, lambda token: _is_content(token) or _is_unknown(token)):
        unknown = sum(map(_is_unknown, series))
        is_phrase = len(series) >= 4 and unknown * 5 >= len(series) * 3
        if is_phrase or (len(series) >= 8 and unknown * 4 >= len(series)):
            for token in series:
                token.become(SlotKind.TEXT)


def _is_content(token: Token) -> bool:
    return token.kind is None and bool(token.term) and token.text.isascii()


def _is_unknown(token: Token) -> bool:
    text = token.text
    return token.kind is SlotKind.TEXT and not token.is_placeholder and text.isascii() and text.islower()


def _runs(tokens: list[Token], fits: Callable[[Token], bool]) -> Iterator[list[Token]]:
    """The longest rows of tokens that fit, without punctuation inside."""
    run: list[Token] = []
    for token in tokens:
        if fits(token):
            run.append(token)
            if not (token.mark or token.ends):
                continue
        if run:
            yield run
            run = []
    if run:
        yield run


def _slot_fragments(tokens: list[Token]) -> None:
    """Makes slots of words between pieces of keys, and of short words between numbers; at most two each."""
    last = -9
    for at, token in enumerate(tokens):
        if token.is_placeholder or not token.oddness:
            continue
        between = tokens[last + 1 : at] if at - last <= 3 else []
        is_key = bool(between) and token.oddness + tokens[last].oddness == 2 * Oddness.KEY
        if all((is_key or len(word.text) <= _FRAGMENT) and word.mark not in _STOPS for word in between):
            for word in between:
                word.become(SlotKind.TEXT)
        last = at


def _slot_letters(tokens: list[Token]) -> None:
    """Makes slots of the words `a` and `I` beside other single letters, and of initials."""
    letters = [len(token.text) == 1 and token.text.isascii() for token in tokens]
    for at, token in enumerate(tokens):
        beside = letters[max(at - 1, 0) : at] + letters[at + 1 : at + 2] if letters[at] else []
        if any(beside) or (letters[at] and token.mark == "."):
            token.become(SlotKind.TEXT)


def _slot_broken_lines(tokens: list[Token]) -> None:
    """Makes a slot of a line of one word after the end of a long key."""
    for at in range(1, len(tokens)):
        before, token = tokens[at - 1], tokens[at]
        is_alone = token.before == "\n" and (at + 1 == len(tokens) or tokens[at + 1].before == "\n")
        if is_alone and before.oddness and not before.is_placeholder and len(before.text) >= _LONG_KEY:
            token.become(SlotKind.TEXT)


_RULES = (
    *(_slot_letters, _slot_fragments, _slot_broken_lines, _slot_addresses, _slot_secrets),
    *(_slot_series, _slot_named),
)
"""In this order a rule finds nothing more in a text with slots, in which several words may be one slot."""


def _written(tokens: list[Token]) -> str:
    parts: list[str] = []
    last: Token | None = None
    for token in tokens:
        if last is not None and token.kind is not None and token.kind is last.kind and not last.ends:
            last = token
            continue
        if last is not None:
            parts.append(last.mark)
            parts.append(_blank(last, token))
        parts.append(token.text if token.kind is None else f"{{{token.kind.value}}}")
        last = token
    if last is not None:
        parts.append(last.mark)
    return "".join(parts)


def _blank(last: Token, token: Token) -> str:
    """What is between two tokens in the result: nothing, a blank or a newline."""
    if last.mark in ("。", "、"):
        return token.before.strip(" ")
    if token.before or last.mark:
        return token.before or " "
    is_word, is_next_word = last.kind is None, token.kind is None
    if is_word and is_next_word:
        return " " if last.text.isascii() and token.text.isascii() else ""
    return " " if (is_word and last.text.isascii()) or (is_next_word and token.text.isascii()) else ""


_DIGITS = re.compile(r"(?<![\dA-Za-z])\d(?:[ -]?\d){12,18}(?![\dA-Za-z])")
_CHINESE_ID = re.compile(r"(?<![\dA-Za-z])\d{17}[\dXx](?![\dA-Za-z])")
_IBAN = re.compile(r"\b[A-Z]{2}\d\d(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?\b")
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def without_checked_numbers(text: str) -> str:
    """The text with slots for card numbers, IBANs and Chinese identity numbers whose checksum is right."""
    slot = f"{{{SlotKind.NUMBER.value}}}"
    for pattern, is_right in ((_IBAN, _is_iban), (_CHINESE_ID, _is_chinese_id), (_DIGITS, _is_card)):
        text = pattern.sub(lambda match, right=is_right: slot if right(match[0]) else match[0], text)
    return text


def _is_card(text: str) -> bool:
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_chinese_id(text: str) -> bool:
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, text, strict=False))
    return "10X98765432"[total % 11] == text[-1].upper()


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "")
    return int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1
