"""Narrowing: what a run may use of its tools while skills are active that name theirs. Pure.

An entry is written and matched as a permission rule is. Every active skill must allow a call, so one more
skill never widens what another left; and what levels and rules deny stays denied.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from luxx.errors import InvalidInput
from luxx.tools.core import ToolDefinition
from luxx.tools.pattern import check_wildcards, matches_wildcards
from luxx.tools.permissions.rules import find_ruling
from luxx.tools.permissions.subjects import Subject, SubjectPart
from luxx.wire.rule import Narrowing, PlacedRule, RuleAction, RuleScope

ACTIVATE_TOOL, READ_TOOL = "activate_skill", "skill_read"
ALWAYS_ALLOWED = frozenset({"result_read", ACTIVATE_TOOL, READ_TOOL})
"""What no skill takes away, beside the tools that only ask: they do nothing but tell the model more."""

MAX_ENTRIES = 200
MAX_ENTRY_CHARACTERS = 500

_ENTRY = re.compile(r"([A-Za-z0-9_*?-]{1,64})(?:\((.*)\))?", re.DOTALL)
_WORD = r"[^\s,(]+(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?"
_LINE = re.compile(rf"[\s,]*(?:{_WORD}(?:[\s,]+|\Z))*")
_MAX_SHOWN_ENTRIES = 20


def entries_in(text: str) -> list[str]:
    """The entries of a line: apart by blanks or commas, which an entry may hold within its parentheses.

    Raises InvalidInput.
    """
    if not _LINE.fullmatch(text):
        raise InvalidInput("a parenthesis stands alone, or two entries stand together")
    return re.findall(_WORD, text)


def check_entry(entry: str) -> None:
    """Raises InvalidInput for what is no entry."""
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
    """The first that does not allow this tool; with a `subject`, not this call of it.

    Who was given a composition was given what it does: its members need not be among a subagent's tools.
    """
    applicable = [one for one in narrowed if one.by or not is_member]
    return next((one for one in applicable if not _allows(one, tool.name, tool.only_asks, subject)), None)


def allows_name(narrowed: Sequence[Narrowing], name: str, *, only_asks: bool = False) -> bool:
    """Whether all of them leave a tool of this name, whatever its arguments are."""
    return all(_allows(one, name, only_asks, None) for one in narrowed)


def block_reason(blocking: Narrowing, tool: ToolDefinition) -> str:
    """What the model is told."""
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
    # An `allow` matches only what is surely meant, and every part of a call needs one.
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
