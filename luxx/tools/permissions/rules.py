"""Which rule decides about a call. Pure: rules and a subject in, what they say out; nothing is read or kept.

Rules are read in the order of their scopes, and within a scope from the first to the last; the last that
matches decides. But what the server or the tenant denies stays denied, whatever follows.
"""

import posixpath
import shlex
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from luxx.tools.pattern import join_words, matches_wildcards, matches_words
from luxx.tools.permissions.options import CommandWords, is_read_only, is_read_only_subcommand
from luxx.tools.permissions.programs import runs_other_programs
from luxx.tools.permissions.subjects import (
    CanonicalUrl,
    Subject,
    SubjectKind,
    SubjectPart,
    canonical_host_pattern,
    canonical_url,
    decode_unreserved,
)
from luxx.wire.rule import PlacedRule, RuleAction, RuleScope

EXACT_PREFIX = "="
"""A pattern that begins so is the rest of it, letter by letter."""

_ORDER = list(RuleScope)
_OVERRIDING_SCOPES = (RuleScope.SERVER, RuleScope.TENANT)
"""Scopes whose denials nobody below lifts."""

Rules = Sequence[PlacedRule]
RuleMatches = Sequence[tuple[PlacedRule, bool]]
"""Rules in order, each with whether it matches."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say of one part; `rule` is None where none of them matches.

    `is_unsure`: a rule might match, if it were known what the part means. `is_suspected`: `rule` is one of
    the server's or the tenant's that might deny the part.
    """

    rule: PlacedRule | None = None
    is_unsure: bool = False
    is_suspected: bool = False


def sort_rules(rules: Rules) -> tuple[PlacedRule, ...]:
    """In the order in which they are read."""
    return tuple(sorted(rules, key=lambda rule: (_ORDER.index(rule.scope), rule.place)))


def rules_for_tool(rules: Rules, tool: str) -> list[PlacedRule]:
    """Those that are about this tool."""
    return [rule for rule in rules if matches_wildcards(rule.tool, tool)]


def find_ruling(rules: Rules, subject: Subject, part: SubjectPart) -> Ruling:
    """What the rules about a tool, in order, say of one part of the subject."""
    rule_matches = [(rule, _matches(rule, subject, part)) for rule in rules]
    for scope in _OVERRIDING_SCOPES:
        if not any(rule.scope == scope for rule in rules):
            continue
        rules_so_far = [each for each in rule_matches if _ORDER.index(each[0].scope) <= _ORDER.index(scope)]
        last_match = _last_match(rules_so_far, subject)
        if (
            last_match.rule is not None
            and last_match.rule.action == RuleAction.DENY
            and not last_match.is_unsure
        ):
            return last_match
        suspect = _suspect(rules_so_far, subject)
        if suspect is not None:
            return Ruling(rule=suspect, is_unsure=True, is_suspected=True)
    return _last_match(rule_matches, subject)


def is_always_denied(rules: Rules) -> bool:
    """Whether these rules about a tool deny it whatever its arguments are."""
    return any(
        _denies_all([rule for rule in rules if _ORDER.index(rule.scope) <= last])
        for last in (*map(_ORDER.index, _OVERRIDING_SCOPES), len(_ORDER))
    )


def _denies_all(rules: Rules) -> bool:
    for rule in reversed(rules):
        if rule.action != RuleAction.DENY:
            return False
        if rule.pattern == "*":
            return True
    return False


def _last_match(rule_matches: RuleMatches, subject: Subject) -> Ruling:
    is_unsure = False
    for rule, is_match in reversed(rule_matches):
        if is_match:
            is_sure = subject.problem is None or rule.action == RuleAction.DENY or not is_unsure
            return Ruling(rule=rule, is_unsure=not is_sure)
        # Of what is not understood, a rule that would bind might be meant.
        is_unsure |= subject.problem is not None and rule.action != RuleAction.ALLOW
    return Ruling(is_unsure=is_unsure)


def _suspect(rule_matches: RuleMatches, subject: Subject) -> PlacedRule | None:
    """The rule that might deny what is not understood, if it were known what it means."""
    if subject.problem is None:
        return None
    for rule, is_match in reversed(rule_matches):
        if rule.action == RuleAction.DENY:
            return rule
        if is_match:
            return None
    return None


def _matches(rule: PlacedRule, subject: Subject, part: SubjectPart) -> bool:
    """An `allow` matches what is surely meant; the others match whatever may be."""
    if rule.pattern == "*" or (rule.pattern == EXACT_PREFIX + subject.raw and not part.is_target):
        return True
    is_wide = rule.action != RuleAction.ALLOW
    if subject.problem is not None and not is_wide:
        return False
    if rule.pattern.startswith(EXACT_PREFIX):
        wanted_words = rule.pattern.removeprefix(EXACT_PREFIX)
        return wanted_words == part.text or (is_wide and _may_equal(wanted_words, subject.kind, part))
    match subject.kind:
        case SubjectKind.COMMAND:
            return _may_match_command(rule.pattern, part) if is_wide else _matches_command(rule.pattern, part)
        case SubjectKind.PATH:
            path = posixpath.normpath(rule.pattern) if rule.pattern else "."
            return matches_wildcards(path, part.text) or (
                is_wide and matches_wildcards(path, f"{part.text}/")
            )
        case SubjectKind.URL:
            return _fits_url(rule.pattern, part.text, is_wide=is_wide) or (
                is_wide and matches_wildcards(rule.pattern, subject.raw)
            )
        case SubjectKind.TEXT:
            return _fits_text(rule.pattern, part.text, is_wide=is_wide)


def _may_equal(wanted_words: str, kind: SubjectKind, part: SubjectPart) -> bool:
    """Whether the part may be what is wanted letter by letter, written otherwise."""
    match kind:
        case SubjectKind.COMMAND:
            line = f"{join_words(_pattern_words(wanted_words))}\0"
            if runs_other_programs(part.words):
                return any(line in f"{variant}\0" for variant in part.variants)
            return any(line == f"{variant}\0" for variant in part.variants)
        case SubjectKind.PATH:
            return posixpath.normpath(wanted_words or ".") == part.text
        case SubjectKind.URL:
            address = canonical_url(wanted_words)
            return isinstance(address, CanonicalUrl) and address.text == part.text
        case SubjectKind.TEXT:
            return False


def _may_match_command(pattern: str, part: SubjectPart) -> bool:
    """Whether the command fits, or its program without a directory, or one that it may run."""
    wanted_words = _pattern_words(pattern)
    if runs_other_programs(part.words):
        wanted_words = ("*", *wanted_words)
    return any(matches_words(wanted_words, variant) for variant in part.variants)


@lru_cache(maxsize=4096)
def _pattern_words(pattern: str) -> CommandWords:
    try:
        return tuple(shlex.split(pattern))
    except ValueError:
        return tuple(pattern.split())


def _matches_command(pattern: str, part: SubjectPart) -> bool:
    wanted_words = _pattern_words(pattern)
    # `git grep *` is what "always" says: it does not cover `git grep -O…`, which runs a program.
    if (
        wanted_words[2:] == ("*",)
        and is_read_only_subcommand(wanted_words[:2])
        and not is_read_only(part.words)
    ):
        return False
    # `docs/*` is not meant to let `docs/../secret` through.
    if any(".." in word.split("/") for word in part.words) and _has_wild_word(wanted_words):
        return False
    return matches_words(wanted_words, join_words(part.words))


def _has_wild_word(pattern: CommandWords) -> bool:
    return any(word != "*" and _is_wild(word) for word in pattern)


def _fits_url(pattern: str, url: str, *, is_wide: bool) -> bool:
    """Host and the rest apart: no wildcard reaches from the one into the other."""
    scheme, separator, rest = pattern.partition("://")
    if not separator:
        scheme, rest = "*", pattern
    host, slash, path = rest.partition("/")
    own_scheme, _, own_rest = url.partition("://")
    own_host, _, own_path = own_rest.partition("/")
    if not (
        matches_wildcards(scheme.lower(), own_scheme)
        and matches_wildcards(canonical_host_pattern(host), own_host)
    ):
        return False
    path = decode_unreserved(path) if slash else ""
    # Whoever closes a folder closes its page, too.
    return matches_wildcards(path, own_path) or (
        is_wide and matches_wildcards(path, f"{own_path.partition('?')[0]}/")
    )


def _fits_text(pattern: str, text: str, *, is_wide: bool) -> bool:
    """As it is; but what may be a path is not let out of a folder by `..`, which some tools follow."""
    is_climbing = ".." in text and ".." in text.replace("\\", "/").split("/")
    if is_climbing and not is_wide:
        return matches_wildcards(pattern, text) and not _is_wild(pattern)
    return matches_wildcards(pattern, text) or (
        is_climbing and matches_wildcards(pattern, posixpath.normpath(text))
    )


def _is_wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern
