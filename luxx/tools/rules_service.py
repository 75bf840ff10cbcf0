"""Permission rules as people use them: read a list, replace it, and ask why a call would be allowed."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.audit.entries import Action, Detail, Entry, record
from luxx.errors import InvalidInput, NotFound
from luxx.store.engine import Store
from luxx.tools import wildcards
from luxx.tools.compositions.service import OwnToolsIn
from luxx.tools.core import CommandPermission, ToolContext, ToolDefinition
from luxx.tools.executor import ToolExecutor
from luxx.tools.permission import Verdict
from luxx.tools.rules import EXACTLY
from luxx.tools.rules_rows import MOST_RULES, Owner, read_binding, read_list, replace_list, take_turn
from luxx.wire.rule import PlacedRule, Rule, RuleScope

CheckProject = Callable[[Session, Caller, str], object]
"""Raises NotFound unless this is a project of the caller's."""

CheckAgent = Callable[[Caller, int], Awaitable[object]]
"""Raises NotFound unless this is an agent that the caller may use."""

STRANGERS = "something"
"""Who has tainted a run that is only supposed."""


class Supposed(msgspec.Struct, frozen=True, kw_only=True):
    """A call that nobody makes. `is_tainted`: as if strangers' content were in its run already."""

    tool: str
    arguments: dict[str, Any]
    project_id: str | None = None
    is_tainted: bool = False


class RuleService:
    """One per process."""

    def __init__(
        self,
        store: Store,
        executor: ToolExecutor,
        *,
        check_project: CheckProject,
        check_agent: CheckAgent,
        own_tools_in: OwnToolsIn,
    ) -> None:
        self._own_tools_in = own_tools_in
        self._store = store
        self._executor = executor
        self._check_project = check_project
        self._check_agent = check_agent

    async def read(self, caller: Caller, scope: RuleScope, scope_id: str | None) -> list[PlacedRule]:
        """One list, in its order. Raises NotFound for what is not the caller's, InvalidInput."""
        await self._check_scope(caller, scope, scope_id)

        def work(session: Session) -> list[PlacedRule]:
            return read_list(session.connection(), self._owner(session, caller, scope, scope_id))

        return await self._store.read(work)

    async def replace(
        self, caller: Caller, scope: RuleScope, scope_id: str | None, rules: Sequence[Rule]
    ) -> list[PlacedRule]:
        """The list is then this one; a tenant's is its ADMINs' to set. It holds from the next call on."""
        await self._check_scope(caller, scope, scope_id)
        if scope == RuleScope.TENANT:
            caller.require(CommandPermission.ADMIN)
        if len(rules) > MOST_RULES:
            problem = f"there is room for {MOST_RULES} rules"
            raise InvalidInput(f"the request is not valid: {problem}", detail={"fields": {"$": problem}})
        for index, rule in enumerate(rules):
            _check_rule(index, rule)

        def work(session: Session) -> list[PlacedRule]:
            take_turn(session.connection(), caller.tenant_id)
            owner = self._owner(session, caller, scope, scope_id)
            replace_list(session.connection(), owner, rules)
            record_change(session, caller, owner, len(rules))
            return read_list(session.connection(), owner)

        return await self._store.write(work)

    async def binding(self, caller: Caller) -> tuple[PlacedRule, ...]:
        """The rules for what the caller runs by hand, which belongs to no project."""
        return await self._store.read(
            lambda session: read_binding(session.connection(), caller.tenant_id, caller.user_id)
        )

    async def explain(self, caller: Caller, supposed: Supposed) -> Verdict:
        """What would become of this call in a run of the caller's, and why. Raises NotFound."""
        known = self._executor.registry.lookup_for(supposed.tool, caller.tenant_id)

        def work(session: Session) -> tuple[ToolDefinition, tuple[PlacedRule, ...]]:
            connection = session.connection()
            found = known or self._own_tools_in(connection, caller.user_id).lookup(supposed.tool)
            if found is None:
                raise NotFound(f"there is no tool named {supposed.tool[:64]!r}", kind="tool_not_found")
            if supposed.project_id is not None:
                self._check_project(session, caller, supposed.project_id)
            return found[0], read_binding(
                connection, caller.tenant_id, caller.user_id, project_id=supposed.project_id
            )

        tool, rules = await self._store.read(work)
        context = ToolContext(
            user_id=caller.user_id,
            username=caller.username,
            user_permission_level=caller.permission_level,
            tenant_id=caller.tenant_id,
            rules=rules,
            tainted_by=STRANGERS if supposed.is_tainted else None,
        )
        return await self._executor.judge.considered(tool, supposed.arguments, context)

    async def _check_scope(self, caller: Caller, scope: RuleScope, scope_id: str | None) -> None:
        has_id = scope in (RuleScope.PROJECT, RuleScope.AGENT)
        if has_id != (scope_id is not None):
            problem = f"the scope {scope} needs it" if has_id else f"the scope {scope} is your own"
            raise InvalidInput(f"the request is not valid: id: {problem}", detail={"fields": {"id": problem}})
        if scope == RuleScope.AGENT:
            number = str(scope_id)
            is_number = number.isascii() and number.isdigit() and len(number) < 10
            await self._check_agent(caller, int(number) if is_number else 0)

    def _owner(self, session: Session, caller: Caller, scope: RuleScope, scope_id: str | None) -> Owner:
        if scope == RuleScope.TENANT:
            return Owner(tenant_id=caller.tenant_id)
        if scope == RuleScope.PROJECT and scope_id is not None:
            self._check_project(session, caller, scope_id)
            return Owner(tenant_id=caller.tenant_id, user_id=caller.user_id, project_id=scope_id)
        return Owner(tenant_id=caller.tenant_id, user_id=caller.user_id)


def record_change(session: Session, caller: Caller, owner: Owner, count: int) -> None:
    """The entry of the audit log for a list that has these many rules now."""
    names = {RuleScope.TENANT: owner.tenant_id, RuleScope.USER: owner.user_id}
    entry = Entry(
        action=Action.RULES_CHANGE,
        actor=caller.actor,
        target_type=owner.scope.value,
        target_id=str(names.get(owner.scope, owner.project_id)),
        detail=Detail(count=count),
    )
    record(session, entry)


def _check_rule(index: int, rule: Rule) -> None:
    is_exact = rule.pattern.startswith(EXACTLY)
    for name, pattern in (("tool", rule.tool), ("pattern", "" if is_exact else rule.pattern)):
        try:
            wildcards.check(pattern)
        except InvalidInput as error:
            raise InvalidInput(
                f"rule {index + 1}: {error.message}", detail={"fields": {f"$[{index}].{name}": error.message}}
            ) from error
