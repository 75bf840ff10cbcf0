"""The table of permission rules, and the service that reads and replaces lists and explains verdicts."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    Connection,
    Exists,
    ForeignKey,
    Index,
    String,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, Lock, UtcDateTime, lock_until_commit, table_of
from luxx.tools.core import CommandPermission, ToolDefinition, ToolSet
from luxx.tools.pattern import check_wildcards
from luxx.tools.permissions.explaining import DecideByMemory, HypotheticalCall, OwnDecision, explained
from luxx.tools.permissions.judge import Judge, PermissionVerdict
from luxx.tools.permissions.rules import EXACT_PREFIX, sort_rules
from luxx.tools.sources import ToolSources
from luxx.wire.tool import PermissionRule, PlacedRule, RuleAction, RuleScope

MAX_RULES = 200
"""Limit for one list."""

TOOL_LENGTH = 200
PATTERN_LENGTH = 4000


class RuleRow(Base):
    """A rule of a tenant (no user), of a user, of one of the user's projects or agents, or of an agent that
    comes with Luxx (no tenant and no user)."""

    __tablename__ = "permission_rules"
    __table_args__ = (Index("ix_permission_rules_tenant_id_user_id", "tenant_id", "user_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    scope: Mapped[str] = mapped_column(String(10))
    place: Mapped[int] = mapped_column()
    tool: Mapped[str] = mapped_column(String(TOOL_LENGTH))
    pattern: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(10))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a list: the project or agent if there is one; the tenant if there is no user; else the
    user. An agent's `user_id` is its owner; of one that comes with Luxx, there is neither user nor tenant."""

    tenant_id: int | None
    user_id: int | None = None
    project_id: str | None = None
    agent_id: int | None = None

    @property
    def scope(self) -> RuleScope:
        if self.agent_id is not None:
            return RuleScope.AGENT
        if self.user_id is None:
            return RuleScope.TENANT
        return RuleScope.USER if self.project_id is None else RuleScope.PROJECT


_rules = table_of(RuleRow)
_conversations = table_of(ConversationRow)
_its_project = (
    select(_conversations.c.project_id)
    .where(_conversations.c.id == bindparam("conversation_id"))
    .scalar_subquery()
)
_columns = _rules.c
_select_rules = select(
    _columns.scope,
    func.coalesce(_columns.project_id, cast(_columns.agent_id, String)).label("scope_id"),
    _columns.place,
    _columns.tool,
    _columns.pattern,
    _columns.action,
).order_by(_columns.place)
_is_in_project = or_(_columns.project_id == bindparam("project_id"), _columns.project_id == _its_project)
_is_of_agents = _columns.agent_id.in_(bindparam("agent_ids", expanding=True))
_effective_rules = _select_rules.where(
    or_(
        and_(
            _columns.tenant_id == bindparam("tenant_id"),
            or_(
                and_(_columns.user_id.is_(None), _columns.scope == RuleScope.TENANT.value),
                and_(
                    _is_of_agents,
                    # The owner of a shared agent restricts others, but cannot allow calls in their name; nor
                    # does an agent allow calls of the agents that its runs delegate to.
                    or_(
                        _columns.action != RuleAction.ALLOW.value,
                        and_(
                            _columns.user_id == bindparam("user_id"),
                            _columns.agent_id == bindparam("own_agent_id"),
                        ),
                    ),
                ),
                and_(
                    _columns.user_id == bindparam("user_id"),
                    or_(
                        _columns.scope == RuleScope.USER.value,
                        and_(_columns.scope == RuleScope.PROJECT.value, _is_in_project),
                    ),
                ),
            ),
        ),
        # What comes with Luxx allows nothing either.
        and_(_columns.tenant_id.is_(None), _is_of_agents, _columns.action != RuleAction.ALLOW.value),
    ),
)


def read_effective_rules(
    connection: Connection,
    tenant_id: int,
    user_id: int,
    *,
    project_id: str | None = None,
    conversation_id: str | None = None,
    agent_ids: Sequence[int] = (),
) -> tuple[PlacedRule, ...]:
    """The rules for runs of this user in a project or conversation, in the order in which they apply.

    `agent_ids`: the agent of the run, then those of the runs that delegated to it, whose rules come last.
    Rules that allow apply only if the agent is the first and the user's own.
    """
    depths = {str(agent_id): depth for depth, agent_id in enumerate(agent_ids)}
    values = {
        "tenant_id": tenant_id,
        "user_id": user_id,
        "project_id": project_id,
        "conversation_id": conversation_id,
        "agent_ids": list(agent_ids),
        "own_agent_id": agent_ids[0] if agent_ids else None,
    }
    rules = [_rule_of_row(row) for row in connection.execute(_effective_rules, values)]
    return sort_rules(
        [
            replace(rule, place=rule.place + MAX_RULES * depths[str(rule.scope_id)])
            if rule.scope == RuleScope.AGENT
            else rule
            for rule in rules
        ]
    )


def has_rules(tenant_id: Any, user_id: Any) -> Exists:
    """Whether any rule of the tenant or of the user exists, as a column of a statement. Without one, and
    without an agent, `read_effective_rules` returns none."""
    is_owned = or_(_columns.user_id.is_(None), _columns.user_id == user_id)
    return exists().where(_columns.tenant_id == tenant_id, is_owned)


def has_project_rules(session: Session, project_id: str) -> bool:
    """Whether a project has permission rules."""
    return session.scalar(select(_columns.id).where(_columns.project_id == project_id).limit(1)) is not None


def read_list(connection: Connection, owner: Owner) -> list[PlacedRule]:
    """The rules of one list, in order."""
    rows = connection.execute(_select_rules.where(_owned_by(owner)))
    return [_rule_of_row(row) for row in rows]


def replace_list(connection: Connection, owner: Owner, rules: Sequence[PermissionRule]) -> None:
    """Replace a list. Raises Conflict if the new one is too long."""
    if len(rules) > MAX_RULES:
        raise Conflict(f"a list holds at most {MAX_RULES} rules; remove some", kind="rules_full")
    connection.execute(delete(_rules).where(_owned_by(owner)))
    now = utc_now()
    rows = [
        {
            "tenant_id": owner.tenant_id,
            "user_id": owner.user_id,
            "project_id": owner.project_id,
            "agent_id": owner.agent_id,
            "scope": owner.scope.value,
            "place": place,
            "tool": rule.tool,
            "pattern": rule.pattern,
            "action": rule.action.value,
            "created_at": now,
        }
        for place, rule in enumerate(rules)
    ]
    if rows:
        connection.execute(insert(_rules), rows)


def append_rule(connection: Connection, owner: Owner, rule: PermissionRule) -> None:
    """Append a rule, so that it decides. Removes an equal rule that is already in the list."""
    added = (rule.tool, rule.pattern, rule.action)
    rules = read_list(connection, owner)
    others = [rule for rule in rules if (rule.tool, rule.pattern, rule.action) != added]
    replace_list(connection, owner, [*others, rule])


def _owned_by(owner: Owner) -> Any:
    return and_(
        # `== None` becomes IS NULL.
        _rules.c.tenant_id == owner.tenant_id,
        _rules.c.user_id == owner.user_id,
        _rules.c.scope == owner.scope.value,
        *([] if owner.project_id is None else [_rules.c.project_id == owner.project_id]),
        *([] if owner.agent_id is None else [_rules.c.agent_id == owner.agent_id]),
    )


def _rule_of_row(row: Any) -> PlacedRule:
    return PlacedRule(
        scope=RuleScope(row.scope),
        scope_id=row.scope_id,
        place=row.place,
        tool=row.tool,
        pattern=row.pattern,
        action=RuleAction(row.action),
    )


CheckProjectAccess = Callable[[Session, Caller, str], object]
"""Raises NotFound unless the caller owns this project."""

CheckAgentAccess = Callable[[Session, Caller, int, bool], int | None]
"""The owner of the agent; None for one that ships with Luxx. Raises NotFound unless the caller may use it,
and, if the last argument is true, NotAllowed unless the caller may change it."""


class RuleService:
    """One per process."""

    def __init__(
        self,
        store: Store,
        tools: ToolSources,
        judge: Judge,
        *,
        check_project: CheckProjectAccess,
        check_agent: CheckAgentAccess,
        decide_by_memory: DecideByMemory = lambda session, caller, call: None,
    ) -> None:
        self._store = store
        self._tools = tools
        self._judge = judge
        self._check_project = check_project
        self._check_agent = check_agent
        self._decide_by_memory = decide_by_memory

    async def read(self, caller: Caller, scope: RuleScope, scope_id: str | None) -> list[PlacedRule]:
        """The rules of one list, in order. Raises NotFound for a list of somebody else, InvalidInput."""
        self._check_scope(scope, scope_id)

        def work(session: Session) -> list[PlacedRule]:
            return read_list(session.connection(), self._owner(session, caller, scope, scope_id))

        return await self._store.read(work)

    async def replace(
        self, caller: Caller, scope: RuleScope, scope_id: str | None, rules: Sequence[PermissionRule]
    ) -> list[PlacedRule]:
        """Replace a list, effective from the next call on. A tenant's list requires level ADMIN."""
        self._check_scope(scope, scope_id)
        if scope == RuleScope.TENANT:
            caller.require(CommandPermission.ADMIN)
        if len(rules) > MAX_RULES:
            problem = f"a list holds at most {MAX_RULES} rules"
            raise FieldErrors({"$": problem}).refusal()
        for index, rule in enumerate(rules):
            check_rule(f"$[{index}]", rule)

        def work(session: Session) -> list[PlacedRule]:
            lock_until_commit(session.connection(), Lock.TENANT_RULES, caller.tenant_id)
            owner = self._owner(session, caller, scope, scope_id, is_change=True)
            replace_list(session.connection(), owner, rules)
            record_change(session, caller, owner, len(rules))
            return read_list(session.connection(), owner)

        return await self._store.write(work)

    async def rules_and_tools(self, caller: Caller, tool: str) -> tuple[tuple[PlacedRule, ...], ToolSet]:
        """The rules for a direct call of this tool by the caller, which belongs to no project, and the tools
        that exist for the caller."""

        def work(session: Session) -> tuple[tuple[PlacedRule, ...], ToolSet]:
            rules = read_effective_rules(session.connection(), caller.tenant_id, caller.user_id)
            return rules, self._tools.for_caller(session, caller, (tool,))

        return await self._store.read(work)

    async def explain(self, caller: Caller, hypothetical_call: HypotheticalCall) -> PermissionVerdict:
        """The verdict that this call would get in a run of the caller. Raises NotFound."""
        name = hypothetical_call.tool

        def work(session: Session) -> tuple[ToolDefinition, tuple[PlacedRule, ...], OwnDecision | None]:
            found = self._tools.for_caller(session, caller, (name,)).lookup(name)
            if found is None:
                raise NotFound(f"there is no tool named {name[:64]!r}", kind="tool_not_found")
            if hypothetical_call.project_id is not None:
                self._check_project(session, caller, hypothetical_call.project_id)
            if hypothetical_call.agent_id is not None:
                self._check_agent(session, caller, hypothetical_call.agent_id, False)
            rules = read_effective_rules(
                session.connection(),
                caller.tenant_id,
                caller.user_id,
                project_id=hypothetical_call.project_id,
                agent_ids=() if hypothetical_call.agent_id is None else (hypothetical_call.agent_id,),
            )
            return found[0], rules, self._decide_by_memory(session, caller, hypothetical_call)

        tool, rules, own = await self._store.read(work)
        return await explained(self._judge, caller, hypothetical_call, tool, rules, own)

    @staticmethod
    def _check_scope(scope: RuleScope, scope_id: str | None) -> None:
        has_id = scope in (RuleScope.PROJECT, RuleScope.AGENT)
        if has_id != (scope_id is not None):
            problem = f"the scope {scope} needs an id" if has_id else f"the scope {scope} takes no id"
            raise FieldErrors({"id": problem}).refusal()

    def _owner(
        self,
        session: Session,
        caller: Caller,
        scope: RuleScope,
        scope_id: str | None,
        *,
        is_change: bool = False,
    ) -> Owner:
        if scope == RuleScope.TENANT:
            return Owner(tenant_id=caller.tenant_id)
        if scope == RuleScope.PROJECT and scope_id is not None:
            self._check_project(session, caller, scope_id)
            return Owner(tenant_id=caller.tenant_id, user_id=caller.user_id, project_id=scope_id)
        if scope == RuleScope.AGENT and scope_id is not None:
            agent_id = _agent_id(scope_id)
            owner_id = self._check_agent(session, caller, agent_id, is_change)
            if owner_id is None:
                return Owner(tenant_id=None, agent_id=agent_id)
            return Owner(tenant_id=caller.tenant_id, user_id=owner_id, agent_id=agent_id)
        return Owner(tenant_id=caller.tenant_id, user_id=caller.user_id)


def _agent_id(scope_id: str) -> int:
    """The id as a number; 0, which no agent has, if it is not one."""
    return int(scope_id) if scope_id.isascii() and scope_id.isdigit() and len(scope_id) < 10 else 0


def record_change(session: Session, caller: Caller, owner: Owner, count: int) -> None:
    """Write the audit entry for a list that now has `count` rules."""
    names = {RuleScope.TENANT: owner.tenant_id, RuleScope.USER: owner.user_id}
    entry = AuditEntry(
        action=Action.RULES_CHANGE,
        actor=caller.actor,
        target_type=owner.scope.value,
        target_id=str(names.get(owner.scope, owner.agent_id or owner.project_id)),
        detail=Detail(count=count),
    )
    record(session, entry)


def check_rule(path: str, rule: PermissionRule) -> None:
    """Raises InvalidInput for a rule with too many wildcards; `path` is that of the rule in the request."""
    is_exact = rule.pattern.startswith(EXACT_PREFIX)
    for name, pattern in (("tool", rule.tool), ("pattern", "" if is_exact else rule.pattern)):
        try:
            check_wildcards(pattern)
        except InvalidInput as error:
            raise InvalidInput(error.message, field=f"{path}.{name}") from error
