"""The agents that ship with Luxx: `shipped/*.yaml`, stored as rows at each start."""

from importlib.resources import files

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.agents.document import AgentDocument, decode_document
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import BeforeLoss, end_default
from luxx.domain.agents.service import set_fields
from luxx.infra.clock import utc_now
from luxx.infra.store.lost_names import keep_name
from luxx.infra.store.tables import Lock, lock_until_commit

FOLDER = files("luxx.domain.agents").joinpath("shipped")


def shipped_documents() -> dict[str, AgentDocument]:
    """The documents by the names of their files, in alphabetical order."""
    found = sorted(FOLDER.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): decode_document(file.read_text("utf-8")) for file in found}


def store_shipped_agents(session: Session, before_loss: BeforeLoss) -> None:
    """Adds or updates the shipped agents, and deletes those that no longer ship."""
    lock_until_commit(session.connection(), Lock.SHIPPED_AGENTS)
    documents = shipped_documents()
    rows = {
        str(row.shipped_name): row
        for row in session.scalars(select(AgentRow).where(AgentRow.shipped_name.is_not(None)))
    }
    for name in rows.keys() - documents.keys():
        before_loss(session, rows[name], True)
        keep_name(session.connection(), AgentRow, rows[name].id, rows[name].name)
        end_default(session, rows[name])
        session.delete(rows[name])
    now = utc_now()
    for name, document in documents.items():
        row = rows.get(name)
        if row is None:
            row = AgentRow(shipped_name=name, color="", created_at=now, updated_at=now)
            session.add(row)
        set_fields(row, document.new_agent())
        if session.is_modified(row):
            row.updated_at = now
    session.flush()
