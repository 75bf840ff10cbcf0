"""What binds a run from outside its log: the rules of its user and of its conversation's project."""

from sqlalchemy import Connection, bindparam, select

from luxx.accounts.caller import Caller
from luxx.conversations.models import ConversationRow
from luxx.store.tables import table_of
from luxx.tools.rules_rows import read_binding
from luxx.wire.rule import PlacedRule

_conversations = table_of(ConversationRow)
_project = select(_conversations.c.project_id).where(_conversations.c.id == bindparam("conversation_id"))


def rules_for(connection: Connection, caller: Caller, conversation_id: str) -> tuple[PlacedRule, ...]:
    """The permission rules that bind a run of the caller's in this conversation."""
    project_id = connection.execute(_project, {"conversation_id": conversation_id}).scalar()
    return read_binding(connection, caller.tenant_id, caller.user_id, project_id)
