"""What binds a run from outside its log: the rules of its user and of its conversation's project."""

from sqlalchemy import Connection

from luxx.accounts.caller import Caller
from luxx.tools.rules_rows import read_binding
from luxx.wire.rule import PlacedRule


def rules_for(connection: Connection, caller: Caller, conversation_id: str) -> tuple[PlacedRule, ...]:
    """The permission rules that bind a run of the caller's in this conversation."""
    return read_binding(connection, caller.tenant_id, caller.user_id, conversation_id=conversation_id)
