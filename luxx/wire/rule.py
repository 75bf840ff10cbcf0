"""Rule words: what happens when a tool is called with an argument that fits a pattern, and who said so."""

from enum import StrEnum

import msgspec


class RuleAction(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class RuleScope(StrEnum):
    """Whom a rule binds, in the order in which rules are read: the last that matches decides."""

    SERVER = "server"
    TENANT = "tenant"
    USER = "user"
    PROJECT = "project"
    AGENT = "agent"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`tool` and `pattern` take the wildcards `*` and `?`; see docs/permissions.md."""

    tool: str
    pattern: str = "*"
    action: RuleAction


class PlacedRule(Rule, frozen=True, kw_only=True):
    """A rule and where it stands: `place` counts from 0 within its scope. `scope_id` is a project's."""

    scope: RuleScope
    scope_id: str | None = None
    place: int


class SkillHead(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as it is chosen by. `allowed_tools` are entries like `file_read` or `shell_execute(git *)`;
    None: it leaves the tools of a run as they are."""

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None = None


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a run may use at most, since the skill `by` is active in it; without one, because a
    subagent was given no others."""

    by: str
    entries: tuple[str, ...]
