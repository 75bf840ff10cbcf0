"""Which rule decides about a call. Pure: rules and a subject in, what they say out; nothing is read or kept.

Rules are read in the order of their scopes, and within a scope from the first to the last; the last that
matches decides. But what the server or the tenant denies stays denied, whatever follows.
"""

import posixpath
import shlex
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from luxx.tools.command_line import RUNS_OTHERS, SHELLS, Words, program
from luxx.tools.subjects import Part, Subject, SubjectKind
from luxx.tools.wildcards import fits, fits_words
from luxx.wire.rule import PlacedRule, RuleAction, RuleScope

EXACTLY = "="
"""A pattern that begins so is the rest of it, letter by letter."""

_ORDER = list(RuleScope)
_FIRM = (RuleScope.SERVER, RuleScope.TENANT)
"""Scopes whose denials nobody below lifts."""

Rules = Sequence[PlacedRule]


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say of one part; `rule` is None where none of them matches.

    `is_unsure`: a rule might match, if it were known what the part means.
    """

    rule: PlacedRule | None = None
    is_unsure: bool = False


def in_order(rules: Rules) -> tuple[PlacedRule, ...]:
    """In the order in which they are read."""
    return tuple(sorted(rules, key=lambda rule: (_ORDER.index(rule.scope), rule.place)))


def of_tool(rules: Rules, tool: str) -> list[PlacedRule]:
    """Those that are about this tool."""
    return [rule for rule in rules if fits(rule.tool, tool)]


def ruling(rules: Rules, subject: Subject, part: Part) -> Ruling:
    """What the rules about a tool, in order, say of one part of the subject."""
    is_unsure = False
    for scope in _FIRM:
        if not any(rule.scope == scope for rule in rules):
            continue
        above = [rule for rule in rules if _ORDER.index(rule.scope) <= _ORDER.index(scope)]
        found = _last(above, subject, part)
        if found.rule is not None and found.rule.action == RuleAction.DENY and not found.is_unsure:
            return found
        is_unsure |= _may_deny(above, subject, part)
    last = _last(rules, subject, part)
    return Ruling(rule=last.rule, is_unsure=last.is_unsure or is_unsure)


def is_never(rules: Rules) -> bool:
    """Whether these rules about a tool deny it whatever its arguments are."""
    return any(
        _denies_all([rule for rule in rules if _ORDER.index(rule.scope) <= last])
        for last in (*map(_ORDER.index, _FIRM), len(_ORDER))
    )


def _denies_all(rules: Rules) -> bool:
    for rule in reversed(rules):
        if rule.action != RuleAction.DENY:
            return False
        if rule.pattern == "*":
            return True
    return False


def _last(rules: Rules, subject: Subject, part: Part) -> Ruling:
    is_unsure = False
    for rule in reversed(rules):
        if _matches(rule, subject, part):
            is_sure = subject.problem is None or rule.action == RuleAction.DENY or not is_unsure
            return Ruling(rule=rule, is_unsure=not is_sure)
        # Of what is not understood, a rule that would bind might be meant.
        is_unsure |= subject.problem is not None and rule.action != RuleAction.ALLOW
    return Ruling(is_unsure=is_unsure)


def _may_deny(rules: Rules, subject: Subject, part: Part) -> bool:
    """Whether one of these might deny the part, if it were known what it means."""
    if subject.problem is None:
        return False
    for rule in reversed(rules):
        if _matches(rule, subject, part):
            return rule.action == RuleAction.DENY
        if rule.action == RuleAction.DENY:
            return True
    return False


def _matches(rule: PlacedRule, subject: Subject, part: Part) -> bool:
    """An `allow` matches what is surely meant; the others match whatever may be."""
    if rule.pattern == "*" or rule.pattern == EXACTLY + subject.given:
        return True
    if rule.pattern.startswith(EXACTLY):
        return subject.problem is None and rule.pattern == EXACTLY + part.text
    is_wide = rule.action != RuleAction.ALLOW
    if subject.problem is not None and not is_wide:
        return False
    match subject.kind:
        case SubjectKind.COMMAND:
            wanted = _pattern_words(rule.pattern)
            return _may_mean(wanted, part.words) if is_wide else _fit_words(wanted, part.words)
        case SubjectKind.PATH:
            path = posixpath.normpath(rule.pattern) if rule.pattern else "."
            return fits(path, part.text) or (is_wide and fits(path, f"{part.text}/"))
        case SubjectKind.URL:
            return _fits_url(rule.pattern, part.text) or (is_wide and fits(rule.pattern, subject.given))
        case SubjectKind.TEXT:
            return fits(rule.pattern, part.text)


def _may_mean(pattern: Words, words: Words) -> bool:
    """Whether the command fits, or its program without a directory, or one that it may run."""
    names = tuple(word.rpartition("/")[2] or word for word in words)
    if program(words) in RUNS_OTHERS | SHELLS | {"find"}:
        pattern = ("*", *pattern)
        return _fit_words(pattern, words, is_wide=True) or _fit_words(pattern, names, is_wide=True)
    return _fit_words(pattern, words, is_wide=True) or _fit_words(
        pattern, (*names[:1], *words[1:]), is_wide=True
    )


@lru_cache(maxsize=4096)
def _pattern_words(pattern: str) -> Words:
    try:
        return tuple(shlex.split(pattern))
    except ValueError:
        return tuple(pattern.split())


def _fit_words(pattern: Words, words: Words, *, is_wide: bool = False) -> bool:
    # `docs/*` is not meant to let `docs/../secret` through.
    if not is_wide and any(".." in word.split("/") for word in words) and _has_wild_word(pattern):
        return False
    return fits_words(pattern, words)


def _has_wild_word(pattern: Words) -> bool:
    return any(word != "*" and ("*" in word or "?" in word) for word in pattern)


def _fits_url(pattern: str, url: str) -> bool:
    """Host and the rest apart: no wildcard reaches from the one into the other."""
    scheme, separator, rest = pattern.partition("://")
    if not separator:
        scheme, rest = "*", pattern
    host, _, path = rest.partition("/")
    own_scheme, _, own_rest = url.partition("://")
    own_host, _, own_path = own_rest.partition("/")
    is_same_host = fits(scheme.lower(), own_scheme) and fits(host.lower(), own_host)
    return is_same_host and fits(path if "/" in rest else "", own_path)
