"""Decides whether a tool call, or a redirect that a call follows, is allowed.

The decision follows from level, skills, rules, taint, sandbox and risk. All entry points use it. The caller
provides the rules. It reads the workspace only to resolve links. `runs` asks the user.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, assert_never

import msgspec

from luxx.errors import InvalidInput, ToolFailed
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.hosts import DEFAULT_PORTS
from luxx.infra.network.urls import parse_url
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolSet, approve_as_caller
from luxx.tools.output import takes_more_than
from luxx.tools.permissions.rules import (
    block_reason,
    blocking_narrowing,
    find_ruling,
    is_always_denied,
    rules_for_tool,
    sort_rules,
)
from luxx.tools.permissions.subjects import (
    MCP_PREFIX,
    Subject,
    SubjectKind,
    SubjectPart,
    resolve_links,
    subject_name,
    subject_of,
)
from luxx.wire.tool import PlacedRule, RuleAction, RuleScope
from luxx.wire.turn_event import PERSON

_MAX_INLINE_CHARACTERS = 2_000
_MAX_INLINE_RULES = 20
"""Up to these limits of argument characters and rules a verdict takes at most some milliseconds."""

_RISKS = list(Risk)
_STRICTNESS = [RuleAction.ALLOW, RuleAction.ASK, RuleAction.DENY]


class DecidedBy(StrEnum):
    """What decided. `risk`, `taint` and `sandbox` decide if no rule matches. `question`: the tool only asks
    the user. `members`: it only calls other tools, and each of these calls is judged separately. `offer`: the
    model was not offered the tool. `not_understood`: the subject of the call is ambiguous. `memory`: the tool
    asks or refuses itself, because of what it does in memory."""

    OFFER = "offer"
    LEVEL = "level"
    SKILL = "skill"
    RULE = "rule"
    NOT_UNDERSTOOD = "not_understood"
    TAINT = "taint"
    SANDBOX = "sandbox"
    RISK = "risk"
    QUESTION = "question"
    MEMBERS = "members"
    MEMORY = "memory"


class PartVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one part of a call, such as one of several commands."""

    text: str
    action: RuleAction
    decided_by: DecidedBy
    rule: PlacedRule | None
    because: str


class PermissionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a call: that of its strictest part. `usual`: the pattern that "always" creates; None
    if the call would ask even with that rule."""

    action: RuleAction
    decided_by: DecidedBy
    rule: PlacedRule | None
    because: str
    parts: tuple[PartVerdict, ...] = ()
    usual: str | None = "*"


class Judge:
    """`is_sandboxed`: whether programs run in a sandbox (default: no)."""

    def __init__(self, config: ToolsConfig, is_sandboxed: Callable[[], bool] = lambda: False) -> None:
        self._ask_from = _RISKS.index(Risk(config.ask_from))
        self._is_sandboxed = is_sandboxed
        self._server_rules = tuple(
            PlacedRule(
                tool=rule.tool,
                pattern=rule.pattern,
                action=RuleAction(rule.action),
                scope=RuleScope.SERVER,
                place=place,
            )
            for place, rule in enumerate(config.rules)
        )

    def verdict(
        self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext
    ) -> PermissionVerdict:
        """The decision about this call."""
        refused = self.refusal(tool, context)
        if refused is not None:
            return refused
        rules = self._rules_for(tool, context.permissions.rules)
        workspace = context.permissions.workspace
        subject = subject_of(tool, arguments, workspace)
        default = self._default(tool, context)
        if workspace is not None and _needs_link_resolution(tool, rules, context, default):
            subject = resolve_links(subject, workspace)
        refused = _refusal_of_skills(tool, context, subject)
        if refused is not None:
            return refused
        parts = tuple(_part_verdict(rules, subject, part, default) for part in _parts(subject))
        strictest = max(parts, key=lambda part: _STRICTNESS.index(part.action))
        may_add = strictest.action != RuleAction.ASK or self._is_allowed_always(
            tool, subject, context, default
        )
        return PermissionVerdict(
            action=strictest.action,
            decided_by=strictest.decided_by,
            rule=strictest.rule,
            because=strictest.because,
            parts=parts,
            usual=subject.usual if may_add else None,
        )

    def _is_allowed_always(
        self, tool: ToolDefinition, subject: Subject, context: ToolContext, default: PartVerdict
    ) -> bool:
        """Whether the call would be allowed if its user had the rule that "always" creates."""
        added = PlacedRule(
            tool=tool.name,
            pattern=subject.usual,
            action=RuleAction.ALLOW,
            scope=RuleScope.USER,
            place=len(context.permissions.rules),
        )
        rules = self._rules_for(tool, (*context.permissions.rules, added))
        return all(
            _part_verdict(rules, subject, part, default).action == RuleAction.ALLOW
            for part in _parts(subject)
        )

    async def verdict_async(
        self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext
    ) -> PermissionVerdict:
        """Like `verdict`; a verdict that may take long is computed in a thread."""
        permissions = context.permissions
        reads_links = permissions.workspace is not None and _needs_link_resolution(
            tool, self._rules_for(tool, permissions.rules), context, self._default(tool, context)
        )
        is_long = takes_more_than(_MAX_INLINE_CHARACTERS, arguments)
        rule_count = len(permissions.rules) + len(self._server_rules)
        if reads_links or is_long or rule_count > _MAX_INLINE_RULES:
            return await asyncio.to_thread(self.verdict, tool, arguments, context)
        return self.verdict(tool, arguments, context)

    def refusal(self, tool: ToolDefinition, context: ToolContext) -> PermissionVerdict | None:
        """The refusal that holds for all arguments, without rules; None if there is none."""
        if not context.permissions.is_offered(tool.name):
            return _denied(DecidedBy.OFFER, f"{tool.name} was not offered in this run")
        refused = self.refusal_of_level(tool, context.caller.permission_level)
        return refused if refused is not None else _refusal_of_skills(tool, context)

    def refusal_of_level(self, tool: ToolDefinition, level: CommandPermission) -> PermissionVerdict | None:
        """The refusal of a tool above the user's level, which no rule overrides; None if there is none."""
        needed = tool.required_permission
        if needed <= level:
            return None
        return _denied(
            DecidedBy.LEVEL,
            f"{tool.name} needs permission level {int(needed)} ({needed.name}); "
            f"yours is {int(level)} ({level.name})",
        )

    def is_offered(self, tool: ToolDefinition, rules: tuple[PlacedRule, ...]) -> bool:
        """Whether the rules allow the tool with some arguments. A model is offered only such tools."""
        return not is_always_denied(self._rules_for(tool, rules))

    def unknown_message(self, name: str, registry: ToolSet, context: ToolContext) -> str:
        """The message for a tool that does not exist or was not offered; it does not tell which. It names
        only tools that this call could have used."""
        if context.caller.is_composition:
            return f"there is no tool named {name[:64]!r}"
        names = self._usable_names(context.tools_or(registry), context)
        near = difflib.get_close_matches(name[:64], names, n=3)
        where = "" if context.permissions.offered is None else " among those offered here"
        hint = (
            f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(names) or 'none'}"
        )
        return f"there is no tool named {name[:64]!r}{where}{hint}"

    def _usable_names(self, tools: ToolSet, context: ToolContext) -> list[str]:
        return [
            tool.name
            for tool in tools.available_to(context.caller.permission_level, context.permissions.offered)
            if self.refusal(tool, context) is None and self.is_offered(tool, context.permissions.rules)
        ]

    def _rules_for(self, tool: ToolDefinition, rules: tuple[PlacedRule, ...]) -> list[PlacedRule]:
        return rules_for_tool(
            [*self._server_rules, *sort_rules(rules)] if rules else self._server_rules, tool.name
        )

    def _default(self, tool: ToolDefinition, context: ToolContext) -> PartVerdict:
        action, by = RuleAction.ASK, DecidedBy.RISK
        if tool.only_asks:
            action, by, because = RuleAction.ALLOW, DecidedBy.QUESTION, "it only asks the user"
        elif tool.is_chain:
            action, by = RuleAction.ALLOW, DecidedBy.MEMBERS
            because = "it only calls other tools, and each of these calls is judged separately"
        elif (tainted_by := context.permissions.tainted_by) is not None and _is_risky(tool, tainted_by):
            by, because = DecidedBy.TAINT, f"{tainted_by} has brought untrusted content into this run"
            if tainted_by.startswith(PERSON):
                because = (
                    f"{tainted_by} wrote something that it reads, and it acts with the rights of its owner"
                )
        elif tool.starts_programs and not self._is_sandboxed():
            by, because = DecidedBy.SANDBOX, "it starts programs, and no sandbox is in force"
        else:
            action = RuleAction.ASK if _RISKS.index(tool.risk) >= self._ask_from else RuleAction.ALLOW
            because = f"no rule matches, and its risk is {tool.risk}"
        return PartVerdict(text="", action=action, decided_by=by, rule=None, because=because)


def _parts(subject: Subject) -> tuple[SubjectPart, ...]:
    return subject.parts or (SubjectPart(text=""),)


def _part_verdict(
    rules: list[PlacedRule], subject: Subject, part: SubjectPart, default: PartVerdict
) -> PartVerdict:
    ruling = find_ruling(rules, subject, part)
    rule = ruling.rule
    is_unclear = subject.problem is not None and subject.kind == SubjectKind.COMMAND
    if rule is None and not (ruling.is_unsure or is_unclear):
        return msgspec.structs.replace(default, text=part.text)
    action, by = RuleAction.ASK, DecidedBy.NOT_UNDERSTOOD
    if rule is not None and ruling.is_suspected:
        action = RuleAction.DENY
        because = f"{subject.problem}, so it may be what {_quoted(rule, 'denies')}"
    elif rule is None or (rule.action == RuleAction.ALLOW and ruling.is_unsure):
        which = "for all calls" if part.is_target else "for exactly this call, or for all calls,"
        rule, because = None, f"{subject.problem}, so only a rule {which} can allow it"
    else:
        action, by = rule.action, DecidedBy.RULE
        because = _quoted(rule, "says")
    return PartVerdict(text=part.text, action=action, decided_by=by, rule=rule, because=because)


def _needs_link_resolution(
    tool: ToolDefinition, rules: list[PlacedRule], context: ToolContext, default: PartVerdict
) -> bool:
    """Whether a rule, also the one that "always" would create, or a skill distinguishes paths, so that link
    targets matter."""
    if subject_name(tool) != "path" or tool.name.startswith(MCP_PREFIX):
        return False
    if default.action == RuleAction.ASK:
        return True
    return any(rule.pattern != "*" for rule in rules) or any(
        "(" in entry for narrowing in context.permissions.narrowed for entry in narrowing.entries
    )


def _refusal_of_skills(
    tool: ToolDefinition, context: ToolContext, subject: Subject | None = None
) -> PermissionVerdict | None:
    blocking = blocking_narrowing(
        context.permissions.narrowed, tool, subject, is_member=context.caller.is_composition
    )
    return None if blocking is None else _denied(DecidedBy.SKILL, block_reason(blocking, tool))


def _denied(by: DecidedBy, because: str) -> PermissionVerdict:
    return PermissionVerdict(action=RuleAction.DENY, decided_by=by, rule=None, because=because)


def brings_untrusted(tool: ToolDefinition) -> bool:
    """Whether its results are untrusted: their authors may have hidden instructions in them."""
    return tool.brings_untrusted or tool.name.startswith(MCP_PREFIX)


def _is_risky(tool: ToolDefinition, tainted_by: str) -> bool:
    """Whether the tool could do harm by what this tool or person brought into its run.

    A person reads what the run answers, so for them the files and data of its owner are harm enough.
    """
    if tool.is_trusted:
        return False
    if tainted_by.startswith(PERSON) and not tool.is_self_contained:
        return True
    is_strong = tool.required_permission >= CommandPermission.EXECUTE
    return is_strong or tool.is_egress or tool.acts_later or tool.name.startswith(MCP_PREFIX)


def _quoted(rule: PlacedRule, verb: str) -> str:
    text = f"{rule.action} {rule.tool}({rule.pattern})"
    return f"the {rule.scope}'s rule {rule.place + 1} {verb}: {text}"


OnRefused = Callable[[ToolContext, str, PermissionVerdict], Awaitable[None]]
"""Called with context, tool name and verdict for each refused call."""

_DEFAULT_DECISIONS = (DecidedBy.TAINT, DecidedBy.RISK)


def with_redirect_check(
    judge: Judge, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext, on_refused: OnRefused
) -> ToolContext:
    """The context for a call with these arguments, with a `check_redirect` that applies the rules."""

    async def check_redirect(url: str, target: str, next_arguments: dict[str, Any]) -> None:
        # The rules may differ at the next call, so a redirected result is not cached.
        context.metadata.is_redirected = True
        verdict = await judge.verdict_async(tool, next_arguments, context)
        match verdict.action:
            case RuleAction.ALLOW:
                return
            case RuleAction.DENY:
                await on_refused(context, tool.name, verdict)
                raise ToolFailed(
                    f"{url} redirects to {target}, which was not fetched: {verdict.because}. "
                    "A user cannot approve it."
                )
            case RuleAction.ASK:
                if not _is_approved(tool, arguments, context, verdict, target):
                    raise ToolFailed(
                        f"{url} redirects to {target}, which was not fetched: it needs a permission of its "
                        f"own ({verdict.because}); to ask for it, call {tool.name} with that address"
                    )
            case _:
                assert_never(verdict.action)

    return context.with_permissions(check_redirect=check_redirect)


def _is_approved(
    tool: ToolDefinition,
    arguments: dict[str, Any],
    context: ToolContext,
    verdict: PermissionVerdict,
    target: str,
) -> bool:
    """Whether a user makes the call directly, or approved it for the target's host and no rule says ask."""
    if context.permissions.approve is approve_as_caller:
        return True
    if context.permissions.earlier_approval is None or verdict.decided_by not in _DEFAULT_DECISIONS:
        return False
    parts = subject_of(tool, arguments, context.permissions.workspace).parts
    return any(_is_same_host(part.text, target) for part in parts)


def _is_same_host(approved: str, target: str) -> bool:
    try:
        one, other = parse_url(approved), parse_url(target)
    except InvalidInput:
        return False
    ports_of_scheme = one.port == DEFAULT_PORTS[one.scheme] and other.port == DEFAULT_PORTS[other.scheme]
    return one.host == other.host and (one.port == other.port or ports_of_scheme)
