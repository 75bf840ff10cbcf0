"""Names in task documents and ids in tasks: finds the one for the other, for a caller.

A document names an agent or a provider; here it has an id, and the caller must be allowed to use it.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import AGENTS, agent_named
from luxx.errors import AmbiguousName, LuxxError, NotFound
from luxx.features.tasks.document import TaskDocument, document_of, new_task_of
from luxx.features.tasks.models import NewTask, TaskRow
from luxx.features.tasks.queries import definition_of, step_rows, task_fields
from luxx.infra.field_errors import FieldError
from luxx.providers.queries import provider_name, provider_named


def resolve(session: Session, caller: Caller, document: TaskDocument) -> tuple[NewTask, list[FieldError]]:
    """The task of a document, without what cannot be found, and a problem for each name of that."""
    problems: list[FieldError] = []
    ids: dict[str, int | LuxxError] = {}

    def agent_id_of(name: str, path: str) -> int | None:
        key = name.strip().lower()
        if key not in ids:
            try:
                ids[key] = agent_named(session, caller, name).id
            except (NotFound, AmbiguousName) as error:
                ids[key] = error
        found = ids[key]
        if isinstance(found, LuxxError):
            problems.append(FieldError(path, found.message))
            return None
        return found

    provider_id = None
    if document.provider is not None:
        try:
            provider_id = provider_named(session, caller, document.provider, "$.provider").id
        except (NotFound, AmbiguousName) as error:
            problems.append(FieldError("$.provider", error.message))
    return new_task_of(document, provider_id, agent_id_of), problems


def export(session: Session, caller: Caller, row: TaskRow) -> TaskDocument:
    """The document of a task. Names that the caller may not see any more are left out."""
    steps = [definition_of(step) for step in step_rows(session, row.id)]
    agent_ids = {step.agent_id for step in steps} | {row.agent_id}
    query = select(AgentRow.id, AgentRow.name).where(AgentRow.id.in_(agent_ids), AGENTS.visible_to(caller))
    agents: dict[int, str] = {found.id: found.name for found in session.execute(query)}
    task = NewTask(**task_fields(row), steps=steps)
    agent = None if row.agent_id is None else agents.get(row.agent_id)
    return document_of(task, provider_name(session, caller, row.provider_id), agent, agents)
