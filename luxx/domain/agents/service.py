"""Agent management for users: list, create, change, delete, export, import.

A user sees their own agents, those shared in the tenant and the ones that ship with Luxx. Only an
administrator shares. `document.py` defines the exported document and stores the shipped agents.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sqlalchemy import case
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller, KeyScope
from luxx.domain.accounts.rights import is_admin_now
from luxx.domain.agents.document import AgentDocument, FallbackDocument, check_document, document_of
from luxx.domain.agents.models import (
    AgentChanges,
    AgentFallback,
    AgentRow,
    AgentView,
    Check,
    ImportedAgent,
    NewAgent,
)
from luxx.domain.agents.queries import (
    AGENTS,
    BeforeLoss,
    agent_named,
    agent_view,
    decode_checks,
    decode_fallbacks,
    decode_names,
    end_default,
    new_row,
    set_fields,
)
from luxx.domain.conversations.service import own_project
from luxx.domain.knowledge_bases import check_named, named_in
from luxx.domain.routing.uses import forget_uses
from luxx.domain.skills.layers import SkillLayers
from luxx.errors import InvalidInput, NotFound, UnlistedModel
from luxx.infra.clock import utc_now
from luxx.infra.field_errors import NOTHING_WRONG, FieldErrors
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Uses, forget_name, keep_name, uses_of
from luxx.providers.model_lists import ModelLists
from luxx.providers.queries import provider_name, provider_named
from luxx.providers.queries import visible_row as visible_provider
from luxx.tools.permissions.service import Owner, check_rule, read_list, record_change, replace_list
from luxx.tools.sources import ToolSources
from luxx.wire.check import CheckBy
from luxx.wire.tool import PermissionRule


class AgentService:
    """One per process."""

    def __init__(
        self,
        store: Store,
        tools: ToolSources,
        skills: SkillLayers,
        before_loss: BeforeLoss,
        mcp_servers: Callable[[Session, Caller], Collection[str]],
    ) -> None:
        self._store = store
        self._tools = tools
        self._skills = skills
        self._before_loss = before_loss
        self._mcp_servers = mcp_servers

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[AgentView], int]:
        """The agents that the caller may use, newest first, the shipped ones last, and their number."""

        def work(session: Session) -> tuple[list[AgentView], int]:
            is_shipped = case((AgentRow.shipped_name.is_(None), 0), else_=1)
            rows, total = AGENTS.page(session, caller, page=page, page_size=page_size, order=[is_shipped])
            return [agent_view(row, caller) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, agent_id: int) -> AgentView:
        """Raises NotFound."""
        return await self._store.read(
            lambda session: agent_view(AGENTS.visible(session, caller, agent_id), caller)
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
        AGENTS.check_sharing(session, caller, new.is_shared)
        row = new_row(caller, new.name)
        set_fields(row, new)
        self._check_references(session, caller, row, new.__struct_fields__)
        session.add(row)
        session.flush()
        AGENTS.record(session, caller.actor, "create", row)
        return row

    async def update(self, caller: Caller, agent_id: int, changes: AgentChanges) -> AgentView:
        """Sets the given fields. A run in progress keeps the values it started with.

        Raises NotFound, InvalidInput, or NotAllowed for an agent that only others may change.
        """

        def work(session: Session) -> AgentView:
            row = AGENTS.to_change(session, caller, agent_id, changes)
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
            AGENTS.record(session, caller.actor, "change", row, fields)
            return agent_view(row, caller)

        return await self._store.write(work)

    async def enable(self, caller: Caller, agent_id: int, *, is_enabled: bool) -> AgentView:
        """Sets whether the agent may be used. Runs in progress go on. Raises what `update` raises."""
        return await self.update(caller, agent_id, AgentChanges(enabled=is_enabled))

    async def delete(self, caller: Caller, agent_id: int) -> Uses:
        """What used the agent keeps its name and stops until another is chosen; seats of rooms keep a copy of
        its values. An ADMIN may also delete an agent that another ADMIN shares. Returns what used it.
        """

        def work(session: Session) -> Uses:
            row = AGENTS.to_change(session, caller, agent_id, None)
            AGENTS.record(session, caller.actor, "delete", row)
            uses = uses_of(session.connection(), AgentRow, row.id)
            self._before_loss(session, row, True)
            keep_name(session.connection(), AgentRow, row.id, row.name)
            end_default(session, row)
            forget_uses(session.connection(), caller.tenant_id, "agent", str(row.id))
            session.delete(row)
            return uses

        return await self._store.write(work)

    async def uses(self, caller: Caller, agent_id: int) -> Uses:
        """How much uses an agent, of all users who may. For those who may delete it; others get
        NotAllowed.
        """

        def work(session: Session) -> Uses:
            row = AGENTS.to_change(session, caller, agent_id, None, is_locked=False)
            return uses_of(session.connection(), AgentRow, row.id)

        return await self._store.read(work)

    async def export(self, caller: Caller, agent_id: int) -> AgentDocument:
        """The document of an agent, with the names of its providers and, for its owner, its rules."""
        return await self._store.read(
            lambda session: document_for(session, caller, AGENTS.visible(session, caller, agent_id))
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
        of_rules = _rule_problems(rules)

        def work(session: Session) -> ImportedAgent:
            errors = FieldErrors(wrong, subject="the document is not valid")
            errors.add_all(of_rules)
            unknown = self.unknown_names(session, caller, document.tools, document.skills)
            errors.add_all({f"$.{name}": problem for name, problem in unknown.items()})

            def provider_id(name: str, model: str | None, path: str = "$") -> int:
                field = f"{path}.provider"
                provider = errors.named(field, lambda: provider_named(session, caller, name, field))
                if provider is None:
                    return 0
                try:
                    ModelLists().check(provider, model, f"{path}.model")
                except UnlistedModel as error:
                    errors.add(f"{path}.model", error.message)
                return provider.id

            main_id = None if document.provider is None else provider_id(document.provider, document.model)
            fallbacks = fallbacks_of(document, provider_id)
            checks = checks_of(document, provider_id)
            errors.raise_if_any()
            row = self.add(session, caller, document.new_agent(main_id, fallbacks, checks))
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
        """Raises InvalidInput or NotFound for a provider, fallback, tool, skill or knowledge base that
        cannot be used."""
        changed = set(fields)
        if changed & {"project_id", "is_shared"} and row.project_id is not None:
            _check_project(session, caller, row)
        if changed & {"provider_id", "model", "fallbacks", "checks", "is_shared"}:
            with session.no_autoflush:
                _check_providers(session, caller, row)
        tools = decode_names(row.tools) if "tools" in changed and row.tools is not None else None
        skills = decode_names(row.skills) if "skills" in changed and row.skills is not None else None
        with session.no_autoflush:
            unknown = self.unknown_names(session, caller, tools, skills, row.project_id)
        if "mcp_servers" in changed and row.mcp_servers is not None:
            with session.no_autoflush:
                known = self._mcp_servers(session, caller)
            if strange := sorted(set(decode_names(row.mcp_servers)) - set(known)):
                hint = "GET /mcp/servers lists yours"
                unknown["mcp_servers"] = f"there is no MCP server named {', '.join(strange[:10])}; {hint}"
        if "knowledge" in changed:
            with session.no_autoflush:
                row.knowledge = check_named(session, caller, named_in(row.knowledge))
        for name, problem in unknown.items():
            raise InvalidInput(problem, kind=f"{name.removesuffix('s')}_unknown", field=f"$.{name}")

    def unknown_names(
        self,
        session: Session,
        caller: Caller,
        tools: Sequence[str] | None,
        skills: Sequence[str] | None,
        project_id: str | None = None,
    ) -> dict[str, str]:
        """A sentence for each list with names that the caller does not have in this project, by `tools` and
        `skills`."""
        problems: dict[str, str] = {}
        if tools is not None:
            of_caller = self._tools.for_caller(session, caller, tools)
            known = [name for name in tools if of_caller.lookup(name)]
            _add_unknown(problems, "tool", tools, known, "GET /tools lists yours")
        if skills is not None:
            known_skills = self._skills.for_caller(session, caller, project_id)
            _add_unknown(problems, "skill", skills, known_skills, "GET /skills lists them")
        return problems


def _check_project(session: Session, caller: Caller, row: AgentRow) -> None:
    """Raises NotFound for a project that is not the caller's, InvalidInput for an agent that is shared, too.
    Others than the people of its project do not see an agent of a project."""
    if row.is_shared:
        problem = "an agent of a project is not shared with the tenant; give project_id or is_shared"
        raise InvalidInput(problem, kind="agent_of_project", field="$.project_id")
    with session.no_autoflush:
        own_project(session, caller, str(row.project_id))


FindProvider = Callable[[str, str | None, str], int | None]
"""Gives the id of a provider by its name, for a model and a field."""


def checks_of(document: AgentDocument, provider_id: FindProvider) -> list[Check]:
    return [
        check.check(provider_id(check.provider, check.model, f"$.checks[{at}]") if check.provider else None)
        for at, check in enumerate(document.checks)
    ]


def fallbacks_of(document: AgentDocument, provider_id: FindProvider) -> list[AgentFallback]:
    found = (
        (provider_id(each.provider, each.model, f"$.fallbacks[{at}]"), each.model)
        for at, each in enumerate(document.fallbacks)
    )
    return [AgentFallback(provider_id=id_, model=model) for id_, model in found if id_ is not None]


def document_for(session: Session, caller: Caller, row: AgentRow) -> AgentDocument:
    """The document of an agent that the caller may use; with its rules if it is own or comes with Luxx."""
    view = agent_view(row, caller)
    provider = provider_name(session, caller, row.provider_id)
    fallbacks = [
        FallbackDocument(provider=name, model=fallback.model)
        for fallback in view.fallbacks
        if (name := provider_name(session, caller, fallback.provider_id)) is not None
    ]
    owner = Owner(tenant_id=None, agent_id=row.id) if view.is_shipped else _owner(caller, row.id)
    rules = read_list(session.connection(), owner) if view.is_own or view.is_shipped else []
    checks = [
        check_document(check, provider_name(session, caller, check.provider_id)) for check in view.checks
    ]
    return document_of(view, provider, fallbacks, checks, rules)


def _rule_problems(rules: Sequence[PermissionRule]) -> dict[str, str]:
    """What is wrong with each rule, by the path of its field."""
    problems: dict[str, str] = {}
    for index, rule in enumerate(rules):
        try:
            check_rule(f"$.rules[{index}]", rule)
        except InvalidInput as error:
            problems |= error.fields
    return problems


def _owner(caller: Caller, agent_id: int) -> Owner:
    return Owner(tenant_id=caller.tenant_id, user_id=caller.user_id, agent_id=agent_id)


def owner_of_rules(session: Session, caller: Caller, agent_id: int, is_change: bool) -> int | None:
    """The owner of the agent and so of its permission rules; None for an agent that ships with Luxx.

    Raises NotFound; with `is_change` also NotAllowed unless the agent is the caller's to change.
    """
    row = AGENTS.visible(session, caller, agent_id)
    if is_change:
        AGENTS.check_changeable(row, is_admin=is_admin_now(session, caller))
        AGENTS.check_own(row, caller)
    return row.user_id


def _check_providers(session: Session, caller: Caller, row: AgentRow) -> None:
    """Everybody who may use the agent must be able to use its providers, which have its models."""
    named = [(row.provider_id, row.model, "$")] if row.provider_id is not None else []
    named += [
        (fallback.provider_id, fallback.model, f"$.fallbacks[{index}]")
        for index, fallback in enumerate(decode_fallbacks(row.fallbacks))
    ]
    for index, check in enumerate(decode_checks(row.checks)):
        if not check.on.strip():
            raise InvalidInput("say `answer`, or name the tool", field=f"$.checks[{index}].on")
        if check.by == CheckBy.MODEL and not check.criteria.strip():
            problem = "a model judges by criteria; say what must hold, or let facts judge (by: facts)"
            raise InvalidInput(problem, field=f"$.checks[{index}].criteria")
        if check.provider_id is not None:
            named.append((check.provider_id, check.model, f"$.checks[{index}]"))
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
