"""The words that a learned pattern may keep, from `vocabulary.txt`, and the kinds of slots that
replace others.

The list is one of allowed words, because no detector finds all names and secrets: what nobody has listed
does not pass.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files

import msgspec

from luxx.infra.store.search_words import FUNCTION_WORDS, stems_of

_ENDINGS = ("s", "ed", "ing")
_CONTENT = ("verbs", "nouns", "adjectives", "compounds")
_GENERAL = ("general", "general verbs")


class SlotKind(StrEnum):
    """What a slot replaces. `text`: anything that is none of the others."""

    NAME = "name"
    FILE = "file"
    NUMBER = "number"
    DATE = "date"
    URL = "url"
    EMAIL = "email"
    TEXT = "text"


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The allowed words. `forms`, `stems`, `spelled` and `chinese` map a word to its term in a signature,
    which is empty for words that say nothing of the subject. `longest` maps the first character of Chinese
    words and names to the length of the longest. `spelled` has words with capitals."""

    forms: Mapping[str, str]
    stems: Mapping[str, str]
    verbs: frozenset[str]
    spelled: Mapping[str, str]
    names: frozenset[str]
    languages: frozenset[str]
    chinese: Mapping[str, str]
    longest: Mapping[str, int]
    surnames: frozenset[str]
    given: frozenset[str]
    titles: frozenset[str]
    chinese_names: frozenset[str]

    def term(self, word: str) -> str | None:
        """The term of an English word in small letters; None: the word is not allowed."""
        word = word.removesuffix("'s")
        if (term := self.forms.get(word)) is not None:
            return term
        if word.isalpha() and word.endswith(_ENDINGS):
            return self.stems.get(stems_of([word])[0])
        return None

    def is_verb(self, word: str) -> bool:
        """Whether an English word in small letters is a verb, with which a request may begin."""
        return word in self.verbs

    def is_name(self, word: str) -> bool:
        """Whether an English word in small letters is a name when it has a capital letter."""
        return word in self.names or word.removesuffix("'s").removesuffix("s") in self.names


@cache
def vocabulary() -> Vocabulary:
    """The words of `vocabulary.txt`."""
    sections = _sections(files("luxx.features.patterns").joinpath("vocabulary.txt").read_text("utf-8"))
    forms: dict[str, str] = {}
    stems: dict[str, str] = {}
    for section in (*_CONTENT, *_GENERAL):
        for entry in sections[section]:
            base, _, others = entry.partition("=")
            (stem,) = stems_of([base])
            term = "" if section in _GENERAL else stem
            stems[stem] = term
            forms.update(dict.fromkeys((base, *filter(None, others.split(","))), term))
    spelled = {word: stems_of([word.lower()])[0] for word in sections["spelled"]}
    spelled |= dict.fromkeys(sections["languages"], "")
    forms |= {word.lower(): term for word, term in spelled.items()}
    small = (word for word in sections["function"] if word.islower())
    forms |= dict.fromkeys((*FUNCTION_WORDS, *small), "")
    spelled |= {word: "" for word in sections["function"] if not word.islower()}
    chinese = {word: word if len(word) > 1 else "" for word in sections["chinese"]}
    chinese |= dict.fromkeys((*sections["chinese function"], *sections["chinese general"]), "")
    return Vocabulary(
        forms=forms,
        stems=stems,
        verbs=frozenset(
            entry.partition("=")[0] for entry in (*sections["verbs"], *sections["general verbs"])
        ),
        spelled=spelled,
        names=frozenset(sections["names"]),
        languages=frozenset(sections["languages"]),
        chinese=chinese,
        longest=_longest((*chinese, *sections["chinese names"])),
        surnames=frozenset(sections["chinese surnames"]),
        given=frozenset(sections["chinese given"]),
        titles=frozenset(sections["chinese titles"]),
        chinese_names=frozenset(sections["chinese names"]),
    )


def _longest(words: Iterable[str]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for word in words:
        lengths[word[0]] = max(lengths.get(word[0], 0), len(word))
    return lengths


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            words = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            words += line.split()
    return sections
