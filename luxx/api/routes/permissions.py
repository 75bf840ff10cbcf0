"""`/permissions`: the rules that allow tool calls, deny them or ask a person, and their explanation."""

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, get, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.envelope import Success, success
from luxx.api.http.request_input import InjectedCaller
from luxx.errors import InvalidInput
from luxx.tools.permissions.judge import DecidedBy, PartVerdict
from luxx.tools.permissions.service import MAX_RULES, PATTERN_LENGTH, HypotheticalCall, RuleService
from luxx.wire.tool import PermissionRule, PlacedRule, RuleAction, RuleScope

InjectedRules = NamedDependency[RuleService]
RuleScopeParameter = Annotated[Literal["tenant", "user", "project", "agent"], QueryParameter(name="scope")]
ScopeId = Annotated[
    str | None,
    QueryParameter(name="id", min_length=1, max_length=64, description="the id of the project or agent"),
]
ToolPattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9_*?-]+$(?!\n)",
        description="letters, digits, '_', '-' and the wildcards '*' and '?'",
    ),
]
ArgumentPattern = Annotated[str, Meta(max_length=PATTERN_LENGTH)]


class RuleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool` and `pattern` may contain the wildcards `*` and `?`; the default `pattern` is `*`."""

    tool: ToolPattern
    pattern: ArgumentPattern = "*"
    action: RuleAction


RulesBody = Annotated[list[RuleBody], Meta(max_length=MAX_RULES)]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a call. `rule`: the deciding rule, or null. `parts`: the decisions about each
    command of a command line, or each of several URLs. `usual`: the pattern that `always` would allow;
    null if the call would ask even with that rule.
    """

    tool: str
    action: RuleAction
    decided_by: DecidedBy
    because: str
    rule: PlacedRule | None
    parts: list[PartVerdict]
    usual: str | None


class PermissionController(Controller):
    path = "/permissions"
    tags = ("permissions",)

    @get("/rules")
    async def read_rules(
        self,
        caller: InjectedCaller,
        rules: InjectedRules,
        scope_name: RuleScopeParameter = "user",
        scope_id: ScopeId = None,
    ) -> Success[list[PlacedRule]]:
        """The rules of one scope, in order: the last match decides."""
        return success(await rules.read(caller, RuleScope(scope_name), scope_id))

    @put("/rules")
    async def replace_rules(
        self,
        caller: InjectedCaller,
        rules: InjectedRules,
        data: JSONBody[RulesBody],
        scope_name: RuleScopeParameter = "user",
        scope_id: ScopeId = None,
    ) -> Success[list[PlacedRule]]:
        """Replace all rules of one scope with this list, in this order. For a tenant: ADMIN only."""
        new_rules = [
            PermissionRule(tool=rule.tool, pattern=rule.pattern, action=rule.action) for rule in data
        ]
        return success(await rules.replace(caller, RuleScope(scope_name), scope_id, new_rules), "saved")

    @get("/explain")
    async def explain(
        self,
        caller: InjectedCaller,
        rules: InjectedRules,
        tool: Annotated[str, QueryParameter(min_length=1, max_length=64)],
        arguments: Annotated[str, QueryParameter(max_length=8_000, description="a JSON object")] = "{}",
        project_id: Annotated[str | None, QueryParameter(min_length=1, max_length=64)] = None,
        agent_id: Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1)] = None,
        tainted: FromQuery[bool] = False,
    ) -> Success[Explanation]:
        """The decision about a call in a run of yours, with the deciding rule or default. Runs nothing.

        `tainted`: as if the run had read untrusted content.
        """
        hypothetical_call = HypotheticalCall(
            tool=tool,
            arguments=_parse_object(arguments),
            project_id=project_id,
            agent_id=agent_id,
            is_tainted=tainted,
        )
        verdict = await rules.explain(caller, hypothetical_call)
        return success(
            Explanation(
                tool=tool,
                action=verdict.action,
                decided_by=verdict.decided_by,
                because=verdict.because,
                rule=verdict.rule,
                parts=list(verdict.parts),
                usual=verdict.usual,
            )
        )


def _parse_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        problem = "must be a JSON object, as text"
        raise InvalidInput(f"arguments: {problem}", field="arguments") from error
