"""Mending what the database says of runs and what is not true: a conversation that names a run as its
active one although that run has ended or is gone."""

from sqlalchemy import Connection, bindparam, null, select

from luxx.conversations.models import ConversationRow
from luxx.runs.models import RunRow
from luxx.store.tables import table_of
from luxx.wire.run import ENDED

_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_active = select(_runs.c.id).where(
    _runs.c.id == _conversations.c.run_id, _runs.c.status.not_in([status.value for status in ENDED])
)
_untrue = select(_conversations.c.id, _conversations.c.run_id).where(
    _conversations.c.run_id.is_not(None), ~_active.exists()
)
_free = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null())
)


def find_untrue(connection: Connection) -> list[tuple[str, str]]:
    """Conversations and the runs that they wrongly name."""
    return [(row.id, row.run_id) for row in connection.execute(_untrue)]


def free(connection: Connection, untrue: list[tuple[str, str]]) -> None:
    """Frees conversations that still name the same run; one that has ended never runs again."""
    for conversation_id, run_id in untrue:
        connection.execute(_free, {"b_id": conversation_id, "b_run": run_id})
