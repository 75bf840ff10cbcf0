"""The agents of a user in an export of all their data, and their import on another server.

An import of a single document is stricter: `service.py` refuses what this one leaves out with a note.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.document import AgentDocument
from luxx.domain.agents.models import AgentFallback, AgentRow
from luxx.domain.agents.queries import new_row
from luxx.domain.agents.service import document_for, set_fields
from luxx.errors import AmbiguousName, NotFound
from luxx.providers.queries import provider_named
from luxx.tools.permissions.service import Owner, replace_list


def own_agents(session: Session, caller: Caller) -> list[tuple[int, AgentDocument]]:
    """The ids and documents of the agents that the user owns, oldest first."""
    rows = session.scalars(select(AgentRow).where(AgentRow.user_id == caller.user_id).order_by(AgentRow.id))
    return [(row.id, document_for(session, caller, row)) for row in rows]


def shipped_ids(session: Session) -> dict[str, int]:
    """The ids of the agents that come with Luxx, by the names that stay the same on every server."""
    rows = session.execute(
        select(AgentRow.shipped_name, AgentRow.id).where(AgentRow.shipped_name.is_not(None))
    )
    return {str(name): agent_id for name, agent_id in rows}


def add_agent(session: Session, caller: Caller, document: AgentDocument) -> tuple[int, list[str]]:
    """Adds an agent with its rules, not shared. Returns its id, and notes about what was left out
    and about its rules.

    Of a provider that the user does not have the name stays. Unknown tools and skills stay: a run offers
    only those that exist.
    """
    notes: list[str] = []

    def provider_id(name: str) -> int | None:
        try:
            return provider_named(session, caller, name, "$.provider").id
        except (NotFound, AmbiguousName):
            note = f"the agent {document.name} lost its provider {name}, which does not exist here"
            if note not in notes:
                notes.append(note)
            return None

    main_id = None if document.provider is None else provider_id(document.provider)
    found = [(provider_id(fallback.provider), fallback.model) for fallback in document.fallbacks]
    fallbacks = [AgentFallback(provider_id=id_, model=model) for id_, model in found if id_ is not None]
    row = new_row(caller, document.name)
    set_fields(row, document.new_agent(main_id, fallbacks))
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
