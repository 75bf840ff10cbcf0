"""Which rule decides about a call. Pure: rules and a subject in, what they say out; nothing is read or kept.

Rules are read in the order of their scopes, and within a scope from the first to the last; the last that
matches decides. But what the server or the tenant denies stays denied, whatever follows.
"""

import posixpath
import shlex
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from luxx.tools.pattern import fits, fits_words, joined
from luxx.tools.permissions.options import Words, is_looking, only_looks
from luxx.tools.permissions.programs import runs_others
from luxx.tools.permissions.subjects import (
    Part,
    PlainAddress,
    Subject,
    SubjectKind,
    plain_address,
    plain_place,
    unescaped,
)
from luxx.wire.rule import PlacedRule, RuleAction, RuleScope

EXACTLY = "="
"""A pattern that begins so is the rest of it, letter by letter."""

_ORDER = list(RuleScope)
_FIRM = (RuleScope.SERVER, RuleScope.TENANT)
"""Scopes whose denials nobody below lifts."""

Rules = Sequence[PlacedRule]
Matched = Sequence[tuple[PlacedRule, bool]]
"""Rules in order, each with whether it matches."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say of one part; `rule` is None where none of them matches.

    `is_unsure`: a rule might match, if it were known what the part means. `is_suspected`: `rule` is one of
    the server's or the tenant's that might deny the part.
    """

    rule: PlacedRule | None = None
    is_unsure: bool = False
    is_suspected: bool = False


def in_order(rules: Rules) -> tuple[PlacedRule, ...]:
    """In the order in which they are read."""
    return tuple(sorted(rules, key=lambda rule: (_ORDER.index(rule.scope), rule.place)))


def of_tool(rules: Rules, tool: str) -> list[PlacedRule]:
    """Those that are about this tool."""
    return [rule for rule in rules if fits(rule.tool, tool)]


def ruling(rules: Rules, subject: Subject, part: Part) -> Ruling:
    """What the rules about a tool, in order, say of one part of the subject."""
    matched = [(rule, _matches(rule, subject, part)) for rule in rules]
    for scope in _FIRM:
        if not any(rule.scope == scope for rule in rules):
            continue
        above = [each for each in matched if _ORDER.index(each[0].scope) <= _ORDER.index(scope)]
        found = _last(above, subject)
        if found.rule is not None and found.rule.action == RuleAction.DENY and not found.is_unsure:
            return found
        suspect = _suspect(above, subject)
        if suspect is not None:
            return Ruling(rule=suspect, is_unsure=True, is_suspected=True)
    return _last(matched, subject)


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


def _last(matched: Matched, subject: Subject) -> Ruling:
    is_unsure = False
    for rule, is_match in reversed(matched):
        if is_match:
            is_sure = subject.problem is None or rule.action == RuleAction.DENY or not is_unsure
            return Ruling(rule=rule, is_unsure=not is_sure)
        # Of what is not understood, a rule that would bind might be meant.
        is_unsure |= subject.problem is not None and rule.action != RuleAction.ALLOW
    return Ruling(is_unsure=is_unsure)


def _suspect(matched: Matched, subject: Subject) -> PlacedRule | None:
    """The rule that might deny what is not understood, if it were known what it means."""
    if subject.problem is None:
        return None
    for rule, is_match in reversed(matched):
        if rule.action == RuleAction.DENY:
            return rule
        if is_match:
            return None
    return None


def _matches(rule: PlacedRule, subject: Subject, part: Part) -> bool:
    """An `allow` matches what is surely meant; the others match whatever may be."""
    if rule.pattern == "*" or (rule.pattern == EXACTLY + subject.given and not part.is_target):
        return True
    is_wide = rule.action != RuleAction.ALLOW
    if subject.problem is not None and not is_wide:
        return False
    if rule.pattern.startswith(EXACTLY):
        wanted = rule.pattern.removeprefix(EXACTLY)
        return wanted == part.text or (is_wide and _may_be(wanted, subject.kind, part))
    match subject.kind:
        case SubjectKind.COMMAND:
            return _may_mean(rule.pattern, part) if is_wide else _is_meant(rule.pattern, part)
        case SubjectKind.PATH:
            path = posixpath.normpath(rule.pattern) if rule.pattern else "."
            return fits(path, part.text) or (is_wide and fits(path, f"{part.text}/"))
        case SubjectKind.URL:
            return _fits_url(rule.pattern, part.text, is_wide=is_wide) or (
                is_wide and fits(rule.pattern, subject.given)
            )
        case SubjectKind.TEXT:
            return _fits_text(rule.pattern, part.text, is_wide=is_wide)


def _may_be(wanted: str, kind: SubjectKind, part: Part) -> bool:
    """Whether the part may be what is wanted letter by letter, written otherwise."""
    match kind:
        case SubjectKind.COMMAND:
            line = f"{joined(_pattern_words(wanted))}\0"
            if runs_others(part.words):
                return any(line in f"{form}\0" for form in part.forms)
            return any(line == f"{form}\0" for form in part.forms)
        case SubjectKind.PATH:
            return posixpath.normpath(wanted or ".") == part.text
        case SubjectKind.URL:
            address = plain_address(wanted)
            return isinstance(address, PlainAddress) and address.text == part.text
        case SubjectKind.TEXT:
            return False


def _may_mean(pattern: str, part: Part) -> bool:
    """Whether the command fits, or its program without a directory, or one that it may run."""
    wanted = _pattern_words(pattern)
    if runs_others(part.words):
        wanted = ("*", *wanted)
    return any(fits_words(wanted, form) for form in part.forms)


@lru_cache(maxsize=4096)
def _pattern_words(pattern: str) -> Words:
    try:
        return tuple(shlex.split(pattern))
    except ValueError:
        return tuple(pattern.split())


def _is_meant(pattern: str, part: Part) -> bool:
    wanted = _pattern_words(pattern)
    # `git grep *` is what "always" says: it does not cover `git grep -O…`, which runs a program.
    if wanted[2:] == ("*",) and is_looking(wanted[:2]) and not only_looks(part.words):
        return False
    # `docs/*` is not meant to let `docs/../secret` through.
    if any(".." in word.split("/") for word in part.words) and _has_wild_word(wanted):
        return False
    return fits_words(wanted, joined(part.words))


def _has_wild_word(pattern: Words) -> bool:
    return any(word != "*" and _is_wild(word) for word in pattern)


def _fits_url(pattern: str, url: str, *, is_wide: bool) -> bool:
    """Host and the rest apart: no wildcard reaches from the one into the other."""
    scheme, separator, rest = pattern.partition("://")
    if not separator:
        scheme, rest = "*", pattern
    host, slash, path = rest.partition("/")
    own_scheme, _, own_rest = url.partition("://")
    own_host, _, own_path = own_rest.partition("/")
    if not (fits(scheme.lower(), own_scheme) and fits(plain_place(host), own_host)):
        return False
    path = unescaped(path) if slash else ""
    # Whoever closes a folder closes its page, too.
    return fits(path, own_path) or (is_wide and fits(path, f"{own_path.partition('?')[0]}/"))


def _fits_text(pattern: str, text: str, *, is_wide: bool) -> bool:
    """As it is; but what may be a path is not let out of a folder by `..`, which some tools follow."""
    is_climbing = ".." in text and ".." in text.replace("\\", "/").split("/")
    if is_climbing and not is_wide:
        return fits(pattern, text) and not _is_wild(pattern)
    return fits(pattern, text) or (is_climbing and fits(pattern, posixpath.normpath(text)))


def _is_wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern
