"""May this call be made: level, rules, taint, sandbox and risk put together. Every door asks here.

Who asks brings the rules; of the workspace it is only read where a path leads. How a person is asked is
the runs' affair.
"""

import asyncio
import difflib
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.core import (
    CommandPermission,
    Risk,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    own_available_to,
)
from luxx.tools.permissions.following import followed
from luxx.tools.permissions.narrowing import closed_by, why_closed
from luxx.tools.permissions.rules import in_order, is_never, of_tool, ruling
from luxx.tools.permissions.subjects import MCP_PREFIX, Part, Subject, SubjectKind, subject_name, subject_of
from luxx.wire.rule import PlacedRule, RuleAction, RuleScope

_SHORT = 2_000
_FEW = 20
"""Characters of arguments and rules with which a verdict takes no more than some milliseconds."""

_RISKS = list(Risk)
_STRICTNESS = [RuleAction.ALLOW, RuleAction.ASK, RuleAction.DENY]


class DecidedBy(StrEnum):
    """`risk`, `taint` and `sandbox` decide where no rule does; `question`: the tool does nothing but ask.
    `members`: it does nothing but call other tools, each of which is decided about by itself. `offer`: the
    model that calls it was not offered it."""

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


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided of one part of a call, such as one command of several."""

    text: str
    action: RuleAction
    decided_by: DecidedBy
    rule: PlacedRule | None
    because: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided of a call: the strictest of its parts. `usual` is the pattern that "always" means."""

    action: RuleAction
    decided_by: DecidedBy
    rule: PlacedRule | None
    because: str
    parts: tuple[Judged, ...] = ()
    usual: str = "*"


class Judge:
    """`is_sandboxed` says whether what programs do is held by a sandbox; unless told, none is."""

    def __init__(self, config: ToolsConfig, is_sandboxed: Callable[[], bool] = lambda: False) -> None:
        self._ask_from = _RISKS.index(Risk(config.ask_from))
        self._is_sandboxed = is_sandboxed
        self._own = tuple(
            PlacedRule(
                tool=rule.tool,
                pattern=rule.pattern,
                action=RuleAction(rule.action),
                scope=RuleScope.SERVER,
                place=place,
            )
            for place, rule in enumerate(config.rules)
        )

    def verdict(self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext) -> Verdict:
        """What is to become of this call."""
        refused = self.refusal(tool, context)
        if refused is not None:
            return refused
        rules = self._about(tool, context.rules)
        subject = subject_of(tool, arguments, context.workspace)
        if context.workspace is not None and _is_of_paths(tool, rules, context):
            subject = followed(subject, context.workspace)
        refused = _refusal_of_skills(tool, context, subject)
        if refused is not None:
            return refused
        default = self._default(tool, context)
        parts = tuple(
            self._judged(rules, subject, part, default) for part in subject.parts or (Part(text=""),)
        )
        worst = max(parts, key=lambda part: _STRICTNESS.index(part.action))
        return Verdict(
            action=worst.action,
            decided_by=worst.decided_by,
            rule=worst.rule,
            because=worst.because,
            parts=parts,
            usual=subject.usual,
        )

    async def considered(
        self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext
    ) -> Verdict:
        """The verdict; what may take a while is thought over in a thread, while the server goes on."""
        size = sum(len(str(value)) for value in arguments.values())
        if context.workspace is not None and _is_of_paths(tool, self._about(tool, context.rules), context):
            return await asyncio.to_thread(self.verdict, tool, arguments, context)
        if size <= _SHORT and len(context.rules) + len(self._own) <= _FEW:
            return self.verdict(tool, arguments, context)
        return await asyncio.to_thread(self.verdict, tool, arguments, context)

    def refusal(self, tool: ToolDefinition, context: ToolContext) -> Verdict | None:
        """What refuses the tool whatever its arguments are, rules apart; None where nothing does."""
        if not context.is_offered(tool.name):
            because = f"{tool.name} was not offered in this run"
            return Verdict(action=RuleAction.DENY, decided_by=DecidedBy.OFFER, rule=None, because=because)
        refused = self.refusal_of_level(tool, context.user_permission_level)
        return refused if refused is not None else _refusal_of_skills(tool, context)

    def refusal_of_level(self, tool: ToolDefinition, level: CommandPermission) -> Verdict | None:
        """Nobody uses a tool above their level, whatever rules say; None where the level suffices."""
        needed = tool.required_permission
        if needed <= level:
            return None
        because = (
            f"{tool.name} needs permission level {int(needed)} ({needed.name}); "
            f"yours is {int(level)} ({level.name})"
        )
        return Verdict(action=RuleAction.DENY, decided_by=DecidedBy.LEVEL, rule=None, because=because)

    def is_offered(self, tool: ToolDefinition, rules: tuple[PlacedRule, ...]) -> bool:
        """Whether there are arguments with which the rules let it run; a model is told of no other."""
        return not is_never(self._about(tool, rules))

    def unknown(self, name: str, registry: ToolRegistry, context: ToolContext) -> str:
        """The refusal of a tool that does not exist or was not offered. It says the same of both, and names
        only tools that this call could have used."""
        if context.chaining.is_member:
            return f"there is no tool named {name[:64]!r}"
        names = self._usable(registry, context)
        near = difflib.get_close_matches(name[:64], names, n=3)
        where = "" if context.offered is None else " among those offered here"
        hint = (
            f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(names) or 'none'}"
        )
        return f"there is no tool named {name[:64]!r}{where}{hint}"

    def _usable(self, registry: ToolRegistry, context: ToolContext) -> list[str]:
        level = context.user_permission_level
        known = registry.available_to(level, context.offered, tenant_id=context.tenant_id)
        if context.own_tools is not None:
            known += own_available_to(context.own_tools, level, context.offered)
        return [
            tool.name
            for tool in known
            if self.refusal(tool, context) is None and self.is_offered(tool, context.rules)
        ]

    def _about(self, tool: ToolDefinition, rules: tuple[PlacedRule, ...]) -> list[PlacedRule]:
        return of_tool([*self._own, *in_order(rules)] if rules else self._own, tool.name)

    def _judged(self, rules: list[PlacedRule], subject: Subject, part: Part, default: Judged) -> Judged:
        found = ruling(rules, subject, part)
        rule = found.rule
        is_unclear = subject.problem is not None and subject.kind == SubjectKind.COMMAND
        if rule is None and not (found.is_unsure or is_unclear):
            return msgspec.structs.replace(default, text=part.text)
        if found.is_suspected and rule is not None:
            return Judged(
                text=part.text,
                action=RuleAction.DENY,
                decided_by=DecidedBy.NOT_UNDERSTOOD,
                rule=rule,
                because=f"{subject.problem}, so it may be what {_where(rule)} denies: {_said(rule)}",
            )
        if rule is None or (rule.action == RuleAction.ALLOW and found.is_unsure):
            return Judged(
                text=part.text,
                action=RuleAction.ASK,
                decided_by=DecidedBy.NOT_UNDERSTOOD,
                rule=None,
                because=f"{subject.problem}, so no rule can allow it",
            )
        return Judged(
            text=part.text,
            action=rule.action,
            decided_by=DecidedBy.RULE,
            rule=rule,
            because=f"{_where(rule)} says: {_said(rule)}",
        )

    def _default(self, tool: ToolDefinition, context: ToolContext) -> Judged:
        if tool.only_asks:
            return _decided(RuleAction.ALLOW, DecidedBy.QUESTION, "it does nothing but ask")
        if tool.is_chain:
            because = "it does nothing but call other tools, each of which is judged by itself"
            return _decided(RuleAction.ALLOW, DecidedBy.MEMBERS, because)
        if context.tainted_by is not None and _may_be_steered(tool):
            because = f"{context.tainted_by} has brought content into this run that strangers wrote"
            return _decided(RuleAction.ASK, DecidedBy.TAINT, because)
        if tool.starts_programs and not self._is_sandboxed():
            because = "it starts programs, and no sandbox is in force"
            return _decided(RuleAction.ASK, DecidedBy.SANDBOX, because)
        asks = _RISKS.index(tool.risk) >= self._ask_from
        because = f"no rule is about it, and its risk is {tool.risk}"
        return _decided(RuleAction.ASK if asks else RuleAction.ALLOW, DecidedBy.RISK, because)


def _is_of_paths(tool: ToolDefinition, rules: list[PlacedRule], context: ToolContext) -> bool:
    """Whether it matters what a path leads to: where nothing tells paths apart, it does not."""
    if subject_name(tool) != "path" or tool.name.startswith(MCP_PREFIX):
        return False
    return any(rule.pattern != "*" for rule in rules) or any(
        "(" in entry for narrowing in context.narrowed for entry in narrowing.entries
    )


def _refusal_of_skills(
    tool: ToolDefinition, context: ToolContext, subject: Subject | None = None
) -> Verdict | None:
    closed = closed_by(context.narrowed, tool, subject, is_member=context.chaining.is_member)
    if closed is None:
        return None
    because = why_closed(closed, tool)
    return Verdict(action=RuleAction.DENY, decided_by=DecidedBy.SKILL, rule=None, because=because)


def brings_untrusted(tool: ToolDefinition) -> bool:
    """Whether what it answers was written by strangers, who may have hidden instructions in it."""
    return tool.brings_untrusted or tool.name.startswith(MCP_PREFIX)


def _may_be_steered(tool: ToolDefinition) -> bool:
    is_strong = tool.required_permission >= CommandPermission.EXECUTE
    return is_strong or tool.is_egress or tool.name.startswith(MCP_PREFIX)


def _decided(action: RuleAction, by: DecidedBy, because: str) -> Judged:
    return Judged(text="", action=action, decided_by=by, rule=None, because=because)


def _said(rule: PlacedRule) -> str:
    return f"{rule.action} {rule.tool}({rule.pattern})"


def _where(rule: PlacedRule) -> str:
    owner = {
        RuleScope.SERVER: "the server's",
        RuleScope.TENANT: "the tenant's",
        RuleScope.USER: "the user's",
        RuleScope.PROJECT: "the project's",
        RuleScope.AGENT: "the agent's",
    }[rule.scope]
    return f"{owner} rule {rule.place + 1}"
