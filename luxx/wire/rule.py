"""Permission rules, skills and narrowings: what a run may do with which tools."""

from enum import StrEnum

import msgspec


class RuleAction(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class RuleScope(StrEnum):
    """The scope of a rule, in the order in which rules are read: the last match decides."""

    SERVER = "server"
    TENANT = "tenant"
    USER = "user"
    PROJECT = "project"
    AGENT = "agent"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A permission rule. `tool` and `pattern` accept the wildcards `*` and `?`; see docs/permissions.md."""

    tool: str
    pattern: str = "*"
    action: RuleAction


class PlacedRule(Rule, frozen=True, kw_only=True):
    """A rule with its scope; `place` counts from 0 within the scope. `scope_id` is a project's id."""

    scope: RuleScope
    scope_id: str | None = None
    place: int


class SkillHead(msgspec.Struct, frozen=True, kw_only=True):
    """The name and description by which a model chooses a skill. `allowed_tools` are entries like `file_read`
    or `shell_execute(git *)`; None: the skill does not limit the tools of a run."""

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None = None


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the tools of a run, set by the active skill `by`; an empty `by` means the delegating run."""

    by: str
    entries: tuple[str, ...]
