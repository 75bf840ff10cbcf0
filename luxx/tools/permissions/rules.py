"""Finds the rule that decides about a part of a call, and the restriction that blocks a call. Pure.

Rules apply in the order of their scopes, and within a scope in list order; the last match decides. A deny of
the server or the tenant cannot be overridden by a later scope. Active skills and delegation restrict the
tools of a run by entries with the syntax of a rule. Each must allow a call: a further one allows no more.
"""

import posixpath
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from luxx.errors import InvalidInput
from luxx.infra.network.urls import WebUrl
from luxx.tools.core import ToolDefinition
from luxx.tools.pattern import check_wildcards, join_words, matches_wildcards, matches_words
from luxx.tools.permissions.programs import (
    READ_ONLY_SUBCOMMANDS,
    CommandWords,
    is_read_only,
    runs_other_programs,
)
from luxx.tools.permissions.subjects import (
    Subject,
    SubjectKind,
    SubjectPart,
    canonical_host_pattern,
    canonical_url,
    decode_unreserved,
    is_wild,
)
from luxx.wire.todos import TODO_TOOL
from luxx.wire.tool import CALL_TOOL, SEARCH_TOOL, Narrowing, PlacedRule, RuleAction, RuleScope

EXACT_PREFIX = "="
"""A pattern with this prefix matches only the exact rest."""

_ORDER = list(RuleScope)
_OVERRIDING_SCOPES = (RuleScope.SERVER, RuleScope.TENANT)
"""Scopes whose denials no later scope overrides."""

Rules = Sequence[PlacedRule]
RuleMatches = Sequence[tuple[PlacedRule, bool]]
"""Rules in order, each with whether it matches."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one part; `rule` is None if no rule matches.

    `is_unsure`: the subject is ambiguous, and another rule might match. `is_suspected`: `rule` is a deny of
    the server or the tenant that might match.
    """

    rule: PlacedRule | None = None
    is_unsure: bool = False
    is_suspected: bool = False


def sort_rules(rules: Rules) -> tuple[PlacedRule, ...]:
    """The rules in the order in which they apply."""
    return tuple(sorted(rules, key=lambda rule: (_ORDER.index(rule.scope), rule.place)))


def rules_for_tool(rules: Rules, tool: str) -> list[PlacedRule]:
    """The rules whose tool pattern matches this tool."""
    return [rule for rule in rules if matches_wildcards(rule.tool, tool)]


def find_ruling(rules: Rules, subject: Subject, part: SubjectPart) -> Ruling:
    """The ruling for one part of a subject. `rules`: the rules for the tool, in order."""
    rule_matches = [(rule, _matches(rule, subject, part)) for rule in rules]
    for scope in _OVERRIDING_SCOPES:
        if not any(rule.scope == scope for rule in rules):
            continue
        rules_so_far = [each for each in rule_matches if _ORDER.index(each[0].scope) <= _ORDER.index(scope)]
        last_match = _last_match(rules_so_far, subject)
        rule = last_match.rule
        if rule is not None and rule.action == RuleAction.DENY and not last_match.is_unsure:
            return last_match
        suspect = _suspect(rules_so_far, subject)
        if suspect is not None:
            return Ruling(rule=suspect, is_unsure=True, is_suspected=True)
    return _last_match(rule_matches, subject)


def is_always_denied(rules: Rules) -> bool:
    """Whether these rules for a tool deny it with all arguments."""
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
        # An ambiguous subject might match this ask or deny rule.
        is_unsure |= subject.problem is not None and rule.action != RuleAction.ALLOW
    return Ruling(is_unsure=is_unsure)


def _suspect(rule_matches: RuleMatches, subject: Subject) -> PlacedRule | None:
    """The deny rule that an ambiguous subject might match; None if the subject is clear."""
    if subject.problem is None:
        return None
    for rule, is_match in reversed(rule_matches):
        if rule.action == RuleAction.DENY:
            return rule
        if is_match:
            return None
    return None


def _matches(rule: PlacedRule, subject: Subject, part: SubjectPart) -> bool:
    """Whether a rule matches: `allow` only if the meaning is certain, `ask` and `deny` for any variant."""
    if rule.pattern == "*" or (rule.pattern == EXACT_PREFIX + subject.raw and not part.is_target):
        return True
    is_wide = rule.action != RuleAction.ALLOW
    if subject.problem is not None and not is_wide:
        return False
    if rule.pattern.startswith(EXACT_PREFIX):
        exact_text = rule.pattern.removeprefix(EXACT_PREFIX)
        return exact_text == part.text or (is_wide and _may_equal(exact_text, subject.kind, part))
    match subject.kind:
        case SubjectKind.COMMAND:
            return _may_match_command(rule.pattern, part) if is_wide else _matches_command(rule.pattern, part)
        case SubjectKind.PATH:
            path = posixpath.normpath(rule.pattern) if rule.pattern else "."
            return matches_wildcards(path, part.text) or (
                is_wide and matches_wildcards(path, f"{part.text}/")
            )
        case SubjectKind.URL:
            return _matches_url(rule.pattern, part.text, is_wide=is_wide) or (
                is_wide and matches_wildcards(rule.pattern, subject.raw)
            )
        case SubjectKind.TEXT:
            return _matches_text(rule.pattern, part.text, is_wide=is_wide)


def _may_equal(exact_text: str, kind: SubjectKind, part: SubjectPart) -> bool:
    """Whether the part may be another spelling of the exact text."""
    match kind:
        case SubjectKind.COMMAND:
            line = f"{join_words(_pattern_words(exact_text))}\0"
            if runs_other_programs(part.words):
                return any(line in f"{variant}\0" for variant in part.variants)
            return any(line == f"{variant}\0" for variant in part.variants)
        case SubjectKind.PATH:
            return posixpath.normpath(exact_text or ".") == part.text
        case SubjectKind.URL:
            address = canonical_url(exact_text)
            return isinstance(address, WebUrl) and address.text == part.text
        case SubjectKind.TEXT:
            return False


def _may_match_command(pattern: str, part: SubjectPart) -> bool:
    """Whether the pattern matches a variant of the command, or of a command that it may run."""
    pattern_words = _pattern_words(pattern)
    if runs_other_programs(part.words):
        pattern_words = ("*", *pattern_words)
    return any(matches_words(pattern_words, variant) for variant in part.variants)


@lru_cache(maxsize=4096)
def _pattern_words(pattern: str) -> CommandWords:
    try:
        return tuple(shlex.split(pattern))
    except ValueError:
        return tuple(pattern.split())


def _matches_command(pattern: str, part: SubjectPart) -> bool:
    pattern_words = _pattern_words(pattern)
    # "Always" creates patterns like `git grep *`; these do not cover `git grep -O…`, which runs a program.
    if (
        pattern_words[2:] == ("*",)
        and pattern_words[:2] in READ_ONLY_SUBCOMMANDS
        and not is_read_only(part.words)
    ):
        return False
    # `docs/*` must not allow `docs/../secret`.
    has_wild_word = any(word != "*" and is_wild(word) for word in pattern_words)
    if has_wild_word and any(".." in word.split("/") for word in part.words):
        return False
    return matches_words(pattern_words, join_words(part.words))


def _matches_url(pattern: str, url: str, *, is_wide: bool) -> bool:
    """Match scheme, host and path separately, so that a wildcard in the host never matches a path."""
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
    # An ask or deny for `folder/*` also matches `folder`.
    return matches_wildcards(path, own_path) or (
        is_wide and matches_wildcards(path, f"{own_path.partition('?')[0]}/")
    )


def _matches_text(pattern: str, text: str, *, is_wide: bool) -> bool:
    """Match plain text. It may be a path, so an `allow` with wildcards does not match a text with `..`."""
    is_climbing = ".." in text and ".." in text.replace("\\", "/").split("/")
    if is_climbing and not is_wide:
        return matches_wildcards(pattern, text) and not is_wild(pattern)
    return matches_wildcards(pattern, text) or (
        is_climbing and matches_wildcards(pattern, posixpath.normpath(text))
    )


ACTIVATE_TOOL, READ_TOOL = "activate_skill", "skill_read"
ALWAYS_ALLOWED = frozenset({"result_read", ACTIVATE_TOOL, READ_TOOL, TODO_TOOL, SEARCH_TOOL, CALL_TOOL})
"""Tools that no skill blocks, in addition to those that only ask: they change nothing but the run. What is
called by `CALL_TOOL` is judged by its own name."""

MAX_ENTRIES = 200
MAX_ENTRY_CHARACTERS = 500

_ENTRY = re.compile(r"([A-Za-z0-9_*?-]{1,64})(?:\((.*)\))?", re.DOTALL)
_WORD = r"[^\s,(]+(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?"
_LINE = re.compile(rf"[\s,]*(?:{_WORD}(?:[\s,]+|\Z))*")
_MAX_SHOWN_ENTRIES = 20


def entries_in(text: str) -> list[str]:
    """The entries of a line, separated by blanks or commas outside of parentheses. Raises InvalidInput."""
    if not _LINE.fullmatch(text):
        raise InvalidInput("a parenthesis is not balanced, or two entries are not separated")
    return re.findall(_WORD, text)


def check_entry(entry: str) -> None:
    """Raises InvalidInput for an invalid entry."""
    if len(entry) > MAX_ENTRY_CHARACTERS or (match := _ENTRY.fullmatch(entry)) is None:
        raise InvalidInput(f"{entry[:80]!r} is neither a tool's name nor name(pattern)")
    check_wildcards(match[1])
    check_wildcards(_pattern(match))


def blocking_narrowing(
    narrowed: Sequence[Narrowing],
    tool: ToolDefinition,
    subject: Subject | None = None,
    *,
    is_member: bool = False,
) -> Narrowing | None:
    """The first restriction that blocks this tool or, with a `subject`, this call; None if none does.

    A subagent that may use a composition may use its members, so delegation does not restrict member calls.
    """
    applicable = [one for one in narrowed if one.by or not is_member]
    return next((one for one in applicable if not _allows(one, tool.name, tool.only_asks, subject)), None)


def allows_name(narrowed: Sequence[Narrowing], name: str, *, only_asks: bool = False) -> bool:
    """Whether all restrictions allow a tool of this name with some arguments."""
    return all(_allows(rule_set, name, only_asks, None) for rule_set in narrowed)


def block_reason(blocking: Narrowing, tool: ToolDefinition) -> str:
    """The message for the model."""
    shown = ", ".join(blocking.entries[:_MAX_SHOWN_ENTRIES]) or "no tool"
    more = " and others" if len(blocking.entries) > _MAX_SHOWN_ENTRIES else ""
    if not blocking.by:
        return f"this subagent was given {shown}{more}, and not {tool.name}"
    return (
        f"the skill {blocking.by} is active in this run, and what it allows ({shown}{more}) "
        f"does not include this use of {tool.name}"
    )


def _allows(narrowing: Narrowing, tool: str, only_asks: bool, subject: Subject | None) -> bool:
    if narrowing.by and (only_asks or tool in ALWAYS_ALLOWED):
        return True
    rules = [rule for entry in narrowing.entries if matches_wildcards((rule := _rule(entry)).tool, tool)]
    if subject is None or not rules:
        return bool(rules)
    # An `allow` rule matches only an unambiguous part, and every part of a call needs one.
    return all(
        find_ruling(rules, subject, part).rule is not None
        for part in subject.parts or (SubjectPart(text=""),)
    )


@lru_cache(maxsize=4096)
def _rule(entry: str) -> PlacedRule:
    match = _ENTRY.fullmatch(entry)
    tool, pattern = ("", "") if match is None else (match[1], _pattern(match))
    return PlacedRule(tool=tool, pattern=pattern, action=RuleAction.ALLOW, scope=RuleScope.SERVER, place=0)


def _pattern(match: re.Match[str]) -> str:
    return "*" if match[2] is None else match[2]
