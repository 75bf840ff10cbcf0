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
