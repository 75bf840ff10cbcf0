"""Rows of permission rules, and the SQL that reads, replaces and adds them. Who may do that is not here."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    ForeignKey,
    Index,
    String,
    Text,
    and_,
    bindparam,
    column,
    delete,
    insert,
    or_,
    select,
    table,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.clock import utc_now
from luxx.errors import Conflict
from luxx.store.tables import Base, UtcDateTime, table_of
from luxx.tools.rules import in_order
from luxx.wire.rule import PlacedRule, Rule, RuleAction, RuleScope

MOST_RULES = 200
"""Of one scope."""

TOOL_LENGTH = 200
PATTERN_LENGTH = 4000

LOCKS = 7_402_133
"""The first half of the PostgreSQL advisory locks that changes of one tenant's rules take in turn."""


class RuleRow(Base):
    """A rule of a tenant (without a user), of a user, or of one of the user's projects or agents."""

    __tablename__ = "permission_rules"
    __table_args__ = (Index("ix_permission_rules_tenant_id_user_id", "tenant_id", "user_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    agent_id: Mapped[int | None] = mapped_column()
    scope: Mapped[str] = mapped_column(String(10))
    place: Mapped[int] = mapped_column()
    tool: Mapped[str] = mapped_column(String(TOOL_LENGTH))
    pattern: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(10))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose list of rules: a tenant's without a user, a project's where there is one, else the user's."""

    tenant_id: int
    user_id: int | None = None
    project_id: str | None = None

    @property
    def scope(self) -> RuleScope:
        if self.user_id is None:
            return RuleScope.TENANT
        return RuleScope.USER if self.project_id is None else RuleScope.PROJECT


_rules = table_of(RuleRow)
_insert = insert(_rules)
_in_turn = text("SELECT pg_advisory_xact_lock(:locks, :tenant_id)")
_conversations = table("conversations", column("id", String), column("project_id", String))
_its_project = (
    select(_conversations.c.project_id)
    .where(_conversations.c.id == bindparam("conversation_id"))
    .scalar_subquery()
)
_fields = (
    _rules.c.scope,
    _rules.c.project_id,
    _rules.c.place,
    _rules.c.tool,
    _rules.c.pattern,
    _rules.c.action,
)
_binding = (
    select(*_fields)
    .where(
        _rules.c.tenant_id == bindparam("tenant_id"),
        or_(
            and_(_rules.c.user_id.is_(None), _rules.c.scope == RuleScope.TENANT.value),
            and_(
                _rules.c.user_id == bindparam("user_id"),
                or_(
                    _rules.c.scope == RuleScope.USER.value,
                    and_(
                        _rules.c.scope == RuleScope.PROJECT.value,
                        or_(
                            _rules.c.project_id == bindparam("project_id"),
                            _rules.c.project_id == _its_project,
                        ),
                    ),
                ),
            ),
        ),
    )
    .order_by(_rules.c.place)
)


def take_turn(connection: Connection, tenant_id: int) -> None:
    """Whoever changes rules does so after whoever is at it; to be called before anything else is locked."""
    if connection.dialect.name == "postgresql":
        connection.execute(_in_turn, {"locks": LOCKS, "tenant_id": tenant_id})


def read_binding(
    connection: Connection,
    tenant_id: int,
    user_id: int,
    *,
    project_id: str | None = None,
    conversation_id: str | None = None,
) -> tuple[PlacedRule, ...]:
    """The rules that bind what runs for this user, there or in that conversation, in the order in which they
    are read."""
    values = {
        "tenant_id": tenant_id,
        "user_id": user_id,
        "project_id": project_id,
        "conversation_id": conversation_id,
    }
    return in_order([_placed(row) for row in connection.execute(_binding, values)])


def read_list(connection: Connection, owner: Owner) -> list[PlacedRule]:
    """One list, in its order."""
    return [
        _placed(row)
        for row in connection.execute(select(*_fields).where(_of(owner)).order_by(_rules.c.place))
    ]


def replace_list(connection: Connection, owner: Owner, rules: Sequence[Rule]) -> None:
    """The list is then this one. Raises Conflict where it is too long."""
    if len(rules) > MOST_RULES:
        raise Conflict(f"there is room for {MOST_RULES} rules; remove some", kind="rules_full")
    connection.execute(delete(_rules).where(_of(owner)))
    now = utc_now()
    rows = [
        {
            "tenant_id": owner.tenant_id,
            "user_id": owner.user_id,
            "project_id": owner.project_id,
            "agent_id": None,
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
        connection.execute(_insert, rows)


def append(connection: Connection, owner: Owner, rule: Rule) -> None:
    """The rule becomes the last of the list, where it decides; one like it does not stand there twice."""
    known = [each for each in read_list(connection, owner) if not _is_alike(each, rule)]
    replace_list(connection, owner, [*known, rule])


def _of(owner: Owner) -> Any:
    same_user = _rules.c.user_id.is_(None) if owner.user_id is None else _rules.c.user_id == owner.user_id
    return and_(
        _rules.c.tenant_id == owner.tenant_id,
        same_user,
        _rules.c.scope == owner.scope.value,
        *([] if owner.project_id is None else [_rules.c.project_id == owner.project_id]),
    )


def _is_alike(one: Rule, other: Rule) -> bool:
    return (one.tool, one.pattern, one.action) == (other.tool, other.pattern, other.action)


def _placed(row: Any) -> PlacedRule:
    return PlacedRule(
        scope=RuleScope(row.scope),
        scope_id=row.project_id,
        place=row.place,
        tool=row.tool,
        pattern=row.pattern,
        action=RuleAction(row.action),
    )
