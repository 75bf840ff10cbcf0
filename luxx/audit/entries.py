"""What an entry of the audit log says, and writing one in the transaction of the act that it tells of.

Nothing that is a secret has a place in an entry: names of fields, not what was put into them.
"""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import insert
from sqlalchemy.orm import Session

from luxx.audit.models import AuditRow
from luxx.clock import new_id, utc_now
from luxx.store.tables import table_of

MOST_NAMES = 50
"""Most names in a list of an entry's detail."""


MAX_TARGET_ID = 64


class Action(StrEnum):
    """`request`: any other request, and only if it was refused; `tool_call`: a call of a run, likewise.

    `egress`: a host that a program of a tool reached, or was not let to.
    """

    SIGN_IN = "sign_in"
    SIGN_OUT = "sign_out"
    REFRESH = "refresh"
    REGISTER = "register"
    PASSWORD_CHANGE = "password_change"
    PASSWORD_RESET = "password_reset"
    USER_CREATE = "user_create"
    USER_CHANGE = "user_change"
    USER_DELETE = "user_delete"
    TENANT_CREATE = "tenant_create"
    TENANT_CHANGE = "tenant_change"
    TENANT_DELETE = "tenant_delete"
    PROVIDER_CREATE = "provider_create"
    PROVIDER_CHANGE = "provider_change"
    PROVIDER_DELETE = "provider_delete"
    ALLOWED_HOSTS_CHANGE = "allowed_hosts_change"
    RULES_CHANGE = "rules_change"
    MCP_TOOL_APPROVE = "mcp_tool_approve"
    TOOL_CALL = "tool_call"
    EGRESS = "egress"
    REQUEST = "request"


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who did it and from where; a name without an id is the command line's or of somebody unknown."""

    user_id: int | None = None
    tenant_id: int | None = None
    username: str | None = None
    address: str = ""
    request_id: str = ""


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is worth knowing besides; what does not apply is left out.

    `fields` were changed; `kind` is why it was refused; `count` says for how many refusals this stands, or
    how often it was done. `call_id` and `run_id` tell which call did it. `hosts` are told in full where the
    target's id has no room for one, or stands for several.
    """

    name: str | UnsetType = UNSET
    fields: list[str] | UnsetType = UNSET
    permission_level: int | UnsetType = UNSET
    level_before: int | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    tenant_before: int | UnsetType = UNSET
    added: list[str] | UnsetType = UNSET
    removed: list[str] | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    route: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    hosts: list[str] | UnsetType = UNSET


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """`tenant_id`: whom it concerns, if not the actor's own tenant."""

    action: Action
    actor: Actor
    outcome: Outcome = Outcome.DONE
    target_type: str | None = None
    target_id: str | None = None
    tenant_id: int | None = None
    detail: Detail = Detail()


_insert = insert(table_of(AuditRow))
_encode = msgspec.json.Encoder().encode


def record(session: Session, entry: Entry, now: datetime | None = None) -> None:
    """Writes an entry; it is on disk exactly if what it tells of is."""
    actor = entry.actor
    session.connection().execute(
        _insert,
        {
            "id": new_id(),
            "at": now or utc_now(),
            "tenant_id": actor.tenant_id if entry.tenant_id is None else entry.tenant_id,
            "user_id": actor.user_id,
            "username": _cut(actor.username, 64),
            "action": entry.action.value,
            "target_type": _cut(entry.target_type, 40),
            "target_id": _cut(entry.target_id, MAX_TARGET_ID),
            "outcome": entry.outcome.value,
            "detail": _encode(entry.detail).decode(),
            "address": _cut(actor.address, 64),
            "request_id": _cut(actor.request_id, 36),
        },
    )


def _cut(text: str | None, length: int) -> str | None:
    return text[:length] if text else None
