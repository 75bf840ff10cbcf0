"""Restrictions of a run's tools by active skills and by delegation. Pure.

An entry has the syntax and the matching of a permission rule. Every active skill must allow a call, so a
further skill never allows more. Levels and rules still apply.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from luxx.errors import InvalidInput
from luxx.tools.core import ToolDefinition
from luxx.tools.pattern import check_wildcards, matches_wildcards
from luxx.tools.permissions.rules import find_ruling
from luxx.tools.permissions.subjects import Subject, SubjectPart
from luxx.wire.tool import Narrowing, PlacedRule, RuleAction, RuleScope

ACTIVATE_TOOL, READ_TOOL = "activate_skill", "skill_read"
ALWAYS_ALLOWED = frozenset({"result_read", ACTIVATE_TOOL, READ_TOOL})
"""Tools that no skill blocks, in addition to those that only ask: they only give the model information."""

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
    return all(_allows(one, name, only_asks, None) for one in narrowed)


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
