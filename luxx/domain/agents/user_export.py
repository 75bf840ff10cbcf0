"""Agents in an export of all data of a user, and their import on another server. What `add_agent` leaves out
with a note, `AgentService.import_agent` refuses.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.document import AgentDocument
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import new_row, set_fields
from luxx.domain.agents.service import checks_of, document_for, fallbacks_of
from luxx.errors import AmbiguousName, NotFound
from luxx.providers.queries import provider_named
from luxx.tools.permissions.service import Owner, replace_list


def own_agents(session: Session, caller: Caller) -> list[tuple[int, str | None, AgentDocument]]:
    """The ids, projects and documents of the agents that the user owns, oldest first."""
    rows = session.scalars(select(AgentRow).where(AgentRow.user_id == caller.user_id).order_by(AgentRow.id))
    return [(row.id, row.project_id, document_for(session, caller, row)) for row in rows]


def shipped_ids(session: Session) -> dict[str, int]:
    """The ids of the agents that come with Luxx, by the names that stay the same on every server."""
    rows = session.execute(
        select(AgentRow.shipped_name, AgentRow.id).where(AgentRow.shipped_name.is_not(None))
    )
    return {str(name): agent_id for name, agent_id in rows}


def add_agent(
    session: Session, caller: Caller, document: AgentDocument, project_id: str | None = None
) -> tuple[int, list[str]]:
    """Adds an agent with its rules, of this project and not shared. Returns its id, and notes about what was
    left out and about its rules.

    Of a provider that the user does not have the name stays. Unknown tools and skills stay: a run offers
    only those that exist.
    """
    notes: list[str] = []

    def provider_id(name: str, _model: str | None = None, _field: str = "") -> int | None:
        try:
            return provider_named(session, caller, name, "$.provider").id
        except (NotFound, AmbiguousName):
            note = f"the agent {document.name} lost its provider {name}, which does not exist here"
            if note not in notes:
                notes.append(note)
            return None

    main_id = None if document.provider is None else provider_id(document.provider)
    fallbacks = fallbacks_of(document, provider_id)
    checks = checks_of(document, provider_id)
    row = new_row(caller, document.name)
    set_fields(row, document.new_agent(main_id, fallbacks, checks))
    row.project_id = project_id
    if document.provider is not None and main_id is None:
        # The agent answers after another is chosen; only the missing provider knows the model.
        row.lost_provider, row.model = document.provider, None
    session.add(row)
    session.flush()
    owner = Owner(tenant_id=caller.tenant_id, user_id=caller.user_id, agent_id=row.id)
    replace_list(session.connection(), owner, [rule.permission_rule() for rule in document.rules])
    if document.rules:
        rules = ", ".join(f"{rule.action} {rule.tool}({rule.pattern})" for rule in document.rules)
        notes.append(f"the agent {document.name} brought permission rules: {rules}")
    return row.id, notes
