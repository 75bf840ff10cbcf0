"""Agent management for users: list, create, change, delete, export, import.

A user sees their own agents, those shared in the tenant and the ones that ship with Luxx. Only an
administrator shares. `document.py` defines the exported document, `shipped.py` stores the shipped agents.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller, KeyScope
from luxx.domain.accounts.rights import is_admin_now
from luxx.domain.agents.document import AgentDocument, FallbackDocument, document_of
from luxx.domain.agents.models import (
    AgentChanges,
    AgentFallback,
    AgentRow,
    AgentView,
    ImportedAgent,
    NewAgent,
)
from luxx.domain.agents.queries import (
    BeforeLoss,
    agent_named,
    agent_view,
    end_default,
    new_row,
    record_agent,
    visible_agent,
    visible_to,
)
from luxx.domain.audit import Action
from luxx.domain.skills.registry import SkillRegistry
from luxx.errors import AmbiguousName, InvalidInput, NotAllowed, NotFound, UnlistedModel
from luxx.infra.clock import utc_now
from luxx.infra.field_errors import NOTHING_WRONG, FieldError, FieldErrors
from luxx.infra.store.engine import Store
from luxx.infra.store.lost_names import Uses, forget_name, keep_name, uses_of
from luxx.providers.model_lists import ModelLists
from luxx.providers.queries import provider_named
from luxx.providers.queries import visible_row as visible_provider
from luxx.tools.permissions.service import Owner, check_rule, read_list, record_change, replace_list
from luxx.tools.sources import ToolSources
from luxx.wire.tool import PermissionRule

_JSON_FIELDS = frozenset({"tools", "skills", "fallbacks"})
_names = msgspec.json.Decoder(list[str])
_fallbacks = msgspec.json.Decoder(list[AgentFallback])


class AgentService:
    """One per process."""

    def __init__(
        self,
        store: Store,
        tools: ToolSources,
        skills: SkillRegistry,
        before_loss: BeforeLoss,
    ) -> None:
        self._store = store
        self._tools = tools
        self._skills = skills
        self._before_loss = before_loss

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[AgentView], int]:
        """The agents that the caller may use, newest first, the shipped ones last, and their number."""

        def work(session: Session) -> tuple[list[AgentView], int]:
            total = session.scalar(select(func.count()).select_from(AgentRow).where(visible_to(caller))) or 0
            is_shipped = case((AgentRow.shipped_name.is_(None), 0), else_=1)
            rows = session.scalars(
                select(AgentRow)
                .where(visible_to(caller))
                .order_by(is_shipped, AgentRow.id.desc())
                .limit(page_size)
                .offset((page - 1) * page_size)
            )
            return [agent_view(row, caller) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, agent_id: int) -> AgentView:
        """Raises NotFound."""
        return await self._store.read(
            lambda session: agent_view(visible_agent(session, caller, agent_id), caller)
        )

    async def named(self, caller: Caller, name: str) -> AgentView:
        """The caller's agent of this name, else a shared one, else a shipped one. Raises NotFound."""
        return await self._store.read(lambda session: agent_view(agent_named(session, caller, name), caller))

    async def create(self, caller: Caller, new: NewAgent) -> AgentView:
        """Raises InvalidInput or NotFound for a provider, tool or skill that the caller may not use."""

        def work(session: Session) -> AgentView:
            return agent_view(self.add(session, caller, new), caller)

        return await self._store.write(work)

    def add(self, session: Session, caller: Caller, new: NewAgent) -> AgentRow:
        """`create`, in a transaction of the caller."""
        _check_sharing(new.is_shared, is_admin=new.is_shared and is_admin_now(session, caller))
        row = new_row(caller, new.name)
        set_fields(row, new)
        self._check_references(session, caller, row, new.__struct_fields__)
        session.add(row)
        session.flush()
        record_agent(session, caller.actor, Action.AGENT_CREATE, row)
        return row

    async def update(self, caller: Caller, agent_id: int, changes: AgentChanges) -> AgentView:
        """Sets the given fields. A run in progress keeps the values it started with.

        Raises NotFound, InvalidInput, or NotAllowed for an agent that only others may change.
        """

        def work(session: Session) -> AgentView:
            row = _row_to_change(session, caller, agent_id, changes)
            if row.is_shared and changes.is_shared is False:
                self._before_loss(session, row, False)
                keep_name(session.connection(), AgentRow, row.id, row.name, owner_id=row.user_id)
            elif changes.is_shared is True and not row.is_shared:
                forget_name(session.connection(), AgentRow, row.id)
            fields = set_fields(row, changes)
            self._check_references(session, caller, row, fields)
            if not row.is_shared:
                end_default(session, row)
            row.updated_at = utc_now()
            session.flush()
            record_agent(session, caller.actor, Action.AGENT_CHANGE, row, fields)
            return agent_view(row, caller)

        return await self._store.write(work)

    async def delete(self, caller: Caller, agent_id: int) -> Uses:
        """What used the agent keeps its name and stops until another is chosen; seats of rooms keep a copy of
        its values. An ADMIN may also delete an agent that another ADMIN shares. Returns what used it.
        """

        def work(session: Session) -> Uses:
            row = _row_to_change(session, caller, agent_id, None)
            record_agent(session, caller.actor, Action.AGENT_DELETE, row)
            uses = uses_of(session.connection(), AgentRow, row.id)
            self._before_loss(session, row, True)
            keep_name(session.connection(), AgentRow, row.id, row.name)
            end_default(session, row)
            session.delete(row)
            return uses

        return await self._store.write(work)

    async def uses(self, caller: Caller, agent_id: int) -> Uses:
        """How much uses an agent, of all users who may. For those who may delete it; others get
        NotAllowed.
        """

        def work(session: Session) -> Uses:
            row = visible_agent(session, caller, agent_id)
            _check_may_change(row, is_admin=is_admin_now(session, caller))
            return uses_of(session.connection(), AgentRow, row.id)

        return await self._store.read(work)

    async def export(self, caller: Caller, agent_id: int) -> AgentDocument:
        """The document of an agent, with the names of its providers and, for its owner, its rules."""
        return await self._store.read(
            lambda session: document_for(session, caller, visible_agent(session, caller, agent_id))
        )

    async def import_agent(
        self, caller: Caller, document: AgentDocument, wrong: Mapping[str, str] = NOTHING_WRONG
    ) -> ImportedAgent:
        """Creates an agent of the caller from a document, with its rules.

        Raises InvalidInput with the `wrong` fields of the document, each rule that is not valid, each
        provider, tool and skill that the caller does not have, and each model that its provider does not
        list, and NotAllowed for rules with an API key that may not write rules; then nothing is created.
        """
        rules = [rule.permission_rule() for rule in document.rules]
        if rules:
            caller.require_scope(KeyScope.ADMIN, "a document with permission rules ($.rules)")
        of_rules = list(_rule_errors(rules))

        def work(session: Session) -> ImportedAgent:
            errors = FieldErrors(wrong)
            errors.extend(of_rules)
            unknown = self.unknown_names(session, caller, document.tools, document.skills)
            errors.extend(FieldError(f"$.{name}", problem) for name, problem in unknown.items())

            def provider_id(name: str, model: str | None, path: str = "$") -> int:
                try:
                    provider = provider_named(session, caller, name, f"{path}.provider")
                    ModelLists().check(provider, model, f"{path}.model")
                    return provider.id
                except UnlistedModel as error:
                    errors.add(f"{path}.model", error.message)
                except (NotFound, AmbiguousName) as error:
                    errors.add(f"{path}.provider", error.message)
                return 0

            main_id = None if document.provider is None else provider_id(document.provider, document.model)
            named = [(each, f"$.fallbacks[{index}]") for index, each in enumerate(document.fallbacks)]
            fallbacks = [
                AgentFallback(provider_id=provider_id(each.provider, each.model, path), model=each.model)
                for each, path in named
            ]
            errors.raise_if_any("the document is not valid")
            row = self.add(session, caller, document.new_agent(main_id, fallbacks))
            if rules:
                owner = _owner(caller, row.id)
                replace_list(session.connection(), owner, rules)
                record_change(session, caller, owner, len(rules))
            view = agent_view(row, caller)
            fields = {name: getattr(view, name) for name in AgentView.__struct_fields__}
            return ImportedAgent(**fields, rules=rules)

        return await self._store.write(work)

    def _check_references(
        self, session: Session, caller: Caller, row: AgentRow, fields: Iterable[str]
    ) -> None:
        """Raises InvalidInput or NotFound for a provider, fallback, tool or skill that cannot be used."""
        changed = set(fields)
        if changed & {"provider_id", "model", "fallbacks", "is_shared"}:
            with session.no_autoflush:
                _check_providers(session, caller, row)
        tools = _names.decode(row.tools) if "tools" in changed and row.tools is not None else None
        skills = _names.decode(row.skills) if "skills" in changed and row.skills is not None else None
        with session.no_autoflush:
            unknown = self.unknown_names(session, caller, tools, skills)
        for name, problem in unknown.items():
            raise InvalidInput(problem, kind=f"{name.removesuffix('s')}_unknown", field=f"$.{name}")

    def unknown_names(
        self, session: Session, caller: Caller, tools: Sequence[str] | None, skills: Sequence[str] | None
    ) -> dict[str, str]:
        """A sentence for each list with names that the caller does not have, by `tools` and `skills`."""
        problems: dict[str, str] = {}
        if tools is not None:
            of_caller = self._tools.for_caller(session, caller, tools)
            known = [name for name in tools if of_caller.lookup(name)]
            _add_unknown(problems, "tool", tools, known, "GET /tools lists yours")
        if skills is not None:
            known_skills = self._skills.for_caller(session, caller)
            _add_unknown(problems, "skill", skills, known_skills, "GET /skills lists them")
        return problems


def document_for(session: Session, caller: Caller, row: AgentRow) -> AgentDocument:
    """The document of an agent that the caller may use; with its rules if it is the caller's own."""
    view = agent_view(row, caller)
    provider = _provider_name(session, caller, row.provider_id)
    fallbacks = [
        FallbackDocument(provider=name, model=fallback.model)
        for fallback in view.fallbacks
        if (name := _provider_name(session, caller, fallback.provider_id)) is not None
    ]
    rules = read_list(session.connection(), _owner(caller, row.id)) if view.is_own else []
    return document_of(view, provider, fallbacks, rules)


def _rule_errors(rules: Sequence[PermissionRule]) -> Iterator[FieldError]:
    for index, rule in enumerate(rules):
        try:
            check_rule(f"$.rules[{index}]", rule)
        except InvalidInput as error:
            yield from starmap(FieldError, error.fields.items())


def _owner(caller: Caller, agent_id: int) -> Owner:
    return Owner(tenant_id=caller.tenant_id, user_id=caller.user_id, agent_id=agent_id)


def owner_of_rules(session: Session, caller: Caller, agent_id: int, is_change: bool) -> int | None:
    """The owner of the agent and so of its permission rules; None for an agent that ships with Luxx.

    Raises NotFound; with `is_change` also NotAllowed unless the agent is the caller's to change.
    """
    row = visible_agent(session, caller, agent_id)
    if is_change:
        _check_may_change(row, is_admin=is_admin_now(session, caller))
        _check_own(row, caller)
    return row.user_id


def _provider_name(session: Session, caller: Caller, provider_id: int | None) -> str | None:
    """The name of a provider that the caller may use; None for others, whose names are not theirs to see."""
    if provider_id is None:
        return None
    try:
        return visible_provider(session, caller, provider_id).name
    except NotFound:
        return None


def set_fields(row: AgentRow, values: NewAgent | AgentChanges) -> list[str]:
    """Sets the given fields and returns their names. Checks nothing."""
    fields: list[str] = []
    for name in values.__struct_fields__:
        value: Any = getattr(values, name)
        if value is UNSET or (name == "color" and value is None):
            continue
        if name == "fallbacks":
            value = [replace(each, model=each.model and each.model.strip()) for each in value]
        if name in _JSON_FIELDS and value is not None:
            value = msgspec.json.encode(value).decode()
        elif name in ("name", "role", "model") and isinstance(value, str):
            value = value.strip()
        elif name == "color" and isinstance(value, str):
            value = value.lower()
        setattr(row, name, value)
        fields.append(name)
    if "provider_id" in fields and row.lost_provider is not None:
        row.lost_provider = None
        if "model" not in fields:
            row.model = None  # It belonged to the lost provider.
    return fields


def _row_to_change(session: Session, caller: Caller, agent_id: int, changes: AgentChanges | None) -> AgentRow:
    """The row, if the caller may make these changes; None means to delete it. Raises NotFound, NotAllowed."""
    is_admin = is_admin_now(session, caller)
    row = visible_agent(session, caller, agent_id, is_locked=True)
    _check_may_change(row, is_admin=is_admin)
    if changes is not None:
        _check_sharing(changes.is_shared, is_admin=is_admin)
        given = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
        if not given <= {"is_shared"}:
            _check_own(row, caller)
    return row


def _check_may_change(row: AgentRow, *, is_admin: bool) -> None:
    if row.shipped_name is not None:
        raise NotAllowed(
            f"the agent '{row.name}' comes with Luxx; export it and import it to have one of your own"
        )
    if row.is_shared and not is_admin:
        raise NotAllowed(f"the agent '{row.name}' is shared with the tenant; only administrators change it")


def _check_own(row: AgentRow, caller: Caller) -> None:
    if row.user_id != caller.user_id:
        raise NotAllowed(
            f"the agent '{row.name}' belongs to another administrator; you may only stop sharing it "
            "(is_shared) or delete it"
        )


def _check_sharing(is_shared: bool | UnsetType, *, is_admin: bool) -> None:
    if is_shared is True and not is_admin:
        raise NotAllowed("only an administrator may share an agent with the tenant")


def _check_providers(session: Session, caller: Caller, row: AgentRow) -> None:
    """Everybody who may use the agent must be able to use its providers, which have its models."""
    named = [(row.provider_id, row.model, "$")] if row.provider_id is not None else []
    named += [
        (fallback.provider_id, fallback.model, f"$.fallbacks[{index}]")
        for index, fallback in enumerate(_fallbacks.decode(row.fallbacks))
    ]
    for provider_id, model, path in named:
        field = f"{path}.provider_id"
        try:
            provider = visible_provider(session, caller, provider_id)
        except NotFound as error:
            raise error.about(field) from None
        if row.is_shared and not provider.is_shared:
            problem = (
                f"the provider '{provider.name}' is not shared, so others could not use this agent; share "
                "the provider first, or leave provider_id out"
            )
            raise InvalidInput(problem, kind="provider_not_shared", field=field)
        ModelLists().check(provider, model, f"{path}.model")


def _add_unknown(
    problems: dict[str, str], what: str, names: Sequence[str], known: Iterable[str], hint: str
) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        problems[f"{what}s"] = f"there is no {what} named {', '.join(unknown[:10])}; {hint}"
